"""Formats of captioning and VQA code: files as their authors write them, numbers of images, and hostile ones."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from exchange_examples import Runs, letters, measured, outcomes, records
from refusals import refused

from roibeam.features.exchange.array_h5 import FORMAT as ARRAY
from roibeam.features.exchange.captioning import FOLDERS
from roibeam.features.exchange.captioning import H5 as M2
from roibeam.features.exchange.entry_record import far_edges
from roibeam.features.exchange.formats import FORMATS, FeatureFormat, format_named, recognise
from roibeam.features.exchange.lxmert_h5 import FORMAT as LXMERT
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.region_record import RegionRecord

COCO = "COCO_val2014_000000000042"
IMAGES = [measured(COCO, 4), measured("train2017/000000000009", 3, seed=5), measured("0", 2, seed=7)]


def stated(record: RegionRecord) -> RegionRecord:
    """Without what no array of regions says."""
    nothing = {"class_distribution": None, "attribute_ids": None, "attribute_scores": None}
    zeros = {"class_ids": record.class_ids * 0, "class_scores": record.class_scores * 0}
    return replace(record, **nothing, **zeros)


def reasons(found: FeatureFormat, path: Path) -> dict[str, str]:
    return {name: letter.reason for name, letter in letters(found, path).items()}


@pytest.mark.parametrize("name", ["captioning-h5", "captioning-folders", "array-h5"])
def test_images_are_named_by_their_numbers(tmp_path: Path, name: str) -> None:
    found = format_named(name)
    path = tmp_path / ("f.hdf5" if found.is_file else "f")
    assert found.write(IMAGES, path)["image id"] == 2
    assert [record.image_id for record in records(found, path)] == ["0", "42", "9"]
    words = "'train/000042': another one becomes 42 already; export them apart"
    refused(words, found.write, [*IMAGES, measured("train/000042")], tmp_path / "g")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("image_id", "name"),
    [
        (COCO, "42"), ("007", "7"), ("000", "0"), ("a/b_10", "10"), ("n161313", "n161313"), ("12a", "12a"),
        ("é٣", "é٣"),
    ],
)  # fmt: skip
def test_numbers_of_ids(image_id: str, name: str) -> None:
    assert M2.name_of(image_id) == name and LXMERT.name_of(image_id) == image_id


def test_m2_sees_its_fields(tmp_path: Path) -> None:
    """The lines of ImageDetectionsField.preprocess."""
    M2.write(IMAGES, tmp_path / "f.hdf5")
    with h5py.File(tmp_path / "f.hdf5", "r") as file:
        number = int(f"{COCO}.jpg".split("_")[-1].split(".")[0])
        assert file[f"{number}_cls_prob"][()].shape == (4, 7)
        np.testing.assert_array_equal(file[f"{number}_features"][()], IMAGES[0].features)
        assert file["42_boxes"].dtype == file["42_features"].dtype == file["42_cls_prob"].dtype == np.float32
        assert file["42_size"][()].tolist() == [[480, 640]]


def m2_file(path: Path, **more: Any) -> Path:
    """Image 42 in M2's own form, without its size."""
    kept, rows = measured(num_regions=4), np.roll(measured(num_regions=4).class_distribution, 1, axis=1)
    parts = {"features": kept.features.astype(np.float32), "boxes": kept.boxes, "cls_prob": rows.astype(np.float32)}
    with h5py.File(path, "w") as file:
        for part, value in (parts | more).items():
            if value is not None:
                file[f"42_{part}"] = value
    return path


