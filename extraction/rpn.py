"""Region proposals: the network on the map, and the choice of boxes from what it says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import nms

from extraction.anchors import cell_anchors, grid_anchors
from extraction.boxes import clip_boxes, decode_deltas
from extraction.config import FEATURE_STRIDE, DetectorConfig
from extraction.conventions import Conventions


@dataclass(frozen=True)
class Proposals:
    """Proposals of one image, by descending logit.

    Attributes:
        boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels, clipped, not empty.
        logits: (R,) float32, objectness.
    """

    boxes: Tensor
    logits: Tensor


class RPNHead(nn.Module):
    """Objectness and deltas of every anchor: (N, C, h, w) -> (N, A, h, w), (N, 4A, h, w); delta channel 4a + k."""

    def __init__(self, in_channels: int, hidden: int, num_anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, hidden, kernel_size=3, padding=1)
        self.objectness_logits = nn.Conv2d(hidden, num_anchors, kernel_size=1)
        self.anchor_deltas = nn.Conv2d(hidden, 4 * num_anchors, kernel_size=1)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.conv(feature_map))
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


class ProposalGenerator(nn.Module):
    """Map of one image -> its proposals."""

    cell_anchors: Tensor

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.rpn_head = RPNHead(config.map_channels, config.rpn_hidden_channels, config.num_anchors)
        cell = cell_anchors(config.anchor_sizes, config.anchor_ratios)
        self.register_buffer("cell_anchors", cell, persistent=False)  # computed from the config, so no weight

    def forward(self, feature_map: Tensor, input_hw: tuple[int, int]) -> Proposals:
        """
        Args:
            feature_map: (1, C, h, w) float32.
            input_hw: (height', width') of the network input, pixels; boxes are clipped to it.
        """
        logits, deltas = self.rpn_head(feature_map)
        _, num_anchors, rows, columns = logits.shape
        anchors = grid_anchors(self.cell_anchors, (rows, columns), FEATURE_STRIDE, self.conventions.anchor_offset)
        deltas = deltas.view(num_anchors, 4, rows, columns).permute(2, 3, 0, 1).reshape(-1, 4)
        boxes = decode_deltas(
            anchors,
            deltas,
            weights=self.conventions.proposal_delta_weights,
            delta_cap=self.conventions.delta_cap,
        )
        return choose_proposals(
            boxes,
            logits.permute(0, 2, 3, 1).reshape(-1).float(),
            input_hw,
            before_nms=self.config.proposals_before_nms,
            after_nms=self.config.proposals_after_nms,
            nms_iou=self.config.proposal_nms_iou,
        )


def choose_proposals(
    boxes: Tensor, logits: Tensor, input_hw: tuple[int, int], *, before_nms: int, after_nms: int, nms_iou: float
) -> Proposals:
    """Best-scored boxes first, then clipped, empty ones dropped, NMS, and the best of what is left (detectron2
    modeling/proposal_generator/proposal_utils.py::find_top_rpn_proposals).

    Args:
        boxes: (n, 4) float32, network-input pixels, not clipped.
        logits: (n,) float32.
    """
    # Stable, so that ties go to the lower index: devices order equal scores differently.
    logits, order = torch.sort(logits, descending=True, stable=True)
    boxes, logits = clip_boxes(boxes[order[:before_nms]], input_hw), logits[:before_nms]
    nonempty = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(dim=1)
    boxes, logits = boxes[nonempty], logits[nonempty]
    keep = nms(boxes, logits, nms_iou)[:after_nms]
    return Proposals(boxes[keep], logits[keep])
