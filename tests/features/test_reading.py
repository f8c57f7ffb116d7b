"""What no feature file says and its reading needs: number types of bytes, place of background, order of columns."""

import base64
import dataclasses
import json
import logging
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from butd_tsv_examples import CAFFE, LXMERT, encoded, fields, line
from exchange_examples import measured, place
from refusals import refused

from roibeam.features.exchange.butd_tsv import ButdTsv
from roibeam.features.exchange.formats import format_named, format_of
from roibeam.features.exchange.reading import FILE_DTYPES, Reading, likely_background, likely_dtypes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter

IMAGES, DIM = 4, 16
BYTES_OF_FEATURES = ("butd-tsv", "vlbert-zip", "vilbert-lmdb")  # in base64
ROWS = {
    "butd-tsv": "caffe-cls-prob", "vlbert-zip": "frcnn", "vilbert-lmdb": "multi-task", "mmf-npy": "vilbert-mt",
    "uniter-lmdb": "msgpack",
}  # fmt: skip


def features(seed: int, kind: str = "relu", shape: tuple[int, int] = (6, DIM)) -> np.ndarray:
    """Values as extractors give them."""
    values = np.random.default_rng(seed).normal(size=shape)
    made = {
        "relu": lambda: np.maximum(values, 0),
        "normal": lambda: values,
        "normalised": lambda: values / np.linalg.norm(values, axis=1, keepdims=True),
        "tiny": lambda: values * 1e-6,
        "sparse": lambda: np.where(values > 2.3, values, 0),
        "pooled": lambda: np.maximum(np.random.default_rng(seed).normal(size=(*shape, 49)) - 1.5, 0).mean(axis=2),
        "softmax": lambda: np.exp(4 * values) / np.exp(4 * values).sum(axis=1, keepdims=True),
        "from float16": lambda: values.astype(np.float16).astype(np.float64),
        "from bfloat16": lambda: values.astype(ml_dtypes.bfloat16).astype(np.float64),
        "counts": lambda: np.random.default_rng(seed).integers(0, 100, shape).astype(np.float64),
        "one value": lambda: np.full(shape, 0.7),
    }
    return made[kind]()


