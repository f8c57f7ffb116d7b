"""UNITER's LMDB: both packings, the json of counts, and its msgpack-numpy read without the package."""

import dataclasses
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import letters, measured, outcomes, records
from lmdb_examples import read_lmdb, write_lmdb
from refusals import refused

from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.flat_json import FlatJsonError, flat_items, flat_strings
from roibeam.features.exchange.npy_files import arrays_from_msgpack, arrays_to_msgpack
from roibeam.features.exchange.uniter_lmdb import FORMAT
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter

# {"conf": np.array([0.5, 1], np.float16)} by msgpack 1.2 and msgpack-numpy 0.4.8, use_bin_type=True.
PACKED = (
    b"\x81\xa4conf\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f2\xc4\x04kind\xc4\x00\xc4\x05shape\x91\x02\xc4\x04data\xc4\x04"
    b"\x008\x00<"
)


def arrays(record: RegionRecord, **changes: np.ndarray) -> dict[str, np.ndarray]:
    """What scripts/convert_imgdir.py keeps of an image."""
    shares = record.boxes / np.array([record.width, record.height] * 2, np.float32)
    return {
        "features": record.features.astype(np.float16),
        "norm_bb": np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1).astype(np.float16),
        "conf": record.class_scores.astype(np.float16),
        "soft_labels": np.roll(record.class_distribution, 1, axis=1),
        **changes,
    }


def npz(values: dict[str, Any]) -> bytes:
    """As their code calls it, which makes an array of the argument allow_pickle in old numpy."""
    with io.BytesIO() as stream:
        np.savez_compressed(stream, **values, **{"allow_pickle.npy"[:-4]: True})
        return stream.getvalue()


def write_database(folder: Path, values: dict[str, bytes], counts: dict[str, int] | None = None) -> Path:
    """The folder above an LMDB of their default name."""
    folder.mkdir()
    entries = {name.encode(): value for name, value in values.items()}
    entries[b"__keys__"] = json.dumps(list(values)).encode()
    write_lmdb(folder / "feat_th0.2_max100_min10", entries)
    if counts is not None:
        (folder / "nbb_th0.2_max100_min10.json").write_text(json.dumps(counts))
    return folder


@pytest.mark.parametrize("layout", FORMAT.layouts)
def test_export_and_import_give_what_the_format_holds(tmp_path: Path, layout: str) -> None:
    kept = [measured("train/a", 5), measured("a-b", seed=4), measured("a", seed=9)]
    lost = FORMAT.write(kept, tmp_path / "out", layout=layout)
    losses = ("attributes", "image size", "class scores beyond float16", "boxes beyond float16")
    assert lost == dict.fromkeys(losses, 3)
    ending = "_compressed" if layout == "compressed" else ""
    assert sorted(os.listdir(tmp_path / "out")) == [f"feat_th0.2_max100_min10{ending}", "nbb_th0.2_max100_min10.json"]
    assert FORMAT.looks_like(tmp_path / "out") and FORMAT.looks_like(
        tmp_path / "out" / f"feat_th0.2_max100_min10{ending}"
    )
    keys = [b"__keys__", b"a-b.npz", b"a.npz", b"train/a.npz"]
    assert list(read_lmdb(tmp_path / "out" / f"feat_th0.2_max100_min10{ending}")) == keys
    found = records(FORMAT, tmp_path / "out")
    assert [record.image_id for record in found] == ["a", "a-b", "train/a"]  # "a-b.npz" comes before "a.npz"
    for record, original in zip(found, kept[::-1], strict=True):
        np.testing.assert_array_equal(record.features, original.features)
        np.testing.assert_array_equal(record.class_ids, original.class_ids)
        np.testing.assert_array_equal(record.class_distribution, original.class_distribution)
        np.testing.assert_array_equal(record.class_scores, original.class_scores.astype(np.float16))
        np.testing.assert_allclose(record.boxes, original.boxes / [640, 480, 640, 480], atol=2**-11)
        assert (record.height, record.width) == (1, 1)
    # What came out of the format goes through it unchanged.
    assert FORMAT.write(found, tmp_path / "again", layout=layout) == {}
    assert all(map(RegionRecord.equals, records(FORMAT, tmp_path / "again"), found))
    with FORMAT.open(tmp_path / "out") as file:
        assert file.details == {
            "layout": layout, "boxes": "normalised", "image_size": "absent", "classes": "soft_labels",
            "attributes": "absent", "background": "first", "num_classes": 6, "feature_dim": 8, "key_list": "__keys__",
            "counts": "nbb_th0.2_max100_min10.json",
        }  # fmt: skip


