"""`roibeam pretrain --end-to-end` as a user runs it: on drawn photos, and with what does not fit."""

from __future__ import annotations

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
from photo_store import CAPTIONS, HEIGHTS_WIDTHS, PhotoStore, image_id, write_photo_store
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, Pictures, ok, one_line
from toy_training import log_of

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask


def make(folder: Path) -> PhotoStore:
    made = write_photo_store(folder, feature_dim=128)
    rows = [f"{caption}\t{image_id(number)}" for number, caption in enumerate(CAPTIONS)]
    captions_of(made).write_text("\n".join(rows) + "\n")
    return made


def captions_of(made: PhotoStore) -> Path:
    return made.path.parent / "captions.tsv"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PhotoStore:
    """Nothing may be written there."""
    return make(tmp_path_factory.mktemp("made"))


@pytest.mark.slow
@pytest.mark.parametrize("with_labels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_are_two_micro_batches(made: PhotoStore, tmp_path: Path, with_labels: bool) -> None:
    """With three labelled photos for four captions, so that one process has two of them and the other one."""
    without_dropout = [f"--set=model.{name}_dropout=0" for name in ("hidden", "attention", "region")]
    tools = Path(sys.executable).parent
    options = ["--system", "vlbert", "--store", made.path, "--captions", captions_of(made), *TINY_ENCODER, *TINY_JOINT]
    options += [*without_dropout, "--batch-size=2", "--device=cpu"]
    names = ["masked_words", "masked_regions", "gradient_norm"]
    if with_labels:
        labels = write_instances(write_labelled(tmp_path / "labelled"), tmp_path / "labelled" / "labels.json")
        options += ["--labels", labels, "--set=labelled.heads=new", "--set=labelled.photos_per_caption=0.75"]
        names += ["detection_objectness", "detection_classes", "detection_region_boxes", "detection_proposal_recall"]
    pair = [tools / "torchrun", "--no-python", "--standalone", "--nproc-per-node", "2"]
    alone = [tools / "roibeam", "pretrain", tmp_path / "alone", *options, "--set=train.accumulation=2"]
    for command in (alone, [*pair, tools / "roibeam", "pretrain", tmp_path / "pair", *options]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("alone", "pair")
    )
    assert [line["samples"] for line in ours] == [line["samples"] for line in theirs] == [4, 8]
    for left, right in zip(ours, theirs, strict=True):
        for name in names:
            assert left[name] == pytest.approx(right[name], rel=1e-4), name


def test_a_run_and_what_becomes_of_missing_photos(roibeam: Cli, tmp_path: Path) -> None:
    made = make(tmp_path)
    options = ("--system", "vlbert", "--store", made.path, "--captions", captions_of(made), *TINY_ENCODER, *TINY_JOINT)
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
    roibeam: Cli, made: PhotoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_labels: bool
) -> None:
    """Its page shows the rows that are trained on first, and changes no step."""
    options: list[object] = ["--store", made.path, "--captions", captions_of(made), *TINY_ENCODER, *TINY_JOINT]
    options += ["--device", "cpu", "--system", "vlbert"]
    if with_labels:
        labels = write_instances(write_labelled(tmp_path / "labelled"), tmp_path / "labelled" / "labels.json")
        options += ["--labels", labels, "--set=labelled.heads=new", "--set=labelled.photos_per_caption=0.75"]
    first: list[EndToEndBatch] = []
    batches = EndToEndTask.batches

    def noted(self: EndToEndTask, *where: Any, **ranks: Any) -> Iterator[EndToEndBatch]:
        for place, batch in enumerate(batches(self, *where, **ranks)):
            first.extend([] if place else [batch])
            yield batch

    monkeypatch.setattr(EndToEndTask, "batches", noted)
    ok(roibeam("pretrain", tmp_path / "run", *options, "--inspect-batch", 3))
    shown, trained = first
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
    assert "reads no .safetensors" in one_line(
        roibeam("convert", folder / "run", folder / "official.safetensors", "--to", "official")
    )
    assert roibeam("convert", folder / "run", folder / "joint", "--to", "roibeam").code == 0
    assert sorted(path.name for path in (folder / "joint").iterdir()) == ["config.json", "model.safetensors"]
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_from_drawn_photos_to_a_run(roibeam: Cli, tmp_path: Path, pictures: Pictures) -> None:
    options = ("--store", pictures.store, "--captions", pictures.captions, *TINY_ENCODER, *TINY_JOINT)
    ok(roibeam("pretrain", tmp_path / "run", *options))


@pytest.mark.parametrize(
    "more", [["end_to_end.masked_pixels=shown"], ["end_to_end.masked_pixels=whole", "model.masked_appearance=learned"]]
)
def test_photos_that_stay_whole(roibeam: Cli, made: PhotoStore, tmp_path: Path, more: list[str]) -> None:
    """VL-BERT with MASK_RAW_PIXELS off: the feature stays beside its token, or a vector of its own stands for it."""
    options = ["--system", "vlbert", "--store", made.path, "--captions", captions_of(made), *TINY_ENCODER, *TINY_JOINT]
    ok(roibeam("pretrain", tmp_path / "run", *options, *[word for setting in more for word in ("--set", setting)]))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert f'"masked_pixels": "{more[0].partition("=")[2]}"' in json.dumps(config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--photos", "{tmp}"], "--photos is for --end-to-end; stored features need no photos"),
        (["--detector", "toy"], "--detector is for --end-to-end"),
        (["--skip-missing-photos"], "--skip-missing-photos is for --end-to-end"),
        (["--set", "photos.flip=false"], "no section 'photos'"),
        (["--end-to-end"], "weights are missing: vg-r101-c4-600 brings none"),
        (["--end-to-end", "--detector", "huge"], "no such folder; choose one of"),
        (["--end-to-end", "--detector", "toy"], "those of record 'photo-0' have 128; name the detector"),
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
    given = ("--store", made.path, "--captions", captions_of(made))
    assert words in one_line(roibeam("pretrain", tmp_path / "run", *given, *TINY_JOINT, *extra))
    assert not (tmp_path / "run" / "log.jsonl").exists()
