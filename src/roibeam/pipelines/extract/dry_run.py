"""`roibeam extract --dry-run`: a few photos are timed, and the run is described; nothing is written.

It needs neither the cluster nor a GPU: what is missing is named beside what is known.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from roibeam.extraction.fast.modes import mode_named
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import encode_meta, encode_regions
from roibeam.messages import byte_count, on_a_line, plural
from roibeam.pipelines.common.compute import choose_device
from roibeam.pipelines.common.console.progress import IMAGES, duration, waiting
from roibeam.pipelines.extract.array_job import ArrayJob
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
from roibeam.pipelines.extract.request import RunOptions
from roibeam.pipelines.extract.requested_detector import ON_THIS_MACHINE
from roibeam.pipelines.extract.runners.pipeline_run import Slots, missing_options, runner_flags, slots_of
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.work import UnlistedWork, Work

log = logging.getLogger(__name__)
MOST_PHOTOS = 3
ENOUGH_SECONDS = 20.0  # of timing
PAGE_BYTES = 4096
_EXAMPLES = (8, 64)  # slots, where their number is unknown


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


# The plan of an array job, by the detector, the estimate and the number of archives.
PlanJobs = Callable[[DetectorSpec, Estimate | None, int], ArrayJob]


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
        without = ""
        if self.with_distribution:
            without = " (--distribution top-20 or none takes less)"
        return [
            *(f"note: {note}" for note in found.notes),
            f"dry run: nothing written; {plural(found.timed, 'photo')} timed {found.timed_on}",
            f"  images to extract   {found.images:,}",
            f"  speed               {IMAGES.rate(1 / max(found.seconds_per_image, 1e-9))} in one process",
            f"  shards              {found.num_shards:,} of at most {plural(found.shard_size, 'image')}",
            f"  shards at once      {self.slots.words}",
            f"  time                {self._time(found)}",
            f"  disk                {byte_count(found.images * found.bytes_per_image)}, "
            f"{found.bytes_per_image / 1e3:.0f} kB per image{without}",
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


def dry_run(work: Work | UnlistedWork, options: RunOptions, plan_jobs: PlanJobs | None = None) -> DryRun:
    """Times a few photos and writes nothing.

    Args:
        plan_jobs: makes the plan of an array job.
    """
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
        jobs = None if plan_jobs is None else plan_jobs(work.detector, None, 0)
        return DryRun(device, slots, tuple(flags), missing, None, work.reason, array=jobs)
    jobs = None if plan_jobs is None else plan_jobs(work.detector, found, work.source.num_archives)
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
