"""Regions of one photo, the steps of every detector around its network, and the rules that keep some regions.

"classwise-max" is the rule of the tool of bottom-up attention: proposals, judged by their best class after NMS inside
each class. "single-nms" is that of the Hugging Face and detectron2 ports: regressed boxes, one NMS over all, at a
higher threshold when too few are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    class_ids: Tensor  # (K,) int64
    class_scores: Tensor  # (K,) float32


class ScoredClasses(NamedTuple):
    """Pairs of a proposal and a class that an NMS inside each class leaves."""

    region_ids: Tensor  # (n,) int64
    class_ids: Tensor  # (n,) int64
    scores: Tensor  # (n,) float32


def select_regions(
    policy: SelectionPolicy,
    *,
    class_scores: Tensor,
    proposal_boxes: Tensor,
    regressed_boxes: Tensor,
    nms_boxes: Tensor,
    class_boxes: Tensor | None = None,
) -> Selected:
    """Keeps regions of one image.

    Args:
        class_scores: (R, C) float32, probabilities of the foreground classes.
        proposal_boxes: (R, 4) float32, photo pixels.
        regressed_boxes: (R, 4) float32, photo pixels: each proposal's box of its best foreground class.
        nms_boxes: (R, 4) float32, the same in the pixels in which they were regressed, where "single-nms" compares
        class_boxes: (R, C, 4) float32, photo pixels: each proposal's box of each class; where `needs_class_boxes`.
    """
    compared = proposal_boxes if policy.nms_boxes != "class" or class_boxes is None else class_boxes
    if policy.method == "classwise":
        kept = select_classwise(compared, class_scores, policy)
    elif policy.method == "classwise-max":
        kept = select_classwise_max(compared, class_scores, policy)
    else:
        scores = class_scores.amax(dim=1)
        keep = select_single_nms(proposal_boxes if policy.nms_boxes == "proposal" else nms_boxes, scores, policy)
        kept = ScoredClasses(keep, keep, scores[keep])
    ids, class_ids, kept_scores = kept
    if policy.region_class == "best":
        kept_scores, class_ids = best_classes(class_scores[ids])
    boxes = proposal_boxes if policy.kept_box == "proposal" else regressed_boxes
    if policy.kept_box == "regressed" and policy.region_class == "surviving" and class_boxes is not None:
        return Selected(ids, class_boxes[ids, class_ids], class_ids, kept_scores)
    return Selected(ids, boxes[ids], class_ids, kept_scores)


def best_classes(class_scores: Tensor) -> tuple[Tensor, Tensor]:
    """(R,) score and (R,) id of the best of (R, C); class 0 of score 0 where only background is left."""
    best = functional.pad(class_scores, (0, int(not class_scores.shape[1]))).max(dim=1)
    return best.values, best.indices


def needs_class_boxes(policy: SelectionPolicy) -> bool:
    """Whether the policy looks at a box for each class, beside that of the best one."""
    return policy.nms_boxes == "class" or (policy.kept_box, policy.region_class) == ("regressed", "surviving")


def select_single_nms(boxes: Tensor, scores: Tensor, policy: SelectionPolicy) -> Tensor:
    """One NMS at the first threshold that leaves `min_regions`; ids by descending score, ties by index."""
    if policy.min_score:
        some = torch.nonzero(scores > 0.01 * policy.min_score).flatten()
        (threshold,), comparison = policy.nms_thresholds, policy.nms_comparison
        keep = some[suppress(boxes[some], scores[some], threshold, comparison=comparison, plus_one_sides=False)]
        return keep[: _count(scores[keep], policy)]
    for threshold in policy.nms_thresholds:
        keep = suppress(boxes, scores, threshold, comparison=policy.nms_comparison, plus_one_sides=False)
        if min(len(keep), policy.max_regions) >= policy.min_regions:
            return keep[: policy.max_regions]
    if policy.when_too_few == "no-nms":
        keep = torch.argsort(scores, descending=True, stable=True)
    return keep[: policy.max_regions]


def _count(scores: Tensor, policy: SelectionPolicy) -> int:
    """Regions to keep of these: all that reach the score, within the limits."""
    return min(max(int((scores >= policy.min_score).sum()), policy.min_regions), policy.max_regions, len(scores))


_HALVINGS = 10


def select_classwise(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy) -> ScoredClasses:
    """Pairs of proposal and class, see `SelectionPolicy.method`; more than `max_regions` where scores are equal, but in
    the order "score".

    Args:
        boxes: (R, 4) or (R, C, 4) float32, see `classwise_survivors`.
    """
    # Only higher scores suppress, so where the best ones alone are kept, a first look at few scores may be enough.
    looks = [floor for floor in (0.05, 0.01) if floor > policy.min_score and policy.order == "score"]
    for least in [*looks, *(policy.min_score / 2**halvings for halvings in range(_HALVINGS + 1))]:
        found = classwise_survivors(boxes, class_scores, policy, class_scores > least)
        if len(found.scores) >= (policy.max_regions if least in looks else policy.min_regions):
            break
    by_score = torch.argsort(found.scores, descending=True, stable=True)
    if policy.order == "score":
        return ScoredClasses(*(each[by_score[: policy.max_regions]] for each in found))
    order = by_score[torch.argsort(found.class_ids[by_score], stable=True)]
    if len(order) > policy.max_regions:
        order = order[found.scores[order] >= found.scores[by_score[policy.max_regions - 1]]]
    return ScoredClasses(*(each[order] for each in found))


def select_classwise_max(boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy) -> ScoredClasses:
    """Regions whose best class score after NMS inside each class reaches `min_score`, with that class and score; 0 for
    a region that survives in none, or whose score is below what decides.

    Ties go to the lower index.

    Args:
        boxes, class_scores: as of `classwise_survivors`.
    """
    floor = policy.min_score or 0.2
    found, scores = classwise_max(boxes, class_scores, policy, floor=floor)
    if policy.min_score > 0:
        keep = torch.nonzero(scores >= policy.min_score).flatten()
    else:  # every region reaches 0, for any result of the NMS
        keep = torch.arange(len(boxes), device=boxes.device)
    if policy.order == "score" or not policy.min_regions <= len(keep) <= policy.max_regions:
        count = min(max(len(keep), policy.min_regions), policy.max_regions, len(boxes))
        # Scores at or above the floor are exact, so lowering it until enough are known settles the order.
        while floor > 0 and int((scores >= floor).sum()) < count:
            floor = floor / 10 if floor > 1e-3 else 0.0
            found, scores = classwise_max(boxes, class_scores, policy, floor=floor)
        keep = torch.argsort(scores, descending=True, stable=True)[:count]
    if policy.region_class == "surviving":
        keep = keep[scores[keep] > 0]
    is_best = found.scores == scores[found.region_ids]
    best = torch.full((len(boxes),), class_scores.shape[1], dtype=torch.int64, device=boxes.device)
    best = best.scatter_reduce(0, found.region_ids[is_best], found.class_ids[is_best], "amin")
    return ScoredClasses(keep, best[keep], scores[keep])


def classwise_max(
    boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy, *, floor: float
) -> tuple[ScoredClasses, Tensor]:
    """Survivors of an NMS inside each class, and (R,) float32: each region's best score among those classes.

    Scores below `floor` are ignored: in NMS only higher scores suppress, so every result at or above `floor` is exact;
    regions without one give 0. Probabilities sum to 1, so a floor of 0.2 leaves at most 5 scores of each region instead
    of 1600.
    """
    found = classwise_survivors(boxes, class_scores, policy, class_scores >= floor)
    return found, class_scores.new_zeros(len(boxes)).scatter_reduce(0, found.region_ids, found.scores, "amax")


def classwise_survivors(
    boxes: Tensor, class_scores: Tensor, policy: SelectionPolicy, takes_part: Tensor
) -> ScoredClasses:
    """Survivors of an NMS inside each class.

    Args:
        boxes: (R, 4) float32, photo pixels; or (R, C, 4), one for each class.
        class_scores: (R, C) float32.
        takes_part: (R, C) bool.
    """
    region_ids, class_ids = torch.nonzero(takes_part).unbind(dim=1)
    scores = class_scores[region_ids, class_ids]
    kept = suppress_within(
        class_ids,
        boxes[region_ids] if boxes.dim() == 2 else boxes[region_ids, class_ids],
        scores,
        policy.nms_thresholds[0],
        comparison=policy.nms_comparison,
        plus_one_sides=policy.legacy_plus_one_areas,
    )
    return ScoredClasses(region_ids[kept], class_ids[kept], scores[kept])


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one photo, in the order of the selection or of the given boxes; K may be 0.

    Attributes:
        boxes: (K, 4) float32, x1 y1 x2 y2 in photo pixels, 0 <= x1 <= x2 <= width, 0 <= y1 <= y2 <= height: the
            proposal or the regressed box, by the policy, or the given box.
        features: (K, D) float32, of the proposal or the given box.
        class_ids: (K,) int64, foreground class by the policy, 0-based; 0 of a network without classes, and scores
            likewise.
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
        class_boxes: (R, C, 4) float32, the proposals moved by each class, photo pixels; (R, 0, 4) unless requested.
        attribute_scores, attribute_ids: (R,) float32 probability and (R,) int64 id of the best attribute; None without
            an attribute head.
    """

    probabilities: Tensor
    proposal_boxes: Tensor
    regressed_boxes: Tensor
    nms_boxes: Tensor
    class_boxes: Tensor
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
        tensors = {name: each for name, each in vars(scored).items() if each is not None}
        copies = {name: each.to("cpu", non_blocking=True) for name, each in tensors.items()}
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
        class_scores, class_ids = best_classes(scored.probabilities[:, :-1])
    else:
        keep, boxes, class_ids, class_scores = select_regions(
            policy,
            class_scores=scored.probabilities[:, :-1],
            proposal_boxes=scored.proposal_boxes,
            regressed_boxes=scored.regressed_boxes,
            nms_boxes=scored.nms_boxes,
            class_boxes=scored.class_boxes,
        )
    return Regions(
        boxes=_photo_boxes(boxes, image_hw),
        features=to_numpy(scored.features[keep]),
        class_ids=to_numpy(class_ids),
        class_scores=to_numpy(class_scores),
        attribute_ids=None if scored.attribute_ids is None else to_numpy(scored.attribute_ids[keep]),
        attribute_scores=None if scored.attribute_scores is None else to_numpy(scored.attribute_scores[keep]),
        class_probabilities=to_numpy(scored.probabilities[keep]),
        proposal_ids=to_numpy(keep),
        proposal_boxes=_photo_boxes(scored.proposal_boxes[keep], image_hw),
        regressed_boxes=_photo_boxes(scored.regressed_boxes[keep], image_hw),
        # A copy: the memory may be that of the device's copies, which is limited.
        image_feature=None if scored.image_feature is None else scored.image_feature.clone().numpy(),
    )


def _photo_boxes(boxes: Tensor, image_hw: tuple[int, int]) -> np.ndarray:
    """Clipped: the far edge times the scale may round to just outside the photo. A box narrower than the last pixel
    that `moved_edge` takes off would end before it begins."""
    boxes = clip_boxes(boxes, image_hw)
    return to_numpy(torch.cat([boxes[:, :2], torch.maximum(boxes[:, :2], boxes[:, 2:])], dim=1))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The values, contiguous and on the CPU; the memory may be the tensor's own."""
    return tensor.contiguous().cpu().numpy()


def plain_json(value: Any) -> Any:
    """CfgNodes as dicts and tuples as lists, so that a description equals itself after a trip through JSON."""
    if isinstance(value, dict):
        return {key: plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value] if isinstance(value, (list, tuple)) else value
