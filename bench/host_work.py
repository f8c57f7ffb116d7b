"""What Python does for one photo beside the convolutions, step by step: `python bench/host_work.py`.

A GPU does these steps sooner than Python asks for them, so what counts there is how many operations it is asked, how
long that takes on one core, and how often it is waited for. Runs without one: the detector has the true number of
layers, proposals and classes, and few channels. Random weights, one photo of smooth noise. Copies of numbers to the
device, for which a GPU is waited for too, are not among the waits: on a CPU there are none. Writes the tables of
BENCHMARKS.md to standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
from store_rounds import table
from torch.utils._python_dispatch import TorchDispatchMode

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.config import CONFIGS, FEATURE_STRIDE
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.network.roi_heads import WindowMax
from roibeam.extraction.regions import HostCopy, kept_regions
from roibeam.extraction.weights.loading import build_detector

WAITS = ("nonzero", "item", "_local_scalar_dense", "is_nonzero", "masked_select", "_unique2", "nms")
GPU_CHUNK = 160


class Operations(TorchDispatchMode):
    """Counts what torch is asked, and what a GPU would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.all: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.all[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    def waits(self) -> str:
        return ", ".join(f"{name} {self.all[name]}" for name in WAITS if self.all[name])


def calls_of_network(detector: Detector, photo: Any) -> int:
    """How often one photo, in a call of 16, makes the detector look whether a weight has changed."""
    asked = 0
    get = detector._networks.get

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return get(*arguments)

    detector._networks.get = counted  # type: ignore[method-assign]
    detector([photo] * 16)
    detector._networks.get = get  # type: ignore[method-assign]
    return asked


def steps(detector: Detector, photo: Any) -> dict[str, Callable[[], Any]]:
    """Each on the results of the one before."""
    network = detector.network()
    prepared = detector._prepared(photo, None)
    one = prepared.network_input
    maps = network.feature_map(prepared.pixels)
    logits, deltas = network.rpn(maps)

    def propose() -> Any:
        return detector.proposal_generator.propose(logits, deltas, one.input_hw, one.factor)  # type: ignore[operator]

    proposals = propose()
    outputs = HeadOutputs(one, maps, proposals, network.regions(maps, proposals.boxes))
    scored = detector._scores(outputs)
    return {
        "weights looked at": detector.network,
        "photo to the device": lambda: detector._prepared(photo, None),
        "proposals": propose,
        "windows of RoIPool": lambda: WindowMax(
            maps, proposals.boxes, cells=detector.config.pooled_cells, stride=FEATURE_STRIDE, chunk=GPU_CHUNK
        ),
        "scores, boxes": lambda: detector._scores(outputs),
        "choice, on the CPU": lambda: kept_regions(detector.selection, HostCopy(scored), one.image_hw),
    }


def best_ms(work: Callable[[], Any], rounds: int) -> float:
    work()
    seconds = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return 1000 * min(seconds)


@torch.inference_mode()
def measure(conventions: str, selection: str, rounds: int) -> None:
    config = dataclasses.replace(CONFIGS["vg-r101-c4"], base_channels=4)
    detector = build_detector(config, weights="random:1", conventions=conventions, selection=selection)
    noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    photo = detector.prepare(cv2.GaussianBlur(noise, (31, 31), 0))
    rows = []
    with detector.arithmetic():
        for name, work in steps(detector, photo).items():
            with Operations() as operations:
                work()
            rows.append((name, str(operations.all.total()), operations.waits(), f"{best_ms(work, rounds):.2f}"))
    print(
        f"\n{conventions}, {selection}; weights are looked at {calls_of_network(detector, photo)} times for 16 photos\n"
    )
    print(table(("step", "operations", "of them waits", "ms"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conventions", nargs="+", default=["hf", "caffe"], choices=CONVENTIONS, help="[hf caffe]")
    parser.add_argument("--selections", nargs="+", default=["hf-36", "butd-10-100"], choices=SELECTIONS)
    parser.add_argument("--rounds", type=int, default=20, help="the best of them counts [20]")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for conventions, selection in zip(arguments.conventions, arguments.selections, strict=True):
        measure(conventions, selection, arguments.rounds)


if __name__ == "__main__":
    main()
