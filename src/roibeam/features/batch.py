"""Batch of records: arrays of many images, assembled in memory that is used again, and the filter of their regions.

`RegionFilter` chooses regions of a stored record, so that one store serves several policies.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.layout import RegionMeta
from roibeam.messages import check_list, short_repr


@dataclass(frozen=True)
class RegionFilter:
    """Keeps the regions of a class score of at least `min_score`; where these are too few or too many, as many of the
    best as `min_regions` or `max_regions` say. Kept regions stay in their stored order.

    It can only narrow what was stored: a record of 12 regions has no 36. The scores are those of the store; a store
    that was selected by them (BUTD's 10 to 100 at 0.2) gives its 36 best by `RegionFilter(max_regions=36)`.

    Attributes:
        min_score: 0..1.
        min_regions: kept whatever their scores, if the record has so many.
        max_regions: at most so many; None for all.

    Raises:
        ValueError: for limits that cannot be met together.
    """

    min_score: float = 0.0
    min_regions: int = 0
    max_regions: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score must be in 0..1, got {self.min_score}")
        if self.min_regions < 0 or (self.max_regions is not None and self.max_regions < max(self.min_regions, 1)):
            raise ValueError(
                f"min_regions {self.min_regions} and max_regions {self.max_regions}: expected 0 <= min_regions <= "
                f"max_regions, and max_regions of at least 1"
            )

    def rows(self, class_scores: np.ndarray) -> np.ndarray | None:
        """(k,) int64 rows to keep of (K,) float32 scores, ascending; None for all. Ties go to the earlier row."""
        count = len(class_scores)
        passing = int((class_scores >= self.min_score).sum())
        num_kept = max(passing, min(self.min_regions, count))
        num_kept = num_kept if self.max_regions is None else min(num_kept, self.max_regions)
        if num_kept == count:
            return None
        return np.sort(np.argsort(-class_scores, kind="stable")[:num_kept])


# Optional fields of a batch: name in a record -> names in the batch.
LARGE_FIELDS = ("features", "attributes", "class_distribution", "image_feature")
_SMALL = ("boxes", "class_ids", "class_scores")


class BatchBuffers:
    """Memory for batches. A batch assembled in it lives until the next one is.

    A fresh array costs more than filling it: the operating system hands out its pages one by one. Two of these, used in
    turn, let one batch travel to a GPU while the next is assembled.

    Args:
        allocate: number of bytes -> writable (n,) uint8 array of at least so many; for shared or pinned memory, such as
            `lambda n: torch.empty(n, dtype=torch.uint8, pin_memory=True).numpy()`.
    """

    def __init__(self, allocate: Callable[[int], np.ndarray] | None = None) -> None:
        self._allocate = allocate or (lambda count: np.empty(count, np.uint8))
        self._blocks: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised C-contiguous array in the block of that name; the block grows when it has to.

        A subclass may return a wider dtype than `dtype`; `assemble` then writes that.
        """
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = self._blocks.get(name)
        if block is None or block.size < count:
            self._blocks[name] = block = self._allocate(count + count // 4)
            if block.dtype != np.uint8 or block.ndim != 1 or block.size < count or not block.flags.writeable:
                raise ValueError(
                    f"allocate({count + count // 4}) gave {block.shape} {block.dtype}; it must give a writable "
                    f"(n,) uint8 array of at least so many bytes"
                )
        return block[:count].view(dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class RegionBatch:
    """B images with N regions in all, the most of them in one image R.

    Padded, arrays of regions are (B, R, ...), zeros behind an image's own. Ragged, they are (N, ...), image after
    image; the regions of image i are rows offsets[i] to offsets[i + 1].

    Attributes:
        image_hw: (B, 2) int32, height and width of the decoded images in pixels.
        num_regions: (B,) int32.
        offsets: (B + 1,) int64; None in a padded batch.
        region_mask: (B, R) bool, True at regions; None in a ragged batch.
        boxes: (..., 4) float32, x1 y1 x2 y2 in pixels of the image.
        class_ids, class_scores: (...) uint16 and float32.
        features: (..., D) as stored; None unless requested, as the following.
        attribute_ids, attribute_scores: (...) uint16 and float32.
        class_distribution: (..., C + 1) float16, background last.
        top_k_ids, top_k_probabilities, top_k_rest: (..., k) uint16, (..., k) float16, (...) float16, of stores that
            keep the best k classes.
        image_feature: (B, G) as stored.
    """

    image_ids: tuple[str, ...]
    image_hw: np.ndarray
    num_regions: np.ndarray
    offsets: np.ndarray | None
    region_mask: np.ndarray | None
    boxes: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    features: np.ndarray | None = None
    attribute_ids: np.ndarray | None = None
    attribute_scores: np.ndarray | None = None
    class_distribution: np.ndarray | None = None
    top_k_ids: np.ndarray | None = None
    top_k_probabilities: np.ndarray | None = None
    top_k_rest: np.ndarray | None = None
    image_feature: np.ndarray | None = None

    __repr__ = short_repr

    def __len__(self) -> int:
        return len(self.image_ids)


def check_fields(fields: Collection[str]) -> None:
    """Raises ValueError for one name in place of a list, or a name that is none of `LARGE_FIELDS`."""
    check_list(fields, "fields")
    if unknown := sorted(set(fields) - set(LARGE_FIELDS)):
        raise ValueError(f"fields {unknown} are unknown; there are {', '.join(LARGE_FIELDS)}")


def assemble(
    image_ids: Iterable[str],
    records: Iterable[RegionRecord | RegionMeta],
    *,
    fields: Collection[str] = ("features",),
    ragged: bool = False,
    regions: RegionFilter | None = None,
    out: BatchBuffers | None = None,
) -> RegionBatch:
    """Copies records into one batch; each stored byte is read once and written once.

    Args:
        image_ids: of the records, at least one.
        records: with views or arrays of their own; all are held at once. Without `fields` their metas will do.
        fields: of `LARGE_FIELDS`.
        regions: which to keep; None for all.
        out: where the arrays live; None makes new ones.
    Raises:
        ValueError: for no records, an unknown field, or one that a record lacks or has in another width.
    """
    check_fields(fields)
    ids, held = tuple(image_ids), list(records)
    if not held:
        raise ValueError("a batch needs at least one record")
    kept = [None if regions is None else regions.rows(record.class_scores) for record in held]
    counts = np.array([r.num_regions if rows is None else len(rows) for r, rows in zip(held, kept, strict=True)])
    memory = out or BatchBuffers()
    offsets = memory.array("offsets", (len(held) + 1,), np.dtype(np.int64))
    offsets[0] = 0
    np.cumsum(counts, out=offsets[1:])
    most = int(counts.max())
    # First row of each image's regions, and the number of rows.
    firsts = offsets[:-1].tolist() if ragged else [index * most for index in range(len(held))]
    num_rows = int(offsets[-1]) if ragged else len(held) * most
    shape = (num_rows,) if ragged else (len(held), most)
    arrays: dict[str, np.ndarray] = {}
    for name in _names(held[0], fields):
        values = _values(ids, held, name)
        flat = memory.array(name, (num_rows, *values[0].shape[1:]), values[0].dtype)
        if ragged and regions is None:
            np.concatenate(values, out=flat)
        else:
            _spread(flat, values, kept, firsts, counts.tolist(), 0 if ragged else most)
        arrays[name] = flat.reshape(*shape, *flat.shape[1:])
    if "image_feature" in fields:
        arrays["image_feature"] = _image_features(memory, ids, held)
    image_hw = memory.array("image_hw", (len(held), 2), np.dtype(np.int32))
    image_hw[:] = [(record.height, record.width) for record in held]
    num_regions = memory.array("num_regions", (len(held),), np.dtype(np.int32))
    num_regions[:] = counts
    mask = None
    if not ragged:
        mask = memory.array("region_mask", shape, np.dtype(bool))
        np.less(np.arange(most), counts[:, None], out=mask)
    return RegionBatch(ids, image_hw, num_regions, offsets if ragged else None, mask, **arrays)


def _names(record: RegionRecord | RegionMeta, fields: Collection[str]) -> list[str]:
    """The arrays of regions that a batch of such records has."""
    names = [*_SMALL]
    if "features" in fields:
        names.append("features")
    if "attributes" in fields:
        names += ["attribute_ids", "attribute_scores"]
    if "class_distribution" in fields:
        is_top_k = isinstance(getattr(record, "class_distribution", None), TopKDistribution)
        names += ["top_k_ids", "top_k_probabilities", "top_k_rest"] if is_top_k else ["class_distribution"]
    return names


def _values(ids: Sequence[str], held: Sequence[RegionRecord | RegionMeta], name: str) -> list[np.ndarray]:
    """One array of each record, all of one width and dtype."""
    get: Callable[[Any], Any] = _TOP_K.get(name) or attrgetter(name)
    values = list(map(get, held))
    if name in _SMALL:  # every record and meta has them, of one width and dtype
        return values
    for image_id, value in zip(ids, values, strict=True):
        _present(image_id, value, name)
    tail, dtype = values[0].shape[1:], values[0].dtype
    for image_id, value in zip(ids, values, strict=True):
        if value.shape[1:] != tail or value.dtype != dtype:
            raise ValueError(
                f"record {image_id!r} has {name} {value.shape[1:]} {value.dtype}, record {ids[0]!r} {tail} {dtype}; "
                f"one batch needs one width"
            )
    return values


def _present(image_id: str, value: Any, name: str) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"record {image_id!r} has no {name.replace('_', ' ')}; leave it out of `fields`")
    return value


def _spread(
    flat: np.ndarray,
    values: Sequence[np.ndarray],
    kept: Sequence[np.ndarray | None],
    firsts: Sequence[int],
    counts: Sequence[int],
    padded_to: int,
) -> None:
    """Copies the kept rows of each value to where its image's begin, and zeros behind them."""
    # `fill` of bytes takes 0.6 of the time of assigning a float16 zero.
    as_bytes = flat.reshape(len(flat), -1).view(np.uint8) if padded_to else flat
    for value, rows, first, count in zip(values, kept, firsts, counts, strict=True):
        if rows is None:
            flat[first : first + count] = value
        elif flat.dtype == value.dtype:
            np.take(value, rows, axis=0, out=flat[first : first + count], mode="clip")
        else:  # `take` writes no other dtype
            flat[first : first + count] = value[rows]
        if count < padded_to:
            as_bytes[first + count : first + padded_to].fill(0)


def _top_k(field: str) -> Callable[[RegionRecord], np.ndarray | None]:
    def get(record: RegionRecord) -> np.ndarray | None:
        top = record.class_distribution
        return getattr(top, field) if isinstance(top, TopKDistribution) else None

    return get


_TOP_K = {
    "top_k_ids": _top_k("class_ids"),
    "top_k_probabilities": _top_k("probabilities"),
    "top_k_rest": _top_k("rest"),
}


def _image_features(memory: BatchBuffers, ids: Sequence[str], held: Sequence[RegionRecord | RegionMeta]) -> np.ndarray:
    values = [_present(i, getattr(r, "image_feature", None), "image_feature") for i, r in zip(ids, held, strict=True)]
    stacked = memory.array("image_feature", (len(held), *values[0].shape), values[0].dtype)
    for row, (image_id, value) in enumerate(zip(ids, values, strict=True)):
        if value.shape != values[0].shape:
            raise ValueError(
                f"record {image_id!r} has an image feature of {len(value)} values, record {ids[0]!r} of "
                f"{len(values[0])}; one batch needs one width"
            )
        stacked[row] = value
    return stacked
