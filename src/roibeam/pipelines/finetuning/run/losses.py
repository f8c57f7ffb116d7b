"""Losses of tasks by form and name: targets of groups, the count of a mean, and the term.

Shapes: G groups, N scored items of a group (labels, rows or regions, padded at the end).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roibeam.model.common.losses import (
    SumCount,
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    precise,
    soft_cross_entropy,
)
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.task_losses import (
    DENOMINATORS,
    answer_bce,
    answer_kl,
    class_bce,
    grounding_loss,
    referred_targets,
    region_bce,
    score_regression,
    triplet_loss,
)
from roibeam.pipelines.data.record_regions import mirrored_boxes
from roibeam.pipelines.finetuning.metrics.glue import NEAR
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, region_shares
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, REGION, TaskGroup
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import NUMBER_LOSS

# Groups, their inputs, N -> targets.
Targets = Callable[[Sequence[TaskGroup], VLBatch, int], Tensor]


@dataclass(frozen=True)
class TaskLoss:
    """
    Attributes:
        term: scores (G, N), targets, and which of the scores are real (G, N) bool -> the loss.
        count: targets and which are real -> the count that its mean is taken over, known before the model runs.
        metric: name of the figure of training rows that is logged beside the loss.
        right: scores and targets -> its value.
    """

    targets: Targets
    term: Callable[[Tensor, Tensor, Tensor], SumCount]
    count: Callable[[Tensor, Tensor], int]
    metric: str = "best_is_right"
    right: Callable[[Tensor, Tensor], SumCount] = lambda scores, targets: _best_is_right(scores, targets)


def _soft(groups: Sequence[TaskGroup], _inputs: VLBatch, num: int) -> Tensor:
    """(G, N): a group's target maps places of labels to 0..1."""
    targets = torch.zeros(len(groups), num)
    for row, group in enumerate(groups):
        for place, score in group.target.items():
            targets[row, place] = score
    return targets


def _number(groups: Sequence[TaskGroup], _inputs: VLBatch, _num: int) -> Tensor:
    """(G,) long: a group's target is a number."""
    return torch.tensor([int(group.target) for group in groups])


def _value(groups: Sequence[TaskGroup], _inputs: VLBatch, _num: int) -> Tensor:
    """(G, 1) float: a group's target is a value."""
    return torch.tensor([[float(group.target)] for group in groups])


def _near(scores: Tensor, targets: Tensor) -> SumCount:
    near = (scores - targets).abs() <= NEAR
    return SumCount(near.sum(), torch.tensor(len(near), device=near.device))


def _grounded(groups: Sequence[TaskGroup], inputs: VLBatch, num: int) -> Tensor:
    """(G, P, R): 1/n at each of the n regions that cover a phrase; a group's target has the boxes of each phrase, its
    facts the rule by which one covers it."""
    assert inputs.phrase_positions is not None
    boxes, real = inputs.images_to_rows(inputs.region_boxes), inputs.rows_region_mask
    targets = torch.zeros(*inputs.phrase_positions.shape, num)
    for row, group in enumerate(groups):
        regions = boxes[row, real[row]].numpy()
        for place, right in enumerate(group.target):
            shares = region_shares(regions, right, GROUNDING_RULES[group.facts["rule"]])
            targets[row, place, : len(shares)] = torch.from_numpy(shares)
    return targets


def _grounding_term(per: str) -> Callable[[Tensor, Tensor, Tensor], SumCount]:
    def term(scores: Tensor, targets: Tensor, _real: Tensor) -> SumCount:
        found = grounding_loss(scores, targets)
        return found if per == "captions" else SumCount(found.total, (targets.sum(dim=-1) > 0).sum())

    return term


def _best_covers(scores: Tensor, targets: Tensor) -> SumCount:
    """Whether the best region covers its phrase, of phrases that any region covers."""
    if not scores.shape[-1]:
        return SumCount(targets.sum(), torch.tensor(0, device=targets.device))
    hits = targets.gather(-1, scores.argmax(dim=-1, keepdim=True)) > 0
    return SumCount(hits.sum(), (targets.sum(dim=-1) > 0).sum())


