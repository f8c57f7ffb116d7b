"""Folders of .npy files: MMF with _info.npy, ViLBERT multi-task; where background stands, boxes in shares, pickles."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import Runs, letters, measured, records
from refusals import refused

from roibeam.features.exchange.mmf_npy import FORMAT
from roibeam.features.record.region_record import RegionRecord


def save(path: Path, features: np.ndarray, **info: Any) -> None:
    """As MMF's extractors write them."""
    np.save(path, features)
    np.save(path.with_name(f"{path.stem}_info.npy"), np.array(info, dtype=object))


def info_of(record: RegionRecord, **changes: Any) -> dict[str, Any]:
    kept = {
        "bbox": record.boxes, "num_boxes": 3, "objects": record.class_ids.astype(int), "image_width": 640,
        "image_height": 480, "cls_prob": record.class_scores,
    }  # fmt: skip
    return {name: value for name, value in (kept | changes).items() if value is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "features"
    FORMAT.write([measured("a"), measured("b", seed=9)], path)
    return path


def test_the_readers_of_the_format_see_their_fields(tmp_path: Path) -> None:
    record = measured("COCO_val_9")
    for layout in FORMAT.layouts:
        FORMAT.write([record], tmp_path / layout, layout=layout)
    for layout, columns in (("background", 7), ("foreground", 6)):
        features = np.load(tmp_path / layout / "COCO_val_9.npy")  # without allow_pickle: an array of numbers
        np.testing.assert_array_equal(features, record.features)
        info = np.load(tmp_path / layout / "COCO_val_9_info.npy", allow_pickle=True).item()
        assert info["cls_prob"].shape == (3, columns) and info["num_boxes"] == 3
        np.testing.assert_array_equal(info["objects"], record.class_ids + (columns == 7))
    item = np.load(tmp_path / "vilbert-mt" / "COCO_val_9.npy", allow_pickle=True)
    assert item.size == 1 and item.item()["image_id"] == "COCO_val_9"  # what MMF's reader and convert_to_lmdb.py ask
    np.testing.assert_array_equal(item.item()["features"], record.features)
    assert b"numpy._core" not in (tmp_path / "vilbert-mt" / "COCO_val_9.npy").read_bytes()


def test_boxes_in_shares_of_the_image(tmp_path: Path) -> None:
    """VinVL's files: six numbers to a box, and no classes under names that are known."""
    record = measured("one")
    shares = record.boxes / np.array([640, 480, 640, 480], np.float32)
    wide = np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1)
    info = info_of(record, bbox=wide, objects=None, cls_prob=None)
    save(tmp_path / "one.npy", np.concatenate([record.features.astype(np.float32), wide], axis=1), **info)
    (found,) = records(FORMAT, tmp_path)
    np.testing.assert_allclose(found.boxes, record.boxes, atol=1e-4)
    assert found.features.shape == (3, 14) and not found.class_scores.any()
    with FORMAT.open(tmp_path) as file:
        assert (file.details["boxes"], file.details["classes"]) == ("normalised", "absent")


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"bbox": None}, "missing field", "has no 'bbox'"),
        ({"bbox": np.zeros((3, 5), np.float32)}, "wrong shape", "bbox has shape"),
        ({"image_width": -1}, "bad number", "image_width must be an integer"),
        ({"objects": np.full(3, 9)}, "bad value", "ids up to 9"),
        ({"cls_prob": np.ones((3, 7), np.float32)}, "bad value", "sums up to"),
        ({"cls_prob": np.ones((3, 9), np.float32)}, "wrong shape", "cls_prob has shape"),
    ],
)
def test_a_bad_file_is_a_dead_letter(folder: Path, changes: dict[str, Any], reason: str, words: str) -> None:
    record = measured()
    rows = np.roll(record.class_distribution, 1, axis=1).astype(np.float32)
    save(folder / "c.npy", record.features.astype(np.float32), **info_of(record, **({"cls_prob": rows} | changes)))
    letter = letters(FORMAT, folder)["c"]
    assert letter.reason == reason and words in letter.detail and letter.location == f"{folder}/c.npy"


def test_files_that_do_not_belong_together(folder: Path, tmp_path: Path) -> None:
    (folder / "a_info.npy").unlink()
    FORMAT.write([measured("m")], tmp_path / "mt", layout="vilbert-mt")
    (tmp_path / "mt" / "m.npy").rename(folder / "c.npy")
    np.save(folder / "d.npy", np.zeros((3, 8), np.float32))
    (folder / "d_info.npy").symlink_to("/etc/hostname")
    reasons = {name: letter.reason for name, letter in letters(FORMAT, folder).items()}
    assert reasons == {"a": "missing file", "c": "another layout", "d": "link out of the folder"}
    FORMAT.write([measured("x"), measured("y")], tmp_path / "two", layout="vilbert-mt")
    (tmp_path / "two" / "y.npy").rename(tmp_path / "two" / "z.npy")
    letter = letters(FORMAT, tmp_path / "two")["z"]
    assert letter.reason == "another image id" and "is of image 'y'" in letter.detail


def test_no_code_runs(folder: Path) -> None:
    runs = Runs(os.mkdir, str(folder / "made"))
    np.save(folder / "a_info.npy", np.array(runs, dtype=object))
    np.save(folder / "b.npy", np.array([runs, 1], dtype=object))
    refused("nothing was run", FORMAT.open, folder)
    assert not (folder / "made").exists()


def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    np.save(tmp_path / "some.npy", np.zeros(3))
    refused(r"some\.npy: has no some_info\.npy beside it", FORMAT.open, tmp_path)
    FORMAT.write([measured("a", rows=False)], tmp_path / "good")
    assert len(records(FORMAT, tmp_path / "good")) == 1
