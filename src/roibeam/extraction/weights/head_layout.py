"""Order and scale of the head weights, as data, and the one table of rules that turns one layout into another.

The published files of this network hold the same tensors under one set of names (families.py), but their rows
mean different things: where background stands, how box deltas are scaled, whether objectness is one number or a pair,
in which order the anchors come. The rules follow from the codes of airsplay/py-bottom-up-attention,
MILVLG/bottom-up-attention.pytorch (bua/caffe/modeling) and peteanderson80/bottom-up-attention (lib/rpn, test.prototxt).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.state import CELL_ANCHORS

RPN = "proposal_generator.rpn_head."
PREDICTOR = "roi_heads.box_predictor."


@dataclass(frozen=True)
class HeadLayout:
    """Meaning of the rows of the head weights. The fields are those of `Conventions`; the defaults are Hugging Face's
    and detectron2's.

    Attributes:
        background: "first" or "last" row of cls_score and cls_embedding.
        no_attribute: "first" or "last" row of attr_score.
        region_delta_weights: divisors of bbox_pred's dx dy dw dh.
        region_deltas: bbox_pred has rows for the "foreground" classes or "with-background", four for each class.
        objectness: one "logit" for each anchor, or "pair-softmax": background of all anchors, then foreground.
        anchor_order: "size-major" or "ratio-major"; of objectness, of anchor_deltas in groups of four, of cell_anchors.
    """

    background: str = "last"
    no_attribute: str = "last"
    region_delta_weights: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    region_deltas: str = "foreground"
    objectness: str = "logit"
    anchor_order: str = "size-major"

    @classmethod
    def of(cls, conventions: Conventions) -> HeadLayout:
        """The layout of the weights in a detector of these conventions."""
        return cls(**{field.name: getattr(conventions, field.name) for field in fields(cls)})


HF_LAYOUT = HeadLayout()
CAFFE_LAYOUT = HeadLayout("first", "first", (1.0, 1.0, 1.0, 1.0), "with-background", "pair-softmax", "ratio-major")


def relayout(
    state: Mapping[str, Tensor], source: HeadLayout, target: HeadLayout, *, num_sizes: int, num_ratios: int
) -> dict[str, Tensor]:
    """The same network in another layout.

    Exact, except that box deltas are multiplied by the ratio of the delta weights: one rounding of float32, so there
    and back may differ by one unit in the last place. A pair becomes foreground minus background, on which alone the
    softmax depends; a logit becomes the pair (0, logit). Box deltas of the background class, which nothing uses, are
    dropped, or are zero if there were none.

    Args:
        state: weights in Hugging Face names and in `source` layout; names without a rule pass through, so a part of
            a network will do. Shapes must be those of the layout (see `check_state`).
        num_sizes, num_ratios: anchors at a cell are their product.
    Returns:
        the state in `target` layout, float32 where a rule applied; tensors may be shared with `state`.
    """
    grid = (num_sizes, num_ratios)
    return {
        name: _RULES[name](value, source, target, grid) if name in _RULES else value for name, value in state.items()
    }


def relayout_words(source: HeadLayout, target: HeadLayout) -> list[str]:
    """Steps of `relayout` between two layouts, for people; empty if there are none."""
    words = {
        "background": "background row moved",
        "no_attribute": "no-attribute row moved",
        "region_delta_weights": "box deltas scaled",
        "region_deltas": "background box deltas "
        + ("dropped" if target.region_deltas == "foreground" else "added as zeros"),
        "objectness": "objectness " + ("pairs joined" if target.objectness == "logit" else "logits split into pairs"),
        "anchor_order": "anchors reordered",
    }
    return [text for name, text in words.items() if getattr(source, name) != getattr(target, name)]


def _move_row(value: Tensor, source: str, target: str) -> Tensor:
    """Rows with the special one (background, "no attribute") moved between first and last."""
    if source == target:
        return value
    return value.roll(1 if target == "first" else -1, dims=0)


def _class_rows(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    return _move_row(value, source.background, target.background)


def _attribute_rows(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    return _move_row(value, source.no_attribute, target.no_attribute)


def _region_deltas(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    groups = value.reshape(-1, 4, *value.shape[1:])
    if source.region_delta_weights != target.region_delta_weights:
        weights = zip(target.region_delta_weights, source.region_delta_weights, strict=True)
        factors = torch.tensor([new / old for new, old in weights], dtype=torch.float32, device=value.device)
        groups = groups.float() * factors.view(1, 4, *(1 for _ in value.shape[1:]))
    if source.region_deltas == "with-background":
        if target.region_deltas == "with-background":
            groups = _move_row(groups, source.background, target.background)
        else:
            groups = groups[1:] if source.background == "first" else groups[:-1]
    elif target.region_deltas == "with-background":
        background = torch.zeros_like(groups[:1])
        groups = torch.cat([background, groups] if target.background == "first" else [groups, background])
    return groups.reshape(-1, *value.shape[1:])


def _objectness(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    if source.objectness != target.objectness:
        if target.objectness == "logit":
            background, foreground = value.float().chunk(2)
            value = foreground - background
        else:
            value = torch.cat([torch.zeros_like(value), value])
    # A pair is two runs over the anchors, one after the other.
    runs = value.reshape(2, -1, *value.shape[1:]) if target.objectness == "pair-softmax" else value[None]
    return torch.cat([_reorder(run, source, target, grid) for run in runs])


def _anchor_groups(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    groups = value.reshape(grid[0] * grid[1], -1, *value.shape[1:])
    return _reorder(groups, source, target, grid).reshape(value.shape)


def _reorder(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    """Rows, one for each anchor, in the target's order."""
    if source.anchor_order == target.anchor_order:
        return value
    outer, inner = grid if source.anchor_order == "size-major" else grid[::-1]
    return value.reshape(outer, inner, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


_Rule = Callable[[Tensor, HeadLayout, HeadLayout, tuple[int, int]], Tensor]
# The one table of value rules for tensors that depend on the layout. Every other one is the same in all files.
_RULES: dict[str, _Rule] = {
    f"{RPN}objectness_logits.weight": _objectness,
    f"{RPN}objectness_logits.bias": _objectness,
    f"{RPN}anchor_deltas.weight": _anchor_groups,
    f"{RPN}anchor_deltas.bias": _anchor_groups,
    CELL_ANCHORS: _anchor_groups,
    f"{PREDICTOR}cls_score.weight": _class_rows,
    f"{PREDICTOR}cls_score.bias": _class_rows,
    f"{PREDICTOR}cls_embedding.weight": _class_rows,
    f"{PREDICTOR}bbox_pred.weight": _region_deltas,
    f"{PREDICTOR}bbox_pred.bias": _region_deltas,
    f"{PREDICTOR}attr_score.weight": _attribute_rows,
    f"{PREDICTOR}attr_score.bias": _attribute_rows,
}
