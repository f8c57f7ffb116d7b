"""The bytes of one record: a small META value and a large REGION value.

The small value is what is needed to choose regions (boxes, classes, scores), and nearly always fits inside an LMDB leaf
page; the large one is everything that scales with the feature width. They are apart because py-lmdb touches every page
of a value that it returns. Attributes live in the large value: a 2048-d float16 row is exactly one page, so the header
pushes each value one page over, and nearly a page of slack is free there; room in the leaf pages is not.

docs/store-format.md has the byte tables. The bytes of version 1 are final: what it can write keeps its bytes for ever,
and a change is a new version number. (Bit 4 of the flags, an image feature of its own width, joined version 1 later;
readers from before refuse it as a flag they do not know.)
"""

import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from roibeam.features.record.region_record import FEATURE_DTYPES, MAX_REGIONS, RegionRecord, TopKDistribution
from roibeam.messages import short_repr

if sys.byteorder != "little":
    raise ImportError("features: stores are little-endian, this machine is not; use a little-endian one")

T = TypeVar("T")

META_MAGIC = b"RBRM"
REGIONS_MAGIC = b"RBRR"
LAYOUT_VERSION = 1
MAX_IMAGE_SIDE = 2**31 - 1  # as in RegionRecord
MAX_VALUE_BYTES = 2**31 - 1  # what numpy takes as one element
ALIGNMENT = 64  # a cache line; also what torch and AVX-512 loads like best

DTYPE_CODES = {"float16": 1, "float32": 2, "bfloat16": 3}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}

# magic, version, flags, num_regions, height, width, feature_dim, checksum
_META_HEADER = struct.Struct("<4sHHIIIIQ")
_META_PARTS = struct.Struct("<8sIIIIQ")  # the same, with the first three as they are
# magic, version, feature dtype, flags, num_regions, feature_dim, distribution columns, num_classes, key hash,
# payload bytes, checksum. LMDB puts a large value 16 bytes into a page, so 48 bytes of header align the payload to 64.
_REGIONS_HEADER = struct.Struct("<4sHBBIIIIQQQ")
# The same header for a look-up of counts that were found sound before: all fields up to the key hash as they are, key
# hash, payload bytes, checksum.
_REGIONS_PARTS = struct.Struct("<24sQQQ")
_META_CHECKED = 24  # header bytes before the checksum
_REGIONS_CHECKED = 40

_HAS_ATTRIBUTES = 1
_HAS_IMAGE_FEATURE = 2  # as wide as the regions' features
_DISTRIBUTION_SHIFT = 2
_NO_DISTRIBUTION, _FULL_DISTRIBUTION, _TOP_K_DISTRIBUTION = 0, 1, 2
_HAS_OWN_IMAGE_FEATURE = 16  # of any other width
_KNOWN_FLAGS = 0b11111

_F32, _F16, _U16 = np.dtype("<f4"), np.dtype("<f2"), np.dtype("<u2")
_META_BYTES_PER_REGION = 22
_DAMAGED = "the file is damaged or was not written by roibeam; `roibeam store verify --deep` tells which records are"


@dataclass(frozen=True, eq=False)
class RegionMeta:
    """Data needed to choose regions, read without touching the features.

    Attributes:
        height, width: pixels of the decoded image.
        boxes: (K, 4) float32, x1 y1 x2 y2 in those pixels.
        class_ids: (K,) uint16.
        class_scores: (K,) float32.
        feature_dim: D of the features that belong to it.
    """

    height: int
    width: int
    boxes: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    feature_dim: int

    __repr__ = short_repr

    @property
    def num_regions(self) -> int:
        return int(self.class_ids.shape[0])


class _RegionsHeader(NamedTuple):
    magic: bytes
    version: int
    dtype_code: int
    flags: int
    num_regions: int
    feature_dim: int
    columns: int
    num_classes: int
    key_hash: int
    payload_bytes: int
    checksum: int

    @property
    def distribution(self) -> int:
        return self.flags >> _DISTRIBUTION_SHIFT & 3


