"""ViLBERT's and MMF's LMDB of pickled dicts: the authors' layouts, what comes back, what is wrong with such files."""

import base64
import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import Runs, letters, measured, outcomes, records
from lmdb_examples import read_lmdb, write_lmdb, write_pickles
from refusals import refused

from roibeam.features.exchange.lmdb_files import LmdbEntries
from roibeam.features.exchange.mmf_lmdb import FORMAT as MMF
from roibeam.features.exchange.npy_files import plain_pickle
from roibeam.features.exchange.vilbert_lmdb import FORMAT as VILBERT
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.safe_pickle import loads_pickle
from roibeam.features.shard.manifest import DeadLetter


def test_what_has_no_place_is_counted(tmp_path: Path) -> None:
    record = measured("a")
    top = TopKDistribution(np.tile(np.arange(2, dtype="u2"), (3, 1)), np.full((3, 2), 0.5, "f2"), np.zeros(3, "f2"), 6)
    odd = dataclasses.replace(record, class_distribution=top, image_feature=np.ones(8, np.float16))
    lost = VILBERT.write([odd, measured("empty", 0)], tmp_path / "a.lmdb", layout="volta")
    assert lost == {"class_distribution beyond its top k": 1, "image_feature": 1, "records without regions": 1}
    assert [each.image_id for each in records(VILBERT, tmp_path / "a.lmdb")] == ["a"]


def test_the_bytes_are_those_of_old_pickle_and_numpy(tmp_path: Path) -> None:
    VILBERT.write([measured("b"), measured("a")], tmp_path / "a.lmdb")
    assert os.listdir(tmp_path) == ["a.lmdb"] and os.listdir(tmp_path / "a.lmdb") == ["data.mdb"]
    entries = read_lmdb(tmp_path / "a.lmdb")
    assert pickle.loads(entries.pop(b"keys")) == [b"b", b"a"]
    assert b"numpy._core" not in entries[b"a"] and entries[b"a"].startswith(b"\x80\x03")
    item = pickle.loads(entries[b"a"])
    assert list(item)[:6] == ["image_id", "image_h", "image_w", "num_boxes", "boxes", "features"]
    assert (item["image_h"], item["image_w"], item["features"].dtype) == (480, 640, np.float32)
    np.testing.assert_array_equal(item["features"], measured("a").features)
    assert item["cls_prob"][:, 0].tolist() == pytest.approx(measured("a").class_distribution[:, -1].tolist())


def test_plain_pickles_are_what_pickle_reads() -> None:
    numbers = [0, 255, 256, -1, 2**31, -(2**63)]
    value = {"i": numbers, "f": 1.5, "s": "é", "b": b"x" * 300, "n": None, "t": [True, False]}
    assert pickle.loads(plain_pickle(value)) == loads_pickle(plain_pickle(value), source="a") == value
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4)), np.arange(3, dtype=">i8")):
        found = pickle.loads(plain_pickle(array))
        assert found.shape == array.shape and found.tolist() == array.tolist()
    for unknown in (object(), 2**64, np.array(["a"]), (1,)):
        refused("a plain pickle holds no", plain_pickle, unknown, error=TypeError)


def test_samples_of_the_authors_layouts(shared_data: Path) -> None:
    folder = shared_data / "formats/vilbert_lmdb"
    multi, beta = records(VILBERT, folder / "coco_three.lmdb", "float32"), records(VILBERT, folder / "base64_two.lmdb")
    assert [(each.image_id, each.num_regions) for each in multi] == [("132417", 36), ("573195", 20), ("578174", 10)]
    assert [(each.image_id, each.num_regions) for each in beta] == [("207647", 10), ("494628", 12)]
    item = pickle.loads(read_lmdb(folder / "coco_three.lmdb")[b"573195"])
    np.testing.assert_array_equal(multi[1].boxes, item["boxes"])
    np.testing.assert_array_equal(multi[1].features, item["features"])
    item = pickle.loads(read_lmdb(folder / "base64_two.lmdb")[b"494628"])
    row = np.frombuffer(base64.b64decode(item["cls_prob"]), np.float32).reshape(12, 1601)
    np.testing.assert_array_equal(beta[1].class_ids, row[:, 1:].argmax(axis=1))
    np.testing.assert_array_equal(beta[1].class_distribution[:, -1], row[:, 0].astype(np.float16))


def multi_task(**changes: Any) -> dict[str, Any]:
    record = measured("a")
    return {
        "image_id": "2", "image_h": 480, "image_w": 640, "num_boxes": 3, "boxes": record.boxes,
        "features": record.features.astype(np.float32), **changes,
    }  # fmt: skip


def beta(**changes: Any) -> dict[str, Any]:
    return {
        name: base64.b64encode(value.tobytes()) if isinstance(value, np.ndarray) else str(value)
        for name, value in multi_task().items()
    } | changes