def _right_boxes(rules: Mapping[str, Any]) -> Targets:
    def targets(groups: Sequence[TaskGroup], inputs: VLBatch, num: int) -> Tensor:
        """(G, E): a group's target is the right box, x1 y1 x2 y2 in pixels."""
        found = torch.zeros(len(groups), num)
        every, real = scored_boxes(groups, inputs)
        widths = inputs.images_to_rows(inputs.image_hw)[:, 1].tolist()
        for row, group in enumerate(groups):
            box = np.asarray(group.target, np.float32)
            box = mirrored_boxes(box, widths[row]) if group.mirrored else box
            right = torch.as_tensor(box, dtype=every.dtype)[None]
            of_group = {**rules, **group.facts.get("region_targets", {})}
            found[row] = referred_targets(every[row : row + 1], real[row : row + 1], right, **of_group)[0]
        return found

    return targets


def _all(targets: Tensor, _real: Tensor) -> int:
    return len(targets)


def _labelled(targets: Tensor, _real: Tensor) -> int:
    return int((targets != IGNORE_INDEX).sum())


def _with_target(targets: Tensor, _real: Tensor) -> int:
    return int((targets.sum(dim=-1) > 0).sum())


def _soft_ce(scores: Tensor, targets: Tensor, _real: Tensor) -> SumCount:
    total = targets.sum(dim=1)
    return soft_cross_entropy(scores, targets / total.clamp(min=1e-6)[:, None], total > 0)


def _choice_bce(scores: Tensor, targets: Tensor, real: Tensor) -> SumCount:
    return binary_cross_entropy(scores, F.one_hot(targets, scores.shape[1]), real)


def _all_three(scores: Tensor, targets: Tensor, real: Tensor) -> SumCount:
    """Sum over groups of the mean binary loss of pairs, and of ImageBERT's other two losses (section 4.4)."""
    logits = precise(scores)
    is_right = F.one_hot(targets, scores.shape[1]).to(logits.dtype)
    pairs = F.binary_cross_entropy_with_logits(logits, is_right, reduction="none")
    binary = (pairs.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1)).sum()
    others = cross_entropy(scores, targets), triplet_loss(scores, targets)
    return SumCount(binary + sum(term.total for term in others), others[0].count)


def _regions(per: str, rules: Mapping[str, Any]) -> TaskLoss:
    def term(scores: Tensor, targets: Tensor, real: Tensor) -> SumCount:
        return region_bce(scores, targets, real, per=per)

    return TaskLoss(_right_boxes(rules), term, _all if per == "rows" else lambda _targets, real: int(real.sum()))


def _best_is_right(scores: Tensor, targets: Tensor) -> SumCount:
    """Mean over groups of the accuracy of the best score; of soft targets their value there."""
    if targets.ndim == 1:
        known = targets >= 0
        return accuracy(scores, targets, known)
    if not scores.shape[1]:  # no image of the batch has a region
        return SumCount(targets.sum(), torch.tensor(len(targets), device=targets.device))
    value = targets.gather(1, scores.argmax(dim=1, keepdim=True))
    return SumCount(value.sum(), torch.tensor(len(value), device=value.device))


