"""A folder with an .npz per image: three layouts, their readers' lines, bombs, pickles and links."""

import dataclasses
import io
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import Runs, letters, measured, outcomes, records
from refusals import refused

from roibeam.features.exchange.milvlg_npz import FORMAT
from roibeam.features.exchange.npy_files import npy_bytes, npz_values
from roibeam.features.record.region_record import RegionRecord


def arrays(**changes: Any) -> dict[str, Any]:
    record = measured()
    kept = {"x": record.features.astype(np.float32), "bbox": record.boxes, "num_bbox": 3, "image_h": 480}
    return {name: value for name, value in (kept | {"image_w": 640} | changes).items() if value is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "features"
    FORMAT.write([measured("a"), measured("b", seed=9)], path)
    return path


def test_the_readers_of_the_format_see_their_fields(tmp_path: Path) -> None:
    record = measured("COCO_train2014_000000000009", 4)
    for layout in FORMAT.layouts:
        FORMAT.write([record], tmp_path / layout, layout=layout)
    name = "COCO_train2014_000000000009.npz"
    vqa = np.load(tmp_path / "openvqa" / name)  # vqa_loader.py: load_img_feats
    np.testing.assert_array_equal(vqa["x"].transpose((1, 0)), record.features)
    assert (int(vqa["image_h"]), int(vqa["image_w"])) == (480, 640)
    gqa = np.load(tmp_path / "gqa" / name)  # gqa_loader.py
    np.testing.assert_array_equal(gqa["x"], record.features)
    assert (int(gqa["height"]), int(gqa["width"])) == (480, 640)
    with np.load(tmp_path / "milvlg" / name, allow_pickle=True) as own:
        info = own["info"].item()
        np.testing.assert_array_equal(own["bbox"], record.boxes)
        assert (int(own["num_bbox"]), info["image_id"], info["num_boxes"]) == (4, record.image_id, 4)
        np.testing.assert_array_equal(info["objects_id"], record.class_ids)
        np.testing.assert_array_equal(info["attrs_conf"], record.attribute_scores)
    # The names of numpy 1, which numpy 2 reads as well; the other way round there is no way.
    with zipfile.ZipFile(tmp_path / "milvlg" / name) as archive:
        assert b"numpy._core" not in archive.read("info.npy")


def test_files_as_the_extractor_writes_them(tmp_path: Path) -> None:
    record = measured()
    info = {
        "image_id": "one", "image_h": 480, "image_w": 640, "num_boxes": 3, "objects_id": record.class_ids.astype(int),
        "objects_conf": record.class_scores, "attrs_id": record.attribute_ids, "attrs_conf": record.attribute_scores,
    }  # fmt: skip
    np.savez_compressed(tmp_path / "one", **arrays(info=info))
    (found,) = records(FORMAT, tmp_path)
    assert found.equals(dataclasses.replace(record, image_id="one", class_distribution=None))


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"x": None}, "missing array", "has no x"),
        ({"bbox": np.zeros((2, 4))}, "wrong shape", "with 2 boxes it is"),
        ({"x": np.zeros((3, 7), np.float32)}, "wrong shape", r"\(3, 8\) is expected"),
        ({"bbox": np.full((3, 4), 700.0)}, "boxes outside the image", "x 700.0"),
        ({"image_h": 10**12}, "bad number", "image_h must be an integer"),
        ({"image_h": "tall"}, "not an npy file", "image_h is no npy file of an array"),
        ({"info": np.arange(3)}, "wrong type", "info is a ndarray"),
        ({"info": None}, "wrong type", "info.objects_id must be 3 integers, got NoneType"),
        ({"info": {"objects_id": np.zeros(2, int)}}, "wrong type", "objects_id must be 3 integers"),
        ({"info": {"objects_id": np.zeros(3, int)}}, "wrong type", "objects_conf must be an array of floats"),
    ],
)
def test_a_bad_file_is_a_dead_letter(folder: Path, changes: dict[str, Any], reason: str, words: str) -> None:
    info = {"objects_id": np.zeros(3, int), "objects_conf": np.zeros(3, np.float32)}
    np.savez(folder / "bad.npz", **arrays(**({"info": info} | changes)))
    letter = letters(FORMAT, folder)["bad"]
    assert re.search(words, letter.detail), letter.detail
    assert letter.reason == reason and letter.location == f"{folder}/bad.npz"
    assert sum(isinstance(one, RegionRecord) for one in outcomes(FORMAT, folder)) == 2


