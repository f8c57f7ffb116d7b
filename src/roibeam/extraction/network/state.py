"""State of a network: its tensors by name, from any file; checked, digested, or drawn at random.

Random weights follow the recipe of goldens/detector/README.md, section "Weights": the variances keep activations in
range through the whole network, and "small channels" make a wrong epsilon visible, so they find arithmetic mistakes
that torch's own initialisation would hide.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from roibeam.messages import printable

CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
NO_SHARE = -1e4  # a logit whose softmax is 0 beside usual ones, and finite, as every number of a sound network
_LISTED = 5
_CHOOSE_CONFIG = "choose the config it was trained with (--detector, --set detector.field=value)"


def is_weight(name: str) -> bool:
    """Whether a tensor of a checkpoint is a weight; a counter of batches and computed anchors are not."""
    return not name.endswith("num_batches_tracked") and name != CELL_ANCHORS


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the weights as numbers, in hexadecimal digits: equal for every container that holds the same tensors.

    Over the sorted names: name, shape, and the values as little-endian float32. Counters of batches and computed
    anchors are left out.
    """
    digest = hashlib.sha256()
    for name in sorted(filter(is_weight, state)):
        tensor = state[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}\n{','.join(map(str, tensor.shape))}\n".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).astype("<f4", copy=False).data)
    return digest.hexdigest()


def renamed(weights: Mapping[Any, object], new_name: Callable[[Any], str], source: str) -> dict[str, object]:
    """The same values under new names.

    Args:
        source: names the file in the error.
    Raises:
        ValueError: if two names become one: one of the values would be dropped, and neither is known to be right.
    """
    found: dict[str, object] = {}
    for name, value in weights.items():
        if (new := new_name(name)) in found:
            other = next(old for old in weights if new_name(old) == new)
            names = " and ".join(printable(str(old), 90) for old in (other, name))
            raise ValueError(f"{source}: holds the same weight under two names, {names}; keep one of them")
        found[new] = value
    return found


def check_state(found: Mapping[str, object], expected: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The weights in `found` as float32, if they are exactly those of `expected`.

    Args:
        found: content of a file; counters of batches are dropped.
        source: names the file in the error.
    Raises:
        ValueError: lists all missing, extra, misshapen or not finite weights (five of each kind), with the likely
            kind of the file and the remedy.
    """
    weights = {name: value for name, value in found.items() if is_weight(name)}
    fits = {
        name: value
        for name, value in weights.items()
        if name in expected and is_plain_tensor(value) and value.shape == expected[name].shape
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
    # Detached: a file may hold parameters, which require gradients.
    return {name: fits[name].detach().to(torch.float32) for name in expected}


def is_plain_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether torch can compute with it normally: dense, of floating point, on the CPU, not quantized."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dtype.is_floating_point
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def show_tensor(name: str, value: object) -> str:
    """Name and shape, for an error."""
    short = printable(name, 90)
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
            more = f", ... {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:_LISTED])}{more}")
    look, advice = _diagnose(weights, problems)
    return "; ".join([*parts, f"it looks like {look}: {advice}"])


def _diagnose(weights: Mapping[str, object], problems: Mapping[str, list[str]]) -> tuple[str, str]:
    if not problems["missing"] and not problems["extra"]:
        if problems["misshapen"]:
            return "this architecture at other sizes", _CHOOSE_CONFIG
        return "a broken checkpoint of this network", "training diverged or the file is damaged; take an earlier one"
    if any(name.startswith("backbone.res") for name in weights):
        return "a relative of this network (another depth, or a part of it)", _CHOOSE_CONFIG
    return "something else", "hand over a Faster R-CNN ResNet-C4 with attribute head"


_GAINS = {"cls_score": 14.0, "bbox_pred": 1.0, "fc_attr": 1.4, "attr_score": 4.0}
_CENTERED = ("cls_score", "bbox_pred", "attr_score")


def random_seed(weights: str, *, named: str | None = None) -> int | None:
    """The seed of `random:<seed>`; None for other weights. In an error they are `named`."""
    if not weights.startswith("random:"):
        return None
    seed = weights.removeprefix("random:")
    if not seed.isdecimal() or not seed.isascii():
        raise ValueError(f"{named or f'weights {weights}'}: the seed must be a whole number, such as random:1")
    return int(seed)


def random_state(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """float32 tensors by name, each a function of name, shape and seed only; seed 1 gives those of the goldens.

    In a pre-activation network, the last convolution of a block, which no norm follows, is as small as that norm makes
    it elsewhere, and the stem reads pixels that a norm has scaled.
    """
    state = {name: torch.from_numpy(random_tensor(name, shape, seed)) for name, shape in shapes.items()}
    for name in state:
        if name.endswith(".conv3.weight") and name.replace(".weight", ".norm.weight") not in state:
            state[name] *= _LAST_GAIN
    if "backbone.stem.norm.weight" in state:
        state["backbone.stem.conv1.weight"] *= _PIXEL_SCALE
    return state


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One tensor of the recipe; `name` as in a Hugging Face checkpoint, such as `backbone.res2.0.conv3.norm.weight`."""
    z = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(shape)
    layer, _, kind = name.rpartition(".")
    owner = layer.rpartition(".")[2]
    if ".norm." in name:
        values = _norm_values(name, kind, z)
    elif kind == "bias":
        values = (0.5 if owner == "cls_score" else 0.05) * z
    elif len(shape) == 4:
        values = _conv_std(owner, ".stem." in name, math.prod(shape[1:])) * z
    elif owner == "cls_embedding":
        values = z
    else:
        if owner in _CENTERED:
            z = z - z.mean(axis=1, keepdims=True)
        values = _GAINS.get(owner, 1.0) / math.sqrt(shape[1]) * z
    return values.astype(np.float32)


_LAST_GAIN = 0.35  # of a block's last convolution
_PIXEL_SCALE = 60.0  # spread of the stem's input, grey levels


def _norm_values(name: str, kind: str, z: np.ndarray) -> np.ndarray:
    if name.startswith("backbone.stem.norm."):  # of the pixels, grey levels
        return {"running_mean": 115 + 8 * z, "running_var": 3600 * np.exp(0.3 * z)}.get(kind, 1 + 0.1 * z)
    small = np.arange(len(z)) % 16 == 0
    last = ".conv3." in name
    if kind == "running_var":
        return np.exp(0.3 * z) * np.where(small, 1e-4, 1.0)
    if kind == "running_mean":
        return 0.1 * z * np.where(small, 1e-2, 1.0)
    if kind == "weight":
        return (_LAST_GAIN if last else 1.0) * (1 + 0.1 * z) * np.where(small, 1e-2, 1.0)
    return 0.2 * z - (0.3 if last else 0.1)


def _conv_std(owner: str, stem: bool, fan_in: int) -> float:
    if owner == "objectness_logits":
        return 3.0 / math.sqrt(fan_in)
    if owner == "anchor_deltas":
        return 0.35 / math.sqrt(fan_in)
    return math.sqrt(2.0 / fan_in) / (_PIXEL_SCALE if stem else 1.0)
