"""Which precision a task is learned in on this machine."""

from __future__ import annotations

import time
from functools import cache

import torch

ROWS, WIDTH, INNER, ROUNDS = 2560, 128, 512, 9  # tokens of a batch, and a layer as in the models of these runs


def precision_here(wanted: str, device: str) -> str:
    """float32 in place of bf16 where a CPU multiplies that more slowly: some take 1.4 times as long for a step."""
    return "float32" if wanted == "bf16" and device == "cpu" and not is_bf16_faster() else wanted


@cache
def is_bf16_faster() -> bool:
    """The quickest of several rounds decides, in turns, as other work may run beside."""
    seconds = [(_seconds(torch.float32), _seconds(torch.bfloat16)) for _ in range(ROUNDS)]
    exact, short = (min(each) for each in zip(*seconds, strict=True))
    return short < exact


def _seconds(dtype: torch.dtype) -> float:
    """Of one layer, forward and backward."""
    layer, states = torch.nn.Linear(WIDTH, INNER, dtype=dtype), torch.ones(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    start = time.perf_counter()
    layer(states).sum().backward()
    return time.perf_counter() - start
