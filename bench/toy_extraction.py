"""The toy detector on a CPU, from pictures to a store: `python bench/toy_extraction.py [--beside COMMAND]`.

Draws pictures of the toy world and runs `roibeam extract` on them in several arrangements, which take turns. CPU time
says more than the clock where other work runs beside it: two cores have 0.2 s of it for each image at 10 images/s. Then
the stages of one photo in one thread. Writes the tables of BENCHMARKS.md to standard output.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from extraction_speed import machine
from store_rounds import table

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import to_record
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.weights.detector_choice import read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.toyworld.rendering import draw_samples

ROIBEAM = str(Path(sys.executable).parent / "roibeam")
SHARDS = 8  # of an extraction: each worker gets some
ARRANGEMENTS = {
    "1 process, 2 threads": ("--workers", "1", "--threads", "2"),
    "2 processes, 1 thread each": ("--workers", "2", "--threads", "1"),
}


def extraction(command: str, options: tuple[str, ...], few: Path, images: Path) -> tuple[float, float]:
    """Images/s of `images` by the clock, with the command's start and end; CPU seconds an image without those: the CPU
    seconds of a run on `few` are taken away."""
    few_used, few_count = _run(command, options, few)[1:]
    seconds, used, count = _run(command, options, images)
    return count / seconds, (used - few_used) / (count - few_count)


def _run(command: str, options: tuple[str, ...], images: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds and number of images of one command."""
    count = len(list(images.iterdir()))
    with tempfile.TemporaryDirectory() as folder:
        line = [command, "extract", str(images), f"{folder}/store", "--detector", "toy", "--device", "cpu"]
        before, start = _children_seconds(), time.perf_counter()
        subprocess.run([*line, "--shard-size", str(-(-count // SHARDS)), *options], check=True, capture_output=True)
        return time.perf_counter() - start, _children_seconds() - before, count


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_extractions(arguments: argparse.Namespace, few: Path, images: Path) -> None:
    commands = {"this": ROIBEAM} | ({"beside": arguments.beside} if arguments.beside else {})
    arms: dict[tuple[str, ...], Callable[[], tuple[float, float]]] = {}
    for precision in arguments.precisions:
        for arrangement, options in ARRANGEMENTS.items():
            for name, command in commands.items():
                chosen = (*options, "--precision", precision)
                arms[name, precision, arrangement] = lambda command=command, chosen=chosen: extraction(
                    command, chosen, few, images
                )
    found = defaultdict(list)
    for _ in range(arguments.rounds):
        for arm, run in arms.items():
            found[arm].append(run())
            print(*arm, *(f"{figure:.3f}" for figure in found[arm][-1]), file=sys.stderr, flush=True)
    rows = [
        (*arm, f"{np.median([rate for rate, _ in each]):.1f}", f"{1000 * np.median([used for _, used in each]):.0f}")
        for arm, each in found.items()
    ]
    print(table(("command", "precision", "arrangement", "images/s", "CPU ms an image"), rows), "\n")


@torch.inference_mode()
def stages(detector: Detector, paths: list[Path]) -> dict[str, float]:
    """CPU ms of each stage for one image, in this thread."""
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        seconds[name] += time.thread_time() - start

    for path in paths:
        with timed("decode"):
            image = decode_image(path.read_bytes())
        with timed("resize"):
            one = preprocess(image, detector.config, detector.conventions)
        with detector.arithmetic():
            network = detector.network()
            with timed("backbone"):
                maps = network.feature_map(one.pixels)
            with timed("proposals"):
                (proposals,) = network.proposals(maps, [one.input_hw], [one.factor])
            with timed("res5 and heads"):
                regions = network.regions(maps, proposals.boxes)
        with timed("postprocess"):
            kept = detector.postprocess(HeadOutputs(one, maps, proposals, regions))
        with timed("encode"):
            to_record(path.stem, *one.image_hw, kept, ExtractOptions())
    return {name: 1000 * used / len(paths) for name, used in seconds.items()}


def print_stages(paths: list[Path], rounds: int) -> None:
    torch.set_num_threads(1)
    folder = read_detector_folder("toy")
    arms = {}
    for name, mode in (("exact, all of res5 after pooling", "exact"), ("exact", "exact"), ("bf16", "bf16")):
        arms[name] = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions, mode=mode)
        stages(arms[name], paths[:1])  # makes the copies of the weights
        if "after" in name:
            arms[name].network()._map_stage = None
    found = {name: [stages(detector, paths)] for name, detector in arms.items()}
    for _ in range(rounds - 1):
        for name, detector in arms.items():
            found[name].append(stages(detector, paths))
    names = list(found["exact"][0])
    rows = []
    for name, each in found.items():
        medians = [float(np.median([one[stage] for one in each])) for stage in names]
        rows.append((name, *(f"{median:.1f}" for median in medians), f"{sum(medians):.1f}"))
    print(table(("CPU ms an image", *names, "sum"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="pictures [300]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--precisions", nargs="*", default=["float32", "bf16"], help="[float32 bf16]")
    parser.add_argument("--beside", help="another roibeam command, such as that of an older checkout")
    arguments = parser.parse_args()
    arguments.device = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        draw_samples(Path(folder), count=arguments.count, seed=7)
        paths = sorted(Path(folder).rglob("*.jpg"))
        print(f"{machine(arguments)}; {arguments.count} pictures, {arguments.rounds} rounds\n", flush=True)
        if arguments.precisions:
            draw_samples(Path(folder) / "few", count=SHARDS, seed=7)
            print_extractions(arguments, Path(folder) / "few" / "images", paths[0].parent)
        print_stages(paths[:40], arguments.rounds)


if __name__ == "__main__":
    main()
