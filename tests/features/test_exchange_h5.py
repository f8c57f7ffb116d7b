"""HDF5 with a group per image: what its readers see, what comes back, and files that reach for more than they hold."""

import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from exchange_examples import letters, measured, outcomes
from refusals import refused

from roibeam.features.exchange.lxmert_h5 import FORMAT
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Images a and b."""
    path = tmp_path / "two.h5"
    assert FORMAT.write([measured("a"), measured("b", seed=9)], path) == {"class_distribution": 2}
    return path


def test_the_readers_of_the_format_see_their_fields(written: Path) -> None:
    """The lines of h5_to_lmdb.py (volta) and vqa_data.py (VL-T5), as far as they touch the file."""
    with h5py.File(written, "r") as file:
        assert sorted(file) == ["a", "b"]
        names = ["attr_conf", "attr_id", "boxes", "features", "img_h", "img_w", "obj_conf", "obj_id"]
        assert all(list(file[key]) == names for key in file)
        features = np.zeros((3, 8), np.float32)
        file["a/features"].read_direct(features)
        np.testing.assert_array_equal(features, measured("a").features)
        boxes = file["a/boxes"][()]
        boxes[:, (0, 2)] /= file["a/img_w"][()]
        boxes[:, (1, 3)] /= file["a/img_h"][()]
        assert boxes.dtype == np.float32 and boxes.min() >= 0 and boxes.max() <= 1
        assert file["a/obj_id"].dtype == np.int64


def test_bad_groups_are_dead_letters_and_the_others_are_read(written: Path) -> None:
    with h5py.File(written, "a") as file:
        for name in ("no_boxes", "narrow", "far", "no_numbers", "huge_id", "minus"):
            file.copy("a", name)
        del file["no_boxes/boxes"]
        del file["narrow/features"], file["far/boxes"], file["no_numbers/features"], file["minus/obj_conf"]
        file["narrow/features"] = np.zeros((3, 7), np.float32)
        file["far/boxes"] = np.full((3, 4), 700, np.float32)
        file["no_numbers/features"] = np.full((3, 8), np.nan, np.float32)
        file["minus/obj_conf"] = np.full(3, -1, np.float32)
        file["huge_id/obj_id"][...] = 70000
        file.create_group("empty")
        file["stray"] = np.zeros(3)
        file.create_dataset("text/features", data="words")
    found = letters(FORMAT, written)
    assert {name: letter.reason for name, letter in found.items()} == {
        "no_boxes": "wrong type", "narrow": "wrong shape", "far": "boxes outside the image",
        "no_numbers": "invalid record", "huge_id": "bad value", "minus": "bad value", "empty": "missing array",
        "stray": "no group", "text": "wrong type",
    }  # fmt: skip
    assert found["narrow"].location == f"{written}:/narrow" and "(3, 8) is expected" in found["narrow"].detail
    assert sum(isinstance(outcome, RegionRecord) for outcome in outcomes(FORMAT, written)) == 2


def test_nothing_outside_the_file_is_read(written: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(measured("s").features.astype(np.float32).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["g/features"] = np.ones((3, 8), np.float32)
    with h5py.File(written, "a") as file:
        for name in ("stored_outside", "virtual", "soft", "outside"):
            file.copy("a", name)
            del file[f"{name}/features"]
        size = secret.stat().st_size
        file.create_dataset("stored_outside/features", (3, 8), np.float32, external=[(str(secret), 0, size)])
        layout = h5py.VirtualLayout((3, 8), np.float32)
        layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), "g/features", (3, 8))
        file.create_virtual_dataset("virtual/features", layout)
        file["soft/features"] = h5py.SoftLink("/a/features")
        file["outside/features"] = h5py.ExternalLink("other.h5", "/g/features")
        file["group_outside"] = h5py.ExternalLink("other.h5", "/g")
        file["group_soft"] = h5py.SoftLink("/a")
    reasons = {name: letter.reason for name, letter in letters(FORMAT, written).items()}
    assert reasons == {
        "stored_outside": "bytes elsewhere", "virtual": "bytes elsewhere", "soft": "link", "outside": "link",
        "group_outside": "link", "group_soft": "link",
    }  # fmt: skip


def test_shapes_and_packed_bytes_beyond_an_image_are_refused(written: Path) -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    with h5py.File(written, "a") as file:
        for name in ("terabyte", "never_written", "long_chunk", "bomb", "filter", "packed"):
            file.copy("a", name)
            del file[f"{name}/features"]
        file.create_dataset("terabyte/features", (2**20, 2**18), np.float32, chunks=(1, 8))
        file.create_dataset("never_written/features", (100, 8), np.float32)
        file.create_dataset("long_chunk/features", (3, 8), np.float32, chunks=(2**20, 2**7), maxshape=(None, None))
        packed = file.create_dataset("bomb/features", (3, 8), np.float32, chunks=(3, 8), compression="gzip")
        packed.id.write_direct_chunk((0, 0), bomb[:200])
        file.create_dataset("filter/features", data=np.ones((3, 8), np.float32), compression="lzf")
        good = measured("a").features.astype(np.float32)
        file.create_dataset("packed/features", data=good, chunks=(2, 5), compression="gzip", shuffle=True)
    found = letters(FORMAT, written)
    assert {name: letter.reason for name, letter in found.items()} == {
        "terabyte": "array too large", "never_written": "wrong byte count", "long_chunk": "array too large",
        "bomb": "wrong byte count", "filter": "other filter",
    }  # fmt: skip
    (record,) = (one for one in outcomes(FORMAT, written) if one.image_id == "packed")
    np.testing.assert_array_equal(record.features, measured("a").features)


def test_groups_that_hold_themselves(written: Path) -> None:
    with h5py.File(written, "a") as file:
        ring = file.create_group("ring")
        ring["ring"] = ring
        for i in range(10):
            ring[f"again{i}"] = ring
    assert {letter.reason for letter in letters(FORMAT, written).values()} == {"link"}


def test_files_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "some.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    refused(r"some\.h5: is no whole HDF5 file", FORMAT.open, path)
    with h5py.File(path, "w") as file:
        file["image_features"] = np.zeros((10, 8))
    refused("none of its first 100 entries is one of an HDF5 file with a group per image", FORMAT.open, path)
    path.write_text("text")
    assert not FORMAT.looks_like(path) and not FORMAT.looks_like(tmp_path)


def test_the_true_output(shared_data: Path) -> None:
    path = shared_data / "formats" / "lxmert_h5" / "three_images.h5"
    found = outcomes(FORMAT, path, "float32")
    assert not [one for one in found if isinstance(one, DeadLetter)]
    from roibeam.features.exchange.butd_tsv import ButdTsv

    with ButdTsv(shared_data / "formats" / "butd_tsv" / "train2014_obj36.tsv") as tsv:
        for record in found:
            (same,) = tsv.outcomes_of(record.image_id)
            assert isinstance(record, RegionRecord) and isinstance(same, RegionRecord) and record.equals(same)
    assert len(found) == 3
