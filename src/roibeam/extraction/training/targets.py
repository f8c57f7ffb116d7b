"""Targets of a detector's training: anchors and proposals to learn from, their labels, and the losses against them.

Facts from peteanderson80/bottom-up-attention lib/rpn/anchor_target_layer.py, proposal_target_layer.py and
lib/fast_rcnn/config.py, and from detectron2 modeling/{matcher,sampling}.py. Targets are without gradients.

Every loss is a mean over the sample of one photo, as in the original, which trains on one photo at a time
(models/vg/ResNet-101/faster_rcnn_end2end_final/train.prototxt). A batch's loss is the mean over its photos, so it does
not depend on how photos are grouped into batches, and its denominator is known before the network runs. A mean over
nothing is 0, with a gradient of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.network.boxes import clip_boxes
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.precision import at_least_float32
from roibeam.extraction.training.rules import LossRules, SamplingRules

IGNORE = -1  # label of ignored examples, and of unknown attributes


@dataclass(frozen=True, eq=False)
class Objects:
    """Labels of one photo, in network-input pixels; M may be 0.

    Attributes:
        boxes: (M, 4) float32, x1 y1 x2 y2, none empty.
        class_ids: (M,) int64, 0-based; those of ignored rows are not read.
        attribute_ids: (M, S) int64, 0-based, the number of attributes for "no attribute", -1 if there is none.
        ignored: (M,) bool: a box inside one of these is neither object nor background.
    """

    boxes: Tensor
    class_ids: Tensor
    attribute_ids: Tensor
    ignored: Tensor

    def to(self, device: torch.device | str) -> Objects:
        """The same on `device`."""
        return Objects(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))


@dataclass(frozen=True, eq=False)
class AnchorTargets:
    """The sampled anchors of one photo.

    Attributes:
        positive: (P,) int64, anchors that match an object.
        negative: (Q,) int64, background.
        deltas: (P, 4) float32, from each positive anchor to its object, not weighted.
    """

    positive: Tensor
    negative: Tensor
    deltas: Tensor


@dataclass(frozen=True, eq=False)
class RegionTargets:
    """The sampled regions of one photo, those that match an object first; R is at least 1.

    Attributes:
        boxes: (R, 4) float32, network-input pixels.
        class_ids: (R,) int64, 0-based, the number of classes for background. If nothing could be sampled the whole
            photo stands as one region of class -1, so that no batch is without a region.
        deltas: (P, 4) float32, from each of the first P regions to its object, not weighted.
        attribute_ids: (P, S) int64, as in `Objects`.
        found: scalar int64, objects that a proposal matches; num_objects: number of objects that are not ignored.
    """

    boxes: Tensor
    class_ids: Tensor
    deltas: Tensor
    attribute_ids: Tensor
    found: Tensor
    num_objects: int


def anchor_targets(
    anchors: Tensor,
    input_hw: tuple[int, int],
    objects: Objects,
    rules: SamplingRules,
    conventions: Conventions,
    generator: torch.Generator,
) -> AnchorTargets:
    """Samples anchors.

    Args:
        anchors: (n, 4) float32, network-input pixels; those of the cells that belong to the photo, not to padding.
        input_hw: (height', width') of the photo, pixels.
        generator: on the CPU, so that every device samples the same.
    """
    usable = torch.arange(len(anchors), device=anchors.device)
    if rules.anchor_border is not None:
        usable = usable[_inside(anchors, input_hw, rules.anchor_border, conventions)]
    labels, matched = match(
        anchors[usable],
        input_hw,
        objects,
        positive_iou=rules.anchor_positive_iou,
        negative_iou=rules.anchor_negative_iou,
        best_of_each=True,
        plus_one_sides=conventions.plus_one_sides,
    )
    positive, negative = sample(labels, rules.anchors_per_image, rules.anchor_positive_fraction, generator)
    found, plus_one = objects.boxes[matched[positive]], conventions.plus_one_sides
    deltas = encode_deltas(anchors[usable[positive]], found, plus_one_sides=plus_one)
    return AnchorTargets(usable[positive], usable[negative], deltas)


def region_targets(
    proposals: Tensor,
    input_hw: tuple[int, int],
    objects: Objects,
    rules: SamplingRules,
    conventions: Conventions,
    num_classes: int,
    generator: torch.Generator,
) -> RegionTargets:
    """Samples proposals, with the objects' own boxes among them.

    Args:
        proposals: (n, 4) float32, network-input pixels, none empty; n may be 0.
        input_hw: (height', width') of the photo, pixels.
        num_classes: class id of background.
        generator: on the CPU, so that every device samples the same.
    """
    plus_one = conventions.plus_one_sides
    real = ~objects.ignored
    candidates = torch.cat([proposals, objects.boxes[real]])
    labels, matched = match(
        candidates,
        input_hw,
        objects,
        positive_iou=rules.region_iou,
        negative_iou=rules.region_iou,
        best_of_each=False,
        plus_one_sides=plus_one,
    )
    positive, negative = sample(labels, rules.regions_per_image, rules.region_positive_fraction, generator)
    objects_of_positive = matched[positive]
    boxes = candidates[torch.cat([positive, negative])]
    class_ids = torch.cat([objects.class_ids[objects_of_positive], negative.new_full(negative.shape, num_classes)])
    if not len(boxes):
        height, width = input_hw
        boxes, class_ids = candidates.new_tensor([[0.0, 0.0, width - 1, height - 1]]), negative.new_tensor([IGNORE])
    overlap, _ = overlaps(proposals, objects.boxes[real], plus_one_sides=plus_one)
    return RegionTargets(
        boxes,
        class_ids,
        encode_deltas(candidates[positive], objects.boxes[objects_of_positive], plus_one_sides=plus_one),
        objects.attribute_ids[objects_of_positive],
        found=(overlap >= rules.region_iou).any(dim=0).sum(),
        num_objects=overlap.shape[1],
    )


def match(
    candidates: Tensor,
    input_hw: tuple[int, int],
    objects: Objects,
    *,
    positive_iou: float,
    negative_iou: float,
    best_of_each: bool,
    plus_one_sides: bool,
) -> tuple[Tensor, Tensor]:
    """Matches candidate boxes with objects.

    A candidate for background with `negative_iou` of its own area inside the photo in one ignored box is ignored: if
    that box were an object, it might match it.

    Args:
        candidates: (n, 4) float32, network-input pixels; they may reach past the photo.
        input_hw: (height', width') of the photo, pixels.
        positive_iou: smallest overlap that matches. negative_iou: largest overlap below it: background.
        best_of_each: whether those that overlap an object most match an object too, however little; theirs is the
            one they overlap most themselves, as in the originals. Unlike there, an object that no candidate touches
            makes no candidate positive.
        plus_one_sides: whether boxes, and their intersections, are x2 - x1 + 1 wide.
    Returns:
        labels (n,) int64: 1 object, 0 background, -1 ignored; and rows of `objects` (n,) int64, meaningful if the label
        is 1.
    """
    labels = torch.full((len(candidates),), IGNORE, dtype=torch.int64, device=candidates.device)
    real = (~objects.ignored).nonzero().flatten()
    if len(real):
        overlap, _ = overlaps(candidates, objects.boxes[real], plus_one_sides=plus_one_sides)
        largest, rows = overlap.max(dim=1)
        matched = real[rows]
        positive = largest >= positive_iou
        if best_of_each and len(candidates):
            best = overlap.amax(dim=0)
            positive |= ((overlap == best) & (best > 0)).any(dim=1)
        background = largest < negative_iou
    else:
        matched = torch.zeros_like(labels)
        positive = torch.zeros_like(labels, dtype=torch.bool)
        background = torch.ones_like(positive)
    if len(real) < len(objects.ignored):
        inside = clip_boxes(candidates, input_hw, last_pixel=plus_one_sides)
        _, covered = overlaps(inside, objects.boxes[objects.ignored], plus_one_sides=plus_one_sides)
        background &= ~(covered >= negative_iou).any(dim=1)
    labels[background] = 0
    labels[positive] = 1  # after the background: an object's best candidate may be both
    return labels, matched


def sample(labels: Tensor, count: int, positive_fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws without replacement: at most `count * positive_fraction` of label 1; of label 0 the rest of `count`.

    Returns:
        ids of label 1 (P,) and of label 0 (Q,), int64, P + Q <= count.
    """
    positive, negative = ((labels == label).nonzero().flatten() for label in (1, 0))
    num_positive = min(len(positive), int(count * positive_fraction))
    return _draw(positive, num_positive, generator), _draw(negative, count - num_positive, generator)


