"""Digests depend on what a record says, and on nothing else."""

import dataclasses

import numpy as np
from refusals import refused
from store_examples import make_record

from roibeam.features.record.region_record import content_digest, merge_digests, record_digest
from roibeam.features.shard.layout import encode_regions

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
