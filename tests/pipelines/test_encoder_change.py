"""What a run end to end tells of its region encoder: what it is shown, what of it is trained, how far that moved."""

import base64
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from photo_store import CAPTIONS, PhotoStore, image_id, write_photo_store
from small_files import write_json_lines
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, command, ok

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.training.encoder_change import masking_words

# No gradient reaches the encoder in VL-BERT's first step.
MORE = ("--set", "sampling.region_probability=0.5", "--steps", 3, "--set", "train.schedule=constant",
        "--learning-rate", 0.01)  # fmt: skip
FROZEN = {"stem", "res2", "norms"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PhotoStore:
    """Photos of noise with captions and a table. Nothing may be written there."""
    made = write_photo_store(tmp_path_factory.mktemp("made"), feature_dim=128)
    for split, numbers in (("train", range(6)), ("val", range(6, 8))):
        lines = [{"image": image_id(n), "text": CAPTIONS[n], "label": "ab"[n % 2]} for n in numbers]
        write_json_lines(made.path.parent / "table" / f"{split}.jsonl", lines)
    return made


def words(run: Path, made: PhotoStore, *more: object) -> tuple[object, ...]:
    return ("pretrain", run, "--system", "vlbert", "--store", made.path, "--captions", made.captions, "--device", "cpu",
            *TINY_ENCODER, *TINY_JOINT, *MORE, *more)  # fmt: skip


@pytest.fixture(scope="module")
def ran(made: PhotoStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps. Nothing may be changed there."""
    run = tmp_path_factory.mktemp("runs") / "run"
    command(*words(run, made))
    return run


def encoder_of(done: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok(done).out.splitlines()[-1])["encoder"]
    return found


def moved(found: dict[str, Any]) -> dict[str, float | None]:
    return {each["stage"]: each["moved"] for each in found["stages"]}


def photo_of(run: Path) -> dict[str, Any]:
    photo: dict[str, Any] = json.loads((run / "encoder.json").read_text())["photo"]
    return photo


def test_a_run_shows_what_the_network_reads_and_how_it_moved(roibeam: Cli, made: PhotoStore, tmp_path: Path) -> None:
    """The photo is the network's input: blank under masked boxes alone; page, terminal and --json say the same."""
    run = tmp_path / "run"
    found = encoder_of(roibeam(*words(run, made), "--json"))
    assert {each["stage"] for each in found["stages"] if not each["trained"]} == FROZEN
    far = moved(found)
    assert all(far[stage] == 0 for stage in FROZEN) and all(far[stage] for stage in ("res3", "res4", "res5"))
    assert "blank" in found["masking"] and "its token says that it is masked" in found["masking"]
    photo = photo_of(run)
    assert any(photo["masked"]) and "jpeg" not in str(found)
    height, width = photo["image_hw"]
    jpeg = cv2.imdecode(np.frombuffer(base64.b64decode(photo["jpeg"]), np.uint8), cv2.IMREAD_COLOR)
    shown = cv2.resize(jpeg, (int(width), int(height)), interpolation=cv2.INTER_NEAREST)
    is_blank = np.abs(shown - np.array(CONVENTIONS["vlbert-e2e"].pixel_mean)).max(axis=-1) < 14
    inside = np.zeros(is_blank.shape, bool)
    for (x1, y1, x2, y2), masked in zip(photo["boxes"], photo["masked"], strict=True):
        if masked:
            inside[int(y1) + 3 : int(y2) - 2, int(x1) + 3 : int(x2) - 2] = True
    assert inside.any() and is_blank[inside].mean() > 0.9
    assert is_blank[~inside].mean() < 0.6  # noise is hardly ever grey
    page = (run / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2 and found["masking"].split("(")[0] in page
    assert ("mirrored" in page.partition("<h2>Region encoder")[2].partition("</section>")[0]) == photo["mirrored"]
    done = roibeam(*words(run, made))  # nothing is left to do; what is said stays
    assert f"  res3       trained  {far['res3']:>10.3g}" in done.out and "  stem       frozen            0" in done.out
    assert photo_of(run) == photo


def test_what_goes_on_is_measured_from_its_beginning(roibeam: Cli, made: PhotoStore, ran: Path, tmp_path: Path) -> None:
    whole = encoder_of(roibeam(*words(tmp_path / "whole", made, "--steps", 4), "--json"))
    parts, old, other = (tmp_path / name for name in ("parts", "old", "other"))
    for run in (parts, old, other):
        shutil.copytree(ran, run)
    assert moved(json.loads((parts / "encoder.json").read_text()))["res5"] != moved(whole)["res5"]
    assert encoder_of(roibeam(*words(parts, made, "--steps", 4), "--json")) == whole
    # A folder of before there was the file: its configuration says with which weights it began.
    (old / "encoder.json").unlink()
    assert encoder_of(roibeam(*words(old, made, "--steps", 4), "--json")) == whole
    # One that goes on beside other weights than it began with cannot know.
    found = encoder_of(roibeam(*words(other, made, "--steps", 4, "--weights", "random:2"), "--json"))
    assert set(moved(found).values()) == {None}
    assert "not known" in (other / "report.html").read_text()


def test_a_fine_tuning_run_tells_the_same(roibeam: Cli, made: PhotoStore, ran: Path, tmp_path: Path) -> None:
    """Nothing is masked there, and what it began with is the encoder of the run that it starts from."""
    tuned = ("finetune", tmp_path / "tuned", "--task", "labels", "--from", ran, "--store", made.path,
             "--data", made.path.parent / "table", "--device", "cpu", "--threads", 1, "--batch-size", 3,
             "--end-to-end", "--steps", 2, "--learning-rate", 0.003)  # fmt: skip
    done = ok(roibeam(*tuned))
    assert "No region is masked" in done.out and "  stem       frozen            0" in done.out
    page = (tmp_path / "tuned" / "report.html").read_text()
    assert "No region is masked" in page and page.count("data:image/jpeg;base64,") == 2
    found = json.loads((tmp_path / "tuned" / "encoder.json").read_text())
    assert not any(found["photo"]["masked"]) and found["photo"]["boxes"]
    assert moved(found)["res5"] and moved(found)["norms"] == 0
    again = encoder_of(roibeam(*tuned, "--json"))
    assert moved(again) == moved(found)


@pytest.mark.parametrize(
    ("choices", "config", "said"),
    [
        ({}, {}, "No region is masked"),
        ({}, {"masked_appearance": "none"}, "No region is masked"),
        ({}, {"masked_appearance": "pixels"}, "network's input); the model reads the feature that the encoder makes"),
        ({"blank_pixels": "before_resize"}, {"masked_appearance": "zero"}, "blanked before the photo is resized); in"),
        ({}, {"masked_appearance": "embedding"}, "in place of a masked region's feature and box stands a"),
        (
            {"masked_pixels": "whole"},
            {"masked_appearance": "learned", "masked_region_token": True},
            "shows in regions that overlap it; in place of a masked region's feature stands a learned vector, and its "
            "token says that it is masked.",
        ),
        (
            {"masked_pixels": "shown"},
            {"masked_appearance": "pixels", "masked_region_token": True},
            "a masked region keeps the feature that the encoder makes of it, and its token says that it is masked.",
        ),
    ],
)
def test_masking_is_said_from_what_the_run_resolved(choices: dict[str, str], config: dict[str, Any], said: str) -> None:
    told, none = (
        masking_words(EndToEndChoices(**choices), SimpleNamespace(**config), is_any_masked=each)
        for each in (True, False)
    )
    assert said in told
    is_asked = config.get("masked_appearance", "none") != "none"
    assert ("In the first batch no region is masked." in none) == is_asked