def overlaps(candidates: Tensor, boxes: Tensor, *, plus_one_sides: bool) -> tuple[Tensor, Tensor]:
    """(n, m) intersection over union, and over the candidate's own area, as crowds are measured; NaN of an empty one's
    area."""
    if plus_one_sides:
        # Sides x2 - x1 + 1, of the boxes and of their intersection, are plain sides of boxes that end one pixel later.
        end = candidates.new_tensor([0.0, 0.0, 1.0, 1.0])
        candidates, boxes = candidates + end, boxes + end
    areas, other_areas = ((each[:, 2:] - each[:, :2]).prod(dim=1) for each in (candidates, boxes))
    corner = torch.maximum(candidates[:, None, :2], boxes[None, :, :2])
    far_corner = torch.minimum(candidates[:, None, 2:], boxes[None, :, 2:])
    shared = (far_corner - corner).clamp(min=0).prod(dim=2)
    return shared / (areas[:, None] + other_areas - shared), shared / areas[:, None]


def encode_deltas(boxes: Tensor, targets: Tensor, *, plus_one_sides: bool) -> Tensor:
    """(P, 4) deltas that move boxes to targets, none empty, not weighted: dx dy in sides of the box, dw dh natural
    logarithms. The inverse of `decode_deltas`, but for the pixel that the originals with `plus_one_sides` do not take
    off again."""
    extra = 1.0 if plus_one_sides else 0.0
    sides, target_sides = (each[:, 2:] - each[:, :2] + extra for each in (boxes, targets))
    centers, target_centers = boxes[:, :2] + 0.5 * sides, targets[:, :2] + 0.5 * target_sides
    return torch.cat([(target_centers - centers) / sides, torch.log(target_sides / sides)], dim=1)


