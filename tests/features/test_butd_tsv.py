"""The three layouts, what is wrong with real files, and the true Caffe output for ten photos."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from butd_tsv_examples import CAFFE, CLS_PROB, LXMERT, encoded, fields, line
from refusals import refused

from roibeam.features.exchange import butd_tsv
from roibeam.features.exchange.butd_tsv import ButdTsv, read_butd_tsv
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat

LAYOUTS = {"caffe": CAFFE, "caffe-cls-prob": CLS_PROB, "lxmert": LXMERT}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes these bytes as a file."""

    def write(*parts: bytes) -> Path:
        path = tmp_path / "features.tsv"
        path.write_bytes(b"".join(parts))
        return path

    return write


def outcomes(path: Path, dtype: str = "float32") -> list[RegionRecord | DeadLetter | Repeat]:
    with ButdTsv(path) as tsv:
        return list(tsv.outcomes(dtype))


def only_letter(path: Path, num_records: int = 1) -> DeadLetter:
    found = outcomes(path)
    letters = [outcome for outcome in found if isinstance(outcome, DeadLetter)]
    assert len(letters) == 1 and len(found) == 1 + num_records, found
    return letters[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(write: Callable[..., Path], name: str) -> None:
    values = [fields(f"i{i}", num_regions=i + 1, seed=100 * i) for i in range(3)]
    path = write(*(line(LAYOUTS[name], each) for each in values))
    with ButdTsv(path) as tsv:
        assert (tsv.layout, tsv.widths["features"], tsv.num_lines) == (name, 8, 3)
        records = list(tsv.outcomes())
    for record, want in zip(records, values, strict=True):
        assert isinstance(record, RegionRecord)
        assert (record.image_id, record.height, record.width) == (want["image_id"], 480, 640)
        np.testing.assert_array_equal(record.boxes, want["boxes"].astype(np.float32))
        np.testing.assert_array_equal(record.features, want["features"].astype(np.float32))
        if name == "lxmert":
            np.testing.assert_array_equal(record.class_ids, want["objects_id"])
            np.testing.assert_array_equal(record.class_scores, want["objects_conf"].astype(np.float32))
            np.testing.assert_array_equal(record.attribute_ids, want["attrs_id"])
            np.testing.assert_array_equal(record.attribute_scores, want["attrs_conf"].astype(np.float32))
        elif name == "caffe":
            assert not record.class_ids.any() and not record.class_scores.any()
            assert record.attribute_ids is None and record.class_distribution is None
        else:
            rows = want["cls_prob"].astype(np.float32)
            np.testing.assert_array_equal(record.class_ids, rows[:, 1:].argmax(axis=1))
            np.testing.assert_array_equal(record.class_scores, rows[:, 1:].max(axis=1))
            np.testing.assert_array_equal(record.class_distribution[:, :-1], rows[:, 1:].astype(np.float16))
            np.testing.assert_array_equal(record.class_distribution[:, -1], rows[:, 0].astype(np.float16))


@pytest.mark.parametrize(
    ("change", "stage", "reason", "words"),
    [
        ({"num_boxes": "3.5"}, "read", "bad number", "num_boxes must be an integer from 0 to 65535, got str '3.5'"),
        ({"num_boxes": 70000}, "read", "bad number", "70000"),
        ({"height": 0}, "read", "bad number", "height"),
        ({"image_id": b"\xe9t\xe9"}, "read", "bad image id", "not UTF-8"),
        ({"image_id": "x" * 600}, "read", "bad image id", "has 600 bytes"),
        ({"boxes": b"AAA"}, "decode", "bad base64", "boxes: "),
        ({"boxes": b"AA\xc3A"}, "decode", "bad base64", "boxes: "),
        ({"num_boxes": 2}, "decode", "wrong byte count", "boxes has 48 bytes, 2 boxes need 2 x 4 x 4"),
        ({"features": np.zeros((3, 9))}, "decode", "wrong byte count", "features has 108 bytes, 3 boxes need 3 x 8"),
        ({"objects_id": encoded(np.zeros(3), "<i2")}, "decode", "wrong byte count", "objects_id has 6 bytes"),
        ({"objects_id": np.array([1, -1, 2])}, "record", "bad value", "ids from -1 to 2"),
        ({"objects_conf": np.array([1, 2, 0.5])}, "record", "bad value", "objects_conf has values from 0.5 to 2.0"),
        ({"objects_conf": np.array([1, np.nan, 0.5])}, "record", "bad value", "objects_conf"),
        ({"features": np.full((3, 8), np.nan)}, "record", "invalid record", "features holds NaN or infinity"),
        ({"boxes": np.full((3, 4), np.inf)}, "record", "invalid record", "boxes holds NaN or infinity"),
        ({"boxes": np.tile([50, 50, 40, 60], (3, 1))}, "record", "invalid record", "x2 < x1"),
        ({"height": 640, "width": 480, "boxes": np.tile([500, 0, 600, 470], (3, 1))}, "record",
         "height and width swapped", "they fit when height and width are swapped"),
        ({"boxes": np.tile([500, 0, 900, 470], (3, 1))}, "record", "boxes outside the image", "x 900.0, y 470.0"),
    ],
)  # fmt: skip
def test_a_bad_line_is_counted_with_its_number(
    write: Callable[..., Path], change: dict[str, Any], stage: str, reason: str, words: str
) -> None:
    path = write(line(LXMERT, fields("good")), line(LXMERT, fields("worse") | change))
    letter = only_letter(path)
    assert (letter.stage, letter.reason, letter.location) == (stage, reason, f"{path}:2")
    assert words in letter.detail and "\n" not in letter.detail
    refused(r"features\.tsv:2: .*mend or remove this line", list, read_butd_tsv(path))


def test_class_rows_must_be_probabilities(write: Callable[..., Path]) -> None:
    values = fields("logits")
    rows = np.ones_like(values["cls_prob"])
    letter = only_letter(write(line(CLS_PROB, fields()), line(CLS_PROB, values | {"cls_prob": rows})))
    assert letter.reason == "bad value" and "sums up to 1 +- 6" in letter.detail
    other = values["cls_prob"][:, :5] / values["cls_prob"][:, :5].sum(axis=1, keepdims=True)
    letter = only_letter(write(line(CLS_PROB, fields()), line(CLS_PROB, values | {"cls_prob": other})))
    assert letter.reason == "wrong byte count" and "3 x 7 x 4" in letter.detail


def test_a_value_that_the_dtype_cannot_hold(write: Callable[..., Path]) -> None:
    path = write(line(CAFFE, fields("a")), line(CAFFE, fields("b") | {"features": np.full((3, 8), 70000.0)}))
    assert [type(outcome) for outcome in outcomes(path, "float32")] == [RegionRecord, RegionRecord]
    half, letter = outcomes(path, "float16")
    assert isinstance(half, RegionRecord) and half.feature_dtype == "float16"
    assert isinstance(letter, DeadLetter) and "float16" in letter.detail


@pytest.mark.parametrize("cut", [1, 5, 100, 250])
def test_a_torn_last_line(write: Callable[..., Path], cut: int) -> None:
    whole = line(LXMERT, fields("b"))
    path = write(line(LXMERT, fields("a")), whole[: -cut - 1])
    letter = only_letter(path)
    assert letter.reason == "torn line" and letter.location == f"{path}:2" and "file ends inside" in letter.detail


def test_a_last_line_without_line_end_is_read_when_its_width_is_known(write: Callable[..., Path]) -> None:
    found = outcomes(write(line(CAFFE, fields("a")), line(CAFFE, fields("b"), end=b"")))
    assert all(isinstance(outcome, RegionRecord) for outcome in found) and len(found) == 2
    refused("ends inside this line", ButdTsv, write(line(LXMERT, fields("b"), end=b"")))


def test_a_line_glued_to_a_torn_one_and_one_of_tabs(write: Callable[..., Path]) -> None:
    glued = line(LXMERT, fields("b"))[:-20] + line(LXMERT, fields("c"))
    letter = only_letter(write(line(LXMERT, fields("a")), glued))
    assert letter.reason == "wrong columns" and "two lines in one" in letter.detail
    letter = only_letter(write(line(CAFFE, fields("a")), b"x" + b"\t" * 5000 + b"\n"))
    assert letter.detail == "has 5001 columns, the lines of this file have 6"


def test_repeats(write: Callable[..., Path]) -> None:
    """The first usable line counts; equal ones are left out, others are dead letters."""
    first, other = fields("a", seed=1), fields("a", seed=2)
    lines = (line(CAFFE, each) for each in (fields("b"), first | {"boxes": b"????"}, first, other))
    path = write(*lines, line(CAFFE, first, end=b"\r\n"))
    found = outcomes(path)
    assert [type(outcome) for outcome in found] == [DeadLetter, RegionRecord, DeadLetter, Repeat, RegionRecord]
    _, record, letter, repeat, _ = found
    assert record.boxes[0, 0] == np.float32(first["boxes"][0, 0])
    assert (letter.reason, letter.location) == ("another record of this image", f"{path}:4")
    assert repeat.location == f"{path}:5"
    with ButdTsv(path) as tsv:
        assert list(tsv.ids()) == ["a", "b"] and "a" in tsv and "c" not in tsv and 7 not in tsv


def test_byte_order_mark_line_ends_and_blank_lines(write: Callable[..., Path]) -> None:
    path = write(b"\xef\xbb\xbf", line(CAFFE, fields("a"), end=b"\r\n"), b"\r\n\n", line(CAFFE, fields("b")), b"  \n")
    with ButdTsv(path) as tsv:
        assert [record.image_id for record in tsv.outcomes()] == ["a", "b"]
        assert (tsv.num_lines, tsv.num_blank) == (5, 3)


def test_a_line_over_the_bound_is_skipped_without_being_held(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(butd_tsv, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(butd_tsv, "_READ_BUFFER_BYTES", 512)
    long = line(CAFFE, fields("long", num_regions=60))
    assert len(long) > 3000
    path = write(line(CAFFE, fields("a")), long, line(CAFFE, fields("b")), long[:-1])
    found = outcomes(path)
    letters = [outcome for outcome in found if isinstance(outcome, DeadLetter)]
    assert [letter.reason for letter in letters] == ["line too long"] * 2 and len(found) == 4
    assert letters[0].image_id == "long" and f"{len(long):,} bytes" in letters[0].detail


def test_images_without_boxes_and_without_attributes(write: Callable[..., Path]) -> None:
    nothing = fields("none", num_regions=0)
    zeros = {"attrs_id": np.zeros(3, int), "attrs_conf": np.zeros(3)}
    found = outcomes(write(line(LXMERT, nothing), line(LXMERT, fields("a") | zeros)))
    assert [type(each) for each in found] == [RegionRecord, RegionRecord]
    assert isinstance(found[0], RegionRecord) and found[0].attribute_ids is None
    assert isinstance(found[1], RegionRecord) and found[1].features.shape == (0, 8)
    (empty, _) = outcomes(write(line(CLS_PROB, fields("0", num_regions=0)), line(CLS_PROB, fields("a"))))
    assert isinstance(empty, RegionRecord) and empty.class_distribution is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing in it"),
        (b"\n\n", "nothing in it"),
        (b"a\tb\tc\n", "has 3 columns"),
        (b"no tabs\n", "has no tab"),
        (b"\x1f\x8b\x08\x00abc\n", "compressed"),
        ("a\tb\n".encode("utf-16"), "UTF-16"),
        (line(CAFFE, fields("a", num_regions=0)), "no boxes"),
    ],
)
def test_files_of_other_kinds(write: Callable[..., Path], content: bytes, words: str) -> None:
    refused(rf"features\.tsv: none of its first .*{words}", ButdTsv, write(content))


def test_other_files_that_are_refused(
    tmp_path: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused("none.tsv", ButdTsv, tmp_path / "none.tsv", error=FileNotFoundError)
    refused("no regular file", ButdTsv, tmp_path)
    monkeypatch.setattr(butd_tsv, "MAX_LINES_WITHOUT_ID", 50)  # of nothing but bad entries: they would fill the memory
    refused("over 50 lines without a usable image id", ButdTsv, write(line(CAFFE, fields()), b"x\n" * 1000))


def test_a_file_that_changes_while_it_is_read(write: Callable[..., Path]) -> None:
    large = line(CAFFE, fields("a", num_regions=30, feature_dim=8000))  # more than the read buffer holds
    path = write(large, line(CAFFE, fields("b", feature_dim=8000)))
    with ButdTsv(path) as tsv:
        path.write_bytes(large + line(CAFFE, fields("c", feature_dim=8000)))
        found = {outcome.image_id: outcome for outcome in tsv.outcomes()}
    assert isinstance(found["b"], DeadLetter)


# --- The true Caffe output for ten COCO photos (airsplay/py-bottom-up-attention demo/data/caffe_coco_features).


@pytest.fixture(scope="session")
def tsv_folder(shared_data: Path) -> Path:
    return shared_data / "formats" / "butd_tsv"


@pytest.fixture(scope="session")
def true_records(tsv_folder: Path) -> dict[str, RegionRecord]:
    return {record.image_id: record for record in read_butd_tsv(tsv_folder / "train2014_obj36.tsv")}


def test_true_output_has_the_size_of_the_photos(shared_data: Path, true_records: dict[str, RegionRecord]) -> None:
    photos = json.loads((shared_data / "images" / "index.json").read_text())
    sizes = {Path(photo["file_name"]).stem: (photo["height"], photo["width"]) for photo in photos}
    assert len(true_records) == 10
    for image_id, record in true_records.items():
        assert (record.height, record.width) == sizes[image_id]
        assert record.features.shape == (36, 2048)


def test_true_boxes_show_the_clip_to_width_minus_1(true_records: dict[str, RegionRecord]) -> None:
    """The network input is round(edge * s), s = 600 / short edge (cv2); boxes are clipped to its width - 1, height - 1,
    and divided by s. So no box reaches the photo's edge, and the largest coordinate is known to the last digit."""
    for record in true_records.values():
        scale = 600 / min(record.height, record.width)
        if round(scale * max(record.height, record.width)) > 1000:
            scale = 1000 / max(record.height, record.width)
        reach = [(round(edge * scale) - 1) / scale for edge in (record.width, record.height)]
        np.testing.assert_allclose(record.boxes[:, 2:].max(axis=0), reach, rtol=1e-6)
        assert record.boxes.min() >= 0
        sides = (record.boxes[:, 2:] - record.boxes[:, :2]) * scale + 1
        assert sides.min() >= 16 * scale  # py-faster-rcnn's proposal layer: RPN_MIN_SIZE 16, in pixels of the photo
    assert true_records["COCO_train2014_000000084002"].boxes[:, 3].max() == np.float32((600 - 1) / 1.25)


def test_true_features_are_means_of_a_relu(true_records: dict[str, RegionRecord]) -> None:
    for record in true_records.values():
        values = record.features
        assert values.min() == 0 and 24 < values.max() < 36
        assert 0.49 <= values.mean() <= 0.85 and 0.24 <= (values == 0).mean() <= 0.40
        assert record.class_ids.max() < 1600 and record.class_scores.max() < 1
        assert record.attribute_ids is not None and record.attribute_ids.max() < 400


def test_the_other_layouts_of_the_true_output_say_the_same(
    tsv_folder: Path, true_records: dict[str, RegionRecord]
) -> None:
    by_number = {int(image_id[-12:]): record for image_id, record in true_records.items()}
    for name, count in (("six_columns.tsv", 3), ("seven_columns_cls_prob.tsv", 2)):
        others = list(read_butd_tsv(tsv_folder / name))
        assert len(others) == count
        for other in others:
            record, k = by_number[int(other.image_id)], other.num_regions
            assert (other.height, other.width) == (record.height, record.width)
            np.testing.assert_array_equal(other.boxes, record.boxes[:k])
            np.testing.assert_array_equal(other.features, record.features[:k])
            if "cls_prob" in name:
                np.testing.assert_array_equal(other.class_ids, record.class_ids[:k])
                np.testing.assert_array_equal(other.class_scores, record.class_scores[:k])
