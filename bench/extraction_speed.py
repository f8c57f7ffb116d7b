"""The extractor beside the public Hugging Face port: `python bench/extraction_speed.py ../lxmert --images PHOTOS`.

Same random weights, photos, input sizes and proposals. Every arm takes each photo once in every round, in turn, so that
a drifting machine slows all of them; ratios are taken inside a round. The rate of matrix products is measured in the
same rounds, in the same types, so that "of the matrix rate" is of what this machine could do just then. Peak memory is
that of a process of its own for each arm. Writes the tables of BENCHMARKS.md to standard output.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import torch
from hugging_face_port import Port
from store_rounds import MIN_ROUNDS, Ratio, status_mb, table, take_turns
from torch import Tensor, nn
from torch.nn import functional

from extraction import Detector, ExtractOptions, Failure, HeadOutputs, ImageRef, build_detector, extract
from extraction.decode import decode_image
from extraction.modes import MODES, bf16_instructions
from extraction.preprocess import NetworkInput, preprocess
from extraction.region_records import to_record

PORT = "port"
BARS = {"exact": 1.7, "bf16": 3.5}  # of the port's images/s, on a CPU
STAGES = ("decode", "resize", "backbone", "rpn", "res5+heads", "postprocess", "encode")
Stages = dict[str, float]


@contextmanager
def timed(stages: Stages, name: str, device: torch.device) -> Iterator[None]:
    synchronize(device)
    start = time.perf_counter()
    yield
    synchronize(device)
    stages[name] = stages.get(name, 0.0) + time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def images_per_second(work: Callable[[], object], count: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return count / (time.perf_counter() - start)


@torch.inference_mode()
def run_net(detector: Detector, inputs: list[NetworkInput]) -> None:
    """Resized photos to selected regions; photos of one size together where the mode does so."""
    groups: dict[torch.Size, list[NetworkInput]] = {}
    for one in inputs:
        groups.setdefault(one.pixels.shape, []).append(one)
    for group in groups.values():
        for start in range(0, len(group), detector.preferred_batch):
            together = group[start : start + detector.preferred_batch]
            with detector.arithmetic():
                network = detector.network()
                maps = network.feature_map(torch.cat([one.pixels for one in together]))
                proposals = network.proposals(
                    maps, [one.input_hw for one in together], [one.factor for one in together]
                )
                of_each = [network.regions(maps[i : i + 1], each.boxes) for i, each in enumerate(proposals)]
            for i, one in enumerate(together):
                detector.postprocess(HeadOutputs(one, maps[i : i + 1], proposals[i], of_each[i]))


def run_whole(detector: Detector, paths: list[Path]) -> None:
    """Files on disk to records."""
    for outcome in extract([ImageRef(path.stem, str(path)) for path in paths], detector):
        if isinstance(outcome, Failure):
            raise ValueError(f"{outcome.location}: {outcome.detail}")


@torch.inference_mode()
def time_stages(detector: Detector, paths: list[Path]) -> Stages:
    """Seconds of each stage for one image, one after the other, without threads that overlap them."""
    found: Stages = {}
    device, options = detector.device, ExtractOptions()
    for path in paths:
        with timed(found, "decode", device):
            image = decode_image(path.read_bytes())
        with timed(found, "resize", device):
            one = preprocess(image, detector.config, detector.conventions, device)
        with detector.arithmetic():
            network = detector.network()
            with timed(found, "backbone", device):
                maps = network.feature_map(one.pixels)
            with timed(found, "rpn", device):
                (proposals,) = network.proposals(maps, [one.input_hw], [one.factor])
            with timed(found, "res5+heads", device):
                regions = network.regions(maps, proposals.boxes)
        with timed(found, "postprocess", device):
            kept = detector.postprocess(HeadOutputs(one, maps, proposals, regions))
        with timed(found, "encode", device):
            to_record(path.stem, *one.image_hw, kept, options)
    return {name: seconds / len(paths) for name, seconds in found.items()}


def multiply_adds(detector: Detector, inputs: list[NetworkInput]) -> float:
    """Mean number of multiply-adds of an image: every convolution and linear layer as it is published."""
    total = 0

    def count(module: nn.Module, _: object, out: Tensor) -> None:
        nonlocal total
        assert isinstance(module, nn.Conv2d | nn.Linear)
        positions = out.numel() // module.weight.shape[0]
        total += positions * module.weight.numel()

    plain = build_detector(detector.config, weights="random:1").to("meta")
    config, heads = plain.config, plain.roi_heads
    hooks = [part.register_forward_hook(count) for part in plain.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    with torch.inference_mode():
        for one in inputs:
            maps = plain.backbone(one.pixels.to("meta"))
            plain.proposal_generator.get_submodule("rpn_head")(maps)
            cells = (config.proposals_after_nms, config.map_channels, config.pooled_cells, config.pooled_cells)
            features = heads.get_submodule("res5")(torch.empty(cells, device="meta")).mean(dim=(2, 3))
            heads.get_submodule("box_predictor")(features)
    for hook in hooks:
        hook.remove()
    return total / len(inputs)


def matrix_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Multiply-adds a second of the better of a square product and a 3x3 convolution, on torch's own calls."""
    edge, count = (2048, 16) if device.type == "cpu" else (8192, 304)
    a, b = (torch.ones(edge, edge, dtype=dtype, device=device) for _ in range(2))
    maps = torch.ones(count, 512, 14, 14, dtype=dtype, device=device).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(512, 512, 3, 3, dtype=dtype, device=device).contiguous(memory_format=torch.channels_last)

    def rate(work: Callable[[], object], products: float) -> float:
        work()
        return max(images_per_second(work, 1, device) for _ in range(5)) * products

    with torch.inference_mode():
        return max(
            rate(lambda: a @ b, edge**3),
            rate(lambda: functional.conv2d(maps, kernel, padding=2, dilation=2), count * 196 * 9 * 512**2),
        )


