"""A step of AdamW on a CPU, tensor after tensor, by foreach and fused: `python bench/optimizer_step.py`."""

from __future__ import annotations

import time
from statistics import median

import torch

ROUNDS = 9
SIZES = ((60, 64), (200, 768))  # tensors, and how many rows and columns each of them has


def milliseconds(count: int, width: int, **way: bool) -> float:
    """Of processor time, median of ROUNDS."""
    parameters = [torch.randn(width, width, requires_grad=True) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer, found = torch.optim.AdamW(parameters, lr=1e-3, **way), []
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        optimizer.step()
        found.append(time.process_time() - start)
    return 1000 * median(found[1:])


def main() -> None:
    torch.set_num_threads(1)
    print("| tensors | torch's choice, ms | foreach, ms | fused, ms |")
    print("| --- | --- | --- | --- |")
    for count, width in SIZES:
        times = [milliseconds(count, width, **way) for way in ({}, {"foreach": True}, {"fused": True})]
        print(f"| {count} of {width} x {width} | " + " | ".join(f"{each:.1f}" for each in times) + " |", flush=True)


if __name__ == "__main__":
    main()
