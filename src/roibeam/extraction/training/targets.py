"""Which anchors and which proposals a detector is trained on, and what each should say.

Facts from peteanderson80/bottom-up-attention lib/rpn/anchor_target_layer.py, proposal_target_layer.py and
lib/fast_rcnn/config.py, and from detectron2 modeling/{matcher,sampling}.py. Everything here is without gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from roibeam.extraction.network.boxes import clip_boxes
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.training.rules import SamplingRules

IGNORE = -1  # label of what is no example, and of an attribute that is not known


@dataclass(frozen=True, eq=False)
class Objects:
    """What is labelled in one photo, in network-input pixels; M may be 0.

    Attributes:
        boxes: (M, 4) float32, x1 y1 x2 y2, none empty.
        class_ids: (M,) int64, 0-based; those of ignored rows are not read.
        attribute_ids: (M, S) int64, 0-based, the number of attributes for "no attribute", -1 where there is none.
        ignored: (M,) bool: what lies in one of these is neither object nor background.
    """

    boxes: Tensor
    class_ids: Tensor
    attribute_ids: Tensor
    ignored: Tensor

    def to(self, device: torch.device | str) -> Objects:
        """The same on `device`."""
        return Objects(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))


@dataclass(frozen=True, eq=False)
class AnchorTargets:
    """The sampled anchors of one photo.

    Attributes:
        positive: (P,) int64, anchors that show an object.
        negative: (Q,) int64, background.
        deltas: (P, 4) float32, from each positive anchor to its object, not weighted.
    """

    positive: Tensor
    negative: Tensor
    deltas: Tensor


@dataclass(frozen=True, eq=False)
class RegionTargets:
    """The sampled regions of one photo, those that show an object first; R is at least 1.

    Attributes:
        boxes: (R, 4) float32, network-input pixels.
        class_ids: (R,) int64, 0-based, the number of classes for background. Where nothing could be sampled the whole
            photo stands as one region of class -1, so that no batch is without a region.
        deltas: (P, 4) float32, from each of the first P regions to its object, not weighted.
        attribute_ids: (P, S) int64, as in `Objects`.
        found: scalar int64, objects that a proposal shows; num_objects: of so many that are not ignored.
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
        plus_one_sides=conventions.box_sides == "x2-x1+1",
    )
    positive, negative = sample(labels, rules.anchors_per_image, rules.anchor_positive_fraction, generator)
    deltas = encode_deltas(
        anchors[usable[positive]],
        objects.boxes[matched[positive]],
        plus_one_sides=conventions.box_sides == "x2-x1+1",
    )
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
    plus_one = conventions.box_sides == "x2-x1+1"
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
    """Which candidate boxes show an object.

    What would be background, but has `negative_iou` of its own area inside the photo in one ignored box, is no example:
    if that box were an object, it might show it.

    Args:
        candidates: (n, 4) float32, network-input pixels; they may reach past the photo.
        input_hw: (height', width') of the photo, pixels.
        positive_iou: largest overlap from here on: shows that object. negative_iou: below it: background.
        best_of_each: whether those that overlap an object most show an object too, however little that is; theirs is
            the one they overlap most themselves, as in the originals. Unlike there, an object that no candidate
            touches makes no candidate positive.
        plus_one_sides: whether boxes, and what two of them share, are x2 - x1 + 1 wide.
    Returns:
        labels (n,) int64: 1 object, 0 background, -1 no example; and rows of `objects` (n,) int64, which mean something
        where the label is 1.
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
    """Draws without replacement: at most `count * positive_fraction` of label 1; of label 0 what is left of `count`.

    Returns:
        ids of label 1 (P,) and of label 0 (Q,), int64, P + Q <= count.
    """
    positive, negative = ((labels == label).nonzero().flatten() for label in (1, 0))
    num_positive = min(len(positive), int(count * positive_fraction))
    return _draw(positive, num_positive, generator), _draw(negative, count - num_positive, generator)


def overlaps(candidates: Tensor, boxes: Tensor, *, plus_one_sides: bool) -> tuple[Tensor, Tensor]:
    """Intersection over union, and over the candidate's own area, which is how crowds are measured.

    Args:
        candidates: (n, 4) float32; boxes: (m, 4) float32, none empty.
    Returns:
        (n, m) float32 each, 0..1; of an empty candidate's own area NaN.
    """
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
    """The deltas that move boxes to targets, not weighted: what `decode_deltas` undoes, but for the pixel that the
    originals with `plus_one_sides` do not take off again.

    Args:
        boxes, targets: (P, 4) float32, none empty.
    Returns:
        (P, 4) float32, dx dy in sides of the box, dw dh natural logarithms.
    """
    extra = 1.0 if plus_one_sides else 0.0
    sides, target_sides = (each[:, 2:] - each[:, :2] + extra for each in (boxes, targets))
    centers, target_centers = boxes[:, :2] + 0.5 * sides, targets[:, :2] + 0.5 * target_sides
    return torch.cat([(target_centers - centers) / sides, torch.log(target_sides / sides)], dim=1)


def _inside(anchors: Tensor, input_hw: tuple[int, int], border: float, conventions: Conventions) -> Tensor:
    """(n,) bool, anchors that reach at most `border` pixels past the photo."""
    height, width = input_hw
    last = 1.0 if conventions.box_sides == "x2-x1+1" else 0.0
    limit = anchors.new_tensor([width - last + border, height - last + border])
    return (anchors[:, :2] >= -border).all(dim=1) & (anchors[:, 2:] <= limit).all(dim=1)


def _draw(ids: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return ids[torch.randperm(len(ids), generator=generator)[:count].to(ids.device)]
