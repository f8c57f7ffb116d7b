"""A batch of whole groups: what a model reads, and what is right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roibeam.model.inputs import VLBatch


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """G groups.

    Attributes:
        inputs: the rows of all groups, one after the other.
        group_sizes: how many rows of the task each group has; a row may take several of `inputs`.
        targets: (G, A) float or (G,) long, by the task's loss; of regions (G, R) float. None where nobody knows.
        ids: of the groups.
    """

    inputs: VLBatch
    group_sizes: tuple[int, ...]
    targets: Tensor | None
    ids: tuple[str, ...]

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch with every tensor on `device`."""
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        return replace(self, inputs=self.inputs.to(device), targets=targets)
