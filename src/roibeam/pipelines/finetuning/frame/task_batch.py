"""A batch of whole groups: what a model reads, and what is right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roibeam.model.end_to_end import ImageBatch
from roibeam.model.inputs import VLBatch


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """G groups.

    Attributes:
        inputs: the rows of all groups, one after the other.
        group_sizes: how many rows of the task each group has; a row may take several of `inputs`.
        targets: (G, A) float or (G,) long, by the task's loss; of regions (G, R) float. None where nobody knows.
        ids: of the groups.
        images: the photos of a run through the region encoder; None on stored features.
        placed_boxes: (I, R, 4) float, boxes as they are in those photos: clipped to them, mirrored where these are;
            those of `inputs` are as the store or the task has them. None on stored features.
    """

    inputs: VLBatch
    group_sizes: tuple[int, ...]
    targets: Tensor | None
    ids: tuple[str, ...]
    images: ImageBatch | None = None
    placed_boxes: Tensor | None = None

    @property
    def model_inputs(self) -> tuple[VLBatch] | tuple[VLBatch, ImageBatch]:
        """What the network is called with."""
        if self.images is None or self.placed_boxes is None:
            return (self.inputs,)
        return replace(self.inputs, region_boxes=self.placed_boxes), self.images

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch with every tensor on `device`."""
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        images = None if self.images is None else self.images.to(device)
        placed = None if self.placed_boxes is None else self.placed_boxes.to(device, non_blocking=True)
        return replace(self, inputs=self.inputs.to(device), targets=targets, images=images, placed_boxes=placed)