def test_the_authors_values(tmp_path: Path) -> None:
    record = measured("a")
    values = arrays(record)
    seven = np.concatenate([values["norm_bb"], values["norm_bb"][:, 4:5] * values["norm_bb"][:, 5:]], axis=1)
    for name, value in (("npz", npz(values)), ("msgpack", arrays_to_msgpack(values | {"norm_bb": seven}))):
        path = write_database(tmp_path / name, {"coco_train2014_000000000009.npz": value})
        (found,) = records(FORMAT, path)
        assert found.image_id == "coco_train2014_000000000009" and found.num_regions == 3
        np.testing.assert_array_equal(found.class_ids, record.class_ids)
    no_labels = {name: value for name, value in values.items() if name != "soft_labels"}
    path = write_database(tmp_path / "none", {"a": arrays_to_msgpack(no_labels)})
    with FORMAT.open(path) as file:
        assert file.details["classes"] == "absent" and [*file.ids()] == ["a"]


def test_counts_say_how_many_regions_are_used(tmp_path: Path) -> None:
    values = {name: arrays_to_msgpack(arrays(measured(name, 4))) for name in ("a.npz", "b.npz", "c.npz", "d.npz")}
    path = write_database(tmp_path / "a", values, {"a.npz": 4, "b.npz": 2, "c.npz": 9, "gone.npz": 1})
    found = {outcome.image_id: outcome for outcome in outcomes(FORMAT, path)}
    assert [found[name].num_regions for name in "ab" if isinstance(found[name], RegionRecord)] == [4, 2]
    reasons = {name: each.reason for name, each in found.items() if isinstance(each, DeadLetter)}
    assert reasons == {"c": "wrong shape", "d": "no count", "gone.npz": "missing"}
    for name, want in (("feat_numbb3", 3), ("all", 4)):
        os.rename(path / "feat_th0.2_max100_min10", path / name)
        assert [record.num_regions for record in records(FORMAT, path)] == [want] * 4
        os.rename(path / name, path / "feat_th0.2_max100_min10")
    (path / "nbb_th0.2_max100_min10.json").write_text('{"a.npz": [1]}')
    refused(r"nbb_.*json: no flat JSON: .* expected are names and counts", FORMAT.open, path)
    (path / "all").mkdir()
    (path / "all" / "data.mdb").touch()
    refused(r"holds 2 LMDBs of UNITER \(all, feat_th0", FORMAT.open, path)


@pytest.mark.parametrize(
    "change, reason, words",
    [
        ({"norm_bb": np.full((3, 6), 3, np.float16)}, "boxes outside the image", "norm_bb reaches from 3 to 3"),
        ({"norm_bb": np.zeros((3, 4), np.float16)}, "wrong shape", "norm_bb has shape (3, 4)"),
        ({"conf": np.full(3, 2, np.float16)}, "bad value", "conf has values from 2.0"),
        ({"features": np.zeros((3, 9), np.float16)}, "wrong shape", "features has shape (3, 9)"),
        ({"soft_labels": np.zeros((3, 7), np.float16)}, "bad value", "sums up to"),
        ({"soft_labels": None}, "other fields", "unlike the first entry"),
        ({"features": None}, "missing field", "has no 'features'"),
    ],
)
def test_a_bad_entry_is_a_dead_letter(tmp_path: Path, change: dict[str, Any], reason: str, words: str) -> None:
    values = {name: value for name, value in arrays(measured("b"), **change).items() if value is not None}
    for number, pack in enumerate((arrays_to_msgpack, npz)):
        good = arrays(measured("a"))
        path = write_database(tmp_path / str(number), {"a.npz": pack(good), "b.npz": pack(values)})
        letter = letters(FORMAT, path)["b"]
        assert letter.reason == reason and words in letter.detail


