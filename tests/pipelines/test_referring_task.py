"""Referring expressions as groups: which candidates, in which order, what is right, what is written and scored."""

import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness.finetuning.prepared_photos import candidate_targets, image_feature, prepare_candidates
from tiny_commands import Cli

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.record_regions import regions_at_boxes
from roibeam.pipelines.finetuning.metrics.measure import write_entries
from roibeam.pipelines.finetuning.metrics.referring import (
    BOX_RULES,
    BY_REFERENCE,
    BY_SENTENCE,
    read_referring_results,
    referring_measures,
    result_entry,
)
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.scored_tasks import check_data_set
from roibeam.pipelines.finetuning.task import check_best_by
from roibeam.pipelines.finetuning.tasks.referring import (
    ANNOTATED,
    DETECTED,
    WHOLE,
    ReferringFiles,
    ReferringOptions,
    candidates_for,
    chosen_boxes,
    joined_candidates,
    mirrored_group,
    missed_objects,
    open_referring,
    read_referring,
    referring_groups,
    referring_scores,
    stored_regions,
)

# Photo 5: 100 x 60, two objects and a crowd, two detections. Photo 6: one object, nothing detected.
BOXES = {50: (5, [10.0, 10, 20, 20]), 51: (5, [50.0, 20, 30, 30]), 52: (5, [0.0, 0, 90, 50]), 60: (6, [1.0, 2, 3, 4])}
DETECTIONS = [(5, [11.0, 10, 20, 20]), (5, [90.0, 40, 15, 15])]


class Said:
    """What a model says to a group."""

    def __init__(self, scores: list[float], boxes: np.ndarray | None) -> None:
        self.scores, self.boxes = np.array(scores, np.float32), boxes


def sentence(number: int, text: str, raw: str) -> dict[str, Any]:
    return {"sent_id": number, "sent": text, "raw": raw, "tokens": text.split()}


