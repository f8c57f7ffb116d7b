"""What a record refuses, by the words of the refusal, and its digest."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from refusals import refused
from store_examples import make_record

from roibeam.features.record.region_record import TopKDistribution, content_digest, merge_digests, record_digest
from roibeam.features.shard.layout import encode_regions

RECORD = make_record(num_regions=2, attributes=True)
IDS, HALVES, REST = np.zeros((2, 1), np.uint16), np.zeros((2, 1), np.float16), np.zeros(2, np.float16)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"image_id": ""}, "has 0 bytes"),
        ({"image_id": "é" * 256}, "has 512 bytes in UTF-8; ids have 1 to 511"),
        ({"image_id": "\udc80"}, "not valid UTF-8"),
        ({"height": 0}, "image size 0x640"),
        ({"width": 2**31}, "not positive"),
        ({"height": 480.0}, "height must be an integer, got 480.0"),
        ({"features": np.zeros((2, 0), np.float16)}, r"features must be \(K, D\)"),
        ({"features": np.zeros((2, 8), np.float64)}, r"got \(2, 8\) float64"),
        ({"features": np.zeros((65536, 1), np.float16)}, "65536 regions, at most 65535"),
        ({"features": np.full((2, 8), np.inf, np.float16)}, "features holds NaN or infinity in float16"),
        ({"features": np.full((2, 8), np.nan, ml_dtypes.bfloat16)}, "features holds NaN or infinity in bfloat16"),
        ({"boxes": np.zeros((3, 4), np.float32)}, r"boxes must be \(2, 4\) float32, got \(3, 4\)"),
        ({"boxes": np.array([[5, 0, 4, 1], [0, 0, 1, 1]], np.float32)}, "x2 < x1"),
        ({"boxes": np.array([[np.nan, 0, 1, 1], [0, 0, 1, 1]], np.float32)}, "boxes holds NaN"),
        ({"class_ids": np.zeros(2, np.int64)}, "class_ids must be"),
        ({"class_scores": np.zeros(2, np.float16)}, "class_scores must be"),
        ({"attribute_ids": None}, "come together"),
        ({"attribute_scores": np.zeros(3, np.float32)}, "attribute_scores must be"),
        ({"class_distribution": np.zeros((2, 1), np.float16)}, "class_distribution must be"),
        ({"class_distribution": np.zeros(2, np.float16)}, "class_distribution must be"),
        ({"class_distribution": TopKDistribution(IDS, HALVES, HALVES, 5)}, "top-k distribution of shapes"),
        ({"class_distribution": TopKDistribution(IDS, HALVES, REST.astype("f4"), 5)}, "must be uint16, float16"),
        ({"class_distribution": TopKDistribution(IDS + 6, HALVES, REST, 5)}, "names a class beyond 5"),
        ({"class_distribution": TopKDistribution(IDS, HALVES + np.inf, REST, 5)}, "class_distribution holds NaN"),
        ({"image_feature": np.zeros((1, 8), np.float16)}, r"image_feature must be \(8,\) float16, got \(1, 8\)"),
        ({"image_feature": np.zeros(0, np.float16)}, r"image_feature must be \(1,\) float16, got \(0,\)"),
        ({"image_feature": np.full(3, np.inf, np.float16)}, "image_feature holds NaN or infinity in float16"),
        ({"image_feature": np.zeros(8, np.float32)}, "image_feature must be"),
    ],
)
def test_a_bad_field_is_named(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(RECORD, **change)


def test_an_image_feature_has_any_width() -> None:
    for feature in (np.arange(width, dtype=np.float16) for width in (1, 7, 8, 1024)):
        assert dataclasses.replace(RECORD, image_feature=feature).image_feature is feature


def test_equals_compares_every_field_bit_for_bit() -> None:
    assert RECORD.equals(make_record(num_regions=2, attributes=True))
    assert not RECORD.equals(dataclasses.replace(RECORD, boxes=-RECORD.boxes[:, [2, 3, 0, 1]]))
    assert not RECORD.equals(make_record(num_regions=2))
    assert not RECORD.equals(make_record(num_regions=2, dtype="float32", attributes=True))


def test_dense_spreads_the_rest_over_unlisted_classes() -> None:
    top = TopKDistribution(np.array([[2, 0]], "u2"), np.array([[0.5, 0.25]], "f2"), np.array([0.25], "f2"), 3)
    np.testing.assert_array_equal(top.dense(), np.array([[0.25, 0.125, 0.5, 0.125]], np.float32))


def test_a_height_is_an_int_that_stays() -> None:
    assert type(dataclasses.replace(RECORD, height=np.int64(7)).height) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECORD.height = 3  # type: ignore[misc]


# --- Digests depend on what a record says, and on nothing else

PAIRS = [(bytes([65 + i]), bytes([i]) * 32) for i in range(6)]


def test_every_field_counts() -> None:
    full = make_record("k", 2, attributes=True, distribution="full", image_feature=True)
    top = dataclasses.replace(full, class_distribution=make_record("k", 2, distribution="top-k").class_distribution)
    more_classes = dataclasses.replace(top.class_distribution, num_classes=7)
    changes = {
        "image_id": "l", "height": 481, "width": 641, "boxes": full.boxes + 1, "image_feature": None,
        "features": full.features + np.float16(1), "class_ids": full.class_ids + np.uint16(1),
        "class_scores": full.class_scores / 2, "attribute_ids": full.attribute_ids + np.uint16(1),
        "attribute_scores": full.attribute_scores / 2, "class_distribution": None,
    }  # fmt: skip
    variants = [
        full,
        top,
        dataclasses.replace(top, class_distribution=more_classes),
        *(dataclasses.replace(full, **{name: value}) for name, value in changes.items()),
        dataclasses.replace(full, attribute_ids=None, attribute_scores=None),
        *(make_record("k", 2, dtype=dtype) for dtype in ("bfloat16", "float32")),
        *(make_record("k", 0, width) for width in (8, 9)),
    ]
    assert len({record_digest(record) for record in variants}) == len(variants)


def test_memory_order_does_not_count() -> None:
    record = make_record("k", 4)
    other = dataclasses.replace(record, features=np.asfortranarray(record.features))
    assert record_digest(other) == record_digest(record) and encode_regions(other) == encode_regions(record)


def test_digest_of_a_store_does_not_depend_on_how_it_is_cut() -> None:
    whole = content_digest(PAIRS)
    assert content_digest(merge_digests([PAIRS[::2], [], PAIRS[1::2]])) == whole
    assert content_digest(merge_digests([PAIRS[4:], PAIRS[:4]])) == whole
    assert content_digest(PAIRS[1:]) != whole


def test_duplicates_and_disorder_are_refused() -> None:
    refused("image id 'C' is in two shards", list, merge_digests([PAIRS[:3], PAIRS[2:]]))
    refused("image id 'A' is there twice", content_digest, [PAIRS[0], PAIRS[0]])
    refused("not in ascending order", content_digest, PAIRS[::-1])
    refused("out of key order", list, merge_digests([PAIRS[::-1]]))
