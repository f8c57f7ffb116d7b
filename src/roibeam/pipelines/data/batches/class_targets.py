"""What the detector said of the regions of a record, as targets of a model that predicts it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord, TopKDistribution, box_numbers

_KNOWN = (np.dtype(np.float32), np.dtype(np.float16))  # to torch


def as_tensor(features: np.ndarray) -> Tensor:
    """The same numbers in the same type; ml_dtypes' bfloat16 is torch's. Views into a store's file are copied."""
    if not features.flags.writeable:
        features = features.copy()
    if features.dtype in _KNOWN:
        return torch.from_numpy(features)
    return torch.from_numpy(features.view(np.int16)).view(torch.bfloat16)


def with_box_numbers(features: Tensor, boxes: np.ndarray, width: int, height: int) -> Tensor:
    """(R, D + 6) float32 of (R, D) features and their boxes (R, 4) in pixels of an image of that size; see
    `box_numbers`."""
    return torch.cat([features.float(), torch.from_numpy(box_numbers(boxes, height=height, width=width))], dim=1)


def as_float32(features: np.ndarray) -> Tensor:
    # torch converts half precision many times faster than numpy.
    return as_tensor(features).float()


@dataclass(frozen=True, eq=False)
class ClassTargets:
    """Distributions of the few regions of a row that are predicted: those of all would be most of a batch's bytes.

    Attributes:
        rows: (P, C) float32, of the predicted regions in their order.
        predicted: (R,) bool.
    """

    rows: Tensor
    predicted: np.ndarray

    @classmethod
    def of(cls, record: RegionRecord, regions: np.ndarray, predicted: np.ndarray, num_classes: int) -> ClassTargets:
        """What `class_targets` gives of the predicted regions.

        Args:
            regions: (R,) int64, places in the record.
        Raises:
            ValueError: as `class_targets` does.
        """
        if not predicted.any():
            return cls(torch.zeros(0, num_classes + 1), predicted)
        return cls(class_targets(record, regions[predicted], num_classes), predicted)

    def of_regions(self, chosen: np.ndarray) -> Tensor:
        """(n, C) of the regions in `chosen` (R,) bool, which are predicted ones."""
        kept = chosen[self.predicted]
        return self.rows if kept.all() else self.rows[torch.from_numpy(kept)]

    def dense(self) -> Tensor:
        """(R, C), zeros where nothing is predicted."""
        targets = torch.zeros(len(self.predicted), self.rows.shape[1])
        targets[torch.from_numpy(np.flatnonzero(self.predicted))] = self.rows
        return targets


def class_targets(record: RegionRecord, chosen: np.ndarray, num_classes: int) -> Tensor:
    """(n, num_classes + 1) float32 distributions of the `chosen` regions, background last.

    A record without distributions gives its best class alone, with probability 1; one that keeps the top k spreads the
    rest of the mass evenly over the other classes.

    Raises:
        ValueError: naming the record, when its classes do not fit `num_classes` or a distribution does not sum to 1.
    """
    distribution = record.class_distribution
    if distribution is None:
        if int(record.class_ids[chosen].max()) >= num_classes:
            raise ValueError(
                f"record {record.image_id!r}: has class {int(record.class_ids[chosen].max())}, the model was made for "
                f"classes 0..{num_classes - 1}; say how many the store's detector has (pretrain --num-classes)"
            )
        one_hot = torch.zeros(len(chosen), num_classes + 1)
        one_hot[torch.arange(len(chosen)), torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0
        return one_hot
    if isinstance(distribution, TopKDistribution):
        rows = torch.from_numpy(distribution.dense()[chosen])
    else:
        rows = as_float32(distribution[chosen])
    if rows.shape[1] != num_classes + 1:
        raise ValueError(
            f"record {record.image_id!r}: class distribution has {rows.shape[1]} columns, the model was made for "
            f"{num_classes} classes and background; say how many the store's detector has (pretrain --num-classes)"
        )
    sums = rows.numpy().sum(axis=1)
    # The release silently drops a region whose distribution is further off than this.
    if not (0.9 < sums.min() and sums.max() < 1.1):
        worst = sums[np.abs(sums - 1).argmax()]
        raise ValueError(
            f"record {record.image_id!r}: a class distribution sums to {worst:.3f}, not 1; was the background removed?"
        )
    return rows