def ref(ref_id: int, ann_id: int, split: str, *sentences: dict[str, Any]) -> dict[str, Any]:
    return {
        "ref_id": ref_id, "ann_id": ann_id, "image_id": BOXES[ann_id][0], "split": split, "sentences": list(sentences)
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set under its official names. Read only."""
    folder = tmp_path_factory.mktemp("refcoco+")
    refs = [
        ref(1, 50, "train", sentence(0, "left man", "Left man!"), sentence(1, "man in red", "man in red")),
        ref(2, 51, "val", sentence(2, "other man", "other man")),
        ref(3, 60, "val", sentence(3, "dog", "dog")),
    ]
    (folder / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    annotations = [
        {"id": number, "image_id": image, "bbox": box, "iscrowd": int(number == 52)}
        for number, (image, box) in BOXES.items()
    ]
    images = [{"id": 5, "width": 100, "height": 60}, {"id": 6, "width": 30, "height": 40}]
    (folder / "instances.json").write_text(json.dumps({"images": images, "annotations": annotations}), "utf-8")
    (folder / "proposal").mkdir()
    found = [{"image_id": number, "box": box, "det_id": place} for place, (number, box) in enumerate(DETECTIONS)]
    (folder / "proposal" / "res101_coco_minus_refer_notime_dets.json").write_text(json.dumps(found), "utf-8")
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> ReferringFiles:
    return read_referring(folder, "refcoco+", ReferringOptions())


def xyxy(*boxes: list[float]) -> np.ndarray:
    return np.array([[x, y, x + w, y + h] for x, y, w, h in boxes], np.float32).reshape(-1, 4)


def test_a_sentence_is_a_group_with_the_annotated_box_as_its_target(files: ReferringFiles) -> None:
    groups = referring_groups(files, "train", ReferringOptions(text="raw"))
    assert [group.id for group in groups] == ["0", "1"]
    assert groups[0].images == ("COCO_train2014_000000000005",)
    assert groups[0].rows[0].parts[0].text == "Left man!"
    np.testing.assert_array_equal(groups[0].target, xyxy(BOXES[50][1])[0])
    assert groups[0].boxes[0] is groups[1].boxes[0]  # of one photo


@pytest.mark.parametrize(
    ("split", "fields", "expected"),
    [
        ("train", {"boxes": "annotated"}, [50, 51]),
        ("train", {"boxes": "annotated", "crowds": True}, [50, 51, 52]),
        ("train", {}, ["d0", "d1"]),
        ("train", {"annotated_in_training": True}, ["d0", "d1", 50, 51]),
        ("val", {"annotated_in_training": True}, ["d0", "d1"]),
        ("train", {"whole_image": "size"}, ["100x60", "d0", "d1"]),
        ("train", {"whole_image": "last_pixel"}, ["99x59", "d0", "d1"]),
        # Too many: detections go first, so that what is meant stays; or whatever is last, as a release does.
        ("train", {"annotated_in_training": True, "max_boxes": 3}, ["d0", 50, 51]),
        ("train", {"annotated_in_training": True, "max_boxes": 3, "too_many": "last"}, ["d0", "d1", 50]),
        ("train", {"annotated_in_training": True, "max_boxes": 1, "whole_image": "size"}, ["100x60"]),
    ],
)
def test_candidates(files: ReferringFiles, split: str, fields: dict[str, Any], expected: list[Any]) -> None:
    options = ReferringOptions(**fields)
    group = referring_groups(files, split, options)[0]
    boxes = {f"d{place}": box for place, (_, box) in enumerate(DETECTIONS)} | {n: box for n, (_, box) in BOXES.items()}
    boxes |= {"100x60": [0.0, 0, 100, 60], "99x59": [0.0, 0, 99, 59]}
    found = candidates_for(group, options)
    np.testing.assert_array_equal(found.boxes, xyxy(*(boxes[name] for name in expected)))
    np.testing.assert_array_equal(group.boxes[0], found.boxes[found.kinds != WHOLE])


def test_candidates_of_a_store_stand_before_the_annotated_ones(files: ReferringFiles) -> None:
    options = ReferringOptions(boxes="stored", annotated_in_training=True, whole_image="size", max_boxes=4)
    group = referring_groups(files, "train", options)[0]
    stored = xyxy([1, 1, 5, 5], [2, 2, 5, 5], [3, 3, 5, 5])
    found = candidates_for(group, options, stored)
    assert found.kinds.tolist() == [WHOLE, DETECTED, ANNOTATED, ANNOTATED]
    assert found.numbers.tolist() == [0, 0, 0, 1]
    np.testing.assert_array_equal(found.regions, np.concatenate([stored[:1], xyxy(BOXES[50][1], BOXES[51][1])]))
    with pytest.raises(ValueError, match="no boxes of the store were given"):
        candidates_for(group, options)
    with pytest.raises(ValueError, match="6 candidates, 2 of them annotated, and max_boxes is 5"):
        candidates_for(group, replace(options, max_boxes=5, too_many="refuse"), stored)
    # They are left to the layout, but for a limit.
    options = ReferringOptions(boxes="stored", whole_image="size", max_boxes=3)
    (group, *_) = referring_groups(files, "val", options)
    assert not len(group.boxes) and group.whole_image is not None
    assert stored_regions(group, stored, options).tolist() == [0, 1]


def test_a_mirrored_photo_changes_left_and_right_in_the_text_and_boxes_with_the_pixels(files: ReferringFiles) -> None:
    options = ReferringOptions(whole_image="last_pixel", overlap_in="input")
    group = referring_groups(files, "train", options)[0]
    assert mirrored_group(group, options).rows[0].parts[0].text == "right man"
    assert mirrored_group(group, replace(options, swap_sides=False)) is group
    pixels = np.zeros((60, 100, 3), np.uint8)
    config, conventions = DetectorConfig(short_edge=120, long_edge=200), CONVENTIONS["vlbert-e2e"]
    boxes = candidates_for(group, options).boxes
    plain, turned = (
        prepare_candidates(pixels, boxes, group.target, config, conventions, flip=flip) for flip in (False, True)
    )
    assert plain.right.tolist() == [20, 20, 60, 60]
    assert turned.right.tolist() == [139, 20, 179, 60]  # x' = W - 1 - x
    assert plain.photo.boxes[0].tolist() == [0, 0, 198, 118]
    assert turned.photo.boxes[0].tolist() == [1, 0, 199, 118]  # the whole photo no longer starts at 0
    assert plain.photo.boxes[2].tolist() == [180, 80, 199, 110]  # clamped to the photo
    assert len(plain.photo.boxes) == len(boxes)  # the right one stands apart
    for each in (plain, turned):
        assert candidate_targets(each.photo.boxes, each.right, options, split="train").tolist() == [0, 1, 0]


def test_targets_by_split(files: ReferringFiles) -> None:
    """Ours is without the pixel too many, which lifts this overlap over a half."""
    boxes, right = torch.tensor([[0.0, 0, 10, 5], [0, 0, 1, 1], [0, 0, 10, 10]]), torch.tensor([0.0, 0, 10, 10])
    ours = ReferringOptions()
    assert candidate_targets(boxes, right, ours, split="train").tolist() == [0, 0, 1]
    release = ReferringOptions(target="iou", judged_target="overlap", one_pixel_more=True)
    trained = candidate_targets(boxes, right, release, split="train")
    torch.testing.assert_close(trained, torch.tensor([66 / 121, 0, 1.0]))
    judged = candidate_targets(boxes, right, release, split="val")
    torch.testing.assert_close(judged, torch.tensor([66 / 121, 4 / 121, 1.0]))


def record_of(boxes: np.ndarray, first: float) -> RegionRecord:
    """Regions whose features are `first`, `first` + 1, ..."""
    count = len(boxes)
    return RegionRecord(
        image_id="COCO_train2014_000000000005", height=60, width=100, boxes=boxes.astype(np.float32),
        features=(first + np.arange(count, dtype=np.float32))[:, None], class_ids=np.zeros(count, np.uint16),
        class_scores=np.ones(count, np.float32),
    )  # fmt: skip


def test_regions_of_a_record_are_found_by_their_boxes() -> None:
    """In any order, as extraction clips them to the photo; a box that was not extracted is told."""
    stored = np.array([[0, 0, 10, 10], [5, 5, 100, 60], [0, 0, 10, 10]], np.float32)
    record = record_of(stored, 0)
    assert regions_at_boxes(record, np.array([[5, 5, 100.4, 61], [-0.2, 0, 10, 10.004]])).tolist() == [1, 0]
    assert regions_at_boxes(record, np.zeros((0, 4))).tolist() == []
    with pytest.raises(ValueError, match="no region at 1 of 2 boxes of the task, such as 5, 5, 99, 60; extract with"):
        regions_at_boxes(record, np.array([[0, 0, 10, 10], [5, 5, 99, 60]]))


def test_the_feature_of_the_whole_photo_may_leave_out_annotated_regions() -> None:
    detected = torch.tensor([[1.0, 3], [3, 5]])
    assert image_feature(detected, ReferringOptions()) is None
    found = image_feature(detected, ReferringOptions(image_feature="detected"))
    assert found is not None and found.tolist() == [2, 4]


@pytest.fixture
def judged(files: ReferringFiles) -> Iterator[tuple[list[TaskGroup], list[Said], ReferringOptions]]:
    """val among annotated boxes: the first sentence is given the wrong object, the second has no candidate."""
    options = ReferringOptions(boxes="annotated", crowds=True)
    groups = referring_groups(files, "val", options)
    yield groups, [Said([0.1, 0.1, 0.9], groups[0].boxes[0]), Said([], np.zeros((0, 4), np.float32))], options


def test_scores_count_sentences_and_stand_beside_their_upper_bound(judged: Any) -> None:
    groups, said, options = judged
    found = referring_scores(groups, said, options)
    assert [found[name].mean for name in ("accuracy", "upper bound", "same object")] == [0, 0.5, 0] and len(found) == 3
    said[0] = Said([0.1, 0.9, 0.9], groups[0].boxes[0])  # of equal scores the first
    assert {measure.mean for measure in referring_scores(groups, said, options).values()} == {0.5}


def test_a_hit_may_be_another_object(files: ReferringFiles) -> None:
    """MAttNet counts the object that was chosen, VL-BERT any box that overlaps by half."""
    options = ReferringOptions(boxes="annotated")
    group = referring_groups(files, "val", options)[0]
    near = xyxy([50.0, 20, 30, 29])
    found = referring_scores([group], [Said([1.0], near)], options)
    assert (found["accuracy"].mean, found["same object"].mean) == (1, 0)


def test_a_sentence_without_a_candidate_is_no_question_to_a_model(files: ReferringFiles) -> None:
    """It stays a miss in the result, and its photo need not be in the store."""
    assert [group.is_open for group in referring_groups(files, "val", ReferringOptions())] == [True, False]
    for fields in ({"boxes": "annotated"}, {"boxes": "stored"}, {"whole_image": "size"}):
        assert all(group.is_open for group in referring_groups(files, "val", ReferringOptions(**fields)))


def test_what_is_measured_in_the_input_is_said_to_the_frame(folder: Path) -> None:
    for where, said in (("photo", False), ("input", True)):
        task = open_referring("refcoco+")(folder, ReferringOptions(overlap_in=where), None)
        assert task.measured_in_input == said
    check_best_by(task, task.read("val").groups, "upper_bound")


@pytest.mark.parametrize("boxes", ["stored", "detected"])
def test_annotated_candidates_of_a_second_store_stand_behind_in_training(files: ReferringFiles, boxes: str) -> None:
    """In any order there; the whole image is the mean of the first store, cut regions too."""
    options = ReferringOptions(boxes=boxes, annotated_in_training=True, whole_image="size", max_boxes=4)
    stored = np.clip(xyxy(*(box for _, box in DETECTIONS)), 0, [100, 60, 100, 60])
    detected, annotated = record_of(stored, 1), record_of(xyxy(BOXES[51][1], BOXES[52][1], BOXES[50][1]), 10)
    train, val = (referring_groups(files, split, options)[0] for split in ("train", "val"))
    found = joined_candidates(train, detected, annotated, options)
    assert found.record.features[:, 0].tolist() == [1, 12, 10] and found.whole.tolist() == [1.5]
    np.testing.assert_array_equal(found.record.boxes, np.concatenate([stored[:1], xyxy(BOXES[50][1], BOXES[51][1])]))
    assert joined_candidates(val, detected, annotated, options).record.features[:, 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="no region at 1 of 2 boxes of the task"):
        joined_candidates(train, detected, record_of(xyxy(BOXES[50][1]), 10), options)


def test_files_of_the_other_data_set_are_told(folder: Path, tmp_path: Path, roibeam: Any) -> None:
    """RefCOCO and RefCOCO+ call their references alike."""
    other = tmp_path / "RefCOCO"
    shutil.copytree(folder, other)
    words = r"folder called refcoco; both call their file so: give --data the folder of refcoco\+, or .* task refcoco$"
    with pytest.raises(ValueError, match=words):
        read_referring(other, "refcoco+", ReferringOptions())
    assert len(read_referring(other, "refcoco", ReferringOptions()).sentences) == 4
    results = tmp_path / "boxes.json"
    results.write_text("[]", "utf-8")
    said = roibeam("score", "refcoco+", results, "--data", other)
    assert said.code == 1 and "take the task refcoco" in said.err
    sentences = read_referring(folder, "refcoco+", ReferringOptions()).sentences
    official = [replace(sentences[0], split="testB")] * 5_095
    with pytest.raises(ValueError, match=r"has 5,095 sentences of testB, as refcoco has and refcoco\+ has not"):
        check_data_set("refcoco+", tmp_path / "refs(unc).p", official)
    check_data_set("refcoco", tmp_path / "refs(unc).p", official)


def test_sentences_that_no_candidate_hits_are_told(files: ReferringFiles) -> None:
    options = ReferringOptions()
    groups = referring_groups(files, "val", options)
    assert missed_objects(groups, options).startswith("no candidate hits the object of 2 sentences of 2 (IoU of pixels")
    assert not missed_objects(groups, replace(options, boxes="stored"))


@pytest.mark.parametrize("key", [BY_SENTENCE, BY_REFERENCE])
def test_a_written_file_scores_as_the_groups_do(judged: Any, files: ReferringFiles, tmp_path: Path, key: str) -> None:
    groups, said, _ = judged
    said[0] = Said([0.1, 0.9, 0.2], groups[0].boxes[0])
    path = tmp_path / "boxes.json"
    write_entries(path, [result_entry(each, key) for each in chosen_boxes(groups, said)])
    sentences = [each for each in files.sentences if each.split == "val"]
    measures = referring_measures(sentences, read_referring_results(str(path)), "boxes", BOX_RULES["refer"])
    assert list(measures["accuracy"].values) == [1, 0]
    assert json.loads(path.read_text("utf-8"))[1]["box"] is None


def test_anybody_s_boxes_stand_beside_what_mattnet_s_can_reach(folder: Path, tmp_path: Path, roibeam: Cli) -> None:
    """One of the two objects of the training split is detected; both sentences of it count. Without the file of
    detections there is no bound, and a check needs none."""
    said = tmp_path / "boxes.json"
    said.write_text(json.dumps([{"sent_id": number, "box": [0, 0, 1, 1]} for number in (0, 1)]), "utf-8")
    words = ("score", "refcoco+", said, "--split", "train", "--json", "--data")
    found = json.loads(roibeam(*words, folder).out)
    figures = {each["name"]: (each["value"], each["rows"]) for each in found["figures"]}
    assert figures == {"accuracy": (0, 2), "upper bound of MAttNet's boxes": (1, 2)}
    assert "any of MAttNet's boxes" in found["card"]["metric"]
    assert any(name.endswith("_dets.json") for name in found["card"]["labels"])
    said.write_text(json.dumps([{"sent_id": number, "box": [50, 20, 30, 30]} for number in (2, 3)]), "utf-8")
    val = json.loads(roibeam("score", "refcoco+", said, "--json", "--data", folder).out)
    assert [each["value"] for each in val["figures"]] == [0.5, 0]
    other = tmp_path / "refcoco+"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("proposal"))
    alone = json.loads(roibeam("score", "refcoco+", said, "--json", "--data", other).out)
    assert [each["name"] for each in alone["figures"]] == ["accuracy"]
    assert roibeam("score", "refcoco+", said, "--check", "--data", folder).code == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"text": "lemmas"}, "text must be one of sentence, raw, tokens"),
        ({"too_many": "first"}, "too_many must be one of detected, last, refuse"),
        ({"boxes": "annotated", "annotated_in_training": True}, "and the boxes are these"),
        ({"box_rule": "half"}, "box_rule must be one of refer,"),
    ],
)
def test_options_that_are_none(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ReferringOptions(**fields)


def test_what_files_lack(files: ReferringFiles) -> None:
    with pytest.raises(ValueError, match="no sentence of the split 'testA'; there are train, val"):
        referring_groups(files, "testA", ReferringOptions())
    bare = files._replace(instances=files.instances._replace(image_hw={}))
    with pytest.raises(ValueError, match=r"reference 0: its size is not known, and the whole image is a candidate"):
        referring_groups(bare, "train", ReferringOptions(whole_image="size"))
    untyped = files._replace(sentences=[replace(each, raw="") for each in files.sentences])
    with pytest.raises(ValueError, match=r"sentence 0: the file has no raw of it"):
        referring_groups(untyped, "train", ReferringOptions(text="raw"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"box": [1, 2, 3]}, "entry 0: box must be x, y, width, height, got"),
        ({"box": [1, 2, -3, 4]}, "entry 0: box must be x, y, width, height, got a negative side"),
        ({"image_id": "5"}, "entry 0: expected image_id, of type int"),
    ],
)
def test_detections_unlike_those_of_mattnet(folder: Path, tmp_path: Path, damage: dict[str, Any], words: str) -> None:
    for name in ("refs(unc).p", "instances.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    path = tmp_path / "res101_coco_minus_refer_notime_dets.json"
    path.write_text(json.dumps([{"image_id": 5, "box": [1, 2, 3, 4]} | damage]), "utf-8")
    with pytest.raises(ValueError, match=words):
        read_referring(tmp_path, "refcoco+", ReferringOptions())
