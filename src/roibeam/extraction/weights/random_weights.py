"""Reproducible random weights: the recipe of goldens/detector/README.md, section "Weights".

The variances keep activations in range through the whole network, and "small channels" make a wrong epsilon visible, so
these weights find arithmetic mistakes that torch's own initialisation would hide.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_GAINS = {"cls_score": 14.0, "bbox_pred": 1.0, "fc_attr": 1.4, "attr_score": 4.0}
_CENTERED = ("cls_score", "bbox_pred", "attr_score")


def random_seed(weights: str, *, named: str) -> int | None:
    """The seed of `random:<seed>`; None for weights that are somewhere.

    Args:
        weights: as a user gives them.
        named: what they are called in the error.
    Raises:
        ValueError: when the seed is no whole number.
    """
    if not weights.startswith("random:"):
        return None
    seed = weights.removeprefix("random:")
    if not seed.isdecimal() or not seed.isascii():
        raise ValueError(f"{named}: the seed must be a whole number, such as random:1")
    return int(seed)


def random_state(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """float32 tensors by name, each a function of name, shape and seed only; seed 1 gives those of the goldens."""
    return {name: torch.from_numpy(random_tensor(name, shape, seed)) for name, shape in shapes.items()}


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One tensor of the recipe.

    Args:
        name: its name in a Hugging Face checkpoint, such as `backbone.res2.0.conv3.norm.weight`.
    Returns:
        `shape`, float32.
    """
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


def _norm_values(name: str, kind: str, z: np.ndarray) -> np.ndarray:
    small = np.arange(len(z)) % 16 == 0
    last = ".conv3." in name
    if kind == "running_var":
        return np.exp(0.3 * z) * np.where(small, 1e-4, 1.0)
    if kind == "running_mean":
        return 0.1 * z * np.where(small, 1e-2, 1.0)
    if kind == "weight":
        return (0.35 if last else 1.0) * (1 + 0.1 * z) * np.where(small, 1e-2, 1.0)
    return 0.2 * z - (0.3 if last else 0.1)


def _conv_std(owner: str, stem: bool, fan_in: int) -> float:
    if owner == "objectness_logits":
        return 3.0 / math.sqrt(fan_in)
    if owner == "anchor_deltas":
        return 0.35 / math.sqrt(fan_in)
    return math.sqrt(2.0 / fan_in) / (60.0 if stem else 1.0)
