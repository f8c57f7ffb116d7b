"""A network's tensors by name, whatever file they came in: what belongs to it, what fits, its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
_SHOWN = 5


def is_weight(name: str) -> bool:
    """Whether a tensor of a checkpoint is a weight; a counter of batches and computed anchors are not."""
    return not name.endswith("num_batches_tracked") and name != CELL_ANCHORS


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the weights as numbers: equal for every container that holds the same tensors.

    Over the sorted names: name, shape, and the values as little-endian float32. Counters of batches and computed
    anchors are left out.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name in sorted(filter(is_weight, state)):
        tensor = state[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}\n{','.join(map(str, tensor.shape))}\n".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).astype("<f4", copy=False).data)
    return digest.hexdigest()


def check_state(found: Mapping[str, object], expected: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The weights in `found` as float32, if they are exactly those of `expected`.

    Args:
        found: what a file holds; counters of batches are dropped.
        expected: state_dict of the network.
        source: names the file in the error.
    Raises:
        ValueError: lists everything that is missing, extra, misshapen or not finite (five of each kind), says what the
            file looks like and what to do.
    """
    weights = {name: value for name, value in found.items() if is_weight(name)}
    fits = {
        name: value
        for name, value in weights.items()
        if name in expected and _is_plain_tensor(value) and value.shape == expected[name].shape
    }
    problems = {
        "missing": [show_tensor(name, expected[name]) for name in expected if name not in weights],
        "extra": [show_tensor(name, weights[name]) for name in weights if name not in expected],
        "misshapen": [
            f"{show_tensor(name, weights[name])} where the network has {tuple(expected[name].shape)}"
            for name in weights
            if name in expected and name not in fits
        ],
        "non-finite": [
            show_tensor(name, value) for name, value in fits.items() if not bool(torch.isfinite(value).all())
        ],
    }
    if any(problems.values()):
        raise ValueError(_report(problems, weights, expected, source))
    return {name: fits[name].to(torch.float32) for name in expected}


def check_cell_anchors(found: Mapping[str, object], computed: Tensor, source: str) -> None:
    """Raises ValueError when the file brings anchors (MIL and HF files do) that are not those of the config."""
    anchors = found.get(CELL_ANCHORS)
    if anchors is None:
        return
    if not _is_plain_tensor(anchors) or anchors.shape != computed.shape:
        raise ValueError(
            f"{source}: {show_tensor(CELL_ANCHORS, anchors)} where the config gives {tuple(computed.shape)}; "
            f"set anchor_sizes and anchor_ratios to those the file was trained with"
        )
    # Files hold them rounded or as float32 square roots; a hundredth of a pixel moves no box that matters.
    if not torch.allclose(anchors.float(), computed.cpu(), rtol=0, atol=1e-2):
        row = int((anchors.float() - computed.cpu()).abs().amax(dim=1).argmax())
        raise ValueError(
            f"{source}: anchor {row} is {show_numbers(anchors[row])}, the config gives {show_numbers(computed[row])}; "
            f"set anchor_sizes, anchor_ratios and the conventions to those the file was trained with"
        )


def _is_plain_tensor(value: object) -> TypeGuard[Tensor]:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dtype.is_floating_point
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def show_tensor(name: str, value: object) -> str:
    """Name and shape, for an error."""
    short = name if len(name) <= 90 else name[:87] + "..."
    if not isinstance(value, Tensor):
        return f"{short} {type(value).__name__}"
    dtype = "" if value.dtype.is_floating_point else f" {str(value.dtype).removeprefix('torch.')}"
    return f"{short} {tuple(value.shape)}{dtype}"


def show_numbers(row: Tensor) -> str:
    """A few numbers, for an error."""
    return "[" + ", ".join(f"{value:.2f}" for value in row.tolist()) + "]"


def _report(
    problems: Mapping[str, list[str]], weights: Mapping[str, object], expected: Mapping[str, Tensor], source: str
) -> str:
    parts = [f"{source}: {len(weights)} weights, the network has {len(expected)}"]
    for kind, names in problems.items():
        if names:
            more = f", ... {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{more}")
    look, advice = _diagnose(weights, problems)
    return "; ".join([*parts, f"it looks like {look}: {advice}"])


def _diagnose(weights: Mapping[str, object], problems: Mapping[str, list[str]]) -> tuple[str, str]:
    if not problems["missing"] and not problems["extra"]:
        if problems["misshapen"]:
            return "this architecture at other sizes", "choose the config it was trained with"
        return "a broken checkpoint of this network", "training diverged or the file is damaged; take an earlier one"
    if any(name.startswith("backbone.res") for name in weights):
        return "a relative of this network (another depth, or a part of it)", "choose the config it was trained with"
    return "something else", "hand over a Faster R-CNN ResNet-C4 with attribute head"
