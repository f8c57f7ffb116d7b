"""`end_to_end.masking`: what a run of `roibeam pretrain --end-to-end` hides of a masked region, by name.

What the two settings behind a name do to features and pixels is held by tests/model/test_end_to_end.py and by the
reference arrays; here is which of them a run has, and what its first batch shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from photo_store import CAPTIONS, PhotoStore, image_id, write_photo_store
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, ok, one_line

from roibeam.model.vlbert.checkpoint import masking_from_official
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask

MOST_REGIONS = ("--set", "sampling.region_probability=0.9")  # are masked
NAMED = {
    ("vlbert", "paper"): ("embedding", "blank"),
    ("vlbert", "release"): ("pixels", "blank"),
    ("vlbert", "feature"): ("learned", "whole"),
    ("imagebert", "paper"): ("zero", "blank"),
    ("vilbert", "release"): ("pixels", "blank"),
    ("vilbert-single-stream", "paper"): ("zero", "blank"),
    ("interbert", "feature"): ("zero", "whole"),
}
RECIPE = ("--recipe", "vlbert-paper", "--toy", "--from-bert", "none", "--tokenizer", "captions", "--end-to-end")
RECIPE_TINY = (*TINY_ENCODER[1:], *TINY_JOINT, "--set", "train.accumulation=1")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Options that name a store with captions. Nothing may be written there."""
    made: PhotoStore = write_photo_store(tmp_path_factory.mktemp("made"), feature_dim=128)
    captions = made.path.parent / "captions.tsv"
    captions.write_text("\n".join(f"{words}\t{image_id(number)}" for number, words in enumerate(CAPTIONS)) + "\n")
    return ("--store", made.path, "--captions", captions, "--device", "cpu")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EndToEndTask, EndToEndBatch]]:
    """Those that are trained on, each with its task."""
    found: list[tuple[EndToEndTask, EndToEndBatch]] = []
    made = EndToEndTask.batches

    def noted(self: EndToEndTask, *where: Any, **ranks: Any) -> Iterator[EndToEndBatch]:
        for batch in made(self, *where, **ranks):
            found.append((self, batch))
            yield batch

    monkeypatch.setattr(EndToEndTask, "batches", noted)
    return found


def pair_of(run: Path) -> tuple[str, str]:
    model = json.loads((run / "config.json").read_text())["task"]["model"]
    return model["model"].get("masked_appearance", "zero"), model["end_to_end"]["masked_pixels"]


def masked_pixels(batch: EndToEndBatch) -> torch.Tensor:
    """Largest absolute value of the network's input inside each masked box."""
    found = []
    for photo, region in batch.rows.masked_regions.nonzero().tolist():
        x1, y1, x2, y2 = (int(edge) for edge in batch.images.boxes[photo, region].tolist())
        found.append(batch.images.pixels[photo, :, y1 : y2 + 1, x1 : x2 + 1].abs().max())
    return torch.stack(found)


@pytest.mark.parametrize(("system", "name"), NAMED)
def test_a_named_masking_is_what_the_first_batch_shows(
    roibeam: Cli, given: tuple[object, ...], batches: list[Any], tmp_path: Path, system: str, name: str
) -> None:
    sizes = TINY_JOINT if system in ("vlbert", "imagebert", "vilbert-single-stream") else TINY_JOINT[:6]
    options = (*given, *TINY_ENCODER, *sizes, *MOST_REGIONS, "--system", system)
    ok(roibeam("pretrain", tmp_path / "run", *options, "--set", f"end_to_end.masking={name}"))
    appearance, pixels = NAMED[system, name]
    assert pair_of(tmp_path / "run") == (appearance, pixels)
    _, batch = batches[0]
    assert len(masked := masked_pixels(batch)) and bool((masked == 0).all()) == (pixels == "blank")
    assert bool(batch.images.blanked_regions.any()) == (pixels == "blank")


