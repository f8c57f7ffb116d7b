"""The engine with a fake detector: order, failures as data, given boxes, dtypes."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_detector import FakeDetector, raises, when, write_photo
from PIL import Image

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import extract_regions, to_record
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.image_ref import MAX_FILE_BYTES, Box, Failure, ImageRef, read_local_file
from roibeam.extraction.regions import Regions
from roibeam.features.record.region_record import RegionRecord, TopKDistribution


def test_outcomes_come_in_the_order_of_the_images(tmp_path: Path) -> None:
    images = [write_photo(tmp_path, f"{i:02d}", grey=i) for i in range(20)]
    for threads in (1, 4):
        records = list(extract_regions(images, FakeDetector(), options=ExtractOptions(decode_threads=threads)))
        assert [record.image_id for record in records] == [image.image_id for image in images]
        assert all(isinstance(record, RegionRecord) for record in records)
        assert [float(record.features[0, 0]) for record in records] == list(range(20))


def test_bad_images_become_failures_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    images = [
        ImageRef("gone", str(tmp_path / "gone.jpg")),
        write_photo(tmp_path, "good"),
        ImageRef("text", str(tmp_path / "text.jpg")),
        ImageRef("folder", str(tmp_path)),
        write_photo(tmp_path, "unlucky", grey=13),
        write_photo(tmp_path, "large", width=900),
    ]
    detector = FakeDetector(1, when(13, raises(RuntimeError("unlucky grey\nsecond line"))))
    outcomes = list(extract_regions(images, detector, options=ExtractOptions(max_pixels=5000)))
    failures = {o.image_id: (o.stage, o.reason) for o in outcomes if isinstance(o, Failure)}
    assert failures == {
        "gone": ("read", "not found"),
        "text": ("decode", "not an image"),
        "folder": ("read", "unreadable"),
        "unlucky": ("detect", "detector failed"),
        "large": ("decode", "too many pixels"),
    }
    assert [o.image_id for o in outcomes if isinstance(o, RegionRecord)] == ["good"]
    (unlucky,) = [o for o in outcomes if isinstance(o, Failure) and o.image_id == "unlucky"]
    assert unlucky.detail == "RuntimeError: unlucky grey"


def test_memory_for_a_file_is_that_of_the_file(tmp_path: Path) -> None:
    write_photo(tmp_path, "small")
    with open(tmp_path / "large.jpg", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    tracemalloc.start()
    read_local_file(str(tmp_path / "small.png"))
    with pytest.raises(OSError, match="larger than 536870912 bytes"):
        read_local_file(str(tmp_path / "large.jpg"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    ("feature", "dtype", "reason"),
    [
        (float("nan"), "float32", "non-finite feature"),
        (float("inf"), "float16", "non-finite feature"),
        (70_000.0, "float16", "invalid record"),
        (70_000.0, "bfloat16", None),
        (70_000.0, "float32", None),
    ],
)
def test_features_that_do_not_fit_are_failures(tmp_path: Path, feature: float, dtype: str, reason: str | None) -> None:
    options = ExtractOptions(feature_dtype=dtype)
    (outcome,) = extract_regions([write_photo(tmp_path, "a")], FakeDetector(feature=feature), options=options)
    assert (outcome.reason if isinstance(outcome, Failure) else None) == reason


def test_records_hold_what_the_options_say(tmp_path: Path) -> None:
    image = write_photo(tmp_path, "a")
    (full,) = extract_regions([image], FakeDetector())
    for wrong, words in (
        ({"images": ImageRef("a", "a.png")}, "images is a list, got one alone, ImageRef"),
        ({"detector": "toy"}, "detector 'toy' is none: make it first"),
        ({"options": {}}, r"options must be ExtractOptions\(...\), got {}"),
    ):
        with pytest.raises(ValueError, match=words):
            next(extract_regions(**({"images": [], "detector": FakeDetector()} | wrong)))
    with pytest.raises(ValueError, match="an id and a location, both texts; got 5"):
        ImageRef(5, "a.png")
    with pytest.raises(ValueError, match="images has 5, expected a path or ImageRef"):
        next(extract_regions([5], FakeDetector()))  # type: ignore[list-item]
    for path in (image.location, Path(image.location)):
        (named,) = extract_regions([path], FakeDetector())
        assert isinstance(named, RegionRecord) and named.image_id == Path(image.location).stem
    (tmp_path / "photo.1").hardlink_to(image.location)
    (dotted,) = extract_regions([tmp_path / "photo.1"], FakeDetector())
    assert isinstance(dotted, RegionRecord) and dotted.image_id == "photo.1"
    assert isinstance(full, RegionRecord) and isinstance(full.class_distribution, np.ndarray)
    assert full.features.dtype == np.float16 and full.class_distribution.dtype == np.float16
    np.testing.assert_array_equal(full.class_distribution[0], np.array([0.5, 0.1, 0.1, 0.3], np.float16))
    assert full.attribute_ids is not None and full.attribute_ids.tolist() == [1, 0]

    (top,) = extract_regions([image], FakeDetector(feature=1.5), options=ExtractOptions("bfloat16", "top-2"))
    assert isinstance(top, RegionRecord) and isinstance(top.class_distribution, TopKDistribution)
    assert top.features.dtype == ml_dtypes.bfloat16 and float(top.features[0, 0]) == 1.5
    assert top.class_distribution.class_ids.tolist() == [[0, 3], [0, 1]]  # ties: the lower id first
    np.testing.assert_allclose(top.class_distribution.rest.astype(float), [0.2, 0.5], atol=1e-3)

    (none,) = extract_regions([image], FakeDetector(), options=ExtractOptions(distribution="none"))
    assert isinstance(none, RegionRecord) and none.class_distribution is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature_dtype": "int8"}, "choose one of float16"),
        ({"distribution": "top-x"}, "choose full, none or top-<k>"),
        ({"distribution": "top-0"}, "choose full, none or top-<k>"),
        ({"decode_threads": 0}, "decode_threads must be at least 1"),
        ({"load_timeout": 0.0}, "load_timeout must be more than 0 seconds"),
        ({"detect_timeout": float("nan")}, "detect_timeout must be more than 0 seconds"),
        ({"image_feature": "alexnet=w.pth"}, "choose none, region or <network>=<weights> with a network of densenet"),
        ({"image_feature": "resnet18="}, "choose none, region or <network>=<weights>"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ExtractOptions(**options)


def given(image: ImageRef, *boxes: Box, hw: tuple[int, int] | None = None) -> ImageRef:
    return replace(image, boxes=boxes, boxes_hw=hw)


def test_given_boxes_keep_their_number_and_order(tmp_path: Path) -> None:
    image = write_photo(tmp_path, "a", width=400)
    many = tuple((float(i), 0.0, float(i) + 0.7, 6.0) for i in range(300))[::-1]
    images = [given(image, *many), given(image), image, given(image, many[3], many[3])]
    records = list(extract_regions(images, FakeDetector(preferred_batch=4)))
    assert all(isinstance(record, RegionRecord) for record in records)
    boxes = [record.boxes for record in records if isinstance(record, RegionRecord)]
    np.testing.assert_array_equal(boxes[0], np.array(many, np.float32))
    assert [len(rows) for rows in boxes] == [300, 0, 2, 2]
    np.testing.assert_array_equal(boxes[3][0], boxes[3][1])


@pytest.mark.parametrize(
    ("box", "hw", "reason", "words"),
    [
        ((0.0, 0.0, 404.9, 7.0), None, None, ""),  # 1 % and 1 pixel past the edge: annotators round
        ((-4.9, -1.0, 2.0, 1.0), (6, 400), None, ""),
        ((0.1, 0.1, 0.9, 1.0), None, "boxes in shares", "all lie in 0..1; expected pixels of a photo of 400x6"),
        ((5.0, 5.0, 5.0, 5.0), None, None, ""),  # empty, but a box
        ((0, 0, 405.1, 6), None, "box outside the photo", "box 1 of 2 (from 0) is 0 0 405.1 6; the photo has 400x6"),
        ((0.0, 0.0, 4.0, 7.2), None, "box outside the photo", "box 1 of 2"),
        ((-5.1, 0.0, 4.0, 6.0), None, "box outside the photo", "box 1 of 2"),
        ((900.0, 900.0, 901.0, 901.0), None, "box outside the photo", "another or a resized one?"),
        ((300.0, 2.0, 80.0, 4.0), None, "not a box", "box 1 of 2 (from 0) is 300 2 80 4; expected finite x1 y1 x2 y2"),
        ((0.0, 0.0, float("nan"), 4.0), None, "not a box", "0 0 nan 4"),
        ((0.0, 0.0, float("inf"), 4.0), None, "not a box", "0 0 inf 4"),
        ((0, 0, 4, 4), (12, 800), "boxes of another image size", "800x12 pixels (width x height), this one has"),
        ((0.0, 0.0, 4.0, 4.0), (400, 6), "boxes of another image size", "turned by its EXIF tag"),
    ],
)
def test_boxes_that_cannot_be_of_this_photo_are_failures(
    tmp_path: Path, box: Box, hw: tuple[int, int] | None, reason: str | None, words: str
) -> None:
    image = write_photo(tmp_path, "a", width=400)
    (outcome,) = extract_regions([given(image, (0.0, 0.0, 1.0, 1.0), box, hw=hw)], FakeDetector())
    if reason is None:
        assert isinstance(outcome, RegionRecord) and outcome.num_regions == 2
    else:
        assert isinstance(outcome, Failure) and (outcome.stage, outcome.reason) == ("detect", reason)
        assert words in outcome.detail


@pytest.mark.parametrize(
    ("conventions", "hw"),
    [
        (Conventions(exif_orientation="applied"), (40, 30)),
        (Conventions(exif_orientation="ignored"), (30, 40)),
        ("words of another library", (40, 30)),
    ],
)
def test_exif_orientation_is_a_convention_of_the_detector(tmp_path: Path, conventions: Any, hw: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg", exif=exif)
    detector = FakeDetector()
    detector.conventions = conventions  # type: ignore[attr-defined]
    (record,) = extract_regions([ImageRef("a", str(tmp_path / "a.jpg"))], detector)
    assert isinstance(record, RegionRecord) and (record.height, record.width) == hw


def test_a_feature_of_the_whole_photo(tmp_path: Path) -> None:
    image = write_photo(tmp_path, "a")
    (none,) = extract_regions([image], FakeDetector())
    assert isinstance(none, RegionRecord) and none.image_feature is None
    (region,) = extract_regions([image], FakeDetector(), options=ExtractOptions(image_feature="region"))
    assert isinstance(region, RegionRecord) and region.image_feature is not None
    assert region.image_feature.tolist() == [1, 2, 3, 4] and region.image_feature.dtype == np.float16
    options = ExtractOptions("float32", image_feature="resnet18=random:1")
    (network,) = extract_regions([image], FakeDetector(), options=options)
    assert isinstance(network, RegionRecord) and network.image_feature is not None
    assert network.image_feature.shape == (512,) and network.image_feature.dtype == np.float32
    kept = extract_regions([image], FakeDetector(), options=options, global_feature=lambda pixels: pixels[0, :2, 0] / 2)
    (handed_in,) = kept
    assert isinstance(handed_in, RegionRecord) and handed_in.image_feature is not None
    assert handed_in.image_feature.tolist() == [50, 50]


def test_the_most_probable_classes_are_those_of_a_stable_sort(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.random((40, 50), np.float32)
    rows[::2] = np.round(rows[::2], 1)  # many ties, zeros among them
    rows[1] = 0
    regions = Regions(
        boxes=np.zeros((40, 4), np.float32),
        features=np.ones((40, 2), np.float32),
        class_ids=np.zeros(40, np.int64),
        class_scores=np.zeros(40, np.float32),
        attribute_ids=None,
        attribute_scores=None,
        class_probabilities=rows,
        proposal_ids=np.arange(40),
    )
    for count in (1, 7, 50):
        record = to_record("a", 1, 1, regions, ExtractOptions(distribution=f"top-{count}"))
        assert isinstance(record.class_distribution, TopKDistribution)
        expected = np.argsort(-rows, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(record.class_distribution.class_ids, expected)
