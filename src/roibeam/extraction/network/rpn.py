"""Region proposals: the network on the map, and the choice of boxes from its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.network.boxes import cell_anchors, clip_boxes, grid_anchors, move_boxes, suppress
from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import Conventions


@dataclass(frozen=True)
class Proposals:
    """Proposals of one image, by descending objectness.

    Attributes:
        boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels, clipped.
        objectness: (R,) float32: logits, or probabilities by the conventions.
    """

    boxes: Tensor
    objectness: Tensor


@dataclass(frozen=True)
class RankedAnchors:
    """Anchors of one image moved by their deltas, by descending objectness.

    Attributes:
        boxes: (n, 4) float32, network-input pixels, clipped.
        objectness: (n,) float32.
        large: (n,) bool, whether the sides are large enough.
        finite: () bool, whether the network's numbers were; None if not checked.
    """

    boxes: Tensor
    objectness: Tensor
    large: Tensor
    finite: Tensor | None = None


class RPNHead(nn.Module):
    """(N, C, h, w) -> objectness of every anchor (N, A or 2A, h, w) and deltas (N, 4A, h, w), channel 4a + k."""

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        hidden, num_anchors = config.rpn_hidden_channels, config.num_anchors
        numbers = 2 if conventions.objectness == "pair-softmax" else 1
        self.conv = nn.Conv2d(config.map_channels, hidden, kernel_size=3, padding=1)
        self.objectness_logits = nn.Conv2d(hidden, numbers * num_anchors, kernel_size=1)
        self.anchor_deltas = nn.Conv2d(hidden, 4 * num_anchors, kernel_size=1)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.conv(feature_map))
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


class NoProposals(nn.Module):
    """Placeholder of the proposal generator in a network without one."""

    def forward(self, feature_map: Tensor, input_hw: tuple[int, int], factor: float) -> Proposals:
        """Raises ValueError."""
        raise ValueError("this network has no classes (num_classes 0), so it proposes no boxes; give it boxes")


class ProposalGenerator(nn.Module):
    """Map of one image -> its proposals."""

    cell_anchors: Tensor

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.rpn_head = RPNHead(config, conventions)
        # Computed from config and conventions, so no weight.
        self.register_buffer("cell_anchors", cell_anchors(config, conventions), persistent=False)

    def forward(self, feature_map: Tensor, input_hw: tuple[int, int], factor: float) -> Proposals:
        """
        Args:
            feature_map: (1, C, h, w) float32.
            input_hw: (height', width') of the network input without padding, pixels; boxes are clipped to it.
            factor: network-input pixels per photo pixel; the smallest side allowed is in photo pixels.
        Raises:
            ValueError: if the network outputs NaN or infinity.
        """
        logits, deltas = self.rpn_head(feature_map)
        return self.propose(logits, deltas, input_hw, factor)

    def propose(self, logits: Tensor, deltas: Tensor, input_hw: tuple[int, int], factor: float) -> Proposals:
        """See `forward`, from the head's outputs for the map: (1, A or 2A, h, w) and (1, 4A, h, w) float32."""
        min_side = smallest_side(self.conventions, factor)
        return self.choose(self.rank(logits, deltas, input_hw=input_hw, min_side=min_side))

    def rank(self, logits: Tensor, deltas: Tensor, *, input_hw: tuple[int, int], min_side: float) -> RankedAnchors:
        """First half of `propose`, which never waits for a GPU."""
        boxes, objectness = self.score_anchors(logits, deltas)
        # A delta without a cap may grow to infinity in exp and is clipped; one that is none to begin with may not.
        capped = self.conventions.delta_cap is not None
        numbers = torch.cat([objectness, deltas.flatten(), *([boxes.flatten()] if capped else [])])
        finite = numbers.abs().amax() < torch.inf  # one check in place of one for each; NaN is not below either
        if not capped:
            finite &= ~torch.isnan(boxes).any()
        # Boxes of NaN are dropped as too small: a photo without regions, for no visible reason. So the reason is
        # checked if there are none, and not before, since that waits for a GPU.
        boxes = boxes.masked_fill(~finite, torch.nan)
        ranked = rank_anchors(boxes, objectness, input_hw, min_side, self.config, self.conventions)
        return replace(ranked, finite=finite)

    def choose(self, ranked: RankedAnchors) -> Proposals:
        """Second half of `propose`."""
        proposals = choose_ranked(ranked, self.config, self.conventions)
        if not len(proposals.boxes) and ranked.finite is not None and not bool(ranked.finite):
            raise ValueError("the proposal network gave NaN or infinity; are its weights damaged, or its pixels?")
        return proposals

    def score_anchors(self, logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the head for one map -> boxes (n, 4), not clipped, and their objectness (n,), in anchor order."""
        num_anchors, (rows, columns) = self.config.num_anchors, logits.shape[2:]
        if self.conventions.objectness == "pair-softmax":
            logits = logits.float().view(2, num_anchors, rows, columns).softmax(dim=0)[1:]
        elif self.conventions.objectness == "sigmoid":
            logits = logits.float().sigmoid()
        anchors = grid_anchors(self.cell_anchors, (rows, columns), FEATURE_STRIDE)
        deltas = deltas.view(num_anchors, 4, rows, columns).permute(2, 3, 0, 1).reshape(-1, 4)
        boxes = move_boxes(anchors, deltas, self.conventions, weights=self.conventions.proposal_delta_weights)
        return boxes, logits.permute(0, 2, 3, 1).reshape(-1).float()


def choose_proposals(
    boxes: Tensor,
    objectness: Tensor,
    input_hw: tuple[int, int],
    factor: float,
    config: DetectorConfig,
    conventions: Conventions,
) -> Proposals:
    """Clips, drops too small boxes, takes the best-scored ones, suppresses, takes the best of the rest; the order of
    taking the best and dropping the small ones is a convention.

    detectron2 modeling/proposal_generator/proposal_utils.py::find_top_rpn_proposals, py-faster-rcnn
    lib/rpn/proposal_layer.py and MILVLG bua/caffe/modeling/rpn_outputs.py::find_top_bua_rpn_proposals.

    Args:
        boxes: (n, 4) float32, network-input pixels, not clipped.
        objectness: (n,) float32.
        input_hw, factor: as in `ProposalGenerator.forward`.
    """
    min_side = smallest_side(conventions, factor)
    return choose_ranked(rank_anchors(boxes, objectness, input_hw, min_side, config, conventions), config, conventions)


def smallest_side(conventions: Conventions, factor: float) -> float:
    """Smallest side of a proposal, in network-input pixels."""
    return conventions.min_proposal_side * factor


def rank_anchors(
    boxes: Tensor,
    objectness: Tensor,
    input_hw: tuple[int, int],
    min_side: float,
    config: DetectorConfig,
    conventions: Conventions,
) -> RankedAnchors:
    """The part of `choose_proposals` that never waits for a GPU; `min_side` is of `smallest_side`."""
    # Stable, so that ties go to the lower index: devices order equal scores differently.
    order = torch.argsort(objectness, descending=True, stable=True)
    if conventions.proposal_filter in ("topk-clip-nonempty", "topk-clip"):
        order = order[: config.proposals_before_nms]
    boxes = clip_boxes(boxes[order], input_hw, last_pixel=conventions.last_pixel)
    return RankedAnchors(boxes, objectness[order], _large_enough(boxes, min_side, conventions))


def choose_ranked(ranked: RankedAnchors, config: DetectorConfig, conventions: Conventions) -> Proposals:
    """The rest of `choose_proposals`: boxes that are large enough and not suppressed; their number waits for a GPU."""
    # By number, not twice by the mask: each time waits for a GPU, for the number of boxes. The input is in score
    # order, so the best of all that are large enough stand first.
    keep = torch.nonzero(ranked.large).flatten()[: config.proposals_before_nms]
    boxes, objectness = ranked.boxes[keep], ranked.objectness[keep]
    best = suppress(
        boxes,
        objectness,
        config.proposal_nms_iou,
        comparison=conventions.nms_comparison,
        plus_one_sides=conventions.plus_one_sides and conventions.nms_sides == "box_sides",
        most=config.proposals_after_nms,
    )
    return Proposals(boxes[best], objectness[best])


def _large_enough(boxes: Tensor, min_side: float, conventions: Conventions) -> Tensor:
    """(n,) bool."""
    plain = boxes[:, 2:] - boxes[:, :2]
    sides = plain + 1 if conventions.plus_one_sides else plain
    if conventions.proposal_filter == "topk-clip":
        return ~torch.isnan(plain).any(dim=1)
    if conventions.proposal_filter == "clip-side-topk":
        return (sides >= min_side).all(dim=1)
    large = (sides > min_side).all(dim=1)
    return large & (plain > 0).all(dim=1) if conventions.proposal_filter == "clip-nonempty-side-topk" else large