def test_the_paper_s_recipe_hides_the_feature_and_the_pixels(
    roibeam: Cli, given: tuple[object, ...], batches: list[Any], tmp_path: Path
) -> None:
    """Section 3.3 of VL-BERT: a learned embedding in place of the region's, its pixels zero. The vector gets a
    gradient, and what the masked boxes show does not reach the model."""
    ok(roibeam("pretrain", tmp_path / "run", *given, *RECIPE, *RECIPE_TINY, *MOST_REGIONS))
    assert pair_of(tmp_path / "run") == ("embedding", "blank")
    task, batch = batches[0]
    assert bool((masked_pixels(batch) == 0).all())
    model = task.model.model
    vector = model.vlbert.masked_region_embedding.weight
    assert vector.requires_grad and model.vlbert.masked_region_token is None
    losses = task.model(batch.rows, batch.images).losses
    (gradient,) = torch.autograd.grad(losses["masked_regions"].mean, vector)
    assert float(gradient.norm()) > 0


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        (["end_to_end.masking=release"], ("pixels", "blank")),
        (["model.masked_appearance=learned"], ("learned", "blank")),
        (["end_to_end.masking=feature", "model.masked_appearance=embedding"], ("embedding", "whole")),
    ],
)
def test_what_a_user_sets_wins_over_the_recipe(
    roibeam: Cli, given: tuple[object, ...], tmp_path: Path, settings: list[str], want: tuple[str, str]
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    ok(roibeam("pretrain", tmp_path / "run", *given, *RECIPE, *RECIPE_TINY, *words))
    assert pair_of(tmp_path / "run") == want


def test_a_run_that_began_otherwise_goes_on_so(roibeam: Cli, given: tuple[object, ...], tmp_path: Path) -> None:
    """Runs of the recipe had "pixels" before its masking was kept; the same command goes on with it, and says so."""
    run, options = tmp_path / "run", (*given, *RECIPE, *RECIPE_TINY)
    assert roibeam("pretrain", run, *options, "--set", "model.masked_appearance=pixels").code == 0
    more = [3 if word == 2 and options[place - 1] == "--steps" else word for place, word in enumerate(options)]
    done = ok(roibeam("pretrain", run, *more))
    assert "goes on as it began, with model.masked_appearance=pixels; vlbert-paper has embedding" in done.err
    assert pair_of(run) == ("pixels", "blank") and (run / "checkpoints" / "step-00000003").is_dir()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*TINY_ENCODER, "--system", "visualbert", "--set", "end_to_end.masking=paper"), "VisualBERT masks no regions"),
        (
            (*TINY_ENCODER, "--system", "vlbert", "--set", "end_to_end.masking=papers"),
            "--set end_to_end.masking=papers: ",
        ),
        (("--system", "vlbert", "--set", "end_to_end.masking=paper"), "no section 'end_to_end'"),
        (("--system", "vlbert", "--set", "model.masked_appearance=pixels"), "they hold the answer; add --end-to-end"),
        (("--system", "vilbert", "--set", "model.masked_appearance=pixels"), "they hold the answer; add --end-to-end"),
    ],
)
def test_what_a_mode_cannot_do_is_refused(
    roibeam: Cli, given: tuple[object, ...], tmp_path: Path, options: tuple[object, ...], words: str
) -> None:
    assert words in one_line(roibeam("pretrain", tmp_path / "run", *given, *TINY_JOINT[:6], *options))


def test_official_options_have_the_same_names() -> None:
    """jackroos/VL-BERT: the multi-task class puts a vector in the place of a feature; the other one nothing."""
    assert masking_from_official({}, "pretrain") == ("pixels", "blank")
    assert masking_from_official({"MASK_RAW_PIXELS": True}, "pretrain-multitask") == ("pixels", "blank")
    assert masking_from_official({"MASK_RAW_PIXELS": False}, "pretrain-multitask") == ("learned", "whole")
    assert masking_from_official({"MASK_RAW_PIXELS": False}, "pretrain") == ("pixels", "shown")
