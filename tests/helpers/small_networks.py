"""Configurations of small detectors for tests that need no published size."""

import dataclasses

import torch
from torch import Tensor

from roibeam.extraction.network.config import CONFIGS, DetectorConfig

# A quarter of the width of "small", for what no number of the goldens is asked of.
NARROW = dataclasses.replace(CONFIGS["small"], base_channels=4)
# For files of weights.
TINY = DetectorConfig(
    depth=50, base_channels=8, num_classes=3, num_attributes=2, rpn_hidden_channels=8, proposals_before_nms=50,
    proposals_after_nms=5, short_edge=32, long_edge=64,
)  # fmt: skip


def with_counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As torch since 0.4 saves it: batch norms count their batches."""
    counters = {name.replace("running_var", "num_batches_tracked"): torch.tensor(9) for name in state if "_var" in name}
    return {**state, **counters}