def measure(arguments: argparse.Namespace, paths: list[Path]) -> None:
    device = torch.device(arguments.device)
    detectors = {mode: make_detector(arguments, mode) for mode in arguments.modes}
    exact = detectors["exact"]
    inputs = [preprocess(cv2.imread(str(path)), exact.config, exact.conventions, device) for path in paths]
    port = Port(arguments.port, exact)
    net: dict[str, Callable[[], object]] = {PORT: lambda: [port.net(one) for one in inputs]}
    whole: dict[str, Callable[[], object]] = {PORT: lambda: [port.extract(path) for path in paths]}
    for mode, detector in detectors.items():
        net[mode] = lambda detector=detector: run_net(detector, inputs)
        whole[mode] = lambda detector=detector: run_whole(detector, paths)
    count = len(paths)
    arms = {f"net {name}": rated(work, count, device) for name, work in net.items()}
    arms |= {f"whole {name}": rated(work, count, device) for name, work in whole.items()}
    dtypes = {detector.mode.conv_dtype for detector in detectors.values()}
    arms |= {f"rate {dtype}": lambda dtype=dtype: matrix_rate(dtype, device) for dtype in dtypes}
    figures = take_turns(arms, arguments.rounds)
    stages = {mode: [time_stages(detector, paths) for _ in range(3)] for mode, detector in detectors.items()}
    work_per_image = multiply_adds(exact, inputs)
    rows = []
    for name in net:
        ratios = {kind: Ratio(figures[f"{kind} {name}"], figures[f"{kind} {PORT}"]) for kind in ("net", "whole")}
        dtype = torch.float32 if name == PORT else detectors[name].mode.conv_dtype
        share = Ratio([value * work_per_image for value in figures[f"net {name}"]], figures[f"rate {dtype}"])
        verdict = ratios["net"].at_least(BARS[name]) if name in BARS and device.type == "cpu" else ""
        rows.append(
            (
                name,
                *(f"{np.median(figures[f'{kind} {name}']):.3f}" for kind in ("net", "whole")),
                *(str(ratios[kind]) for kind in ("net", "whole")),
                f"{100 * share.median:.0f} %",
                f"{peak_memory(arguments, name):,.0f}",
                f">= {BARS[name]}: {verdict}" if verdict else "",
            )
        )
    head = ("arm", "net images/s", "file to record", "net / port", "file to record / port", "of the matrix rate")
    print(
        f"\n{machine(arguments)}; {count} photos, {arguments.rounds} rounds; {work_per_image / 1e9:.0f} GMAC an image\n"
    )
    print(table((*head, "peak MB", "bar"), rows), "\n")
    stage_rows = [
        (mode, *(f"{1000 * np.median([each[stage] for each in found]):.0f}" for stage in STAGES))
        for mode, found in stages.items()
    ]
    print(table(("ms an image", *STAGES), stage_rows), "\n")
    for dtype in dtypes:
        print(f"matrix rate, {dtype}: {np.median(figures[f'rate {dtype}']) / 1e9:.0f} GMAC/s")


def rated(work: Callable[[], object], count: int, device: torch.device) -> Callable[[], float]:
    return lambda: images_per_second(work, count, device)


def make_detector(arguments: argparse.Namespace, mode: str) -> Detector:
    options = {"weights": "random:1", "selection": "hf-36", "device": arguments.device, "mode": mode}
    return build_detector(arguments.detector, **options)


def peak_memory(arguments: argparse.Namespace, arm: str) -> float:
    """MB of a process that runs one arm over the photos: resident on a CPU, allocated on a GPU."""
    command = [sys.executable, *sys.argv, "--memory-of", arm]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def memory_of(arguments: argparse.Namespace, paths: list[Path]) -> float:
    device = torch.device(arguments.device)
    detector = make_detector(arguments, "exact" if arguments.memory_of == PORT else arguments.memory_of)
    if arguments.memory_of == PORT:
        port = Port(arguments.port, detector)
        del detector
        for path in paths:
            port.extract(path)
    else:
        run_whole(detector, paths)
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else status_mb("VmHWM")


def machine(arguments: argparse.Namespace) -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            name = line.split(":")[1].strip()
            break
    if torch.device(arguments.device).type == "cuda":
        name = f"{torch.cuda.get_device_name(arguments.device)}, {name}"
    return f"{name}, bf16 {bf16_instructions()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=Path, help="folder with modeling_frcnn.py, processing_image.py and utils.py")
    parser.add_argument("--images", type=Path, required=True, help="folder of .jpg photos")
    parser.add_argument("--count", type=int, default=2, help="photos, the first by name [2]")
    parser.add_argument("--detector", default="vg-r101-c4", help="preset of sizes [vg-r101-c4]")
    parser.add_argument("--modes", nargs="+", default=["exact", "bf16"], choices=MODES, help="[exact bf16]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--threads", type=int, default=2, help="of torch [2]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"[{MIN_ROUNDS}]")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.modes[0] != "exact":
        parser.error("--modes: exact comes first, the others are compared with it")
    torch.set_num_threads(arguments.threads)
    paths = sorted(arguments.images.glob("*.jpg"))[: arguments.count]
    if not paths:
        parser.error(f"{arguments.images}: no .jpg there")
    if arguments.memory_of:
        print(json.dumps(memory_of(arguments, paths)))
        return
    measure(arguments, paths)


if __name__ == "__main__":
    main()
