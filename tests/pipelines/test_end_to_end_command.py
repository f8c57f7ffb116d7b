"""`roibeam pretrain --end-to-end` as a user runs it: on drawn photos, with each kind of masking, and with what does
not fit."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from labelled_world import write_instances, write_labelled
from photo_store import CAPTIONS, HEIGHTS_WIDTHS, PhotoStore, write_photo_store
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, Pictures, ok, one_line
from toy_training import log_of

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.checkpoint import masking_from_official
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask

Options = tuple[object, ...]


@pytest.fixture
def given(made: PhotoStore) -> Options:
    """Options that name the store."""
    return ("--store", made.path, "--captions", made.captions, "--device", "cpu")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EndToEndTask, EndToEndBatch]]:
    """Those that are taken, each with its task."""
    found: list[tuple[EndToEndTask, EndToEndBatch]] = []
    made = EndToEndTask.batches

    def noted(self: EndToEndTask, *where: Any, **ranks: Any) -> Iterator[EndToEndBatch]:
        for batch in made(self, *where, **ranks):
            found.append((self, batch))
            yield batch

    monkeypatch.setattr(EndToEndTask, "batches", noted)
    return found


def labels_in(folder: Path, with_labels: bool) -> Options:
    """Options of a run with labelled photos, three for four captions; none without."""
    if not with_labels:
        return ()
    labels = write_instances(write_labelled(folder / "labelled"), folder / "labelled" / "labels.json")
    return ("--labels", labels, "--set=labelled.heads=new", "--set=labelled.photos_per_caption=0.75")


@pytest.mark.slow
@pytest.mark.parametrize("with_labels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_are_two_micro_batches(given: Options, tmp_path: Path, with_labels: bool) -> None:
    """With three labelled photos for four captions, so that one process has two of them and the other one."""
    without_dropout = [f"--set=model.{name}_dropout=0" for name in ("hidden", "attention", "region")]
    tools = Path(sys.executable).parent
    options = [*given, "--system", "vlbert", *TINY_ENCODER, *TINY_JOINT, *without_dropout, "--batch-size=2"]
    options += labels_in(tmp_path, with_labels)
    names = ["masked_words", "masked_regions", "gradient_norm"]
    if with_labels:
        names += ["detection_objectness", "detection_classes", "detection_region_boxes", "detection_proposal_recall"]
    pair = [tools / "torchrun", "--no-python", "--standalone", "--nproc-per-node", "2"]
    alone = [tools / "roibeam", "pretrain", tmp_path / "alone", *options, "--set=train.accumulation=2"]
    for command in (alone, [*pair, tools / "roibeam", "pretrain", tmp_path / "pair", *options]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    logs = (tmp_path / name / "log.jsonl" for name in ("alone", "pair"))
    ours, theirs = ([json.loads(line) for line in log.open()] for log in logs)
    assert [line["samples"] for line in ours] == [line["samples"] for line in theirs] == [4, 8]
    for left, right in zip(ours, theirs, strict=True):
        for name in names:
            assert left[name] == pytest.approx(right[name], rel=1e-4), name


def test_a_run_and_what_becomes_of_missing_photos(roibeam: Cli, tmp_path: Path) -> None:
    made = write_photo_store(tmp_path, feature_dim=128)
    options = ("--system", "vlbert", "--store", made.path, "--captions", made.captions, *TINY_ENCODER, *TINY_JOINT)
    done = ok(roibeam("pretrain", tmp_path / "run", *options, "--json"))
    facts = json.loads(done.out)
    assert facts["step"] == 2 and facts["left_out_photos"] == {} and facts["evaluation"]["masked_words"] > 0
    assert "the largest batch, 4 photos of" in done.err
    assert facts["started_from"] == "new weights" and facts["region_encoder_started_from"].startswith("new weights (")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "region encoder started from" in page and facts["region_encoder_started_from"] in page
    _ask(roibeam, made, tmp_path)
    moved = tmp_path / "moved"
    made.photos.rename(moved)
    assert "--photos" in one_line(roibeam("pretrain", tmp_path / "other", *options))
    (moved / "photo-2.png").write_bytes(b"no photo")
    refused = one_line(roibeam("pretrain", tmp_path / "other", *options, "--photos", moved))
    assert "photo-2.png: not an image" in refused and "--skip-missing-photos" in refused
    done = ok(roibeam("pretrain", tmp_path / "third", *options, "--photos", moved, "--skip-missing-photos"))
    assert "1 image left out, such as 'photo-2'" in done.out


# Photos with labels in a batch: test_joint_detector_run trains on them, test_batch_page shows one.
@pytest.mark.parametrize("with_labels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_first_batch_can_be_looked_at(
    roibeam: Cli, given: Options, batches: list[Any], tmp_path: Path, with_labels: bool
) -> None:
    """Its page shows the rows that are trained on first, and changes no step."""
    options = [*given, *TINY_ENCODER, *TINY_JOINT, "--system", "vlbert", *labels_in(tmp_path, with_labels)]
    ok(roibeam("pretrain", tmp_path / "run", *options, "--inspect-batch", 3))
    (_, shown), (_, trained), *_ = batches
    names = trained.rows.sample_ids
    assert shown.rows.sample_ids == names and torch.equal(shown.rows.region_boxes, trained.rows.region_boxes)
    page = (tmp_path / "run" / "batch.html").read_text()
    sections = [part.partition("</section>")[0] for part in page.split("<section>")[1:]]
    assert [re.findall("<h2><bdi>(.*?)</bdi>", section) for section in sections] == [[name] for name in names[:3]]
    for row, (name, section) in enumerate(zip(names, sections, strict=False)):
        number = int(name.removeprefix("photo-"))
        height, width = HEIGHTS_WIDTHS[number]
        assert f'viewBox="0 0 {width} {height}"' in section
        pieces = int(trained.rows.text_mask[row].sum())
        regions = 3 + number % 6  # of the store
        assert f"sequence: text {pieces}, whole image, regions {regions}, end" in section
        for x1, y1, *_ in trained.rows.region_boxes[row, trained.rows.region_mask[row]].tolist():
            assert f' x="{x1:.1f}" y="{y1:.1f}"' in section
        assert "data:image/jpeg;base64," in section  # the photo, as the encoder reads it
        texts = [CAPTIONS[number], swap_left_right(CAPTIONS[number])]
        assert restored(section) in [text.split() for text in texts]
    counted = dict(re.findall(r"<dt>([^<]*): counted</dt><dd>([^<]*)</dd>", page))
    assert counted["masked words"] == f"{int((trained.rows.text_labels != IGNORE_INDEX).sum())}"
    assert ("detection classes" in counted) == with_labels
    assert roibeam("pretrain", tmp_path / "unseen", *options).code == 0
    assert not (tmp_path / "unseen" / "batch.html").exists()
    logs = [log_of(tmp_path / name) for name in ("run", "unseen")]
    assert logs[0] == logs[1]


def restored(section: str) -> list[str]:
    """The words of a row before anything was hidden: behind what is shown for a piece stands in bold what it was."""
    pieces = re.findall(r'<span class="piece[^>]*>(?:[^<]*<b>)?([^<]*)', section)
    return " ".join(pieces).replace(" ##", "").split()[1:-1]  # without [CLS] and [SEP]


def _ask(roibeam: Cli, made: PhotoStore, folder: Path) -> None:
    """The run answers on a photo, and becomes a file of the official code."""
    asked = ("probe", folder / "run", "photo-1", "two [MASK] on the left", "--out", folder / "probe.svg")
    asked += ("--store", made.path)
    assert "run reads photos: add --photo, that of the record 'photo-1'" in one_line(roibeam(*asked))
    done = ok(roibeam(*asked, "--photo", made.photo("photo-1"), "--json"))
    facts = json.loads(done.out)
    assert len(facts["words"]) == 1 and len(facts["regions"]) == 4 and not facts["regions_remark"]
    done = ok(roibeam("convert", folder / "run", folder / "official.pth", "--to", "official"))
    assert "VLBertForPreTraining" in done.out and (folder / "official.pth").is_file()
    refused = roibeam("convert", folder / "run", folder / "official.safetensors", "--to", "official")
    assert "reads no .safetensors" in one_line(refused)
    ok(roibeam("convert", folder / "run", folder / "joint", "--to", "roibeam"))
    assert sorted(path.name for path in (folder / "joint").iterdir()) == ["config.json", "model.safetensors"]
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_from_drawn_photos_to_a_run(roibeam: Cli, tmp_path: Path, pictures: Pictures) -> None:
    options = ("--store", pictures.store, "--captions", pictures.captions, *TINY_ENCODER, *TINY_JOINT)
    ok(roibeam("pretrain", tmp_path / "run", *options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--photos", "{tmp}"], "--photos is for --end-to-end; stored features need no photos"),
        (["--detector", "toy"], "--detector is for --end-to-end"),
        (["--skip-missing-photos"], "--skip-missing-photos is for --end-to-end"),
        (["--set", "photos.flip=false"], "no section 'photos'"),
        (["--end-to-end"], "weights are missing: vg-r101-c4-600 brings none"),
        (["--end-to-end", "--detector", "huge"], "no such folder; there are toy"),
        (["--end-to-end", "--detector", "toy"], "those of record 'photo-0' have 128; name the --detector"),
        ([*TINY_ENCODER, "--photos", "{tmp}/nowhere"], "no such file or folder: --photos"),
        ([*TINY_ENCODER, "--weights", "{tmp}/none.pth"], "none.pth"),
        ([*TINY_ENCODER, "--set", "end_to_end.blank_pixels=never"], "must be one of 'after_resize', 'before_resize'"),
        ([*TINY_ENCODER, "--set", "end_to_end.masked_pixels=whole"], "set masked_pixels='blank'"),
        ([*TINY_ENCODER, "--set", "encoder.frozen_stages=[9]"], "frozen_stages has [9]"),
        ([*TINY_ENCODER, "--set", "photos.short_edges=[4]"], "short_edges must be pixels, 16 or more"),
    ],
)
def test_user_errors_are_one_clear_line(
    roibeam: Cli, made: PhotoStore, tmp_path: Path, options: list[Any], words: str
) -> None:
    extra = [str(option).format(tmp=tmp_path) for option in options]
    given = ("--store", made.path, "--captions", made.captions)
    assert words in one_line(roibeam("pretrain", tmp_path / "run", *given, *TINY_JOINT, *extra))
    assert not (tmp_path / "run" / "log.jsonl").exists()


# --- what is hidden of a masked region, by the name in `end_to_end.masking` ---

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
TOKEN = ("model.masked_appearance=pixels", "model.masked_region_token=true")  # a masked region is known by it
RECIPE_TINY = (*TINY_ENCODER[1:], *TINY_JOINT, "--set", "train.accumulation=1")


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
    roibeam: Cli, given: Options, batches: list[Any], tmp_path: Path, system: str, name: str
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
    roibeam: Cli, given: Options, batches: list[Any], tmp_path: Path
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
        # VL-BERT with MASK_RAW_PIXELS off: the feature stays beside its token, or a vector of its own stands for it.
        ([*TOKEN, "end_to_end.masked_pixels=shown"], ("pixels", "shown")),
        (["end_to_end.masked_pixels=whole", "model.masked_appearance=learned"], ("learned", "whole")),
    ],
)
def test_what_a_user_sets_wins_over_the_recipe(
    roibeam: Cli, given: Options, tmp_path: Path, settings: list[str], want: tuple[str, str]
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    ok(roibeam("pretrain", tmp_path / "run", *given, *RECIPE, *RECIPE_TINY, *words))
    assert pair_of(tmp_path / "run") == want


def test_a_run_that_began_otherwise_goes_on_so(roibeam: Cli, given: Options, tmp_path: Path) -> None:
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
        ((*TINY_ENCODER, "--system", "vlbert", "--set", "end_to_end.masking=papers"), "end_to_end.masking=papers: "),
        (("--system", "vlbert", "--set", "end_to_end.masking=paper"), "no section 'end_to_end'"),
        (("--system", "vlbert", "--set", "model.masked_appearance=pixels"), "they hold the answer; add --end-to-end"),
        (("--system", "vilbert", "--set", "model.masked_appearance=pixels"), "they hold the answer; add --end-to-end"),
    ],
)
def test_what_a_mode_cannot_do_is_refused(
    roibeam: Cli, given: Options, tmp_path: Path, options: Options, words: str
) -> None:
    assert words in one_line(roibeam("pretrain", tmp_path / "run", *given, *TINY_JOINT[:6], *options))


def test_official_options_have_the_same_names() -> None:
    """jackroos/VL-BERT: the multi-task class puts a vector in the place of a feature; the other one nothing."""
    assert masking_from_official({}, "pretrain") == ("pixels", "blank")
    assert masking_from_official({"MASK_RAW_PIXELS": True}, "pretrain-multitask") == ("pixels", "blank")
    assert masking_from_official({"MASK_RAW_PIXELS": False}, "pretrain-multitask") == ("learned", "whole")
    assert masking_from_official({"MASK_RAW_PIXELS": False}, "pretrain") == ("pixels", "shown")
