"""What a run has to do: which images are new, and how they are cut into shards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.counted import counted
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.printable import printable
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.extract.preset_names import OTHER_SETTINGS, flat_settings, other_run, setting_changes
from roibeam.pipelines.extract.shard.job import shared_calls, shared_detector, shared_fingerprint, shared_global_feature
from roibeam.pipelines.extract.shard.store_folder import is_unused_plan
from roibeam.pipelines.extract.shard_plan import (
    UNTIMED_SHARD_IMAGES,
    Plan,
    extend_plan,
    planned_members,
    read_plan,
    shard_size_for,
)
from roibeam.pipelines.extract.work import Work
from roibeam.pipelines.foundation.console.progress import waiting
from roibeam.pipelines.foundation.files.locations import read_location
from roibeam.pipelines.sources.given_boxes import GivenBoxes
from roibeam.pipelines.sources.image_table import ImageTable
from roibeam.pipelines.sources.source_kinds import Source

TRIES = 5  # images from all over the source that are looked at for one that can be extracted
UNTIMED = (
    f"shards of {UNTIMED_SHARD_IMAGES:,} images: GPUs elsewhere are not timed here; --shard-size sets another number"
)


def make_plan(work: Work, max_failures: float) -> tuple[Plan, list[str]]:
    """The plan of the store, written or extended where the source has images that it does not hold; notes for the user.

    Args:
        max_failures: share of all images of the store (0..1) that may fail.
    Raises:
        ValueError: if the store belongs to another source or was made with other settings, naming the difference; if
            none of the new images that are tried can be extracted, and more of them are new than may fail.
    """
    plan = existing_plan(work)
    new, notes = new_images(work.source, work.store, plan, work.boxes)
    if plan is not None and not _is_cut_by(work.shard_size, plan):
        largest = max(shard.num_images for shard in plan.shards)
        notes.append(
            f"--shard-size {work.shard_size} is for new images; the shards of earlier runs stay as they are, of up to "
            f"{counted(largest, 'image')} (`roibeam store copy --shard-size` cuts a finished store anew)"
        )
    if plan is not None and not new:
        return plan, notes
    num_images = len(new) + (0 if plan is None else plan.num_images)
    seconds = _try_photos(new, work, all_may_fail=len(new) <= max_failures * num_images)
    if work.shard_size is None and work.own_detector is not None:
        notes.append(UNTIMED)
    grown = extend_plan(
        work.store, plan, source=source_facts(work), settings=_settings(work), images=new,
        shard_size=new_shard_size(work, seconds), boxes=work.boxes,
    )  # fmt: skip
    return grown, notes


def existing_plan(work: Work) -> Plan | None:
    """The store's plan; none where it is for other images or settings and nothing was extracted under it: that of a run
    that failed early binds nobody. The same run goes on with its plan, so that an image that it named is accounted for.

    Raises:
        ValueError: unless it is of this source and these settings, or unused.
    """
    plan = read_plan(work.store)
    if plan is None:
        return None
    planned = {"mode": work.detector.mode} | plan.settings  # plans of earlier versions do not have it
    is_unused = is_unused_plan(work.store, plan)
    if is_unused and not _is_cut_by(work.shard_size, plan):
        return None
    for what, had, now in (
        ("holds another run: its source", plan.source, source_facts(work)),
        (OTHER_SETTINGS, flat_settings(planned), flat_settings(_settings(work))),
    ):
        changes = setting_changes(had, now)
        if changes and is_unused:
            return None
        if changes:
            raise ValueError(other_run(work.store, what, changes))
    return plan


def _is_cut_by(shard_size: int | None, plan: Plan) -> bool:
    """Whether the shards of a plan are of a size, the last of each run smaller; no size is any."""
    sizes = [shard.num_images for shard in plan.shards]
    return shard_size is None or max(sizes) == shard_size or (len(sizes) == 1 and sizes[0] <= shard_size)


def source_facts(work: Work) -> dict[str, str]:
    """What identifies a source, its boxes and captions, for plan and manifest."""
    source = work.source
    facts = {
        "kind": source.kind,
        "location": source.location,
        "image_root": source.image_root,
        "id_rule": source.id_rule,
    }
    if work.boxes is not None:
        facts["boxes"] = work.boxes.location
    if work.captions is not None:
        facts["captions"] = work.captions.location
    if work.leaks is not None:
        facts["held_out"] = ", ".join(f"{rule.rule}={rule.location}" for rule in work.leaks.rules)
    return facts


def _settings(work: Work) -> dict[str, Any]:
    """What must not change between runs into one store, field by field, so that a change can be named."""
    fingerprint = shared_fingerprint(work.detector_here, work.options, work.vocabulary.digest, work.boxes is not None)
    # A mode is no part of what features mean, but half a store of each is what nobody asked for.
    return {
        "distribution": work.options.distribution,
        "mode": work.detector.mode,
        "feature_space": fingerprint.details,
    }


def new_images(
    source: Source, store: Path | OutputFolder, plan: Plan | None, boxes: GivenBoxes | None
) -> tuple[ImageTable, list[str]]:
    """Images that no shard holds yet; notes on planned ones that are gone.

    Raises:
        ValueError: if a planned image has other boxes now: its record would say one thing and the file another.
    """
    if plan is None:
        return source.images, []
    changed: list[str] = []

    def planned_ids() -> Iterator[str]:
        for member in planned_members(store, plan):
            if boxes is not None and member.image_id in boxes and not boxes.are_those_of(member):
                changed.append(member.image_id)
            yield member.image_id

    new = source.images.without(planned_ids())
    if boxes is not None and changed:
        raise ValueError(
            f"{store} was made with other boxes than {boxes.location} holds now for "
            f"{counted(len(changed), 'image')}, "
            f"such as {changed[0]!r}; restore the file, or choose a new folder"
        )
    gone = plan.num_images - (len(source.images) - len(new))
    if not gone:
        return new, []
    are, stay = ("is", "its record stays") if gone == 1 else ("are", "their records stay")
    return new, [f"{counted(gone, 'image')} of earlier runs {are} not in the source now; {stay}"]


def extract_one(image: ImageRef, work: Work) -> RegionRecord | Failure:
    """One image as a worker would extract it, in this process."""
    (outcome,) = extract_regions(
        [image if work.boxes is None else work.boxes.attach(image)],
        shared_detector(work.detector_here),
        options=work.options,
        read_bytes=read_location,
        global_feature=shared_global_feature(work.detector_here, work.options),
        calls=shared_calls(work.detector_here),
    )
    return outcome


def new_shard_size(work: Work, seconds: float | None) -> int:
    """Images of a new shard.

    Args:
        seconds: that one image takes in this process; None where none could be timed.
    """
    if work.shard_size is not None:
        return work.shard_size
    if work.own_detector is not None or seconds is None:
        return UNTIMED_SHARD_IMAGES
    return shard_size_for(seconds)


def _try_photos(images: Sequence[ImageRef], work: Work, *, all_may_fail: bool) -> float | None:
    """Seconds that one image takes here, warm-up included, so that shards come out rather too small than too large.

    None if none of those tried can be extracted, or nothing is to be learnt from one.

    Raises:
        ValueError: if none of `TRIES` images can be extracted, unless all may fail.
    """
    if all_may_fail and (work.shard_size is not None or work.own_detector is not None):
        return None
    failures: list[Failure] = []
    for image in images[:: max(1, len(images) // TRIES)][:TRIES]:
        start = time.monotonic()
        with waiting("trying a photo"):
            outcome = extract_one(image, work)
        if not isinstance(outcome, Failure):
            return time.monotonic() - start
        failures.append(outcome)
    if len(failures) == TRIES and not all_may_fail:
        raise ValueError(_all_failed(failures, work.source))
    return None


def _all_failed(failures: Sequence[Failure], source: Source) -> str:
    ((stage, reason), _), *_ = Counter((each.stage, each.reason) for each in failures).most_common(1)
    example = next(each for each in failures if (each.stage, each.reason) == (stage, reason))
    where, detail = printable(example.location, 200), printable(example.detail, 200)
    return (
        f"none of {len(failures)} images from all over {source.location} can be extracted, most often: {reason} "
        f"({stage}), as {where}: {detail}; mend them, or give --max-failures 1 to try all"
    )