def _inside(anchors: Tensor, input_hw: tuple[int, int], border: float, conventions: Conventions) -> Tensor:
    """(n,) bool, anchors that reach at most `border` pixels past the photo."""
    height, width = input_hw
    last = float(conventions.plus_one_sides)
    limit = anchors.new_tensor([width - last + border, height - last + border])
    return (anchors[:, :2] >= -border).all(dim=1) & (anchors[:, 2:] <= limit).all(dim=1)


def _draw(ids: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return ids[torch.randperm(len(ids), generator=generator)[:count].to(ids.device)]


# Region deltas are compared in these units, in which they have a variance of about 1 (BBOX_NORMALIZE_STDS .1 .1 .2 .2
# of the original, which folds them into the weights when it saves; detectron2 keeps them as BBOX_REG_WEIGHTS). So a box
# that is off costs the same for any `Conventions.region_delta_weights`.
REGION_DELTA_UNITS = (10.0, 10.0, 5.0, 5.0)


def objectness_loss(logits: Tensor, targets: AnchorTargets) -> Tensor:
    """Binary cross-entropy of the (n,) logits of all anchors of the photo, mean over the sampled ones. For a pair of
    numbers, whose softmax decides, the logit is their difference, and this is the cross-entropy of the pair."""
    chosen = at_least_float32(torch.cat([logits[targets.positive], logits[targets.negative]]))
    labels = torch.zeros_like(chosen)
    labels[: len(targets.positive)] = 1.0
    return functional.binary_cross_entropy_with_logits(chosen, labels, reduction="sum") / max(len(chosen), 1)


def proposal_box_loss(
    deltas: Tensor, targets: AnchorTargets, delta_weights: Sequence[float], rules: LossRules
) -> Tensor:
    """Smooth absolute error of the positive anchors' deltas, summed, over the number of sampled anchors: so every
    positive anchor counts the same, for any number in a photo. `deltas` are (n, 4), of all anchors, as output by the
    network."""
    pred = at_least_float32(deltas[targets.positive])
    pred = pred / pred.new_tensor(delta_weights)
    error = functional.smooth_l1_loss(pred, targets.deltas.to(pred.dtype), beta=rules.proposal_beta, reduction="sum")
    return error / max(len(targets.positive) + len(targets.negative), 1)


def class_loss(logits: Tensor, targets: RegionTargets) -> Tensor:
    """Cross-entropy of logits (R, C + 1), background last; mean over the sampled regions."""
    total = functional.cross_entropy(at_least_float32(logits), targets.class_ids, ignore_index=IGNORE, reduction="sum")
    return total / (targets.class_ids != IGNORE).sum().clamp(min=1)


def region_box_loss(deltas: Tensor, targets: RegionTargets, delta_weights: Sequence[float], rules: LossRules) -> Tensor:
    """Smooth absolute error of the deltas (R, C, 4) that each region with an object gives for its class, as output by
    the network, summed, over the number of all sampled regions."""
    count = len(targets.deltas)
    pred = at_least_float32(deltas[torch.arange(count, device=deltas.device), targets.class_ids[:count]])
    units = pred.new_tensor(REGION_DELTA_UNITS)
    wanted = targets.deltas.to(pred.dtype) * units
    pred = pred * (units / units.new_tensor(delta_weights))
    error = functional.smooth_l1_loss(pred, wanted, beta=rules.region_beta, reduction="sum")
    return error / len(targets.class_ids)


def attribute_loss(logits: Tensor, attribute_ids: Tensor, rules: LossRules) -> Tensor:
    """Weighted cross-entropy of the regions whose object has a known attribute; an object of several attributes counts
    as much as one of one (MILVLG/bottom-up-attention.pytorch bua/caffe/modeling/fast_rcnn.py::attribute_loss).

    Args:
        logits: (P, A + 1), of the regions that match an object, "no attribute" last; (P, 0) without an attribute
            head, whose loss is 0.
        attribute_ids: (P, S) int64, `IGNORE` if there is none.
    """
    if not logits.shape[1]:
        return logits.sum()
    known = attribute_ids != IGNORE
    log_probabilities = at_least_float32(logits).log_softmax(dim=1).gather(1, attribute_ids.clamp(min=0))
    of_regions = -log_probabilities.masked_fill(~known, 0.0).sum(dim=1) / known.sum(dim=1).clamp(min=1)
    return rules.attribute_weight * of_regions.sum() / known.any(dim=1).sum().clamp(min=1)
