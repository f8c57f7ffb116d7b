"""Names of weights in files of detectron2's forerunners, Detectron (Caffe2) and maskrcnn-benchmark, as detectron2's.

Detectron's names are turned by detectron2's own converter; its normalisations have no statistics (mean 0, variance 1).
Those of maskrcnn-benchmark are turned here. In both files the background is the first class, in detectron2 the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from roibeam.extraction.network.state import is_plain_tensor

_DETECTRON, _BENCHMARK = "conv1_w", "backbone.body."
# maskrcnn-benchmark divides by the root of the variance as it is, detectron2 adds this first.
_EPSILON = 1e-5
_RULES = (
    (r"^module\.", ""),
    (r"^backbone\.body\.stem\.bn1\.", "backbone.bottom_up.stem.conv1.norm."),
    (r"^backbone\.body\.stem\.", "backbone.bottom_up.stem."),
    (r"^backbone\.body\.layer1\.", "backbone.bottom_up.res2."),
    (r"^backbone\.body\.layer2\.", "backbone.bottom_up.res3."),
    (r"^backbone\.body\.layer3\.", "backbone.bottom_up.res4."),
    (r"^backbone\.body\.layer4\.", "backbone.bottom_up.res5."),
    (r"\.bn([123])\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
    (r"^rpn\.head\.conv\.", "proposal_generator.rpn_head.conv."),
    (r"^rpn\.head\.cls_logits\.", "proposal_generator.rpn_head.objectness_logits."),
    (r"^rpn\.head\.bbox_pred\.", "proposal_generator.rpn_head.anchor_deltas."),
    (r"^roi_heads\.box\.feature_extractor\.fc6\.", "roi_heads.box_head.fc1."),
    (r"^roi_heads\.box\.feature_extractor\.fc7\.", "roi_heads.box_head.fc2."),
    (r"^roi_heads\.box\.predictor\.", "roi_heads.box_predictor."),
)
# Anchors of maskrcnn-benchmark are rounded and a pixel narrower; the adapter computes detectron2's. Attributes have a
# head of their own there, which detectron2 lacks.
_DROPPED = re.compile(r"^(?:module\.)?(?:rpn\.anchor_generator\.|roi_heads\..*attr)")


def in_detectron2_names(found: Mapping[str, object], expected: Iterable[str]) -> dict[str, object]:
    """The same weights by the names of a detectron2 network; those of detectron2 stay as they are.

    Args:
        expected: names of the network's weights.
    """
    if _DETECTRON in found:
        return _with_statistics(_of_detectron(found, list(expected)), expected)
    if any(name.removeprefix("module.").startswith(_BENCHMARK) for name in found):
        return dict(_of_benchmark(name, value) for name, value in found.items() if not _DROPPED.match(name))
    return _with_statistics(dict(found), expected)


def _of_detectron(found: Mapping[str, object], expected: list[str]) -> dict[str, object]:
    from detectron2.checkpoint.c2_model_loading import convert_c2_detectron_names

    weights = {name: value for name, value in found.items() if not name.endswith("_momentum")}
    tensors = {name: value for name, value in weights.items() if is_plain_tensor(value)}
    renamed: dict[str, object] = dict(convert_c2_detectron_names(tensors)[0])
    others = {name: value for name, value in weights.items() if name not in tensors}
    return {_only_end(name, expected): value for name, value in renamed.items()} | others


def _only_end(name: str, expected: list[str]) -> str:
    """The one expected name that ends so; the name itself where there is none, or several."""
    ends = [each for each in expected if each == name or each.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else name


def _of_benchmark(name: str, value: object) -> tuple[str, object]:
    for old, new in _RULES:
        name = re.sub(old, new, name)
    name = re.sub(r"^backbone\.fpn\.fpn_inner(\d)\.", lambda at: f"backbone.fpn_lateral{int(at[1]) + 1}.", name)
    name = re.sub(r"^backbone\.fpn\.fpn_layer(\d)\.", lambda at: f"backbone.fpn_output{int(at[1]) + 1}.", name)
    if not isinstance(value, Tensor):
        return name, value
    if name.startswith("roi_heads.box_predictor.cls_score."):
        return name, torch.cat([value[1:], value[:1]])
    if name.startswith("roi_heads.box_predictor.bbox_pred."):
        return name, value[4:]
    return name, value - _EPSILON if name.endswith("norm.running_var") else value


def _with_statistics(found: dict[str, object], expected: Iterable[str]) -> dict[str, object]:
    """With mean 0 and variance 1 of normalisations that have a weight alone, as detectron2 reads such files."""
    for name in expected:
        norm, _, kind = name.rpartition(".")
        weight = found.get(f"{norm}.weight")
        if kind in ("running_mean", "running_var") and name not in found and isinstance(weight, Tensor):
            found[name] = torch.zeros_like(weight) if kind == "running_mean" else torch.ones_like(weight)
    return found
