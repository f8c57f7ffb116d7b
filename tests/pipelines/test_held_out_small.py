"""What rules hold out, from small files that are made here: a clone without the data pack tests it too."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from roibeam.pipelines.data.held_out import HeldOut


def test_refcoco_holds_out_validation_and_tests(tmp_path: Path) -> None:
    splits = ["train", "val", "testA", "testB", "test"]
    refs = [{"image_id": number, "split": split} for number, split in enumerate(splits, start=1)]
    (tmp_path / "refs.p").write_bytes(pickle.dumps(refs, 2))
    found = HeldOut([f"refcoco={tmp_path / 'refs.p'}"]).scan([str(number) for number in range(1, 7)], "coco")
    assert found.leaked == ("2", "3", "4", "5") and found.rules[0].held_out == 4


def test_visual_genomes_images_are_held_out_under_their_other_names(tmp_path: Path) -> None:
    images = [
        {"image_id": 1, "coco_id": 11, "flickr_id": None},
        {"image_id": 2, "coco_id": None, "flickr_id": 12},
        {"image_id": 3, "coco_id": 13, "flickr_id": 14},
    ]
    (tmp_path / "image_data.json").write_text(json.dumps(images))
    (tmp_path / "refs.p").write_bytes(pickle.dumps([{"image_id": 11, "split": "val"}], 2))
    (tmp_path / "test.txt").write_text("12\n14\n")
    rules = [f"refcoco={tmp_path / 'refs.p'}", f"flickr30k={tmp_path / 'test.txt'}"]
    aliases = f"visual-genome={tmp_path / 'image_data.json'}"
    assert HeldOut(rules).scan(["1", "2", "3"], "visual-genome").leaked == ()
    found = HeldOut([*rules, aliases]).scan(["1", "2", "3", "4"], "visual-genome")
    assert found.leaked == ("1", "2", "3") and [rule.found for rule in found.rules] == [1, 2]


def test_an_image_of_two_rules_is_found_by_both_and_leaks_once(tmp_path: Path) -> None:
    (tmp_path / "refs.p").write_bytes(pickle.dumps([{"image_id": 7, "split": "val"}], 2))
    (tmp_path / "mine.txt").write_text("COCO_train2014_000000000007\n")
    held_out = HeldOut([f"list={tmp_path / 'mine.txt'}", f"refcoco={tmp_path / 'refs.p'}"])
    found = held_out.scan(["COCO_train2014_000000000007"], None)
    assert found.leaked == ("COCO_train2014_000000000007",) and [rule.found for rule in found.rules] == [1, 1]
