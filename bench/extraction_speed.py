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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import torch
from hugging_face_port import Port
from store_rounds import MIN_ROUNDS, Ratio, status_mb, table, take_turns
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import extract_regions, to_record
from roibeam.extraction.fast.modes import MODES, bf16_instructions
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.photos.preprocessing import NetworkInput, preprocess
from roibeam.extraction.weights.loading import build_detector

PORT = "port"
BARS = {"exact": 1.9, "bf16": 3.5}  # of the port's images/s, on a CPU
GPU_BARS = {"exact": 12, "tf32": 60, "bf16": 150}  # images/s, on an H200
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


def run_whole(detector: Detector, paths: list[Path]) -> None:
    """Files on disk to records."""
    for outcome in extract_regions([ImageRef(path.stem, str(path)) for path in paths], detector):
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


def matrix_rate(precision: str, device: torch.device) -> float:
    """Multiply-adds a second of the better of a square product and a 3x3 convolution, on torch's own calls.

    Args:
        precision: see `precision_of`.
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    edge, count = (2048, 16) if device.type == "cpu" else (8192, 304)
    # Random numbers: a GPU that is fed ones draws less power and runs quicker than it ever will.
    a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    maps, kernel = (
        torch.randn(*shape, device=device).to(dtype, memory_format=torch.channels_last)
        for shape in ((count, 512, 14, 14), (512, 512, 3, 3))
    )

    def rate(work: Callable[[], object], products: float) -> float:
        work()
        return max(images_per_second(work, 1, device) for _ in range(5)) * products

    # Products of float32 are never rounded to TF32 here, convolutions where it is asked for.
    with torch.inference_mode(), plain_float32(device, tf32=precision == "TF32"):
        convolution = rate(lambda: functional.conv2d(maps, kernel, padding=1), count * 196 * 9 * 512**2)
        return convolution if precision == "TF32" else max(convolution, rate(lambda: a @ b, edge**3))


def precision_of(arm: str, detector: Detector | None) -> str:
    """In which convolutions compute: "float32", "TF32" (the port on a GPU, by torch's default) or "bfloat16"."""
    if detector is not None and detector.mode.conv_dtype == torch.bfloat16:
        return "bfloat16"
    rounds = torch.backends.cudnn.conv.fp32_precision == "tf32" if detector is None else detector.mode.tf32
    return "TF32" if rounds and torch.cuda.is_available() else "float32"


def measure(arguments: argparse.Namespace, paths: list[Path]) -> None:
    device = torch.device(arguments.device)
    detectors = {mode: make_detector(arguments, mode) for mode in arguments.modes}
    exact = detectors["exact"]
    photos = [cv2.imread(str(path)) for path in paths]
    inputs = [preprocess(photo, exact.config, exact.conventions, device) for photo in photos]
    prepared = [exact.prepare(photo) for photo in photos]
    port = Port(arguments.port, exact)
    net: dict[str, Callable[[], object]] = {PORT: lambda: [port.net(one) for one in inputs]}
    whole: dict[str, Callable[[], object]] = {PORT: lambda: [port.extract(path) for path in paths]}
    for mode, detector in detectors.items():
        net[mode] = lambda detector=detector: detector(prepared)
        whole[mode] = lambda detector=detector: run_whole(detector, paths)
    count = len(paths)
    arms = {f"net {name}": rated(work, count, device) for name, work in net.items()}
    arms |= {f"whole {name}": rated(work, count, device) for name, work in whole.items()}
    if device.type == "cuda":
        for mode in detectors:  # each size of photo is recorded when it comes again
            net[mode](), net[mode]()
    precisions = {PORT: precision_of(PORT, None)} | {mode: precision_of(mode, each) for mode, each in detectors.items()}
    arms |= {f"rate {name}": lambda name=name: matrix_rate(name, device) for name in sorted(set(precisions.values()))}
    figures = take_turns(arms, arguments.rounds)
    stages = {mode: [time_stages(detector, paths) for _ in range(3)] for mode, detector in detectors.items()}
    work_per_image = multiply_adds(exact, inputs)
    rows = []
    for name in net:
        ratios = {kind: Ratio(figures[f"{kind} {name}"], figures[f"{kind} {PORT}"]) for kind in ("net", "whole")}
        share = Ratio([value * work_per_image for value in figures[f"net {name}"]], figures[f"rate {precisions[name]}"])
        rows.append(
            (
                name,
                *(f"{np.median(figures[f'{kind} {name}']):.3f}" for kind in ("net", "whole")),
                *(str(ratios[kind]) for kind in ("net", "whole")),
                f"{100 * share.median:.0f} %",
                f"{peak_memory(arguments, name):,.0f}",
                verdict(name, device, figures[f"net {name}"], ratios["net"]),
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
    for name in sorted(set(precisions.values())):
        print(f"matrix rate, {name}: {np.median(figures[f'rate {name}']) / 1e9:.0f} GMAC/s")


def verdict(arm: str, device: torch.device, rates: Sequence[float], of_port: Ratio) -> str:
    """The arm's bar, if it has one there, and whether it is met: a ratio to the port on a CPU, images/s on an H200."""
    if device.type == "cpu":
        return f">= {BARS[arm]}: {of_port.at_least(BARS[arm])}" if arm in BARS else ""
    if arm not in GPU_BARS or "H200" not in torch.cuda.get_device_name(device):
        return ""
    return f">= {GPU_BARS[arm]} images/s: {Ratio(rates, [1.0] * len(rates)).at_least(GPU_BARS[arm])}"


def rated(work: Callable[[], object], count: int, device: torch.device) -> Callable[[], float]:
    return lambda: images_per_second(work, count, device)


def make_detector(arguments: argparse.Namespace, mode: str) -> Detector:
    options = {"weights": "random:1", "device": arguments.device, "mode": mode}
    return build_detector(arguments.detector, conventions="hf", selection="hf-36", **options)


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
    parser.add_argument("--count", type=int, default=2, help="photos, the first by name; a GPU wants 32 or more [2]")
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