def probabilities(seed: int, num_classes: int = 12, num_regions: int = 6) -> np.ndarray:
    """(K, C + 1), background last: sure of one class, and background has most of the rest."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(num_regions, num_classes + 1))
    logits[:, -1] += 4
    logits[np.arange(num_regions), generator.integers(0, num_classes, num_regions)] += 8
    rows = np.exp(logits)
    return rows / rows.sum(axis=1, keepdims=True)


def foreground(rows: np.ndarray) -> np.ndarray:
    return rows[:, :-1] / rows[:, :-1].sum(axis=1, keepdims=True)


def record(number: int, rows: np.ndarray | None = None, kind: str = "relu") -> RegionRecord:
    own = measured(f"image{number}", 6, seed=number, attributes=False, rows=False)
    own = dataclasses.replace(own, features=features(number, kind).astype(np.float32))
    if rows is None:
        return own
    ids = rows[:, :-1].argmax(axis=1)
    scores = np.ascontiguousarray(rows[np.arange(6), ids], np.float32)
    return dataclasses.replace(
        own, class_ids=ids.astype(np.uint16), class_scores=scores, class_distribution=rows.astype(np.float16)
    )


def read(path: Path, reading: Reading | None = None) -> list[RegionRecord]:
    with format_of(path).open(path, reading) as file:
        found = list(file.outcomes())
    assert all(isinstance(each, RegionRecord) for each in found), found
    return [each for each in found if isinstance(each, RegionRecord)]


def doubts_of(path: Path, **given: str) -> list[str]:
    reading = Reading(**given)
    with format_of(path).open(path, reading):
        return reading.doubts


def in_place_of_float32(monkeypatch: pytest.MonkeyPatch, dtype: np.dtype, num_values: int = 6 * DIM) -> None:
    """Writers put arrays of so many numbers, as features have, in this dtype into their base64."""
    plain = base64.b64encode

    def other(data: bytes) -> bytes:
        return plain(np.frombuffer(data, "<f4").astype(dtype).tobytes() if len(data) == 4 * num_values else data)

    monkeypatch.setattr(base64, "b64encode", other)


@pytest.mark.parametrize("format_name", BYTES_OF_FEATURES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "big-endian-float32", "uint8"])
def test_bytes_of_another_number_type_are_doubted_and_read_by_the_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format_name: str, dtype: str
) -> None:
    found, path = format_named(format_name), place(tmp_path, format_name)
    kept = [record(number, kind="counts" if dtype == "uint8" else "relu") for number in range(IMAGES)]
    in_place_of_float32(monkeypatch, FILE_DTYPES[dtype])
    found.write(kept, path, layout="beta" if format_name == "vilbert-lmdb" else None)
    reading = Reading()
    words = rf"look like (\S+ or )?{dtype}.*--feature-dtype {dtype} or .*--feature-dtype float32"
    with found.open(path, reading):
        refused(words, reading.check, path)
    for want, got in zip(kept, read(path, Reading(feature_dtype=dtype)), strict=True):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got.features, want.features.astype(FILE_DTYPES[dtype]).astype(np.float32))


@pytest.mark.parametrize("kind", ["relu", "normal", "normalised", "tiny", "sparse", "pooled", "softmax",
                                  "from float16", "from bfloat16", "counts", "one value"])  # fmt: skip
@pytest.mark.parametrize("shape", [(2, 8), (6, 16), (36, 7), (36, 256)])
def test_features_of_true_extractors_are_never_doubted(kind: str, shape: tuple[int, int]) -> None:
    for seed in range(10):
        values = features(seed, kind, shape)
        for dtype in ("float16", "float32", "float64"):
            data = values.astype(dtype).tobytes()
            groups = np.frombuffer(data[: len(data) // 8 * 8], np.uint8).reshape(-1, 8)
            assert not likely_dtypes(groups, dtype), (seed, dtype)


def test_arrays_whose_bytes_were_taken_for_another_type(tmp_path: Path) -> None:
    """Float16 that somebody loaded as float32 before the file was written, and bfloat16 as numpy keeps its bits."""
    kept = [record(number) for number in range(IMAGES)]
    taken = [dataclasses.replace(each, features=each.features.astype(np.float16).view(np.float32)) for each in kept]
    format_named("lxmert-h5").write(taken, tmp_path / "a.h5")
    assert "look like float16" in doubts_of(tmp_path / "a.h5")[0]
    got = read(tmp_path / "a.h5", Reading(feature_dtype="float16"))
    np.testing.assert_array_equal(got[0].features, kept[0].features.astype(np.float16))
    format_named("mmf-npy").write(kept, tmp_path / "npy")
    for number, each in enumerate(kept):
        bits = each.features.astype(ml_dtypes.bfloat16)
        np.save(tmp_path / "npy" / f"image{number}.npy", bits.view(np.uint16) if number else bits)
    refused("--feature-dtype of `roibeam store import` says what numbers its bytes are", read, tmp_path / "npy")
    got = read(tmp_path / "npy", Reading(feature_dtype="bfloat16"))
    np.testing.assert_array_equal(got[0].features, kept[0].features.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("background", ["last", "none"])
def test_rows_of_classes_without_background_in_front(tmp_path: Path, name: str, background: str) -> None:
    """The file doubts itself where it can be seen, and the option reads it as it is."""
    num_classes = 80 if background == "none" else 12
    true = [probabilities(number, num_classes) for number in range(IMAGES)]
    in_file = true if background == "last" else [foreground(rows) for rows in true]
    path, right = place(tmp_path, name), place(tmp_path, name, "right")
    # The writer moves the last column to the front.
    written = [record(number, np.roll(rows, -1, axis=1)) for number, rows in enumerate(in_file)]
    format_named(name).write(written, path, layout=ROWS[name])
    assert f"--background first or --background {background}" in doubts_of(path)[0]
    reading = Reading(background=background)
    with format_of(path).open(path, reading) as file:
        assert file.details["num_classes"] == num_classes and not reading.doubts
    for rows, got in zip(true, read(path, Reading(background=background)), strict=True):
        np.testing.assert_array_equal(got.class_ids, rows[:, :-1].argmax(axis=1))
        assert got.class_distribution.shape == (6, num_classes + 1)
        if background == "last":
            np.testing.assert_allclose(got.class_distribution, rows, atol=2e-3)
    format_named(name).write([record(0, true[0])], right, layout=ROWS[name])
    assert not doubts_of(right)


@pytest.mark.parametrize("background", ["last", "none"])
def test_objects_of_mmf_count_from_the_first_class_where_background_is_not_first(
    tmp_path: Path, background: str
) -> None:
    wanted = []
    for number in range(IMAGES):
        own, rows = record(number), probabilities(number)
        wanted.append(rows[:, :-1].argmax(axis=1))
        info = {
            "bbox": own.boxes, "num_boxes": 6, "objects": wanted[-1], "image_width": 640, "image_height": 480,
            "cls_prob": rows if background == "last" else foreground(rows),
        }  # fmt: skip
        np.save(tmp_path / f"image{number}.npy", own.features)
        np.save(tmp_path / f"image{number}_info.npy", np.array(info, dtype=object))
    assert background == "none" or "--background first or --background last" in doubts_of(tmp_path)[0]
    for want, got in zip(wanted, read(tmp_path, Reading(background=background)), strict=True):
        np.testing.assert_array_equal(got.class_ids, want)
        np.testing.assert_allclose(got.class_scores, got.class_distribution[np.arange(6), want], atol=1e-3)


@pytest.mark.parametrize("name", ["butd-tsv", "lxmert-h5", "milvlg-npz", "mmf-npy"])
def test_ids_that_count_background_as_zero(tmp_path: Path, name: str) -> None:
    kept = [record(number) for number in range(3)]
    counted = [dataclasses.replace(each, class_ids=each.class_ids + np.uint16(1)) for each in kept]
    path, other = place(tmp_path, name), place(tmp_path, name, "other")
    format_named(name).write(counted, path)
    for want, got in zip(kept, read(path, Reading(background="first")), strict=True):
        np.testing.assert_array_equal(got.class_ids, want.class_ids)
    kept[1] = dataclasses.replace(kept[1], class_ids=np.zeros(6, np.uint16))
    format_named(name).write([*kept[1:], dataclasses.replace(counted[0], image_id="z")], other)
    with format_of(other).open(other, Reading(background="first")) as file:
        letter = next(each for each in file.outcomes_of("image1"))
    assert isinstance(letter, DeadLetter) and "class 0 in 6 regions, which --background first calls" in letter.detail


@pytest.mark.parametrize(("name", "layout"), [("vilbert-lmdb", "volta"), ("mmf-npy", "background")])
@pytest.mark.parametrize("step", [-1, 1])
def test_ids_that_are_one_off_their_rows(tmp_path: Path, name: str, layout: str, step: int) -> None:
    kept = [record(number, probabilities(number, 40)) for number in range(IMAGES)]
    away = [np.clip(each.class_ids.astype(int) + step, 0, 39).astype(np.uint16) for each in kept]
    path = place(tmp_path, name)
    off = [dataclasses.replace(each, class_ids=ids) for each, ids in zip(kept, away, strict=True)]
    format_named(name).write(off, path, layout=layout)
    assert f"class ids are one too {'low' if step < 0 else 'high'} for its rows" in doubts_of(path)[0]
    assert not doubts_of(path, background="first")


def test_signs_of_background_need_more_than_chance() -> None:
    generator = np.random.default_rng(0)
    for width in (3, 7, 81, 1601):
        for _ in range(20):
            assert likely_background(generator.dirichlet(np.ones(width), 20))[0] is None
            assert likely_background(np.roll(probabilities(width, width - 1, 20), 1, axis=1))[0] is None
        one_hot = np.eye(width)[generator.integers(0, width, 20)]
        assert likely_background(one_hot)[0] is None


def test_an_option_decides_and_what_speaks_against_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.tsv"
    kept = [record(number, probabilities(number)) for number in range(IMAGES)]
    format_named("butd-tsv").write(kept, path, layout="caffe-cls-prob")
    with caplog.at_level(logging.WARNING):
        assert not doubts_of(path, background="last", feature_dtype="float16")
    told = [each.getMessage() for each in caplog.records]
    assert told[0] == "--feature-dtype float16: the bytes of the features look like float32"
    assert told[1] == "--background last: the class probabilities look as if it were first"
    for wrong in (("middle", None), (None, "float8")):
        refused(r"--(background|feature-dtype) '\w+': choose one of", Reading, *wrong)


ORDERS = {
    "usual": ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
    "height first": ("image_id", "image_h", "image_w", "num_boxes", "boxes", "features"),
    "lxmert's spelling": ("img_id", "img_w", "img_h", "num_boxes", "boxes", "features"),
    "id last": ("features", "boxes", "num_boxes", "image_h", "image_w", "image_id"),
    "attributes": ("image_id", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "image_h", "image_w",
                   "num_boxes", "boxes", "features", "cls_prob"),
    "ids without attributes": ("image_id", "image_h", "image_w", "objects_id", "objects_conf", "num_boxes",
                               "features", "boxes"),
}  # fmt: skip
KEYS = {"image_h": "height", "image_w": "width", "img_h": "height", "img_w": "width", "img_id": "image_id"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["plain", "byte order mark", "quoted"])
def test_a_header_row_names_the_columns(tmp_path: Path, order: str, form: str) -> None:
    """In any order; it is no entry, not even where headed files were put together."""
    names = "\t".join(f'"{name.upper()}"' if form == "quoted" else name for name in ORDERS[order])
    header = {"plain": "", "byte order mark": "\ufeff", "quoted": "#"}[form].encode() + names.encode() + b"\r\n"
    columns = tuple(KEYS.get(name, name) for name in ORDERS[order])
    values = [fields(f"image{number}", seed=number) for number in range(3)]
    path = tmp_path / "features.dat"
    path.write_bytes(b"".join([header, line(columns, values[0]), header.lstrip(b"\xef\xbb\xbf"),
                               *(line(columns, each) for each in values[1:])]))  # fmt: skip
    if not header.startswith(b"\xef\xbb\xbf"):
        assert len(read(path)) == 3
        with format_of(path).open(path) as file:
            assert file.num_entries == 3 and not file.letters
    path.write_bytes(header + b"".join(line(columns, each) for each in values))
    for want, got in zip(values, read(path), strict=True):
        assert (got.image_id, got.height, got.width) == (want["image_id"], 480, 640)
        np.testing.assert_array_equal(got.boxes, want["boxes"].astype(np.float32))
        np.testing.assert_array_equal(got.features, want["features"].astype(np.float32))
        if "objects_id" in columns:
            np.testing.assert_array_equal(got.class_ids, want["objects_id"])
        assert ("attrs_id" in columns) == (got.attribute_ids is not None)
        assert ("cls_prob" in columns) == (got.class_distribution is not None)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("image_id\timage_w\tnum_boxes\tboxes\tfeatures", "'image_h' is missing"),
        ("image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeats", "'feats' is no column that is known"),
        ("image_id\timage_w\timage_w\tnum_boxes\tboxes\tfeatures", "'width' comes twice"),
        ("image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\tobjects_id", "'objects_conf' is missing"),
        ("image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\tattrs_id\tattrs_conf", "'objects_id' is missing"),
    ],
)
def test_a_header_row_that_does_not_say_enough(tmp_path: Path, header: str, words: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(header.encode() + b"\n" + line(CAFFE, fields()))
    refused(rf"a\.tsv: line 1 is a header, and {words}; columns are image_id, image_w", ButdTsv, path)


def test_height_and_width_in_the_other_order_without_a_header(tmp_path: Path) -> None:
    """Some lines fit only when they are swapped: then the others, which fit both ways, are doubtful too."""
    swapped = ("image_id", "height", "width", "num_boxes", "boxes", "features")
    small = fields("a") | {"boxes": np.tile([5, 5, 60, 70], (3, 1))}
    wide = fields("b") | {"boxes": np.tile([5, 5, 600, 70], (3, 1))}
    path = tmp_path / "a.tsv"
    path.write_bytes(line(swapped, small) + line(swapped, wide))
    doubt = doubts_of(path)[0]
    assert "read as image_id image_w image_h ..., but the boxes of 1 of the 2 lines" in doubt
    assert "put a first line in front that names all columns" in doubt
    path.write_bytes(b"image_id\timage_h\timage_w\tnum_boxes\tboxes\tfeatures\n" + path.read_bytes())
    assert [each.width for each in read(path)] == [640, 640]
    path.write_bytes(line(CAFFE, wide) + line(swapped, fields("c") | {"boxes": wide["boxes"]}))
    assert not doubts_of(path)  # one bad line among good ones


def test_bytes_that_python_3_wrote_as_text_are_read(tmp_path: Path) -> None:
    values = fields()
    as_text = {name: str(encoded(values[name], "<i8" if name.endswith("_id") else "<f4"))
               for name in LXMERT if isinstance(values[name], np.ndarray)}  # fmt: skip
    assert as_text["boxes"].startswith("b'")
    (tmp_path / "a.tsv").write_bytes(line(LXMERT, values | as_text | {"image_id": "b'img1'"}))
    assert read(tmp_path / "a.tsv")[0].image_id == "img1"
    np.testing.assert_array_equal(read(tmp_path / "a.tsv")[0].features, values["features"].astype(np.float32))
    for quote in ("'", '"'):
        member = {
            "image_h": "480.0", "image_w": 640, "num_boxes": "3",
            **{name: f"b{quote}{as_text[name][2:-1]}{quote}" for name in ("boxes", "features")},
        }  # fmt: skip
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("image.json", json.dumps(member))
        (found,) = read(tmp_path / "a.zip")
        np.testing.assert_array_equal(found.boxes, values["boxes"].astype(np.float32))
        assert found.height == 480


def test_whole_numbers_that_pandas_wrote_as_floats_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(line(CAFFE, fields() | {"width": "640.0", "height": "480.0", "num_boxes": "3.0"}))
    assert [(each.height, each.width, each.num_regions) for each in read(path)] == [(480, 640, 3)]
    for wrong in ("480.5", "4e2", "1_000", "-480.0", "nan"):
        path.write_bytes(line(CAFFE, fields()) + line(CAFFE, fields("b") | {"height": wrong}))
        with format_of(path).open(path) as file:
            letters = [each for each in file.outcomes() if isinstance(each, DeadLetter)]
        assert [letter.reason for letter in letters] == ["bad number"] and wrong in letters[0].detail


def test_arrays_of_known_width_may_be_of_8_or_4_bytes(tmp_path: Path) -> None:
    values = fields()
    wide = {name: encoded(values[name], "<f8") for name in ("boxes", "objects_conf", "attrs_conf")}
    (tmp_path / "a.tsv").write_bytes(line(LXMERT, values | wide | {"objects_id": encoded(values["objects_id"], "<i4")}))
    (found,) = read(tmp_path / "a.tsv")
    np.testing.assert_array_equal(found.boxes, values["boxes"].astype(np.float32))
    np.testing.assert_array_equal(found.class_ids, values["objects_id"])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_rows_of_probabilities_are_of_the_type_in_which_they_sum_up_to_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str
) -> None:
    """Whatever the features are."""
    kept = [record(number, probabilities(number)) for number in range(2)]
    for name in ("butd-tsv", "vlbert-zip"):
        path = place(tmp_path, name)
        in_place_of_float32(monkeypatch, np.dtype(dtype), 6 * 13)
        format_named(name).write(kept, path, layout=ROWS[name])
        monkeypatch.undo()
        for want, got in zip(kept, read(path), strict=True):
            np.testing.assert_array_equal(got.class_ids, want.class_ids)
            np.testing.assert_array_equal(got.features, want.features)