def test_an_object_array_is_refused(tmp_path: Path) -> None:
    hostile = {"conf": np.array([print], dtype=object)}
    path = write_database(tmp_path / "a", {"a": npz(arrays(measured("a"))), "b": npz(arrays(measured("b"), **hostile))})
    letter = letters(FORMAT, path)["b"]
    assert letter.reason == "refused pickle" and "builtins.print" in letter.detail


def test_writing_refuses_what_float16_cannot_hold(tmp_path: Path) -> None:
    large = dataclasses.replace(measured("a"), features=np.full((3, 8), 1e5, np.float32))
    refused(r"record 'a': a feature of 1e\+05 does not fit float16", FORMAT.write, [large], tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_msgpack_as_its_package_writes_it() -> None:
    (conf,) = arrays_from_msgpack(PACKED).values()
    assert conf.dtype == np.float16 and conf.tolist() == [0.5, 1]
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 2), np.int64)}
    found = arrays_from_msgpack(arrays_to_msgpack(values))
    assert {name: (each.dtype, each.tolist()) for name, each in found.items()} == {
        name: (each.dtype, each.tolist()) for name, each in values.items()
    }
    assert arrays_from_msgpack(b"\x82\xa1n\xcd\x01\x00\xa1m\x93\xc0\xc2\xcb" + struct.pack(">d", 1.5)) == {}


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "ends inside a value"),
        (PACKED[:-1], "asks for 4 of 3 bytes"),
        (PACKED + b"\0", "is not one map"),
        (PACKED.replace(b"<f2", b"|O8"), "read are numbers"),
        (PACKED.replace(b"kind\xc4\x00", b"kind\xc4\x01O"), "no plain numpy array"),
        (PACKED.replace(b"kind\xc4\x00", b"kind\xce\x7f\xff\xff\xff"), "no plain numpy array"),
        (PACKED.replace(b"\x91\x02", b"\x91\x03"), "its bytes do not make"),
        (PACKED.replace(b"\x91\x02", b"\x91\xff"), "has no shape"),
        (PACKED.replace(b"nd\xc3", b"nd\xc2"), "no plain numpy array"),
        (b"\x82\xa1a\x01\xa1a\x02", "a key that is no name, or comes twice"),
        (b"\x81\x01\x02", "a key that is no name"),
        (b"\x81\xa1a" + b"\x91" * 50, "levels; refused"),
        (b"\x81\xa1a\xdc\xff\xff" + b"\x01" * 65535, "more than 10,000 parts"),
        (b"\x81\xa1a\xc7\x01\x05x", "has a value of type 0xc7"),
        (b"\x81\xa1\xff\x01", "not UTF-8"),
        (b"\xdf\xff\xff\xff\xff", "ends inside a value"),
    ],
)
def test_hostile_msgpack(data: bytes, words: str) -> None:
    refused(words, arrays_from_msgpack, data, error=EntryError)


def test_flat_json() -> None:
    data = b' {"a": 1, "b\\u00e9\\n": "x\\"", "c": "\xc3\xa9", "d": -1.5e3, "e": null, "f": true, "a": 2 } '
    found = [
        (name, bytes(value).decode() if isinstance(value, memoryview) else value) for name, value in flat_items(data)
    ]
    assert found == [("a", 1), ("bé\n", 'x"'), ("c", "é"), ("d", -1500.0), ("e", None), ("f", True), ("a", 2)]
    assert [*flat_strings(b'["a", "\\\\", "\xc3\xa9"]')] == ["a", "\\", "é"] and [*flat_strings(b"[]")] == []
    assert [*flat_items(b"{}")] == []


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", r"'\{' is expected at byte 0"),
        (b"[]", r"'\{' is expected"),
        (b'{"a": [1]}', "a string or a number is expected at byte 6, got '\\[1\\]}'"),
        (b'{"a": 1} x', "its end is expected"),
        (b'{"a" 1}', "':' is expected"),
        (b'{"a": 1 "b": 2}', "',' is expected"),
        (b'{"a": 1,}', "a string is expected"),
        (b'{"a": "b', "a string is expected"),
        (b'{"a": "\\x"}', "a string is expected"),
        (b'{"a": "b\nc"}', "a string is expected"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b'{"a": ' + b"9" * 100_000, "',' is expected"),
        (b"{" * 100_000, "a string is expected"),
    ],
)
def test_json_that_is_not_flat(data: bytes, words: str) -> None:
    refused(words, list, flat_items(data), error=FlatJsonError)
