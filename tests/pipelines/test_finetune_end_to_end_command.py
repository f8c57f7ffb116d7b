"""`roibeam finetune --end-to-end` and predictions of such a run by their commands, and what is refused in one line."""

import json
import shutil
from pathlib import Path

import pytest
from photo_groups import write_outlines
from photo_store import PhotoStore, image_id, write_photo_store
from small_files import write_text
from test_vcr_command import figures, last_evaluation, write_vcr
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, command, ok, one_line, tiny_run

from roibeam.features.shard.manifest import LOCATIONS_NAME


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PhotoStore:
    """With a table beside the store, outlines beside the photos. Nothing may be changed there."""
    made = write_photo_store(tmp_path_factory.mktemp("made"), feature_dim=128)
    write_outlines(made)
    for split, numbers in (("train", range(6)), ("val", range(6, 8))):
        rows = [f"row {n},{image_id(n)},a {('red', 'blue')[n % 2]} thing,{'rb'[n % 2]}\n" for n in numbers]
        write_text(table_of(made) / f"{split}.csv", "id,image,text,label\n" + "".join(rows))
    return made


def table_of(made: PhotoStore) -> Path:
    return made.path.parent / "table"


@pytest.fixture(scope="module")
def runs(made: PhotoStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pre-training on stored features and end to end, a fine-tuning run from photos. Nothing may be changed there."""
    folder = tmp_path_factory.mktemp("runs")
    given = ("--system", "vlbert", "--store", made.path, "--captions", made.captions, "--device", "cpu")
    command("pretrain", folder / "stored", *given, *tiny_run(1))
    command("pretrain", folder / "pixels", *given, *TINY_ENCODER, *TINY_JOINT)
    command(*words(folder / "tuned", folder / "pixels", made, "--end-to-end", "--steps", 10, "--learning-rate", 0.003))
    return folder


def words(out: Path, start: Path, made: PhotoStore, *more: object, task: str = "labels") -> tuple[object, ...]:
    return (
        "finetune", out, "--task", task, "--from", start, "--store", made.path, "--data", table_of(made),
        "--device", "cpu", "--threads", 1, "--batch-size", 3, *more,
    )  # fmt: skip


def test_a_task_learned_from_photos_is_predicted_and_scored(
    roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path
) -> None:
    """What the evaluation measured is what the predictions score; the checkpoint has the encoder."""
    out = tmp_path / "said.jsonl"
    given = ("--store", made.path, "--data", table_of(made), "--device", "cpu", "--threads", 1, "--batch-size", 3)
    ok(roibeam("predict", runs / "tuned", *given, "--out", out))
    scored = roibeam("score", "labels", out, "--data", table_of(made), "--json")
    figure, *_ = json.loads(scored.out)["figures"]
    lines = [json.loads(line) for line in (runs / "tuned" / "evaluation.jsonl").open()]
    assert figure["value"] == lines[-1]["accuracy"] == 1.0
    config = json.loads((sorted((runs / "tuned" / "checkpoints").iterdir())[-1] / "model" / "config.json").read_text())
    assert config["end_to_end"]["whole_image"] == "box" and config["region_encoder"]["frozen_stages"] == [1, 2]
    assert roibeam("predict", runs / "tuned", *given, "--out", tmp_path / "blind", "--blind").code == 0
    moved = Path(shutil.copytree(made.photos, tmp_path / "moved"))
    ok(roibeam("predict", runs / "tuned", *given, "--out", tmp_path / "again", "--photos", moved))
    assert (tmp_path / "again").read_text() == out.read_text()
    (moved / "photo-7.png").unlink()
    refused = one_line(roibeam("predict", runs / "tuned", *given, "--out", tmp_path / "no", "--photos", moved))
    assert "1 image of 2 without a photo, such as 'photo-7'" in refused and not (tmp_path / "no").exists()


@pytest.mark.parametrize("beside", [("object_loss=shown",), ("object_loss=masked", "hidden_words=0.3")])
def test_vcr_is_learned_from_photos_beside_its_objects_and_words(
    roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path, beside: tuple[str, ...]
) -> None:
    """The first batch is tried with all that is learned; every loss is in the log; predictions read the photos."""
    data, run, out = write_vcr(tmp_path / "vcr", made.path), tmp_path / "run", tmp_path / "said.csv"
    given = list(words(run, runs / "pixels", made, "--end-to-end", "--steps", 2, task="vcr"))
    given[given.index(table_of(made))] = data
    ok(roibeam(*given, *(word for each in beside for word in ("--set", f"vcr.{each}"))))
    last = [json.loads(line) for line in (run / "log.jsonl").open()][-1]
    parts = [last[name] for name in ("task", "region_classes", "masked_words") if name in last]
    assert len(parts) == 1 + len(beside) and sum(parts) == pytest.approx(last["loss"])
    encoder = json.loads((run / "encoder.json").read_text())
    is_masked = "object_loss=masked" in beside
    assert ("No region is masked" in encoder["masking"]) == (not is_masked) and encoder["photo"]["boxes"]
    assert is_masked or not any(encoder["photo"]["masked"])
    given = ["predict", run, "--store", made.path, "--data", data, "--out", out, "--device", "cpu", "--batch-size", 3]
    assert roibeam(*given).code == 0
    assert figures(roibeam, out, data) == last_evaluation(run)


def test_visualberts_recipe_of_vcr_makes_its_own_regions(roibeam: Cli, made: PhotoStore, tmp_path: Path) -> None:
    """Weights are all that is named of R2C's encoder, here of a smaller one; nothing differs from the published run
    but its start, and predictions are made of the same regions."""
    data, run, out = write_vcr(tmp_path / "vcr", made.path), tmp_path / "run", tmp_path / "said.csv"
    sizes = ("detector.depth=26", "detector.base_channels=8", "detector.short_edge=48", "detector.long_edge=96")
    given = ("--store", made.path, "--data", data, "--device", "cpu", "--batch-size", 4)
    done = ok(roibeam(
        "finetune", run, "--task", "vcr", "--recipe", "visualbert-vcr-answer", "--from", "none", "--model", "small",
        "--end-to-end", "--weights", "random:1", "--steps", 1, "--threads", 1, *given,
        *(word for each in sizes for word in ("--set", each)),
    ))  # fmt: skip
    assert "The paper has 70.8 (VCR, Q-&gt;A, val; Table 4)" in (run / "report.html").read_text()
    (checkpoint,) = (run / "checkpoints").iterdir()
    config = json.loads((checkpoint / "model" / "config.json").read_text())
    encoder, choices = config["region_encoder"], config["end_to_end"]
    assert (encoder["mask_channels"], encoder["frozen_stages"]) == (32, [])
    assert encoder["conventions"]["region_pool"] == "roi-align-0" and choices["whole_image"] == "model"
    assert '"num_region_classes": 81' in json.dumps(config)
    notes = [line for line in done.err.splitlines() if "published run" in line]
    assert len(notes) == 1 and "starts from a pre-trained model, this one from new weights" in notes[0]
    assert roibeam("predict", run, "--out", out, *given).code == 0
    assert figures(roibeam, out, data) == last_evaluation(run)


def test_an_encoder_for_a_model_of_stored_features(roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path) -> None:
    """The command again goes on where it was; another setting of the photos is another run."""
    given = words(tmp_path / "run", runs / "stored", made, *TINY_ENCODER, "--steps", 2)
    ok(roibeam(*given))
    assert "all 2 steps are there already" in ok(roibeam(*given)).out
    refused = one_line(roibeam(*given, "--set", "photos.flip=false"))
    assert "belongs to another configuration" in refused and "photos" in refused


def test_what_was_tuned_from_photos_learns_more(roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path) -> None:
    """Model, head and region encoder: before its first step the next run measures what the first one ended with."""
    done = ok(roibeam(*words(tmp_path / "run", runs / "tuned", made, "--end-to-end", "--steps", 1)))
    origin = f"{runs / 'tuned'}/checkpoints/step-00000010/model (step 10 of the run {runs / 'tuned'})"
    assert f"started from {origin}" in done.out and f"region encoder started from {origin}" in done.out
    assert (tmp_path / "run" / "report.html").read_text().count(origin) == 2
    assert "the model learned labels before: its head goes on too" in done.err
    first = json.loads((tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()[0])
    assert first.items() >= {"step": 0, **last_evaluation(runs / "tuned")}.items()


@pytest.mark.parametrize(
    ("start", "more", "says"),
    [
        ("stored", ("--photos", "."), "--photos is for --end-to-end"),
        ("stored", ("--detector", "toy"), "--detector is for --end-to-end"),
        ("stored", ("--end-to-end",), "weights are missing"),
        ("stored", ("--end-to-end", "--detector", "toyy"), "did you mean toy"),
        ("stored", ("--end-to-end", "--detector", "toy"), "features of width 128"),
        ("stored", (*TINY_ENCODER, "--set", "photos.flp=true"), "photos has no field 'flp'; did you mean flip"),
        ("stored", (*TINY_ENCODER, "--photos", "gone"), "no such file or folder: --photos 'gone'"),
        ("pixels", (), "was trained end to end: its encoder goes on with it, --end-to-end"),
        ("pixels", ("--end-to-end", "--detector", "toy"), "brings its region encoder; leave it out"),
        ("tuned", (), "was trained end to end: its encoder goes on with it, --end-to-end"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_one_line(
    roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path, start: str, more: tuple[object, ...], says: str
) -> None:
    done = roibeam(*words(tmp_path / "new", runs / start, made, *more))
    assert done.code == 1 and says in one_line(done)
    assert not (tmp_path / "new" / "checkpoints").exists()


def test_unnamed_photos_and_photos_of_others(roibeam: Cli, made: PhotoStore, runs: Path, tmp_path: Path) -> None:
    """A store may not record its photos; others of another size are not those that its boxes are of."""
    command("store", "copy", made.path, tmp_path / "copy")
    (tmp_path / "copy" / LOCATIONS_NAME).unlink()
    given = words(tmp_path / "new", runs / "pixels", made, "--end-to-end", "--steps", 1)
    given = tuple(tmp_path / "copy" if each == made.path else each for each in given)
    assert "does not record where its photos are; name their folder with --photos" in one_line(roibeam(*given))
    others = tmp_path / "others"
    others.mkdir()
    for number in range(8):
        shutil.copy(made.photo(image_id(number - 1 if number else 7)), others / f"{image_id(number)}.png")
    assert "its boxes would cut out other things" in one_line(roibeam(*given, "--photos", others))
    asked = ("--store", tmp_path / "copy", "--data", table_of(made), "--out", tmp_path / "said")
    assert "does not record where its photos are" in one_line(roibeam("predict", runs / "tuned", *asked))
    stored = roibeam("predict", runs / "stored", *asked, "--photos", others)
    assert "is no run of roibeam finetune" in one_line(stored)
