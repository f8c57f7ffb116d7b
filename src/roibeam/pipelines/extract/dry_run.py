"""`roibeam extract --dry-run`: a few photos are timed, and the run is described; nothing is written.

It needs neither the cluster nor a GPU: what is missing is named beside what is known. With --gpus it plans an array job
of a batch queue: each job takes one part of the source (`--part`) into a store of its own, on one GPU, and a second
command joins the stores. All figures are estimates, and the speed says where it was measured.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from roibeam.extraction.fast.modes import mode_named
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.messages import byte_count, on_a_line, plural
from roibeam.pipelines.common.compute import choose_device
from roibeam.pipelines.common.console.progress import IMAGES, duration, waiting
from roibeam.pipelines.data.shard_plan import shard_size_for
from roibeam.pipelines.extract.beam_extraction import PIPELINE
from roibeam.pipelines.extract.planning import (
    UNTIMED,
    check_classes,
    extract_one,
    fitting_plan,
    gives_distribution,
    new_images,
    new_shard_size,
)
from roibeam.pipelines.extract.request import ArrayOptions, ExtractRequest
from roibeam.pipelines.extract.requested_detector import ON_THIS_MACHINE
from roibeam.pipelines.extract.runners.pipeline_run import Slots, missing_options, runner_flags, slots_of
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.work import UnlistedWork, Work

log = logging.getLogger(__name__)
MOST_PHOTOS = 3
ENOUGH_SECONDS = 20.0  # of timing
PAGE_BYTES = 4096
_EXAMPLES = (8, 64)  # slots, where their number is unknown
_CORES = 8  # of a job of an array, unless --threads names another number
_JOB_GB = 16  # of memory: torch and CUDA take some 5, the detector and photos read ahead the rest
_LEAST_MINUTES = 30  # of its time limit
_NOT_REPEATED = ("sources", "out", "dry_run", "json", "images", "gpus", "speed")  # in its command
# BENCHMARKS.md, "The detector at true size": from file to record, images/s and date by mode.
_MEASURED = {"exact": (15.8, "2026-11-22"), "tf32": (54.6, "2026-11-22"), "bf16": (169.0, "2026-11-26")}


@dataclass(frozen=True)
class Estimate:
    """Estimated time for the images of a run.

    Attributes:
        images: that the run would extract, after those already planned.
        seconds_per_image: of one process.
        shard_size: images of a shard, at most.
    """

    images: int
    timed: int
    timed_on: str
    seconds_per_image: float
    bytes_per_image: float
    shard_size: int
    notes: tuple[str, ...]
    regions_per_image: float = 0.0
    feature_width: int = 0

    @property
    def num_shards(self) -> int:
        return -(-self.images // self.shard_size)

    def seconds(self, slots: int) -> float:
        """Seconds from the first shard to the end of the last, with so many in work at once."""
        rounds, left = divmod(self.num_shards, slots)
        last = self.images - (self.num_shards - 1) * self.shard_size
        if slots == 1:
            images = self.images
        elif left == 1:  # the last shard, smaller than the others, is alone
            images = rounds * self.shard_size + last
        elif left or not rounds:
            images = (rounds + 1) * self.shard_size
        else:
            images = rounds * self.shard_size
        return self.seconds_per_image * min(images, self.images)


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
    timed: int
    shard_size: int
    script: str
    join: str

    @property
    def is_timed(self) -> bool:
        return self.timed > 0

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
            f"an image x {self.feature_width:,} x {self.dtype}, with boxes and class probabilities (--distribution)"
            + (f"; rests on {plural(self.timed, 'photo')}" if self.is_timed else ""),
        ]

    def pasted(self) -> str:
        """Script and join to paste, each below a line with its place."""
        first = "Paste into job.sh, then: sbatch job.sh. The same again does only what is missing."
        if "--weights random:" in self.script:
            first = f"The weights are random, so all features mean nothing: write a real file for them.\n{first}"
        return "\n".join(["", first, "", self.script, "", "When all jobs have ended:", "", self.join])


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run: what a request would do.

    Attributes:
        estimate: None where the images cannot be looked at from here, for the reason in `unlisted`.
        beam_options: all that the runner would get.
        missing: of them, those that the request does not give, as examples.
    """

    device: str
    slots: Slots
    beam_options: tuple[str, ...]
    missing: tuple[str, ...]
    estimate: Estimate | None
    unlisted: str = ""
    with_distribution: bool = False
    array: ArrayJob | None = None

    def event(self) -> str:
        """The result as one JSON line."""
        found = self.estimate
        facts = (
            {} if found is None else {**asdict(found), "num_shards": found.num_shards, "seconds": self._seconds(found)}
        )
        return json.dumps(
            {
                "event": "estimate", **facts, "unlisted": self.unlisted or None, "device": self.device,
                "slots": self.slots.shards, "warnings": self._warnings(),
                "beam_options": self.beam_options, "missing_beam_options": self.missing,
                **({} if self.array is None else {"array": self.array.to_json()}),
            }
        )  # fmt: skip

    def text(self) -> str:
        """The result for the terminal."""
        if self.array is not None:
            found = (self.unlisted,) if self.estimate is None else self.estimate.notes
            notes = [f"note: {note}" for note in found if not note.startswith("shards of ")]  # the jobs have their own
            lines = [*notes, "dry run: nothing written", *self.array.lines()]
            return "\n".join([*map(on_a_line, lines), self.array.pasted()])
        return "\n".join(map(on_a_line, [*self._lines(), *(f"warning: {warning}" for warning in self._warnings())]))

    def _lines(self) -> list[str]:
        found = self.estimate
        options = [
            *([f"  shards at once      {self.slots.words}"] if found is None else []),
            f"  Beam options        {' '.join(self.beam_options)}",
            *([f"  still needed        -- {' '.join(self.missing)}"] if self.missing else []),
        ]
        if found is None:
            return [
                "dry run: nothing written, no photo timed",
                f"  images              unknown: {self.unlisted}",
                *options,
            ]
        rests = f"; rests on {plural(found.timed, 'photo')}" if found.timed else ""
        speed = f"{IMAGES.rate(1 / found.seconds_per_image)} in one process" if found.timed else "not measured"
        without = ""
        if self.with_distribution:
            without = " (--distribution top-20 or none takes less)"
        if not found.images:
            nothing = "dry run: nothing is left to extract; the same command only checks the store"
            return [*(f"note: {note}" for note in found.notes), nothing, *options]
        return [
            *(f"note: {note}" for note in found.notes),
            f"dry run: nothing written; {plural(found.timed, 'photo')} timed {found.timed_on}",
            f"  images to extract   {found.images:,}",
            f"  speed               {speed}",
            f"  shards              {found.num_shards:,} of at most {plural(found.shard_size, 'image')}",
            f"  shards at once      {self.slots.words}",
            f"  time                {self._time(found)}",
            f"  disk                {byte_count(found.images * found.bytes_per_image)}, "
            f"{found.bytes_per_image / 1e3:.0f} kB per image{without}{rests}",
            *options,
        ]

    def _seconds(self, found: Estimate) -> float | None:
        return None if self.slots.computing is None else round(found.seconds(self.slots.computing), 1)

    def _time(self, found: Estimate) -> str:
        slots = self.slots.computing
        if slots == 1:
            return duration(found.seconds(1))
        if slots is None and found.num_shards == 1:
            return f"{duration(found.seconds(1))}, all in one shard"
        if slots is None:
            known = ", ".join(f"{duration(found.seconds(number))} with {number}" for number in _EXAMPLES)
            return f"{duration(found.seconds(1))} with one shard at once, {known}"
        return f"{duration(found.seconds(slots))} with {slots:,} at once ({duration(found.seconds(1))} with one)"

    def _warnings(self) -> list[str]:
        found, slots = self.estimate, self.slots.shards
        if found is None or not found.images:
            return []
        if slots is None:
            size = max(1, found.images // _EXAMPLES[1])
            few = f"{plural(found.num_shards, 'shard')}: no more can be in work at once"
            return [f"{few}; --shard-size {size} makes {-(-found.images // size):,}"] if found.num_shards == 1 else []
        if found.num_shards >= slots:
            return []
        idle = f"{plural(found.num_shards, 'shard')} for {slots:,} at once: {slots - found.num_shards:,} would idle"
        if found.shard_size == 1:
            return [f"{idle}, there are no more images"]
        size = max(1, found.images // slots)
        return [f"{idle}; --shard-size {size} makes {-(-found.images // size):,} shards"]


def dry_run(
    work: Work | UnlistedWork, request: ExtractRequest, array: ArrayOptions, typed: Mapping[str, Any]
) -> DryRun:
    """Times a few photos and writes nothing.

    Args:
        typed: words of the command line by parameter, as they were typed; for the jobs of an array.
    """
    options, jobs = request.run, None
    device = work.detector.device
    found = None if isinstance(work, UnlistedWork) else estimate(work, is_here=options.runner in ON_THIS_MACHINE)
    flags = runner_flags(
        options.runner, options.beam_args, preload=PIPELINE, device=device, to_plan=True,
        num_elements=None if found is None else found.num_shards,
    )  # fmt: skip
    gpus = torch.cuda.device_count()
    slots = slots_of(options.runner, flags, workers=options.workers, device=device, gpus=gpus)
    missing = tuple(missing_options(options.runner, options.beam_args))
    if isinstance(work, UnlistedWork):
        if array.gpus is not None:
            jobs = _plan_array(array, request, typed, work.detector, None, 0)
        return DryRun(device, slots, tuple(flags), missing, None, work.reason, array=jobs)
    if array.gpus is not None:
        jobs = _plan_array(array, request, typed, work.detector, found, work.source.num_archives)
    has_many = bool(found and found.images) and work.options.distribution == "full" and gives_distribution(work)
    return DryRun(device, slots, tuple(flags), missing, found, with_distribution=has_many, array=jobs)


def estimate(work: Work, *, is_here: bool = True) -> Estimate:
    """Times photos until it is enough: three, or as many as start within 20 seconds.

    Args:
        is_here: whether this machine is the one that will compute.
    """
    timed_work, where = _timed_here(work, is_here=is_here)
    images, notes = new_images(timed_work, fitting_plan(timed_work, work.plan))
    chosen = images[:: max(1, len(images) // MOST_PHOTOS)][:MOST_PHOTOS]
    timed = _time(chosen, timed_work)
    if chosen and not timed:
        raise ValueError(f"none of the {plural(len(chosen), 'image')} tried could be extracted; see the warnings above")
    # The first one warms caches and kernels up; alone it must do.
    seconds = [seconds for seconds, _ in timed[1:] or timed]
    per_image = sum(seconds) / max(len(seconds), 1)
    num_bytes = sum(_stored_bytes(record) for _, record in timed) / max(len(timed), 1)
    shapes = [record.features.shape for _, record in timed]
    size = new_shard_size(work, per_image)
    if work.shard_size is None and work.own_detector is not None:
        notes.append(f"shards of {size:,} images are a guess: the run times its GPU" if is_here else UNTIMED)
    return Estimate(
        len(images), len(timed), where, per_image, num_bytes, size, (*work.source.notes, *notes),
        sum(regions for regions, _ in shapes) / max(len(timed), 1), shapes[0][1] if shapes else 0,
    )  # fmt: skip


def _timed_here(work: Work, *, is_here: bool) -> tuple[Work, str]:
    """The work with the detector as this machine can run it, and where that is, in words."""
    spec = work.detector
    chosen = choose_device(spec.device, threads=spec.threads, to_plan=True)
    if chosen.is_here:
        words = chosen.words.partition(";")[0]
        words = words if is_here else f"{words} of this machine; the workers' own speed may differ"
        return replace(work, own_detector=None), words
    words = choose_device("cpu", threads=spec.threads).words.partition(";")[0]
    try:
        mode = mode_named(spec.mode, "cpu").name
    except ValueError:  # TF32 is of GPUs
        mode = "exact"
    on_cpu = replace(spec, device="cpu", mode=mode)
    return replace(work, own_detector=on_cpu), f"{words}: this machine has no GPU, on which it is faster"


def _time(images: Sequence[ImageRef], work: Work) -> list[tuple[float, RegionRecord]]:
    """(seconds, record) of those that can be extracted; starts none after `ENOUGH_SECONDS`."""
    with waiting("loading the detector"):
        check_classes(work)
    timed: list[tuple[float, RegionRecord]] = []
    for number, image in enumerate(images, 1):
        start = time.monotonic()
        with waiting(f"timing photo {number} of {len(images)}"):
            outcome = extract_one(image, work)
        if isinstance(outcome, Failure):
            log.warning("dry run: %r: %s (%s)", image.image_id, outcome.reason, outcome.detail)
            continue
        timed.append((time.monotonic() - start, outcome))
        if sum(seconds for seconds, _ in timed) > ENOUGH_SECONDS:
            break
    return timed


def _stored_bytes(record: RegionRecord) -> int:
    # A large value starts 16 bytes into a page of its own.
    return len(encode_meta(record)) + PAGE_BYTES * -(-(len(encode_regions(record)) + 16) // PAGE_BYTES)


def _plan_array(
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
        raise ValueError("--gpus: no images to extract are known here; give their number with --images")
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
        f"#SBATCH --mem={_JOB_GB}G",
        f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00", "#SBATCH --requeue",
        f"cd {shlex.quote(str(Path.cwd()))}",
    ]  # fmt: skip
    return ArrayJob(
        images, jobs, speed, measured, most, shared, images * per_image, regions, width,
        request.records.dtype, 0 if found is None else found.timed, request.shard_size or shard_size_for(1 / speed),
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
    raise ValueError("--gpus: no speed of this detector is known here; give images/s with --speed")


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
