"""Attention of one packed batch on a CPU, row after row and all rows padded, forward and backward: where the first one
begins to pay. `Attention` changes between them at `roibeam.model.common.transformer._PAYS_FOR_A_KERNEL`, in bfloat16 at
`_PAYS_IN_BFLOAT16`.

    python bench/attention_ways.py [bfloat16]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor

from roibeam.model.common.transformer import Packing, padded_attention, row_attention

ROUNDS = 9
HEADS = ((2, 16), (4, 16), (4, 32), (12, 64))  # number, width
ROWS = (8, 32, 64)
LENGTHS = ((4, 14), (10, 24), (10, 40), (20, 110))


def milliseconds(attend: Callable[..., Tensor], heads: tuple[int, int], packing: Packing, kind: torch.dtype) -> float:
    """Of processor time, median of ROUNDS."""
    parts = [torch.randn(sum(packing.lengths), *heads).to(kind).requires_grad_() for _ in range(3)]
    found = []
    for _ in range(ROUNDS + 2):
        start = time.process_time()
        attend(*parts, packing, packing, 0.0).sum().backward()
        found.append(time.process_time() - start)
    return 1000 * median(found[2:])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    kind = torch.bfloat16 if sys.argv[1:] == ["bfloat16"] else torch.float32
    print("| heads | rows | lengths | longest^2 x width | row after row, ms | padded, ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for heads in HEADS:
        for rows in ROWS:
            for low, high in LENGTHS:
                lengths = torch.from_numpy(draw.integers(low, high + 1, rows))
                packing = Packing(torch.arange(int(lengths.max())) < lengths[:, None])
                cost = int(lengths.max()) ** 2 * heads[0] * heads[1]
                one, other = (
                    milliseconds(attend, heads, packing, kind) for attend in (row_attention, padded_attention)
                )
                size = f"{heads[0]} x {heads[1]} | {rows} | {low}..{high} | {cost:,}"
                print(f"| {size} | {one:.2f} | {other:.2f} | {one / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