def test_files_without_info_have_no_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    (found,) = records(FORMAT, tmp_path)
    with FORMAT.open(tmp_path) as file:
        assert (file.layout, file.details["classes"]) == ("milvlg", "absent")
    assert not found.class_scores.any() and found.attribute_ids is None


def test_no_code_runs(folder: Path) -> None:
    np.savez(folder / "bad.npz", **arrays(info=np.array(Runs(os.mkdir, str(folder / "made")), dtype=object)))
    letter = letters(FORMAT, folder)["bad"]
    assert letter.reason == "refused pickle" and "nothing was run" in letter.detail
    assert not (folder / "made").exists()


def packed(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def test_archives_that_are_more_than_they_seem(folder: Path) -> None:
    shape = npy_bytes(np.zeros((1, 8), np.float32)).replace(b"(1, 8)", b"(99999999, 8)".ljust(6))
    good = npy_bytes(np.zeros((3, 4), np.float32))
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", good)
        archive.writestr("x.npy", good)
    bomb = packed(x=bytes(80_000_000), bbox=good)
    # The same with a lie about how much it becomes, in both headers of the member.
    liar = bomb.replace(struct.pack("<I", 80_000_000), struct.pack("<I", 1000))
    encrypted = bytearray(packed(x=good, bbox=good))
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    files = {
        "bomb": (bomb, "archive too large"), "liar": (liar, "not an npz file"), "cut": (bomb[:-30], "no whole npz"),
        "twice": (twice.getvalue(), "holds 'x'"), "text": (b"text", "no whole"), "empty": (b"", "no whole npz file"),
        "encrypted": (bytes(encrypted), "encrypted"), "many": (packed(**{f"m{i}": b"" for i in range(70)}), "over 64"),
        "shape": (packed(x=shape, bbox=good), "needs"),
        "version": (packed(x=b"\x93NUMPY\x09\0", bbox=good), "no npy file"),
        "nested": (packed(x=b"\x93NUMPY\x01\0\x76\0" + b"(" * 117 + b"\n", bbox=good), "no npy file"),
    }  # fmt: skip
    for name, (data, _) in files.items():
        (folder / f"{name}.npz").write_bytes(data)
    found = letters(FORMAT, folder)
    for name, (_, words) in files.items():
        assert words in found[name].detail or words == found[name].reason, (name, found[name])
        assert "\n" not in found[name].detail


def test_only_files_of_the_folder_are_read(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "outside.npz", **arrays())
    (folder / "inner").mkdir()
    (folder / "link.npz").symlink_to(tmp_path / "outside.npz")
    (folder / "inner" / "same.npz").symlink_to(folder / "a.npz")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.npz")
    (folder / "notes.txt").write_text("ignored")
    os.mkdir(folder / "folder.npz")
    with open(folder / "large.npz", "wb") as file:
        file.truncate(2**40)
    assert {name: letter.reason for name, letter in letters(FORMAT, folder).items()} == {
        "link.npz": "link out of the folder", "pipe": "no regular file", "large": "file too large",
    }  # fmt: skip
    found = {one.image_id: one for one in outcomes(FORMAT, folder) if isinstance(one, RegionRecord)}
    assert set(found) == {"a", "b", "inner/same"}


def test_folders_of_other_kinds(tmp_path: Path) -> None:
    assert not FORMAT.looks_like(tmp_path) and not FORMAT.looks_like(tmp_path / "none")
    refused(r"is one of a folder with an \.npz per image .*: holds no entry", FORMAT.open, tmp_path)
    np.savez(tmp_path / "other.npz", feat=np.zeros(3))
    assert not FORMAT.looks_like(tmp_path)
    assert npz_values((tmp_path / "other.npz").read_bytes(), ["x"]) == {}
