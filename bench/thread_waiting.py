"""How waiting threads slow training on a CPU: `python bench/thread_waiting.py [--busy N]`.

Arms are ways for an OpenMP thread to wait for the next piece of work: `default` spins, `passive` sleeps
(OMP_WAIT_POLICY), a number spins so many times and then sleeps (GOMP_SPINCOUNT). The way is read when torch is loaded,
so each arm is a process of its own; they take turns, and while one works the others wait for a line. `--busy N` lets N
processes compute all the time beside them. Seconds are of the wall clock: a training step of models of three sizes, and
a photo in the toy detector. The losses of all arms must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

WAYS: dict[str, dict[str, str]] = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"spin {count}": {"GOMP_SPINCOUNT": str(count)} for count in (1_000, 10_000, 30_000, 100_000)},
}
# name -> hidden size, layers, rows, steps in one measurement
SIZES = {"64x2": (64, 2, 16, 20), "256x4": (256, 4, 32, 4), "768x12": (768, 12, 8, 1)}
DETECTOR, PHOTOS = "detector", 4
_BUSY = "while True: sum(range(1000))"


def _worker(size: str, threads: int) -> None:
    """Measures once for each line that it reads; prints seconds and what was computed."""
    import torch

    torch.set_num_threads(threads)
    measure = _detector() if size == DETECTOR else _training(*SIZES[size])
    for _ in sys.stdin:
        start = time.perf_counter()
        computed = measure()
        print(f"{time.perf_counter() - start} {computed}", flush=True)


def _training(width: int, layers: int, rows: int, steps: int) -> Callable[[], str]:
    import torch
    import toy_step_rate

    from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_small

    torch.manual_seed(0)
    toy_step_rate.ROWS = rows
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    words = {"vocab_size": toy_step_rate.VOCABULARY, "region_feature_size": toy_step_rate.FEATURES}
    config = imagebert_small(**sizes, num_attention_heads=width // 32, **words, num_region_labels=toy_step_rate.LABELS)
    model = ImageBertForPreTraining(config).train()
    batch = toy_step_rate.make_batch(torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def measure() -> str:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.stack([term.mean for term in model(batch).losses.values()]).sum()
            loss.backward()
            optimizer.step()
        return float(loss.detach()).hex()

    return measure


def _detector() -> Callable[[], str]:
    import numpy as np

    from roibeam import build_detector

    detector = build_detector("toy")
    photos = np.random.default_rng(0).integers(0, 256, (PHOTOS, 300, 384, 3), np.uint8)

    def measure() -> str:
        return float(sum(float(detector(photo).features.sum()) for photo in photos)).hex()

    return measure


class _Arm:
    def __init__(self, way: str, size: str, threads: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        command = [sys.executable, __file__, "--worker", size, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment, **WAYS[way]}
        )
        self.computed: list[str] = []

    def seconds(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, computed = self.process.stdout.readline().split()
        self.computed.append(computed)
        return float(seconds)


def _measured(size: str, ways: list[str], rounds: int, threads: int) -> list[tuple[str, ...]]:
    arms = {way: _Arm(way, size, threads) for way in ways}
    try:
        found = take_turns({way: arm.seconds for way, arm in arms.items()}, rounds)
    finally:
        for arm in arms.values():
            arm.process.kill()
    equal = len({tuple(arm.computed) for arm in arms.values()}) == 1
    count = PHOTOS if size == DETECTOR else SIZES[size][3]
    return [
        (
            size,
            way,
            f"{sorted(figures)[len(figures) // 2] / count:.4f}",
            str(Ratio(figures, found[ways[0]])),
            "yes" if equal else "NO",
        )
        for way, figures in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the arms")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--sizes", nargs="+", default=[*SIZES, DETECTOR], choices=[*SIZES, DETECTOR])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return _worker(arguments.worker, arguments.threads)
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(arguments.busy)]
    try:
        measured = partial(_measured, rounds=arguments.rounds, threads=arguments.threads)
        rows = [row for size in arguments.sizes for row in measured(size, arguments.ways)]
    finally:
        for process in busy:
            process.kill()
    print(f"{arguments.threads} threads, {arguments.busy} busy processes beside, {arguments.rounds} rounds")
    print(table(("model", "waiting", "s a step or photo", "beside the first", "equal bits"), rows))


if __name__ == "__main__":
    main()