LOSSES: Mapping[str, Mapping[str, TaskLoss]] = MappingProxyType(
    {
        LABEL: {
            "bce": TaskLoss(_soft, lambda scores, targets, _real: answer_bce(scores, targets), _all),
            "kl": TaskLoss(_soft, lambda scores, targets, _real: answer_kl(scores, targets), _all),
            "ce": TaskLoss(_soft, _soft_ce, _with_target),
            "class": TaskLoss(_number, lambda scores, targets, _real: cross_entropy(scores, targets), _labelled),
            NUMBER_LOSS: TaskLoss(
                _value, lambda scores, targets, _real: score_regression(scores, targets[:, 0]), _all, "near", _near
            ),
            "class_bce": TaskLoss(
                _number,
                lambda scores, targets, _real: class_bce(scores, targets),
                lambda _targets, real: int(real.sum()),
            ),
        },
        CHOICE: {
            "softmax": TaskLoss(_number, lambda scores, targets, _real: cross_entropy(scores, targets), _labelled),
            "sigmoid": TaskLoss(_number, _choice_bce, lambda _targets, real: int(real.sum())),
            "multi_class": TaskLoss(_number, lambda scores, targets, _real: cross_entropy(scores, targets), _all),
            "binary": TaskLoss(_number, _choice_bce, lambda _targets, real: int(real.sum())),
            "triplet": TaskLoss(_number, lambda scores, targets, _real: triplet_loss(scores, targets), _all),
            "all_three": TaskLoss(_number, _all_three, _all),
        },
        PHRASE: {
            "captions": TaskLoss(_grounded, _grounding_term("captions"), _all, "best_covers", _best_covers),
            "phrases": TaskLoss(_grounded, _grounding_term("phrases"), _with_target, "best_covers", _best_covers),
        },
    }
)


def loss_named(
    form: str, name: str, region_targets: Mapping[str, Any] = MappingProxyType({}), label_weights: Sequence[float] = ()
) -> TaskLoss:
    """The loss of a form by its name.

    Args:
        name: of REGION one of `DENOMINATORS` of task_losses.py: summed over a row's regions (ViLBERT), or a mean over
            all "regions" (VL-BERT).
        region_targets: how `referred_targets` makes targets of right boxes.
        label_weights: see `DownstreamTask`.
    """
    known = DENOMINATORS if form == REGION else LOSSES[form]
    if name not in known:
        raise ValueError(f"no loss {name!r} of the form {form}; there are {', '.join(known)}")
    if label_weights:
        assert (form, name) == (LABEL, "class"), "the losses of other tasks have no weights"
        return replace(
            LOSSES[form][name], term=lambda scores, right, _real: cross_entropy(scores, right, label_weights)
        )
    return _regions(name, {"kind": "binary", **region_targets}) if form == REGION else LOSSES[form][name]


def group_scores(form: str, given: Tensor, group_sizes: Sequence[int]) -> Tensor:
    """(G, N) scores of groups from those of the network.

    Args:
        given: LABEL (G, A); CHOICE (rows, 1), rows of a group one after the other; REGION (G, E), see `scored_boxes`;
            PHRASE (G, P, R).
    """
    if form != CHOICE:
        return given
    rows = given.squeeze(-1).split(list(group_sizes))
    lowest = float(torch.finfo(given.dtype).min)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=lowest)


def scored_boxes(groups: Sequence[TaskGroup], inputs: VLBatch) -> tuple[Tensor, Tensor]:
    """Boxes (G, E, 4) in pixels, and which are real (G, E): the whole image if it is a candidate, then the regions."""
    boxes, mask = inputs.images_to_rows(inputs.region_boxes), inputs.rows_region_mask
    if groups[0].whole_image is None:
        return boxes, mask
    whole = torch.stack([torch.as_tensor(group.whole_image, dtype=boxes.dtype) for group in groups])
    return torch.cat([whole[:, None], boxes], dim=1), F.pad(mask, (1, 0), value=True)


def real_scores(output: OutputSpec, inputs: VLBatch, group_sizes: Sequence[int]) -> Tensor:
    """(G, N) bool, which scores are of a label, row or region that there is; of phrases (G, R)."""
    sizes, mask = torch.tensor(list(group_sizes)), inputs.rows_region_mask
    if output.form == PHRASE:
        return mask
    if output.form == REGION:
        return F.pad(mask, (1, 0), value=True) if output.whole_image else mask
    if output.form == LABEL:
        return torch.ones(len(sizes), output.num_labels, dtype=torch.bool, device=mask.device)
    return (torch.arange(int(sizes.max())) < sizes[:, None]).to(mask.device)
