"""The engine with a fake detector: order, failures as data, dtypes, bounded look-ahead."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import ml_dtypes
import numpy as np
import pytest

from extraction.detector import Regions
from extraction.engine import ExtractOptions, extract
from extraction.images import Failure, ImageRef
from features.record import RegionRecord, TopKDistribution


class FakeDetector:
    """Two regions whose first feature is the mean grey level of the image."""

    feature_dim, num_classes, num_attributes = 4, 3, 2

    def __init__(self, feature: float | None = None) -> None:
        self._feature = feature

    def describe(self) -> dict[str, Any]:
        return {"fake": True}

    def __call__(self, images: Sequence[np.ndarray], /) -> list[Regions]:
        return [self._one(image) for image in images]

    def _one(self, image: np.ndarray) -> Regions:
        height, width = image.shape[:2]
        if width == 13:
            raise RuntimeError("unlucky width\nsecond line")
        value = float(image.mean()) if self._feature is None else self._feature
        return Regions(
            boxes=np.array([[0, 0, width, height], [0, 0, 1, 1]], np.float32),
            features=np.full((2, 4), value, np.float32),
            class_ids=np.array([0, 2]),
            class_scores=np.array([0.5, 0.25], np.float32),
            attribute_ids=np.array([1, 0]),
            attribute_scores=np.array([0.75, 0.5], np.float32),
            class_probabilities=np.array([[0.5, 0.1, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32),
            proposal_ids=np.array([0, 1]),
        )


def write(folder: Path, name: str, width: int = 8, grey: int = 100) -> ImageRef:
    path = folder / f"{name}.png"
    cv2.imwrite(str(path), np.full((6, width, 3), grey, np.uint8))
    return ImageRef(name, str(path))


def test_outcomes_come_in_the_order_of_the_images(tmp_path: Path) -> None:
    images = [write(tmp_path, f"{i:02d}", grey=i) for i in range(20)]
    for threads in (1, 4):
        records = list(extract(images, FakeDetector(), options=ExtractOptions(decode_threads=threads)))
        assert [record.image_id for record in records] == [image.image_id for image in images]
        assert all(isinstance(record, RegionRecord) for record in records)
        assert [float(record.features[0, 0]) for record in records] == list(range(20))


def test_bad_images_become_failures_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    images = [
        ImageRef("gone", str(tmp_path / "gone.jpg")),
        write(tmp_path, "good"),
        ImageRef("text", str(tmp_path / "text.jpg")),
        ImageRef("folder", str(tmp_path)),
        write(tmp_path, "unlucky", width=13),
        write(tmp_path, "large", width=900),
    ]
    outcomes = list(extract(images, FakeDetector(), options=ExtractOptions(max_pixels=5000)))
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
    assert unlucky.detail == "RuntimeError: unlucky width"


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
    (outcome,) = extract([write(tmp_path, "a")], FakeDetector(feature), options=options)
    assert (outcome.reason if isinstance(outcome, Failure) else None) == reason


def test_records_hold_what_the_options_say(tmp_path: Path) -> None:
    image = write(tmp_path, "a")
    (full,) = extract([image], FakeDetector())
    assert isinstance(full, RegionRecord) and isinstance(full.class_distribution, np.ndarray)
    assert full.features.dtype == np.float16 and full.class_distribution.dtype == np.float16
    np.testing.assert_array_equal(full.class_distribution[0], np.array([0.5, 0.1, 0.1, 0.3], np.float16))
    assert full.attribute_ids is not None and full.attribute_ids.tolist() == [1, 0]

    (top,) = extract([image], FakeDetector(1.5), options=ExtractOptions("bfloat16", "top-2"))
    assert isinstance(top, RegionRecord) and isinstance(top.class_distribution, TopKDistribution)
    assert top.features.dtype == ml_dtypes.bfloat16 and float(top.features[0, 0]) == 1.5
    assert top.class_distribution.class_ids.tolist() == [[0, 3], [0, 1]]  # ties: the lower id first
    np.testing.assert_allclose(top.class_distribution.rest.astype(float), [0.2, 0.5], atol=1e-3)

    (none,) = extract([image], FakeDetector(), options=ExtractOptions(distribution="none"))
    assert isinstance(none, RegionRecord) and none.class_distribution is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature_dtype": "int8"}, "choose one of float16"),
        ({"distribution": "top-x"}, "choose full, none or top-<k>"),
        ({"distribution": "top-0"}, "choose full, none or top-<k>"),
        ({"decode_threads": 0}, "decode_threads must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ExtractOptions(**options)


def test_reading_stays_a_bounded_number_of_images_ahead(tmp_path: Path) -> None:
    image = write(tmp_path, "a")
    data = Path(image.location).read_bytes()
    reads = 0
    lock = threading.Lock()

    def read(_: str) -> bytes:
        nonlocal reads
        with lock:
            reads += 1
        return data

    outcomes = extract([image] * 50, FakeDetector(), options=ExtractOptions(decode_threads=2), read_bytes=read)
    for done in range(1, 11):
        next(outcomes)
        assert reads <= done + 4
    outcomes.close()
