"""Content digests: what "equal" means for records, shards and stores.

A record's digest covers its fields, not its bytes on disk, so it survives another layout, shard size or order. A
store's digest is a digest of record digests: a store that grows, is cut into other shards, or is merged is digested
again from the 32 bytes per record in the shards' indexes, without reading terabytes of features.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from roibeam.features.record.region_record import RegionRecord, TopKDistribution

DIGEST_BYTES = 32
_RECORD_DOMAIN = b"roibeam-record-1\0"


def record_digest(record: RegionRecord) -> bytes:
    """SHA-256 (32 bytes) over every field that is not None, in the order of `_canonical_fields`.

    Each field contributes: name, NUL, dtype name, NUL, number of axes u8, each axis u64, then the C-ordered
    little-endian bytes. The names are unique and the shapes fix the lengths, so no two different records give the same
    input.
    """
    state = hashlib.sha256(_RECORD_DOMAIN)
    for name, dtype, shape, data in _canonical_fields(record):
        state.update(f"{name}\0{dtype}\0".encode("ascii"))
        state.update(struct.pack(f"<B{len(shape)}Q", len(shape), *shape))
        state.update(data)
    return state.digest()


def content_digest(digests: Iterable[tuple[bytes, bytes]]) -> str:
    """SHA-256 (hex) over (length of the key u32, key, record digest) of records in ascending key order.

    Raises:
        ValueError: when keys are not strictly ascending: the same image twice, or shards read in the wrong order.
    """
    state = hashlib.sha256()
    previous: bytes | None = None
    for key, digest in digests:
        assert len(digest) == DIGEST_BYTES
        if previous is not None and key <= previous:
            image_id = key.decode("utf-8", "replace")
            if key == previous:
                raise ValueError(f"image id {image_id!r} is there twice; ids are unique in a store: remove one shard")
            raise ValueError(f"image id {image_id!r} comes after {previous!r}: keys are not in ascending order")
        previous = key
        state.update(struct.pack("<I", len(key)) + key + digest)
    return state.hexdigest()


def merge_digests(sources: Iterable[Iterable[tuple[bytes, bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    """(key, digest) of several shards as one stream in key order; holds one pair per shard.

    Args:
        sources: per shard, pairs in ascending key order, as `ShardReader.digests` yields them.
    Raises:
        ValueError: when two shards hold the same key, or a source is out of order.
    """
    previous: bytes | None = None
    for key, digest in heapq.merge(*sources, key=lambda pair: pair[0]):
        if previous is not None and key <= previous:
            what = "is in two shards" if key == previous else "is out of key order"
            raise ValueError(f"image id {key.decode('utf-8', 'replace')!r} {what}; remove or re-extract one of them")
        previous = key
        yield key, digest


def _canonical_fields(record: RegionRecord) -> Iterator[tuple[str, str, tuple[int, ...], bytes | memoryview]]:
    image_id = record.image_id.encode("utf-8")
    yield "image_id", "utf8", (len(image_id),), image_id
    yield _integer("height", record.height)
    yield _integer("width", record.width)
    yield _array("boxes", record.boxes)
    yield _array("features", record.features)
    yield _array("class_ids", record.class_ids)
    yield _array("class_scores", record.class_scores)
    if record.attribute_ids is not None and record.attribute_scores is not None:
        yield _array("attribute_ids", record.attribute_ids)
        yield _array("attribute_scores", record.attribute_scores)
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        yield _array("top_k.class_ids", distribution.class_ids)
        yield _array("top_k.probabilities", distribution.probabilities)
        yield _array("top_k.rest", distribution.rest)
        yield _integer("top_k.num_classes", distribution.num_classes)
    elif distribution is not None:
        yield _array("class_distribution", distribution)
    if record.image_feature is not None:
        yield _array("image_feature", record.image_feature)


def _integer(name: str, value: int) -> tuple[str, str, tuple[int, ...], bytes]:
    return name, "int64", (), struct.pack("<q", value)


def _array(name: str, array: np.ndarray) -> tuple[str, str, tuple[int, ...], memoryview]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return name, array.dtype.name, array.shape, data
