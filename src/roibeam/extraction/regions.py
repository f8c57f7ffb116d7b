"""Regions of one photo, the steps of every detector around its network, and the rules that keep some regions.

"classwise-max" is the rule of the tool of bottom-up attention: proposals, judged by their best class after NMS inside
each class. "single-nms" is that of the Hugging Face and detectron2 ports: regressed boxes, one NMS over all, at a
higher threshold when too few are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.network.boxes import clip_boxes, suppress, suppress_within
from roibeam.extraction.network.conventions import SelectionPolicy
from roibeam.messages import short_repr


class Selected(NamedTuple):
    """The regions that are kept, in the order of the policy."""

    proposal_ids: Tensor  # (K,) int64, row of the proposal
    boxes: Tensor  # (K, 4) float32, photo pixels, not clipped to the photo


def select_regions(
    policy: SelectionPolicy,
    *,
    class_scores: Tensor,
    proposal_boxes: Tensor,
    regressed_boxes: Tensor,
    nms_boxes: Tensor,
) -> Selected:
    """Keeps regions of one image.

    Args:
        class_scores: (R, C) float32, probabilities of the foreground classes.
        proposal_boxes: (R, 4) float32, photo pixels.
        regressed_boxes: (R, 4) float32, photo pixels: each proposal's box of its best foreground class.
        nms_boxes: (R, 4) float32, the same in the pixels in which they were regressed, where "single-nms" compares
    """
    if policy.method == "classwise-max":
        keep = select_classwise_max(proposal_boxes, class_scores, policy)
    else:
        keep = select_single_nms(nms_boxes, class_scores.amax(dim=1), policy)
    boxes = proposal_boxes if policy.kept_box == "proposal" else regressed_boxes
    return Selected(keep, boxes[keep])


def select_single_nms(boxes: Tensor, scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """One NMS at the first threshold that leaves `min_regions`; ids by descending score, ties by index."""
    for threshold in policy.nms_thresholds:
        keep = suppress(boxes, scores, threshold, comparison=policy.nms_comparison, plus_one_sides=False)
        if min(len(keep), policy.max_regions) >= policy.min_regions:
            return keep[: policy.max_regions]
    if policy.when_too_few == "no-nms":
        keep = torch.argsort(scores, descending=True, stable=True)
    return keep[: policy.max_regions]


def select_classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """Ids of the regions whose best class score after NMS inside each class reaches `min_score`.

    Ties go to the lower index.
    """
    floor = policy.min_score or 0.2
    scores = classwise_max(boxes, class_scores, policy, floor=floor)
    if policy.min_score > 0:
        keep = torch.nonzero(scores >= policy.min_score).flatten()
    else:  # every region reaches 0, for any result of the NMS
        keep = torch.arange(len(boxes), device=boxes.device)
    if policy.order == "published" and policy.min_regions <= len(keep) <= policy.max_regions:
        return keep
    count = min(max(len(keep), policy.min_regions), policy.max_regions, len(boxes))
    # Scores at or above the floor are exact, so lowering it until enough are known settles the order.
    while floor > 0 and int((scores >= floor).sum()) < count:
        floor = floor / 10 if floor > 1e-3 else 0.0
        scores = classwise_max(boxes, class_scores, policy, floor=floor)
    return torch.argsort(scores, descending=True, stable=True)[:count]


def classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy, *, floor: float) -> Tensor:
    """Each region's best score among the classes in which NMS keeps it.

    Scores below `floor` are ignored: in NMS only higher scores suppress, so every result at or above `floor` is exact;
    regions without one give 0. Probabilities sum to 1, so a floor of 0.2 leaves at most 5 scores of each region instead
    of 1600.

    Args:
        boxes: (R, 4) float32, photo pixels.
        class_scores: (R, C) float32.
    Returns:
        (R,) float32.
    """
    region_ids, class_ids = torch.nonzero(class_scores >= floor).unbind(dim=1)
    scores = class_scores[region_ids, class_ids]
    kept = suppress_within(
        class_ids,
        boxes[region_ids],
        scores,
        policy.nms_thresholds[0],
        comparison=policy.nms_comparison,
        plus_one_sides=policy.legacy_plus_one_areas,
    )
    return class_scores.new_zeros(len(boxes)).scatter_reduce(0, region_ids[kept], scores[kept], "amax")


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one photo, in the order of the selection or of the given boxes; K may be 0.

    Attributes:
        boxes: (K, 4) float32, x1 y1 x2 y2 in photo pixels, 0 <= x1 <= x2 <= width, 0 <= y1 <= y2 <= height: the
            proposal or the regressed box, by the policy, or the given box.
        features: (K, D) float32, of the proposal or the given box.
        class_ids: (K,) int64, best foreground class, 0-based; 0 of a network without classes, and scores likewise.
        class_scores: (K,) float32, its probability among all classes and background.
        attribute_ids: (K,) int64, best attribute, 0-based; None without an attribute head.
        attribute_scores: (K,) float32; None without an attribute head.
        class_probabilities: (K, C + 1) float32, foreground first, background last.
        proposal_ids: (K,) int64, row of the region among the proposals, which are by descending objectness, or among
            the given boxes.
        proposal_boxes: (K, 4) float32, as `boxes`: the pooled boxes.
        regressed_boxes: (K, 4) float32, as `boxes`: the same moved by the best class.
        image_feature: (D,) float32, the whole photo as one box; None unless requested.
    """

    boxes: np.ndarray
    features: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    attribute_ids: np.ndarray | None
    attribute_scores: np.ndarray | None
    class_probabilities: np.ndarray
    proposal_ids: np.ndarray
    proposal_boxes: np.ndarray | None = None
    regressed_boxes: np.ndarray | None = None
    image_feature: np.ndarray | None = None

    __repr__ = short_repr