def mmf(**changes: Any) -> dict[str, Any]:
    record = measured("a")
    return {
        "feature_path": "2", "features": record.features.astype(np.float32), "image_height": 480, "image_width": 640,
        "num_boxes": 2, "objects": record.class_ids.astype(np.int64), "cls_prob": None, "bbox": record.boxes, **changes,
    }  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol_and_text_keys(tmp_path: Path, protocol: int) -> None:
    for name, item in (("multi", multi_task()), ("beta", beta())):
        path = write_pickles(tmp_path / f"{name}{protocol}", {"1": item}, key_list=["1"], protocol=protocol)
        (record,) = records(VILBERT, path)
        np.testing.assert_array_equal(record.features, measured("a").features)
        assert VILBERT.looks_like(path) and VILBERT.looks_like(path / "data.mdb")


def test_mmf_features_that_are_dicts_vinvl_boxes_and_background_in_objects(tmp_path: Path) -> None:
    record = measured("a")
    nested = {"feature_path": "a", "features": np.array(mmf(), dtype=object)}
    (found,) = records(MMF, write_pickles(tmp_path / "nested", {"a": nested}))
    np.testing.assert_array_equal(found.class_ids, record.class_ids)
    shares = record.boxes / np.array([640, 480, 640, 480], np.float32)
    six = np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1).astype(np.float32)
    path = write_pickles(tmp_path / "six", {"a": mmf(bbox=six)})
    (found,) = records(MMF, path)
    np.testing.assert_allclose(found.boxes, record.boxes, rtol=1e-6)
    with MMF.open(path) as file:
        assert file.details["boxes"] == "normalised"
    rows = np.roll(record.class_distribution.astype(np.float32), 1, axis=1)
    objects = record.class_ids.astype(np.int64) + 1
    objects[1] = 0  # its best column is background
    (found,) = records(MMF, write_pickles(tmp_path / "rows", {"a": mmf(cls_prob=rows, objects=objects)}))
    np.testing.assert_array_equal(found.class_ids, record.class_ids)
    np.testing.assert_array_equal(found.class_distribution, record.class_distribution)


HOSTILE = Runs(os.system, "echo run > /dev/null")


