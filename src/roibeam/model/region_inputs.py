"""Regions as they come, a store's batch or a list of records, as the tensors that `VLBatch.from_regions` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch


class HasRegions(Protocol):
    """A batch of a store as arrays, a `RegionBatch`; `region_mask` is None where it is ragged."""

    @property
    def image_ids(self) -> Sequence[str]: ...

    @property
    def features(self) -> np.ndarray | None: ...

    @property
    def boxes(self) -> np.ndarray: ...

    @property
    def region_mask(self) -> np.ndarray | None: ...

    @property
    def image_hw(self) -> np.ndarray: ...


class HasRecord(Protocol):
    """One record of a store, a `RegionRecord`."""

    @property
    def image_id(self) -> str: ...

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def boxes(self) -> np.ndarray: ...

    @property
    def features(self) -> np.ndarray: ...


def region_tensors(regions: HasRegions | Sequence[HasRecord]) -> dict[str, Any]:
    """By name, without those that are None; features as float32, since torch reads no array of numpy's bfloat16."""
    if isinstance(regions, Sequence):
        return _padded_records(regions)
    if not hasattr(regions, "region_mask"):
        raise _not_regions(regions)
    features = None if regions.features is None else np.asarray(regions.features, np.float32)
    arrays = {"features": features, "boxes": regions.boxes, "region_mask": regions.region_mask}
    arrays["image_hw"] = regions.image_hw
    found = {name: torch.as_tensor(array) for name, array in arrays.items() if array is not None}
    return {"image_ids": regions.image_ids, **found}


def _padded_records(records: Sequence[HasRecord]) -> dict[str, Any]:
    for record in records:
        if not all(hasattr(record, name) for name in ("image_id", "height", "width", "boxes", "features")):
            raise _not_regions(record)
    widths = sorted({record.features.shape[1] for record in records})
    if len(widths) != 1:
        raise ValueError(f"VLBatch.from_regions: regions are {len(records)} records with features of widths {widths}")
    counts = [len(record.boxes) for record in records]
    features = np.zeros((len(records), max(counts), widths[0]), np.float32)
    boxes = np.zeros((len(records), max(counts), 4), np.float32)
    for row, (record, count) in enumerate(zip(records, counts, strict=True)):
        features[row, :count], boxes[row, :count] = record.features, record.boxes
    return {
        "image_ids": [record.image_id for record in records],
        "features": torch.from_numpy(features),
        "boxes": torch.from_numpy(boxes),
        "region_mask": torch.arange(max(counts)) < torch.tensor(counts)[:, None],
        "image_hw": torch.tensor([[record.height, record.width] for record in records]),
    }


def _not_regions(found: object) -> ValueError:
    kind = type(found).__name__
    hints = {
        "RegionRecord": "; write [record]",
        "Regions": "; a detector's Regions do not tell the photo's size, extract_regions gives records",
    }
    return ValueError(
        f"VLBatch.from_regions: regions must be a store's batch, tensors by name or a list of records, got "
        f"{kind}{hints.get(kind, '')}"
    )
