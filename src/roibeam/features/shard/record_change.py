"""What a copy of a store changes of its records, and what that makes of the store's fingerprint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, feature_space_of
from roibeam.features.record.kept_classes import top_k_of
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord, TopKDistribution
from roibeam.features.region_filter import RegionFilter

COPY_DTYPES = ("float16", "float32")


class DoesNotFitError(ValueError):
    """One record cannot be changed as asked; the others may."""


@dataclass(frozen=True)
class RecordChange:
    """The change, the same for all records.

    Attributes:
        dtype: of the features, one of `COPY_DTYPES`; None keeps that of the record. Every float16 and bfloat16 value
            is a float32; the other way values are rounded, and one beyond the range does not fit.
        distribution: "keep", "none" (left out) or "top-<k>": the k best classes and the rest mass.
        regions: which to keep; None for all.

    Raises:
        ValueError: for another dtype or distribution.
    """

    dtype: str | None = None
    distribution: str = "keep"
    regions: RegionFilter | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in COPY_DTYPES:
            raise ValueError(f"--dtype {self.dtype!r}: choose one of {', '.join(COPY_DTYPES)}")
        if self.distribution not in ("keep", "none") and self.top_k is None:
            raise ValueError(
                f"--distribution {self.distribution!r}: choose none or top-K, such as top-20, or leave it out"
            )

    @property
    def top_k(self) -> int | None:
        """k of "top-<k>", else None."""
        return top_k_of(self.distribution)

    def to_json(self) -> dict[str, Any]:
        """Plain values; those that change nothing are None or "keep"."""
        return asdict(self)

    def apply(self, record: RegionRecord) -> RegionRecord:
        """The changed record; `record` itself when nothing changes.

        Raises:
            DoesNotFitError: naming the record, when a value is beyond the range of the new dtype.
            ValueError: naming the record, when top-k is asked of a record with fewer classes or none.
        """
        changed: dict[str, Any] = {}
        rows = None if self.regions is None else self.regions.rows(record.class_scores)
        if rows is not None:
            for name in ("boxes", "features", "class_ids", "class_scores", "attribute_ids", "attribute_scores"):
                value = getattr(record, name)
                changed[name] = None if value is None else value[rows]
            changed["class_distribution"] = _rows_of(record.class_distribution, rows)
        if self.dtype is not None and self.dtype != record.feature_dtype:
            changed["features"] = _cast(changed.get("features", record.features), self.dtype, record.image_id)
            if record.image_feature is not None:
                changed["image_feature"] = _cast(record.image_feature, self.dtype, record.image_id)
        if self.distribution != "keep":
            kept = changed.get("class_distribution", record.class_distribution)
            changed["class_distribution"] = None if self.top_k is None else _top_k(kept, self.top_k, record.image_id)
        return replace(record, **changed) if changed else record

    def fingerprint(self, before: Fingerprint, stored_dtype: str | None) -> Fingerprint:
        """The fingerprint of a store whose records, features in `stored_dtype` (None without records), were changed so.

        Dtype and choice of regions are part of the feature space; the class distribution is not. A store in float32
        that was copied to float16 is in the space of an extraction in float16. The other way it is in a space of its
        own ("rounded_to" names the narrower dtype), which copying back leaves again.
        """
        # A store may say nothing of what its space is the hash of; then the space itself stands for it.
        stated = before.details or {"feature_space": before.feature_space}
        details = dict(stated)
        old = stored_dtype or details.get("feature_dtype")
        if self.dtype is not None and old not in (None, self.dtype):
            rounded = [*_listed(details.pop("rounded_to", [])), *([] if old == "float32" else [old])]
            if rounded and rounded[-1] == self.dtype:
                rounded.pop()
            details |= {"feature_dtype": self.dtype} | ({"rounded_to": rounded} if rounded else {})
        if self.regions is not None and self.regions != RegionFilter():
            details["region_filters"] = [*_listed(details.get("region_filters", [])), asdict(self.regions)]
        if details == stated:
            return before
        imported = before.feature_space.startswith(IMPORTED_PREFIX)
        space = before.feature_space if imported else feature_space_of(details)
        return Fingerprint(space, before.numerics, details)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # a stranger's store may say anything


def _cast(values: np.ndarray, dtype: str, image_id: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(FEATURE_DTYPES[dtype])
    if not np.isfinite(cast).all():
        largest = float(np.abs(values.astype(np.float32)).max())
        raise DoesNotFitError(
            f"record {image_id!r}: a feature of {largest:.6g} is beyond {dtype}, which ends at "
            f"{float(np.finfo(dtype).max):.6g}; float32 holds it"
        )
    return cast


def _rows_of(
    distribution: np.ndarray | TopKDistribution | None, rows: np.ndarray
) -> np.ndarray | TopKDistribution | None:
    if isinstance(distribution, TopKDistribution):
        return replace(
            distribution,
            class_ids=distribution.class_ids[rows],
            probabilities=distribution.probabilities[rows],
            rest=distribution.rest[rows],
        )
    return None if distribution is None else distribution[rows]


def _top_k(distribution: np.ndarray | TopKDistribution | None, k: int, image_id: str) -> TopKDistribution:
    """The k best; ties go to the lower class id. The rest mass is what they lack to 1, so the way there (at once, or
    over a larger k) does not matter."""
    if distribution is None:
        raise ValueError(
            f"record {image_id!r} has no class distribution to take the best {k} of; leave --distribution out, or "
            f"choose none"
        )
    if isinstance(distribution, TopKDistribution):
        ids, best, num_classes = distribution.class_ids, distribution.probabilities, distribution.num_classes
    else:
        ids, best, num_classes = None, distribution, distribution.shape[1] - 1
    if k > best.shape[1]:
        raise ValueError(f"record {image_id!r} has {best.shape[1]} class probabilities per region, top-{k} needs more")
    if ids is None:
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        ids, best = order.astype(np.uint16), np.take_along_axis(best, order, axis=1)
    elif k == best.shape[1]:
        assert isinstance(distribution, TopKDistribution)
        return distribution
    ids, best = np.ascontiguousarray(ids[:, :k]), np.ascontiguousarray(best[:, :k])
    rest = np.clip(1.0 - best.sum(axis=1, dtype=np.float64), 0.0, 1.0)
    return TopKDistribution(ids, best, rest.astype(np.float16), num_classes)
