"""`roibeam extract --dry-run --gpus M`: hours, disk and jobs of a large run, and the Slurm array job to paste.

Each job takes one part of the source (`--part`) into a store of its own, on one GPU; a second command joins the stores.
All figures are estimates, and the speed says where it was measured.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.messages import byte_count, plural
from roibeam.pipelines.common.console.progress import duration
from roibeam.pipelines.common.console.request_options import SPEED, option
from roibeam.pipelines.data.shard_plan import shard_size_for
from roibeam.pipelines.extract.request import ExtractRequest
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec

if TYPE_CHECKING:
    from roibeam.pipelines.extract.dry_run import Estimate

_CORES = 8  # of a job, unless --threads names another number
_LEAST_MINUTES = 30  # of a job's time limit
_NOT_REPEATED = ("sources", "out", "dry_run", "json", "images", "gpus", "speed")  # in the command of a job
# BENCHMARKS.md, "The detector at true size": from file to record, images/s and date by mode.
_MEASURED = {"exact": (15.8, "2026-11-22"), "tf32": (54.6, "2026-11-22"), "bf16": (169.0, "2026-11-26")}


@dataclass(frozen=True)
class ArrayOptions:
    """Options of a dry run that plans an array job of a batch queue."""

    gpus: Annotated[int | None, option(
        "With --dry-run: print hours, disk and a Slurm array job for so many GPUs, one each job.", "N", SPEED, min=1,
        default="no array job",
    )] = None  # fmt: skip
    images: Annotated[int | None, option(
        "With --gpus: images of the whole run, if SOURCE here is a sample of them.", "N", SPEED, min=1,
        default="those of SOURCE", advanced=True,
    )] = None  # fmt: skip
    speed: Annotated[float | None, option(
        "With --gpus: images per second of one GPU, if you have measured it.", "RATE", SPEED, min=0,
        default="measured here, else in BENCHMARKS.md", advanced=True,
    )] = None  # fmt: skip

    def planned(self, request: ExtractRequest, *, dry_run: bool) -> ExtractRequest:
        """The request of the jobs, which take a GPU unless it says otherwise. Raises ValueError for options that do not
        go together."""
        values = {"--gpus": self.gpus, "--images": self.images, "--speed": self.speed}
        given = ", ".join(name for name, value in values.items() if value is not None)
        if given and not dry_run:
            raise ValueError(f"{given}: for the plan of an array job; add --dry-run, or leave it out")
        if given and self.gpus is None:
            raise ValueError(f"{given}: goes with --gpus, the number of GPUs of an array job")
        if self.speed == 0:
            raise ValueError("--speed 0: expected images per second, more than 0")
        if self.gpus is None:
            return request
        if request.run.runner != "local" or request.run.workers > 1:
            raise ValueError("--gpus: each job is one process on one GPU; leave --runner and --workers out")
        if request.images.part != "1/1":
            raise ValueError("--gpus: the array job makes the parts; leave --part out")
        detector = request.detector
        return replace(request, detector=replace(detector, device=detector.device.replace("auto", "cuda")))


@dataclass(frozen=True)
class ArrayJob:
    """Estimate of an array job.

    Attributes:
        images_per_second: of one GPU.
        measured: where that speed was measured, in words.
        most_images: of one job; the longest job decides the time.
        num_archives: that the jobs share out; 0 where they share out images.
        regions_per_image: mean of the timed photos, or the most that the settings allow.
        script: to paste; `join` is to run when all jobs have ended.
    """

    images: int
    jobs: int
    images_per_second: float
    measured: str
    most_images: int
    num_archives: int
    num_bytes: float
    regions_per_image: float
    feature_width: int
    dtype: str
    is_timed: bool
    shard_size: int
    script: str
    join: str

    @property
    def seconds(self) -> float:
        return self.most_images / self.images_per_second

    def to_json(self) -> dict[str, Any]:
        hours, gpu_hours = self.seconds / 3600, self.images / self.images_per_second / 3600
        shards = -(-self.most_images // self.shard_size)
        more = {"hours": round(hours, 3), "gpu_hours": round(gpu_hours, 3), "shards_per_job": shards}
        return {**vars(self), **more}

    def lines(self) -> list[str]:
        most, size = self.most_images, self.shard_size
        what = "" if not self.num_archives else f" ({self.num_archives:,} archives in {self.jobs:,} parts)"
        regions = f"{self.regions_per_image:.1f}" if self.is_timed else f"at most {self.regions_per_image:.0f}"
        return [
            f"array job: an estimate for {plural(self.images, 'image')}{what}",
            f"  speed               {self.images_per_second:.3g} images/s each job: {self.measured}",
            f"  time                {duration(self.seconds)} with {plural(self.jobs, 'job')} at once "
            f"({duration(self.images / self.images_per_second)} with one)",
            f"  jobs                {self.jobs:,} of at most {plural(most, 'image')}, each in "
            f"{plural(-(-most // size), 'shard')} of at most {size:,}",
            f"  disk                {byte_count(self.num_bytes)}, and as much for the joined store; {regions} regions "
            f"an image x {self.feature_width:,} x {self.dtype}, with boxes and classes",
        ]

    def pasted(self) -> str:
        """What is to be pasted, with a line above each that says where."""
        first = "Paste into job.sh, then: sbatch job.sh. The same again does only what is missing."
        return "\n".join(["", first, "", self.script, "", "When all jobs have ended:", "", self.join])


def plan_array(
    options: ArrayOptions, request: ExtractRequest, typed: Mapping[str, Any], spec: DetectorSpec,
    found: Estimate | None, num_archives: int,
) -> ArrayJob:  # fmt: skip
    """
    Args:
        typed: words of the command line by parameter, as they were typed.
        found: estimate of this machine; None where its images cannot be read from here.
        num_archives: see `Source`.
    """
    assert options.gpus is not None
    images = options.images or (0 if found is None else found.images)
    if not images:
        raise ValueError("--gpus: no images to extract are known here; say how many with --images")
    jobs = min(options.gpus, images)
    are_images_shared = num_archives < jobs or options.images or request.images.captions or request.images.boxes
    shared = 0 if are_images_shared else num_archives
    most = -(-images * -(-shared // jobs) // shared) if shared else -(-images // jobs)
    speed, measured = _speed(options.speed, spec, found)
    per_image, regions, width = _record_size(request, spec, found)
    device = request.detector.device
    threads = request.detector.threads or _CORES
    minutes = max(_LEAST_MINUTES, 15 * math.ceil(2 * most / speed / 900))
    fields = {**typed, "device": device, "threads": str(threads)}
    beam = ["--", *request.run.beam_args] if request.run.beam_args else []
    job, join = _commands(request.images.sources, request.out, jobs, [*_words(fields), *beam])
    header = [
        "#!/bin/bash", "#SBATCH --job-name=roibeam", f"#SBATCH --array=1-{jobs}",
        *(["#SBATCH --gpus=1"] if device != "cpu" else []), f"#SBATCH --cpus-per-task={threads}",
        f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00", "#SBATCH --requeue",
        f"cd {shlex.quote(str(Path.cwd()))}",
    ]  # fmt: skip
    return ArrayJob(
        images, jobs, speed, measured, most, shared, images * per_image, regions, width,
        request.records.dtype, found is not None, request.shard_size or shard_size_for(1 / speed),
        "\n".join([*header, job]), join,
    )  # fmt: skip


def _speed(given: float | None, spec: DetectorSpec, found: Estimate | None) -> tuple[float, str]:
    """Images per second of one GPU, and where they were measured: given, on a GPU here, in BENCHMARKS.md, on a CPU."""
    if given is not None:
        return given, "yours (--speed)"
    if found is not None and found.seconds_per_image and (found.timed_on.startswith("on cuda") or spec.device == "cpu"):
        return 1 / found.seconds_per_image, f"{plural(found.timed, 'photo')} timed {found.timed_on}"
    if spec.backbone is None and _is_measured(spec.config) and spec.mode in _MEASURED:
        rate, date = _MEASURED[spec.mode]
        return rate, f"an NVIDIA H200 with 16 cores, photos at 800/1333, {date} (BENCHMARKS.md); --speed takes yours"
    if found is not None and found.seconds_per_image:
        on_cpu = f"{plural(found.timed, 'photo')} timed {found.timed_on.partition(':')[0]}"
        return 1 / found.seconds_per_image, f"{on_cpu}, not on a GPU; --speed takes yours"
    raise ValueError("--gpus: no speed of this detector is known here; say how many images/s with --speed")


def _is_measured(config: object) -> bool:
    """Whether a network has the size of the one in BENCHMARKS.md, with photos as large at most; the number of classes
    hardly matters."""
    if not isinstance(config, DetectorConfig):
        return False
    usual = DetectorConfig()
    free = ("num_classes", "num_attributes", "anchor_sizes", "region_chunk", "short_edge", "long_edge")
    is_larger = config.short_edge > usual.short_edge or config.long_edge > usual.long_edge
    return not is_larger and replace(config, **{name: getattr(usual, name) for name in free}) == usual


def _record_size(request: ExtractRequest, spec: DetectorSpec, found: Estimate | None) -> tuple[float, float, int]:
    """Bytes of an image, its regions, and numbers of a region: of timed photos, else the most by the settings."""
    if found is not None and found.timed:
        return found.bytes_per_image, found.regions_per_image, found.feature_width
    if not isinstance(spec.config, DetectorConfig) or spec.config.grid or spec.backbone is not None:
        raise ValueError("--gpus: the size of this detector's records is known from a photo alone; name some as SOURCE")
    regions, width = spec.selection.max_regions, 32 * spec.config.base_channels
    classes = 2 * (spec.config.num_classes + 1) if request.records.distribution == "full" else 0
    per_region = width * (4 if request.records.dtype == "float32" else 2) + classes + 32  # box, class, attribute
    return regions * per_region, regions, width


def _words(typed: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in typed.items():
        if name in _NOT_REPEATED or value is None or value is False:
            continue
        dashed = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else (value,):
            words += [dashed] if one is True else [dashed, str(one)]
    return words


def _commands(sources: Sequence[str], out: str, jobs: int, words: Sequence[str]) -> tuple[str, str]:
    parts = shlex.quote(f"{out.rstrip('/')}-parts/")
    job = (
        f'roibeam extract {shlex.join(sources)} {parts}"$SLURM_ARRAY_TASK_ID" '
        f'--part "$SLURM_ARRAY_TASK_ID"/{jobs} {shlex.join(words)}'
    )
    every = f"{parts}{{1..{jobs}}}" if jobs > 1 else f"{parts}1"
    return job, f"roibeam progress {every} && roibeam store copy {every} {shlex.quote(out)}"