@pytest.mark.parametrize(
    "item, stage, reason, words",
    [
        (HOSTILE, "decode", "bad pickle", "wants to run posix.system when it is read; refused"),
        (multi_task(extra=HOSTILE), "decode", "bad pickle", "posix.system"),
        ([1], "decode", "wrong type", "must be a pickled dict, got list"),
        ({"a\nb": 1}, "read", "missing field", "has no 'boxes', only a\\nb"),
        (multi_task(image_h="tall"), "read", "bad number", "image_h must be an integer from 1"),
        (multi_task(image_w=True), "read", "bad number", "image_w"),
        (multi_task(features=np.ones((3, 9), np.float32)), "decode", "wrong shape", "(3, 9), (3, 8) is expected"),
        (multi_task(features=np.ones((2, 8), np.float32)), "decode", "wrong shape", "(2, 8), (3, 8) is expected"),
        (multi_task(features=np.full((3, 8), 1e6, np.float32)), "record", "invalid record", "NaN or infinity"),
        (multi_task(boxes=np.ones((3, 5), np.float32)), "decode", "wrong shape", "boxes has shape (3, 5)"),
        (multi_task(boxes=np.array([["x"] * 4])), "decode", "wrong type", "boxes must be an array of floats"),
        (multi_task(boxes=np.full((3, 4), 700, np.float32)), "record", "boxes outside the image", "700"),
        (multi_task(image_h=90, image_w=200), "record", "boxes outside the image", "200x90"),
        (multi_task(image_h=640, image_w=100, boxes=np.tile(np.float32([0, 0, 500, 90]), (3, 1))),
         "record", "height and width swapped", "they fit when"),
        (multi_task(cls_prob=np.ones((3, 7), np.float32)), "decode", "other fields", "has ['cls_prob']"),
        (multi_task(image_id=7), "record", "another image id", "its value says it is of int 7"),
        (beta(), "decode", "another layout", "is of layout beta, the first entry is of multi-task"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_a_dead_letter(tmp_path: Path, item: Any, stage: str, reason: str, words: str) -> None:
    path = write_pickles(tmp_path / "a.lmdb", {"1": multi_task(image_id=1), "2": item})
    letter = letters(VILBERT, path)["2"]
    assert (letter.stage, letter.reason, letter.location) == (stage, reason, f"{path}:2")
    assert words in letter.detail and letter.detail.isprintable()
    assert len(outcomes(VILBERT, path)) == 2


@pytest.mark.parametrize(
    "form, good, item, reason, words",
    [
        (VILBERT, beta, beta(num_boxes="4"), "wrong byte count", "has 3 boxes, num_boxes says 4"),
        (VILBERT, beta, beta(boxes="AAA"), "bad base64", "boxes: "),
        (VILBERT, beta, beta(features="AAAA"), "wrong byte count", "features has 3 bytes, not a multiple of 4"),
        (VILBERT, beta, beta(features=None), "missing field", "has no 'features'"),
        (MMF, mmf, mmf(bbox=None), "missing field", "converted without the _info.npy files?"),
        (MMF, mmf, mmf(features=None), "missing field", "has no 'features'"),
        (MMF, mmf, mmf(objects=np.array([1, 2, -3])), "bad value", "ids from -3 to 2"),
        (MMF, mmf, mmf(objects=None), "wrong type", "objects must be 3 integers"),
    ],
)
def test_a_bad_entry_of_base64_or_of_mmf(
    tmp_path: Path, form: Any, good: Any, item: Any, reason: str, words: str
) -> None:
    letter = letters(form, write_pickles(tmp_path / "a.lmdb", {"1": good(), "2": item}))["2"]
    assert letter.reason == reason and words in letter.detail


def test_two_keys_with_one_value(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", {name: pickle.dumps(multi_task(), 2) + bytes(5000) for name in (b"1", b"2")})
    data = bytearray((path / "data.mdb").read_bytes())
    with LmdbEntries(path) as entries:
        pages = [entries._offsets[number] // 4096 for number in range(2)]
    at = data.rindex(b"2" + pages[1].to_bytes(8, "little")) + 1
    data[at : at + 8] = pages[0].to_bytes(8, "little")
    (path / "data.mdb").write_bytes(data)
    refused(r"key b'[12]' shares its value with another", VILBERT.open, path)


def test_the_list_of_ids(tmp_path: Path) -> None:
    path = write_pickles(tmp_path / "a.lmdb", {"1": multi_task(), "2": multi_task()}, key_list=[b"1", "3\n", b"\xff"])
    with VILBERT.open(path) as file:
        assert file.num_entries == 4 and list(file.ids()) == ["1", "2"] and file.details["key_list"] == "keys"
        missing = [outcome for outcome in file.outcomes() if isinstance(outcome, DeadLetter)]
    assert [letter.image_id for letter in missing] == ["3\\n", "\\xff"]
    assert {letter.reason for letter in missing} == {"missing"} and "names it" in missing[0].detail
    with VILBERT.open(write_pickles(tmp_path / "none", {"1": multi_task()}, key_list=None)) as file:
        assert file.details["key_list"] == "absent"
    for number, (key_list, words) in enumerate(
        [({"1": 2}, "must be a list of image ids, got dict"), ([1], "int 1 is in it"), (HOSTILE, "posix.system")]
    ):
        refused(words, VILBERT.open, write_pickles(tmp_path / str(number), {"1": multi_task()}, key_list=key_list))
    entries = {b"\xff\xfe": pickle.dumps(multi_task(), 2), b"1": pickle.dumps(multi_task(), 2)}
    found = letters(VILBERT, write_lmdb(tmp_path / "a", entries))
    assert [(letter.image_id, letter.reason) for letter in found.values()] == [("\\xff\\xfe", "bad image id")]


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no LMDB\n" * 1000)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    others = [tmp_path / name for name in ("text", "folder", "none", "pipe")]
    others.append(write_lmdb(tmp_path / "other", {b"a": b"value", b"b": b"\x80\x02]."}))
    for path in others:
        assert not VILBERT.looks_like(path) and not MMF.looks_like(path)
        with pytest.raises((ValueError, OSError)) as error:
            VILBERT.open(path)
        assert "\n" not in str(error.value)
    refused(r"none of its first 100 entries is one of ViLBERT's LMDB .*: its value: ", VILBERT.open, others[-1])
    with pytest.raises(ValueError, match=r"is one of MMF's LMDB .*: .*missing|has no 'features'"):
        MMF.open(write_pickles(tmp_path / "vilbert", {"1": {"a": 1}}))


def test_the_map_grows_and_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roibeam.features.exchange.lmdb_files._FIRST_MAP_BYTES", 2**15)
    monkeypatch.setattr("roibeam.features.shard.lmdb_file._LEAST_MAP_BYTES", 0)
    monkeypatch.setattr(
        "roibeam.features.shard.lmdb_file.GrowingLmdb.is_due", property(lambda lmdb: lmdb._pending_bytes > 2**16)
    )
    kept = [measured(f"{number:04}", 20, seed=number % 5) for number in range(150)]
    VILBERT.write(kept, tmp_path / "a.lmdb", layout="volta")
    found = records(VILBERT, tmp_path / "a.lmdb")
    assert len(found) == 150 and all(map(RegionRecord.equals, found, kept))


def test_tiny_entries_and_a_file_cut_while_open(tmp_path: Path) -> None:
    many = write_lmdb(tmp_path / "many", {b"%06d" % number: b"" for number in range(3000)})
    refused(r"holds over 1,\d\d\d entries in [\d,]+ bytes, too many for a feature file", LmdbEntries, many)
    path = write_pickles(tmp_path / "a", {"1": multi_task(), "2": multi_task(boxes=np.ones((2000, 4), np.float32))})
    with VILBERT.open(path) as file:
        os.truncate(path / "data.mdb", 4096)
        (letter,) = file.outcomes_of("2")
        assert isinstance(letter, DeadLetter) and letter.reason == "changed"
    refused(r"not a whole LMDB 0\.9 file", VILBERT.open, path)
