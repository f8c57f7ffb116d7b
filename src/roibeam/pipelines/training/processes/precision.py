"""The number type that a trained model computes in when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

FLOAT32 = "float32"
# As --precision says it -> as `TrainConfig.precision`.
NAMES: Mapping[str, str] = MappingProxyType({FLOAT32: "fp32", "bf16": "bf16", "fp16": "fp16"})


def check_precision(asked: str | None) -> None:
    """Raises ValueError for a name that is none; None leaves it to `precision_of`."""
    if asked is not None and asked not in NAMES:
        raise ValueError(f"--precision {asked!r}: choose one of {', '.join(NAMES)}")


def learned_in(train: Mapping[str, Any]) -> str:
    """By the settings of a run, as `NAMES` call it."""
    kept = train.get("precision", "fp32")
    return next((name for name, value in NAMES.items() if value == kept), FLOAT32)


def precision_of(asked: str | None, learned: str, device: str) -> str:
    """What is computed in: as asked, else on CUDA as the run learned and judged itself, elsewhere in float32.

    Args:
        device: its name for torch.
    Raises:
        ValueError: for fp16 on a CPU.
    """
    if asked == "fp16" and device == "cpu":
        raise ValueError("--precision fp16 needs an accelerator, device is cpu; choose bf16 or float32")
    return asked or (learned if device.startswith("cuda") else FLOAT32)


def computing_in(precision: str, device: str) -> AbstractContextManager[Any]:
    """Where a model computes so; its weights stay float32."""
    import torch

    if precision == FLOAT32:
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16 if precision == "bf16" else torch.float16)