def test_m2s_own_file_has_no_sizes(tmp_path: Path) -> None:
    (found,) = records(M2, m2_file(tmp_path / "f.hdf5"))
    kept = replace(measured(num_regions=4, attributes=False), image_id="42")
    assert (found.height, found.width) == far_edges(kept.boxes) != (480, 640)
    np.testing.assert_array_equal(found.class_ids, kept.class_ids)
    assert recognise(tmp_path / "f.hdf5") is M2
    with M2.open(tmp_path / "f.hdf5") as file:
        assert file.details["image_size"] == "far edges" and file.details["background"] == "first"
    for size in (np.array([480, 640]), np.array([[480.0, 640.0]])):
        (found,) = records(M2, m2_file(tmp_path / "f.hdf5", size=size))
        assert (found.height, found.width) == (480, 640)
    (found,) = records(M2, m2_file(tmp_path / "f.hdf5", cls_prob=np.full(4, 0.5)))  # scores, as of VinVL's files
    assert found.class_distribution is None and not found.class_scores.any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"boxes": None}, "wrong type"), ({"boxes": np.ones((3, 4))}, "wrong shape"),
        ({"boxes": np.full((4, 4), np.nan)}, "bad value"), ({"boxes": np.full((4, 4), 1e30)}, "bad value"),
        ({"size": np.array([480])}, "bad number"), ({"size": np.array([[20, 20]])}, "boxes outside the image"),
        ({"cls_prob": np.ones((4, 7))}, "bad value"),
    ],
)  # fmt: skip
def test_bad_images_of_m2_are_dead_letters(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    M2.write([measured("a"), measured("b", seed=9)], tmp_path / "f.hdf5")
    m2_file(tmp_path / "bad.hdf5", **change)
    with h5py.File(tmp_path / "f.hdf5", "a") as file, h5py.File(tmp_path / "bad.hdf5", "r") as bad:
        for name in bad:
            bad.copy(name, file)
    assert reasons(M2, tmp_path / "f.hdf5") == {"42": reason}
    assert letters(M2, tmp_path / "f.hdf5")["42"].location == f"{tmp_path}/f.hdf5:/42"


def test_links_and_arrays_of_more_than_an_image_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f.hdf5"
    M2.write([measured("a"), measured("b", seed=9)], path)
    m2_file(tmp_path / "other.hdf5")
    with h5py.File(path, "a") as file:
        file["1_features"], file["1_boxes"] = np.ones((3, 8), np.float32), h5py.SoftLink("/a_boxes")
        file["2_features"] = h5py.ExternalLink("other.hdf5", "/42_features")
        file.create_dataset("3_features", (2**20, 2**18), np.float32, chunks=(1, 8))
        file["4_features"] = np.ones((3, 8), np.float32)
        file.create_dataset("4_boxes", (3, 4), np.float32, external=[(str(tmp_path / "other.hdf5"), 0, 48)])
        file["5_grids"] = np.ones(3)  # of DLCT
    found = {"1_boxes": "link", "1": "link", "2_features": "link", "3": "array too large", "4": "bytes elsewhere"}
    assert reasons(M2, path) == found


def folders(path: Path, **files: Callable[[Path], object]) -> Path:
    FOLDERS.write([measured("a"), measured("b", seed=9)], path)
    for name, make in files.items():
        np.savez(path / "cocobu_att" / f"{name}.npz", feat=measured().features.astype(np.float32))
        make(path / "cocobu_box" / f"{name}.npy")
    return path


def test_the_readers_of_the_folders_see_their_fields(tmp_path: Path) -> None:
    """Arrays as make_bu_data.py makes them, found as dataloader.py looks for them."""
    assert FOLDERS.write(IMAGES, tmp_path / "f")["image size"] == 3
    features = IMAGES[0].features.astype(np.float32)
    att = np.load(tmp_path / "f" / "cocobu_att" / "42.npz")["feat"]
    fc, box = (np.load(tmp_path / "f" / f"cocobu_{kind}" / "42.npy") for kind in ("fc", "box"))
    assert {each.dtype for each in (att, fc, box)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(att, features)
    np.testing.assert_array_equal(fc, features.mean(0))
    np.testing.assert_array_equal(box, IMAGES[0].boxes)
    for path in (tmp_path / "f", tmp_path / "f" / "cocobu_att"):
        assert recognise(path) is FOLDERS and len(records(FOLDERS, path)) == 3
        assert [name for name in FORMATS if format_named(name).looks_like(path)] == ["captioning-folders"]


def test_bad_boxes_of_folders_are_dead_letters(tmp_path: Path) -> None:
    (tmp_path / "secret.npy").write_bytes(b"secret")
    path = folders(
        tmp_path / "f",
        none=lambda file: None,
        few=lambda file: np.save(file, np.ones((2, 4), np.float32)),
        out=lambda file: file.symlink_to(tmp_path / "secret.npy"),
        runs=lambda file: np.save(file, np.array(Runs(os.mkdir, str(tmp_path / "made")), dtype=object)),
        pipe=os.mkfifo,
    )
    np.savez(path / "cocobu_att" / "grid.npz", z=np.ones((14, 14, 8), np.float32))
    found = {name: "missing file" for name in ("none", "out", "pipe")} | {"few": "wrong shape", "grid": "wrong shape"}
    assert reasons(FOLDERS, path) == found | {"runs": "refused pickle"} and not (tmp_path / "made").exists()
    np.savez(path / "cocobu_att" / "few.npz", z=np.ones((2, 8), np.float32))  # the name in cocotest_bu
    assert "few" not in reasons(FOLDERS, path)


def test_folders_without_boxes_are_no_regions(tmp_path: Path) -> None:
    path = folders(tmp_path / "f")
    (path / "cocobu_box").rename(path / "other")
    refused("cocobu_att: no cocobu_box is beside it; features without boxes are no regions", FOLDERS.open, path)
    (path / "more_att").mkdir()
    refused("holds 2 folders that end in _att", FOLDERS.open, path)
    assert not FOLDERS.looks_like(path) and not FOLDERS.looks_like(tmp_path / "none")


def arrays(path: Path, index: Any = None, **more: Any) -> Path:
    """Two images of 3 regions as detection_features_converter.py writes them, in rows 0 and 2 of 3."""
    kept = [measured(), measured(), measured(seed=9)]
    boxes = np.stack([record.boxes for record in kept])
    shares = boxes / np.array([640, 480, 640, 480], np.float32)
    parts = {
        "image_features": np.stack([record.features for record in kept]).astype(np.float32), "image_bb": boxes,
        "spatial_features": np.concatenate([shares, shares[..., 2:] - shares[..., :2]], axis=2),
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for part, value in (parts | more).items():
            if value is not None:
                file[part] = value
    path.with_name(f"{path.stem}_imgid2idx.pkl").write_bytes(pickle.dumps(index or {42: 0, 9: 2}, protocol=0))
    return path


def test_an_array_of_all_images_is_read_with_its_index(tmp_path: Path) -> None:
    path = arrays(tmp_path / "train36.hdf5")
    for place in (path, tmp_path):
        assert recognise(place) is ARRAY
        found = {record.image_id: record for record in records(ARRAY, place)}
        assert found["42"].equals(replace(stated(measured()), image_id="42"))
        assert found["9"].equals(replace(stated(measured(seed=9)), image_id="9"))
    assert [name for name in FORMATS if format_named(name).looks_like(path)] == ["array-h5"]
    arrays(tmp_path / "val36.hdf5")
    refused("holds 2 HDF5 files that have an _imgid2idx.pkl", ARRAY.open, tmp_path)
    (records_of_none,) = (records(ARRAY, arrays(path, index={"flickr": 0}, spatial_features=None)),)
    assert (records_of_none[0].height, records_of_none[0].width) == far_edges(measured().boxes)


def test_visdials_arrays_have_their_ids(tmp_path: Path) -> None:
    kept = measured()
    for ids, dtype in (("image_ids", np.int64), ("image_id", np.uint16)):
        path = tmp_path / f"{ids}.h5"
        with h5py.File(path, "w") as file:
            file[ids] = np.array([42, 9], dtype)
            file["features"] = np.stack([kept.features, kept.features * 0]).astype(np.float32)
            file["boxes"] = np.stack([kept.boxes, kept.boxes * 0])
        assert recognise(path) is ARRAY
        (found,) = (each for each in outcomes(ARRAY, path) if isinstance(each, RegionRecord))
        assert found.image_id == "42" and reasons(ARRAY, path) == {"9": "never written"}
        with h5py.File(path, "a") as file:
            del file["boxes"]
        refused("has no boxes; features without boxes are no regions", ARRAY.open, path)


def test_bad_rows_are_dead_letters(tmp_path: Path) -> None:
    index = {42: 0, 9: 2, 5: 1, 7: 10**6}
    path = arrays(tmp_path / "f.hdf5", index)
    with h5py.File(path, "a") as file:
        file["spatial_features"][1] *= 1.5
        file["spatial_features"][1, 0] /= 1.5
    assert reasons(ARRAY, path) == {"5": "bad value", "7": "wrong shape"}
    ARRAY.write(IMAGES, tmp_path / "g")
    with h5py.File(tmp_path / "g" / "train.hdf5", "a") as file:
        file["pos_boxes"][0], file["pos_boxes"][1] = (5, 2), (0, 10**6)
    assert reasons(ARRAY, tmp_path / "g") == {"42": "wrong shape", "9": "wrong shape"}
    (tmp_path / "g" / "train_imgid2idx.pkl").write_bytes(pickle.dumps({42: 99, 0: 2}))
    assert reasons(ARRAY, tmp_path / "g") == {"42": "missing row"}


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([1, 2], "is no dict from image ids to rows"), ({1: 0, 2: 0}, "each the row of one image"),
        ({None: 0}, "is no dict"), ({1: "0"}, "is no dict"), ({1: -1}, "is no dict"), ({1: [0]}, "is no dict"),
        ({1: Runs(os.mkdir, "made")}, "nothing was run; f.hdf5 is read with this dict of ids and rows"),
    ],
)  # fmt: skip
def test_an_index_that_is_none(tmp_path: Path, index: Any, words: str) -> None:
    refused(words, ARRAY.open, arrays(tmp_path / "f.hdf5", index))
    (tmp_path / "f_imgid2idx.pkl").unlink()
    refused(r"f_imgid2idx\.pkl: cannot be read: No such file", ARRAY.open, tmp_path / "f.hdf5")


def test_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    path = arrays(tmp_path / "f.hdf5", image_bb=None)
    refused("has no image_bb; features without boxes are no regions", ARRAY.open, path)
    assert ARRAY.looks_like(path) and not LXMERT.looks_like(path)
    path = arrays(path, image_features=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("image_features", (2**30, 36, 2**20), np.float32, chunks=(1, 1, 8))
    refused("array too large|has 150,994,944 bytes", ARRAY.open, path)
    path = arrays(path, image_features=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("image_features", data=np.ones((3, 3, 8), np.float32), compression="gzip")
    refused("image_features of all images is packed: repack the file", ARRAY.open, path)
    for other in (np.float32(1), np.zeros((3, 3, 8), np.float32)[:, 0]):
        refused("none of its first 100 entries", ARRAY.open, arrays(path, image_bb=other))
    for more in ({"image_ids": np.ones(3, np.float32)}, {"pos_boxes": np.arange(3)}, {"pos_boxes": np.int64(1)},
                 {"pos_boxes": np.zeros((3, 0), np.int32)}):  # fmt: skip
        refused(r"f.hdf5: image_ids must be integers \(N,\), pos_boxes", ARRAY.open, arrays(path, **more))
    with h5py.File(arrays(path), "a") as file:  # few bytes that would become millions of ids
        file.create_dataset("image_ids", data=np.zeros(10**6, np.uint8), compression="gzip")
    refused("image_ids must be integers", ARRAY.open, path)
    for name in ("image_ids", "pos_boxes"):
        with h5py.File(arrays(path), "a") as file:
            file.create_dataset(name, (2**40, 2), np.int64, chunks=(8, 2))
        refused(f"f.hdf5: {name} of shape .* that of an image at most", ARRAY.open, path)


def test_an_option_says_where_m2_has_background(tmp_path: Path) -> None:
    rows = measured(num_regions=4).class_distribution
    m2_file(tmp_path / "f.hdf5", cls_prob=np.asarray(rows, np.float32))
    with M2.open(tmp_path / "f.hdf5", Reading(background="last")) as file:
        (found,) = file.outcomes("float16")
        assert file.details["background"] == "last"
    assert isinstance(found, RegionRecord)
    np.testing.assert_array_equal(found.class_distribution, rows)