def boxes_for_each(images: Sequence[Any], boxes: Sequence[np.ndarray | None] | None) -> Sequence[np.ndarray | None]:
    """One entry for each photo; raises ValueError if `boxes` has more or fewer."""
    if boxes is None:
        return [None] * len(images)
    if len(boxes) != len(images):
        raise ValueError(
            f"boxes must have one entry for each of the {len(images)} images, got {len(boxes)}; "
            f"an entry of None proposes regions, boxes=None proposes them for all images"
        )
    return boxes


def best_class_deltas(box_deltas: Tensor, probabilities: Tensor) -> Tensor:
    """(R, 4): deltas of the best foreground class of (R, C + 1) `probabilities`, background last, from (R, C, 4); zeros
    without classes."""
    if not box_deltas.shape[1]:
        return box_deltas.new_zeros(len(box_deltas), 4)
    class_ids = probabilities[:, :-1].max(dim=1).indices
    return box_deltas[torch.arange(len(class_ids), device=class_ids.device), class_ids]


@dataclass(frozen=True, eq=False)
class RegionScores:
    """Inputs of a choice among the R regions of one photo.

    Attributes:
        probabilities: (R, C + 1) float32, foreground first, background last.
        proposal_boxes: (R, 4) float32, photo pixels, not clipped to the photo: the pooled boxes.
        regressed_boxes: (R, 4) float32, the same moved by the best class.
        nms_boxes: (R, 4) float32, the regressed boxes in the pixels in which they were regressed, where "single-nms"
            compares them.
        attribute_scores, attribute_ids: (R,) float32 probability and (R,) int64 id of the best attribute; None without
            an attribute head.
    """

    probabilities: Tensor
    proposal_boxes: Tensor
    regressed_boxes: Tensor
    nms_boxes: Tensor
    attribute_scores: Tensor | None = None
    attribute_ids: Tensor | None = None

    __repr__ = short_repr


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredRegions(RegionScores):
    """All regions of one photo before the choice among them.

    Attributes:
        features: (R, D) float32.
        given_boxes: (R, 4) photo pixels; if given, none is left out and no policy applies.
        image_feature: (D,) float32, of the whole photo; None unless requested.
    """

    features: Tensor
    given_boxes: Tensor | None = None
    image_feature: Tensor | None = None


class HostCopy:
    """Scored regions on their way to the CPU, which selects: each step of a selection is so small that a GPU would
    spend its time waiting for the next. The device's queued work continues meanwhile.
    """

    def __init__(self, scored: ScoredRegions) -> None:
        device = scored.features.device
        # Into pinned memory, which torch uses for copies without waiting.
        tensors = {field.name: getattr(scored, field.name) for field in fields(scored)}
        copies = {name: each.to("cpu", non_blocking=True) for name, each in tensors.items() if each is not None}
        self._copy = ScoredRegions(**copies)
        self._arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def wait(self) -> ScoredRegions:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def kept_regions(policy: SelectionPolicy, coming: HostCopy, image_hw: tuple[int, int]) -> Regions:
    """The regions that the policy keeps, as numpy arrays, of all that are waited for."""
    scored = coming.wait()
    if scored.given_boxes is not None:
        keep, boxes = torch.arange(len(scored.given_boxes)), scored.given_boxes
    else:
        keep, boxes = select_regions(
            policy,
            class_scores=scored.probabilities[:, :-1],
            proposal_boxes=scored.proposal_boxes,
            regressed_boxes=scored.regressed_boxes,
            nms_boxes=scored.nms_boxes,
        )
    # Without classes only background is left: a row of zeros.
    foreground = scored.probabilities[keep, :-1]
    best = functional.pad(foreground, (0, int(not foreground.shape[1]))).max(dim=1)
    # The far edge times the scale may round to just outside the photo.
    return Regions(
        boxes=to_numpy(clip_boxes(boxes, image_hw)),
        features=to_numpy(scored.features[keep]),
        class_ids=to_numpy(best.indices),
        class_scores=to_numpy(best.values),
        attribute_ids=None if scored.attribute_ids is None else to_numpy(scored.attribute_ids[keep]),
        attribute_scores=None if scored.attribute_scores is None else to_numpy(scored.attribute_scores[keep]),
        class_probabilities=to_numpy(scored.probabilities[keep]),
        proposal_ids=to_numpy(keep),
        proposal_boxes=to_numpy(clip_boxes(scored.proposal_boxes[keep], image_hw)),
        regressed_boxes=to_numpy(clip_boxes(scored.regressed_boxes[keep], image_hw)),
        # A copy: the memory may be that of the device's copies, which is limited.
        image_feature=None if scored.image_feature is None else scored.image_feature.clone().numpy(),
    )


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The values, contiguous and on the CPU; the memory may be the tensor's own."""
    return tensor.contiguous().cpu().numpy()


def plain_json(value: Any) -> Any:
    """CfgNodes as dicts and tuples as lists, so that a description equals itself after a trip through JSON."""
    if isinstance(value, dict):
        return {key: plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value] if isinstance(value, (list, tuple)) else value
