"""A referring task by its commands: annotated boxes of a second store stand behind the others in training alone, and
VL-BERT's published run, from photos and on stored features."""

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from photo_store import FINGERPRINT, draw_record, publish_store, write_shard
from tiny_commands import TINY_ENCODER, Cli, ok, one_line

from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.group_images import RegionChoice
from roibeam.pipelines.finetuning.systems.options import LayoutOptions

NUMBERS = {"train": (1, 2), "val": (3,)}


BOXES = {number: [[4, 5, 24, 23]] for number in (1, 2, 3)}
# Of a store whose regions were proposed, as far as it is told.
PROPOSED = {"regions": json.loads(json.dumps(asdict(SELECTIONS["butd-10-100"])))}


def write_store(folder: Path, *, boxes: dict[int, Any] | None = None, fingerprint: Fingerprint = FINGERPRINT) -> Path:
    """Of the three photos; at the given boxes where some are given."""
    folder.mkdir()
    records = []
    for number in (1, 2, 3):
        record = replace(draw_record(number, 16), image_id=f"COCO_train2014_{number:012}", class_distribution=None)
        if boxes is not None:
            count = len(boxes[number])
            record = replace(
                record, boxes=np.array(boxes[number], np.float32), features=record.features[:count],
                class_ids=record.class_ids[:count], class_scores=record.class_scores[:count],
            )  # fmt: skip
        records.append(record)
    write_shard(folder, 0, iter(records), fingerprint=fingerprint)
    publish_store(folder, [0], fingerprint=fingerprint, config={}, classes=[f"class {each}" for each in range(6)])
    return folder


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A store, one of the annotated boxes, and the data set's files."""
    data, sides = tmp_path / "refcoco+", (4, 5, 20, 18)  # of BOXES
    data.mkdir()
    refs = [
        {"ref_id": number, "ann_id": number, "image_id": number, "category_id": 1, "split": split,
         "sent_ids": [number], "file_name": "x",
         "sentences": [{"sent_id": number, "sent": "it", "raw": "it", "tokens": ["it"]}]}
        for split, numbers in NUMBERS.items() for number in numbers
    ]  # fmt: skip
    (data / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    boxes = [{"id": n, "image_id": n, "bbox": sides, "iscrowd": 0, "category_id": 1} for n in (1, 2, 3)]
    images = [
        {"id": n, "height": draw_record(n, 1).height, "width": draw_record(n, 1).width, "file_name": "x"}
        for n in (1, 2, 3)
    ]
    (data / "instances.json").write_text(json.dumps({"annotations": boxes, "images": images}))
    annotated = write_store(tmp_path / "boxes", boxes=BOXES)
    return write_store(tmp_path / "store"), annotated, data


@pytest.mark.slow
def test_a_second_store_is_needed_in_training(roibeam: Cli, made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Predictions of other splits are the same with and without it."""
    store, annotated, data = made
    task = ("--set", "refcoco+.boxes=stored", "--set", "refcoco+.annotated_in_training=true")
    place = ("--store", store, "--data", data, "--device", "cpu")
    new = ("--task", "refcoco+", "--from", "none", "--system", "vilbert", "--steps", 1)
    run = ("finetune", tmp_path / "run", *new, *place, *task, "--set", "layout.whole_image=all")
    assert "--annotated-store is missing" in one_line(roibeam(*run))
    ok(roibeam(*run, "--annotated-store", annotated))
    asked = ("predict", tmp_path / "run", *place)
    for name, more in (("both", ("--annotated-store", annotated)), ("one", ())):
        ok(roibeam(*asked, "--out", tmp_path / name, *more))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "both").read_bytes()
    refused = one_line(roibeam(*asked, "--out", tmp_path / "train", "--split", "train"))
    assert "--annotated-store is missing" in refused


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Noise, as large as the records say."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in (1, 2, 3):
        record = draw_record(number, 1)
        pixels = np.random.default_rng(number).integers(0, 256, (record.height, record.width, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"COCO_train2014_{number:012}.png"), pixels)
    return folder


@pytest.mark.parametrize("through_the_detector", [False, True])
def test_vl_bert_s_published_run_is_trained_predicted_and_scored(
    roibeam: Cli, made: tuple[Path, Path, Path], photos: Path, tmp_path: Path,
    through_the_detector: bool,
) -> None:  # fmt: skip
    """Small: with the head of its release, and from photos by its own rule of what is right. A store whose regions were
    proposed is noted: the run is of given boxes."""
    _, _, data = made
    proposed = Fingerprint(feature_space_of(PROPOSED), {}, PROPOSED)
    boxes = write_store(tmp_path / "proposed", boxes=BOXES, fingerprint=proposed)
    run, out = tmp_path / "run", tmp_path / "said.json"
    place = ("--store", boxes, "--data", data, "--device", "cpu", "--threads", 1)
    seen = ("--photos", photos) if through_the_detector else ()
    encoder = TINY_ENCODER if through_the_detector else ()
    words = ("--task", "refcoco+", "--recipe", "vlbert-refcoco+-annotated", "--from", "none", "--model", "small")
    done = ok(roibeam("finetune", run, *words, *place, *seen, *encoder, "--steps", 1, "--batch-size", 2))
    noted = f"the annotated boxes of COCO's photos, store {boxes} has 10 to 100 regions (butd-10-100);"
    recorded = json.loads((run / "config.json").read_text())
    assert noted in " ".join(done.err.split()), done.err
    checkpoint = json.loads(next(run.glob("checkpoints/*/model/config.json")).read_text())
    assert checkpoint.get("model", checkpoint)["architectures"] == ["VLBertForReferring"]
    assert recorded["task"]["task_options"]["overlap_in"] == ("input" if through_the_detector else "photo")
    assert roibeam("predict", run, *place, *seen, "--out", out).code == 0
    (said,) = json.loads(out.read_text())
    scored = roibeam("score", "refcoco+", out, "--data", data, "--rules", "vl-bert", "--json")
    last = [json.loads(line) for line in (run / "evaluation.jsonl").open()][-1]
    assert said["sent_id"] == 3 and json.loads(scored.out)["figures"][0]["value"] == last["accuracy"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_box_that_the_store_lacks(roibeam: Cli, made: tuple[Path, Path, Path], tmp_path: Path, split: str) -> None:
    """Of a later image, which no batch has asked for yet."""
    _, boxes, data = made
    content = json.loads((data / "instances.json").read_text())
    content["annotations"][NUMBERS[split][-1] - 1]["bbox"][0] += 1
    (data / "instances.json").write_text(json.dumps(content))
    words = ("--task", "refcoco+", "--recipe", "vlbert-refcoco+-annotated", "--from", "none", "--model", "small")
    place = ("--store", boxes, "--data", data, "--device", "cpu")
    told = one_line(roibeam("finetune", tmp_path / "run", *words, *place, "--steps", 1, "--batch-size", 2))
    assert "no region at 1 of 1 box" in told and not (tmp_path / "run").exists()


def test_a_sentence_that_no_model_is_asked_about_needs_no_record(made: tuple[Path, Path, Path]) -> None:
    group = TaskGroup(id="1", images=("nowhere",), rows=(), target=None, boxes=(((0, 0, 9, 9),),), is_open=False)
    with FeatureStore(made[1]) as store:
        choice = RegionChoice(store, None, LayoutOptions())
        choice.check([group])
        with pytest.raises(KeyError, match="nowhere"):
            choice.check([replace(group, is_open=True)])


def test_measures_in_the_input_need_photos(roibeam: Cli, made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    store, _, data = made
    words = ("finetune", tmp_path / "run", "--task", "refcoco+", "--from", "none", "--system", "vlbert")
    for field, said in (
        ("overlap_in=input", "leave it at photo, or train from photos with --end-to-end"),
        ("image_feature=detected", "on stored features --set layout.whole_image=all"),
    ):
        done = roibeam(*words, "--store", store, "--data", data, "--set", f"refcoco+.{field}")
        assert said in one_line(done) and not (tmp_path / "run").exists()