class _Block(NamedTuple):
    """One array of the payload: `start` and `end` count from the payload's first byte."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class _SoundValue(NamedTuple):
    """Contents of a region value whose header is sound.

    Attributes:
        dtype: of the whole value as one number of named arrays.
        names: of these, those of the widest numbers first.
    """

    num_regions: int
    feature_dim: int
    top_k_classes: int | None
    dtype: np.dtype
    names: tuple[str, ...]


def align_up(offset: int) -> int:
    """The next multiple of 64."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


# bytes -> int, xxh3_64 of the key's UTF-8 bytes, seed 0: in region values and in the offset index.
hash_key = xxhash.xxh3_64_intdigest


def checksum(parts: Iterable[bytes | memoryview]) -> int:
    """xxh3_64 of the parts one after another, seed 0."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


def encode_meta(record: RegionRecord) -> bytes:
    """The META value: 32 + 22 K bytes."""
    head = _META_HEADER.pack(
        META_MAGIC, LAYOUT_VERSION, 0, record.num_regions, record.height, record.width, record.features.shape[1], 0
    )[:_META_CHECKED]
    body = record.class_scores.tobytes() + record.boxes.tobytes() + record.class_ids.tobytes()
    return head + checksum([head, body]).to_bytes(8, "little") + body


def decode_meta(meta: bytes | memoryview, *, check: bool = False) -> RegionMeta:
    """Reads a META value; the arrays share one copy of it (inside a leaf page nothing is aligned). Raises ValueError
    when the value is not a META value of a known version, its length does not fit its counts, or (`check`) its checksum
    is wrong."""
    height, width, class_scores, boxes, class_ids, feature_dim = _meta_values(meta, check)
    fields = {
        "height": height, "width": width, "boxes": boxes, "class_ids": class_ids, "class_scores": class_scores,
        "feature_dim": feature_dim,
    }  # fmt: skip
    return _made_of(RegionMeta, fields)


def _meta_values(meta: bytes | memoryview, check: bool) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray, int]:
    """Height, width, class scores, boxes, class ids and feature width; errors as `decode_meta`."""
    if len(meta) < _META_HEADER.size:
        raise ValueError(f"meta value has {len(meta)} bytes, its header alone has {_META_HEADER.size}; {_DAMAGED}")
    kind, num_regions, height, width, feature_dim, stored = _META_PARTS.unpack_from(meta)
    dtype = _sound_meta(kind, num_regions, len(meta))
    if not (1 <= height <= MAX_IMAGE_SIDE and 1 <= width <= MAX_IMAGE_SIDE):
        raise ValueError(f"meta value has an image of {width}x{height} pixels; {_DAMAGED}")
    if check:
        view = memoryview(meta)
        _check_checksum("meta", checksum([view[:_META_CHECKED], view[_META_HEADER.size :]]), stored)
    # All arrays by one call: views of the copy.
    class_scores, boxes, class_ids = np.ndarray((), dtype, bytearray(meta)).item()
    return height, width, class_scores, boxes, class_ids, feature_dim


@lru_cache(maxsize=4096)
def _sound_meta(kind: bytes, num_regions: int, num_bytes: int) -> np.dtype:
    """A META value as one number of named arrays.

    Args:
        kind: the header before the counts.
        num_bytes: of the whole value.
    Raises:
        ValueError: for a kind of value that version 1 does not know, or a count that does not fit the size.
    """
    magic, version, flags = struct.unpack("<4sHH", kind)
    _check_kind("meta", magic, META_MAGIC, version)
    if flags:
        raise ValueError(f"meta value has flags {flags:#x}, version {LAYOUT_VERSION} has none; {_DAMAGED}")
    size = _META_HEADER.size
    want = size + _META_BYTES_PER_REGION * num_regions
    if num_regions > MAX_REGIONS or num_bytes != want:
        raise ValueError(f"meta value has {num_bytes} bytes, {num_regions} regions need {want}; {_DAMAGED}")
    return np.dtype(
        {
            "names": ["class_scores", "boxes", "class_ids"],
            "formats": [(_F32, (num_regions,)), (_F32, (num_regions, 4)), (_U16, (num_regions,))],
            "offsets": [size, size + 4 * num_regions, size + 20 * num_regions],
            "itemsize": want,
        }
    )


def encode_regions(record: RegionRecord) -> bytes:
    """The REGION value: 48 bytes of header, then the blocks that `_blocks` lays out."""
    num_regions, feature_dim = record.features.shape
    distribution = record.class_distribution
    arrays: dict[str, np.ndarray | None] = {"features": record.features, "image_feature": record.image_feature}
    kind, columns, num_classes = _NO_DISTRIBUTION, 0, 0
    if isinstance(distribution, TopKDistribution):
        kind, columns, num_classes = _TOP_K_DISTRIBUTION, distribution.class_ids.shape[1], int(distribution.num_classes)
        arrays["top_k_ids"] = distribution.class_ids
        arrays["top_k_probabilities"] = distribution.probabilities
        arrays["top_k_rest"] = distribution.rest
    elif distribution is not None:
        kind, columns = _FULL_DISTRIBUTION, distribution.shape[1]
        num_classes = columns - 1
        arrays["class_distribution"] = distribution
    arrays["attribute_scores"], arrays["attribute_ids"] = record.attribute_scores, record.attribute_ids
    flags = kind << _DISTRIBUTION_SHIFT
    flags |= _HAS_ATTRIBUTES if record.attribute_ids is not None else 0
    own_bytes = 0  # of an image feature whose width is in no count of the header
    if record.image_feature is not None and len(record.image_feature) == feature_dim:
        flags |= _HAS_IMAGE_FEATURE
    elif record.image_feature is not None:
        flags |= _HAS_OWN_IMAGE_FEATURE
        own_bytes = record.image_feature.nbytes
    header = _RegionsHeader(
        REGIONS_MAGIC,
        LAYOUT_VERSION,
        DTYPE_CODES[record.feature_dtype],
        flags,
        num_regions,
        feature_dim,
        columns,
        num_classes,
        hash_key(record.image_id.encode("utf-8")),
        0,
        0,
    )
    end = max(block.end for block in _blocks(header).values())
    if _REGIONS_HEADER.size + end + own_bytes > MAX_VALUE_BYTES:
        raise ValueError(
            f"record {record.image_id!r}: {num_regions} regions of {feature_dim} values take {end + own_bytes} bytes, "
            f"at most {MAX_VALUE_BYTES} fit a record; keep fewer regions"
        )
    header = header._replace(payload_bytes=end + own_bytes)
    parts: list[bytes | memoryview] = []
    position = 0
    for name, block in _blocks(header).items():
        array = arrays[name]
        assert array is not None and array.shape == block.shape and array.dtype == block.dtype, name
        parts.append(bytes(block.start - position))
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        position = block.end
    packed = _REGIONS_HEADER.pack(*header)[:_REGIONS_CHECKED]
    return b"".join([packed, checksum([packed, *parts]).to_bytes(8, "little"), *parts])


def decode(
    key: bytes | str, meta: bytes | memoryview, regions: bytes | memoryview, *, copy: bool = True, check: bool = False
) -> RegionRecord:
    """One record from its two values.

    Args:
        key: the image id; bytes are UTF-8.
        copy: True gives arrays of their own; False gives read-only views of `regions` where it is aligned, which keep
            the buffer behind `regions` alive (the META arrays are small and always copies).
        check: also verify both checksums and every rule of `RegionRecord` (reads every byte). Without it, header,
            sizes and the id are checked, and the values inside the arrays are trusted.
    Raises:
        ValueError: naming the record, what was expected and what was found. Sizes are compared with the length of the
            value before any array is made, so a hostile value can neither read outside itself nor ask for memory.
    """
    if isinstance(key, str):
        image_id, raw_key = key, key.encode("utf-8")
    else:
        raw_key = bytes(key)
        try:
            image_id = raw_key.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"key {raw_key!r} is not UTF-8; {_DAMAGED}") from None
    try:
        height, width, class_scores, boxes, class_ids, feature_dim = _meta_values(meta, check)
        if len(regions) < _REGIONS_HEADER.size:
            raise ValueError(f"region value has {len(regions)} bytes, a header has {_REGIONS_HEADER.size}; {_DAMAGED}")
        counts, key_hash, payload_bytes, stored = _REGIONS_PARTS.unpack_from(regions)
        value = _sound_value(counts, payload_bytes, len(regions))
        if key_hash != hash_key(raw_key):
            raise ValueError(f"region value belongs to another image id (key hash {key_hash:016x}); {_DAMAGED}")
        if value.num_regions != len(class_ids) or value.feature_dim != feature_dim:
            raise ValueError(
                f"region value has {value.num_regions} regions of {value.feature_dim} values, "
                f"meta value {len(class_ids)} of {feature_dim}; {_DAMAGED}"
            )
        if check:
            view = memoryview(regions)
            got = checksum([view[:_REGIONS_CHECKED], view[_REGIONS_HEADER.size :]])
            _check_checksum("region", got, stored)
    except ValueError as error:
        raise ValueError(f"record {image_id!r}: {error}") from None
    fields: dict[str, Any] = {
        "image_id": image_id, "height": height, "width": width, "boxes": boxes, "features": None,
        "class_ids": class_ids, "class_scores": class_scores, "attribute_ids": None, "attribute_scores": None,
        "class_distribution": None, "image_feature": None,
    }  # fmt: skip
    # Not np.ndarray(buffer=...), which unwraps a memoryview: nothing would then keep a mapped file from closing.
    arrays = np.frombuffer(regions, value.dtype, 1).item()
    # A value small enough for a leaf page starts at any byte; torch would accept such a view silently. Blocks are
    # multiples of 64 apart, so where the widest numbers are aligned, all are.
    if copy or not arrays[0].flags.aligned:
        arrays = [array.copy() for array in arrays]
    fields.update(zip(value.names, arrays, strict=True))
    if value.top_k_classes is not None:
        fields["class_distribution"] = TopKDistribution(
            fields.pop("top_k_ids"), fields.pop("top_k_probabilities"), fields.pop("top_k_rest"), value.top_k_classes
        )
    return RegionRecord(**fields) if check else _made_of(RegionRecord, fields)


# The values of a store differ in little but the number of regions: a record's counts are nearly always among those
# that were found sound before. 4096 of them are a few MB.
@lru_cache(maxsize=4096)
def _sound_value(counts: bytes, payload_bytes: int, num_bytes: int) -> _SoundValue:
    """Contents of a region value, from its header.

    Args:
        counts: the header before the key hash.
        num_bytes: of the whole value.
    Raises:
        ValueError: for a kind of value that version 1 does not know, or counts that do not fit the sizes.
    """
    rest = struct.pack("<QQQ", 0, payload_bytes, 0)  # key hash and checksum are of no matter here
    header = _RegionsHeader._make(_REGIONS_HEADER.unpack(counts + rest))
    _check_kind("region", header.magic, REGIONS_MAGIC, header.version)
    columns, num_classes = header.columns, header.num_classes
    sane = {
        _NO_DISTRIBUTION: columns == 0 and num_classes == 0,
        _FULL_DISTRIBUTION: columns >= 2 and num_classes == columns - 1,
        _TOP_K_DISTRIBUTION: 1 <= columns <= num_classes + 1,
    }.get(header.distribution, False)
    both = _HAS_IMAGE_FEATURE | _HAS_OWN_IMAGE_FEATURE
    sane = sane and header.flags & both != both
    if header.dtype_code not in DTYPE_NAMES or header.flags & ~_KNOWN_FLAGS or not sane:
        raise ValueError(
            f"region value has dtype code {header.dtype_code}, flags {header.flags:#x}, {columns} distribution columns "
            f"of {num_classes} classes, which version {LAYOUT_VERSION} does not know; {_DAMAGED}"
        )
    if header.num_regions > MAX_REGIONS or header.feature_dim < 1:
        raise ValueError(f"region value claims {header.num_regions} regions of {header.feature_dim} values; {_DAMAGED}")
    blocks = _blocks(header)
    need = max(block.end for block in blocks.values())
    got = num_bytes - _REGIONS_HEADER.size
    if not need == header.payload_bytes == got:
        raise ValueError(
            f"region value has {got} bytes of payload, its header says {header.payload_bytes}, "
            f"its counts need {need}; {_DAMAGED}"
        )
    if "image_feature" in blocks and blocks["image_feature"].shape == (0,):
        raise ValueError(f"region value has an image feature of 0 values; {_DAMAGED}")
    # Empty arrays count as aligned, so they come last.
    names = sorted(blocks, key=lambda name: (0 in blocks[name].shape, -blocks[name].dtype.itemsize))
    dtype = np.dtype(
        {
            "names": names,
            "formats": [(blocks[name].dtype, blocks[name].shape) for name in names],
            "offsets": [_REGIONS_HEADER.size + blocks[name].start for name in names],
            "itemsize": num_bytes,
        }
    )
    top_k_classes = num_classes if header.distribution == _TOP_K_DISTRIBUTION else None
    return _SoundValue(header.num_regions, header.feature_dim, top_k_classes, dtype, tuple(names))


def _blocks(header: _RegionsHeader) -> dict[str, _Block]:
    """Position of each array of the payload, in stored order: at the next multiple of 64, except `attribute_ids`,
    which follows `attribute_scores` directly. An image feature of its own width is last and takes what is left of
    `payload_bytes`."""
    k, feature_dim, columns = header.num_regions, header.feature_dim, header.columns
    feature_dtype = FEATURE_DTYPES[DTYPE_NAMES[header.dtype_code]]
    arrays: list[tuple[str, np.dtype, tuple[int, ...]]] = [("features", feature_dtype, (k, feature_dim))]
    if header.distribution == _FULL_DISTRIBUTION:
        arrays.append(("class_distribution", _F16, (k, columns)))
    elif header.distribution == _TOP_K_DISTRIBUTION:
        arrays.append(("top_k_ids", _U16, (k, columns)))
        arrays.append(("top_k_probabilities", _F16, (k, columns)))
        arrays.append(("top_k_rest", _F16, (k,)))
    if header.flags & _HAS_IMAGE_FEATURE:
        arrays.append(("image_feature", feature_dtype, (feature_dim,)))
    if header.flags & _HAS_ATTRIBUTES:
        arrays.append(("attribute_scores", _F32, (k,)))
        arrays.append(("attribute_ids", _U16, (k,)))
    blocks: dict[str, _Block] = {}
    end = 0
    for name, dtype, shape in arrays:
        start = end if name == "attribute_ids" else align_up(end)
        count = 1
        for extent in shape:
            count *= extent  # Python integers: hostile counts cannot overflow
        end = start + count * dtype.itemsize
        blocks[name] = _Block(dtype, shape, start, end)
    if header.flags & _HAS_OWN_IMAGE_FEATURE:
        start = align_up(end)
        count = max(header.payload_bytes - start, 0) // feature_dtype.itemsize
        blocks["image_feature"] = _Block(feature_dtype, (count,), start, start + count * feature_dtype.itemsize)
    return blocks


def _made_of(kind: type[T], fields: dict[str, Any]) -> T:
    """A record without the checks of its constructor, which read every feature (a stored record passed them), and
    without its assignments field by field, which take as long as all of the arrays."""
    made = _new(kind)
    _set(made, "__dict__", fields)
    return made


_new, _set = object.__new__, object.__setattr__


def _check_kind(what: str, magic: bytes, want: bytes, version: int) -> None:
    if magic != want:
        raise ValueError(f"{what} value starts with {magic!r}, expected {want!r}; {_DAMAGED}")
    if version != LAYOUT_VERSION:
        raise ValueError(
            f"{what} value has version {version}, this roibeam reads {LAYOUT_VERSION}; "
            f"read it with the version that wrote it"
        )


def _check_checksum(what: str, got: int, stored: int) -> None:
    if got != stored:
        raise ValueError(f"{what} value has checksum {got:016x}, stored {stored:016x}; {_DAMAGED}")
