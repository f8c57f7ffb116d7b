"""What anchors and regions of one photo said against what they should have said.

Every loss is a mean over the sample of one photo, as in the original, which trains on one photo at a time
(peteanderson80/bottom-up-attention models/vg/ResNet-101/faster_rcnn_end2end_final/train.prototxt). A batch's loss is
the mean over its photos, so it does not depend on how photos are grouped into batches, and its denominator is known
before the network runs. A mean over nothing is 0, with a gradient of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.network.precision import at_least_float32
from roibeam.extraction.training.rules import LossRules
from roibeam.extraction.training.targets import IGNORE, AnchorTargets, RegionTargets

# Region deltas are compared in these units, in which they have a variance of about 1 (BBOX_NORMALIZE_STDS .1 .1 .2 .2
# of the original, which folds them into the weights when it saves; detectron2 keeps them as BBOX_REG_WEIGHTS). So a box
# that is off costs the same whatever `Conventions.region_delta_weights` the network speaks in.
REGION_DELTA_UNITS = (10.0, 10.0, 5.0, 5.0)


def objectness_loss(logits: Tensor, targets: AnchorTargets) -> Tensor:
    """Binary cross-entropy, mean over the sampled anchors. For a pair of numbers, whose softmax decides, the logit is
    their difference, and this is the cross-entropy of the pair.

    Args:
        logits: (n,), of all anchors of the photo.
    """
    chosen = at_least_float32(torch.cat([logits[targets.positive], logits[targets.negative]]))
    labels = torch.zeros_like(chosen)
    labels[: len(targets.positive)] = 1.0
    return functional.binary_cross_entropy_with_logits(chosen, labels, reduction="sum") / max(len(chosen), 1)


def proposal_box_loss(
    deltas: Tensor, targets: AnchorTargets, delta_weights: Sequence[float], rules: LossRules
) -> Tensor:
    """Smooth absolute error of the positive anchors' deltas, summed, over the number of sampled anchors: so every
    positive anchor counts the same, however many a photo has.

    Args:
        deltas: (n, 4), of all anchors of the photo, as the network says them.
        delta_weights: `Conventions.proposal_delta_weights`.
    """
    said = at_least_float32(deltas[targets.positive])
    said = said / said.new_tensor(delta_weights)
    error = functional.smooth_l1_loss(said, targets.deltas.to(said.dtype), beta=rules.proposal_beta, reduction="sum")
    return error / max(len(targets.positive) + len(targets.negative), 1)


def class_loss(logits: Tensor, targets: RegionTargets) -> Tensor:
    """Cross-entropy, mean over the sampled regions.

    Args:
        logits: (R, C + 1), background last.
    """
    total = functional.cross_entropy(at_least_float32(logits), targets.class_ids, ignore_index=IGNORE, reduction="sum")
    return total / (targets.class_ids != IGNORE).sum().clamp(min=1)


def region_box_loss(deltas: Tensor, targets: RegionTargets, delta_weights: Sequence[float], rules: LossRules) -> Tensor:
    """Smooth absolute error of the deltas that each region with an object gives for its class, summed, over the number
    of all sampled regions.

    Args:
        deltas: (R, C, 4), as the network says them.
        delta_weights: `Conventions.region_delta_weights`.
    """
    count = len(targets.deltas)
    said = at_least_float32(deltas[torch.arange(count, device=deltas.device), targets.class_ids[:count]])
    units = said.new_tensor(REGION_DELTA_UNITS)
    wanted = targets.deltas.to(said.dtype) * units
    said = said * (units / units.new_tensor(delta_weights))
    error = functional.smooth_l1_loss(said, wanted, beta=rules.region_beta, reduction="sum")
    return error / len(targets.class_ids)


def attribute_loss(logits: Tensor, attribute_ids: Tensor, rules: LossRules) -> Tensor:
    """Weighted cross-entropy of the regions whose object has a known attribute; an object of several attributes counts
    as much as one of one (MILVLG/bottom-up-attention.pytorch bua/caffe/modeling/fast_rcnn.py::attribute_loss).

    Args:
        logits: (P, A + 1), of the regions that show an object, "no attribute" last; (P, 0) without an attribute head,
            whose loss is 0.
        attribute_ids: (P, S) int64, `IGNORE` where there is none.
    """
    if not logits.shape[1]:
        return logits.sum()
    known = attribute_ids != IGNORE
    log_probabilities = at_least_float32(logits).log_softmax(dim=1).gather(1, attribute_ids.clamp(min=0))
    of_regions = -log_probabilities.masked_fill(~known, 0.0).sum(dim=1) / known.sum(dim=1).clamp(min=1)
    return rules.attribute_weight * of_regions.sum() / known.any(dim=1).sum().clamp(min=1)
