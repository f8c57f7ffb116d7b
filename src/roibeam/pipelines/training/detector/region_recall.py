"""Whether the regions that a store would hold show the objects of the photos."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roibeam.extraction.training.targets import overlaps
from roibeam.pipelines.data.datasets.labelled_image import LabelledImage


@dataclass(frozen=True)
class RegionRecall:
    """
    Attributes:
        recall: share of the objects that are not ignored that some region overlaps by 0.5 or more, whatever class it
            has; None without such an object.
        num_objects: how many objects that is of.
        mean_regions: regions of a photo on average; None without a photo.
    """

    recall: float | None
    num_objects: int
    mean_regions: float | None


class RecallCounter:
    """Counts objects and regions; keeps four numbers."""

    def __init__(self) -> None:
        self._num_found = self._num_objects = self._num_regions = self._num_images = 0

    def add(self, image: LabelledImage, boxes: np.ndarray) -> None:
        """Adds one photo with its regions' boxes: (K, 4) float32, photo pixels, x2 - x1 wide."""
        objects = image.boxes[~image.ignored]
        self._num_images += 1
        self._num_regions += len(boxes)
        self._num_objects += len(objects)
        if len(objects) and len(boxes):
            ours, theirs = (torch.from_numpy(np.asarray(each, np.float64)) for each in (boxes, objects))
            iou, _ = overlaps(ours, theirs, plus_one_sides=False)
            self._num_found += int((iou.amax(dim=0) >= 0.5).sum())

    def result(self) -> RegionRecall:
        return RegionRecall(
            recall=self._num_found / self._num_objects if self._num_objects else None,
            num_objects=self._num_objects,
            mean_regions=self._num_regions / self._num_images if self._num_images else None,
        )
