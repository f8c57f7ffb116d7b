"""What a run has to do: which images are new, and how they are cut into shards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.counted import counted
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.extract.preset_names import OTHER_SETTINGS, flat_settings, other_run, setting_changes
from roibeam.pipelines.extract.shard.job import shared_calls, shared_detector, shared_fingerprint, shared_global_feature
from roibeam.pipelines.extract.shard.store_folder import is_unused_plan
from roibeam.pipelines.extract.shard_plan import Plan, extend_plan, planned_members, read_plan, shard_size_for
from roibeam.pipelines.extract.work import Work
from roibeam.pipelines.foundation.console.progress import waiting
from roibeam.pipelines.foundation.files.locations import read_location
from roibeam.pipelines.sources.given_boxes import GivenBoxes
from roibeam.pipelines.sources.image_table import ImageTable
from roibeam.pipelines.sources.source_kinds import Source

TIMING_TRIES = 5  # images looked at for one that decodes


def make_plan(work: Work) -> tuple[Plan, list[str]]:
    """The plan of the store, written or extended where the source has images that it does not hold; notes for the user.

    Raises:
        ValueError: if the store belongs to another source or was made with other settings, naming the difference.
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
    if work.shard_size is None:
        with waiting("timing the first photo"):
            size = shard_size_for(_time_one(new, work))
    else:
        size = work.shard_size
    grown = extend_plan(
        work.store, plan, source=source_facts(work), settings=_settings(work), images=new, shard_size=size,
        boxes=work.boxes,
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
    is_unused = is_unused_plan(work.store, plan)
    if is_unused and not _is_cut_by(work.shard_size, plan):
        return None
    for what, had, now in (
        ("holds another run: its source", plan.source, source_facts(work)),
        (OTHER_SETTINGS, flat_settings(plan.settings), flat_settings(_settings(work))),
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
    fingerprint = shared_fingerprint(work.detector, work.options, work.vocabulary.digest, work.boxes is not None)
    return {"distribution": work.options.distribution, "feature_space": fingerprint.details}


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
        shared_detector(work.detector),
        options=work.options,
        read_bytes=read_location,
        global_feature=shared_global_feature(work.detector, work.options),
        calls=shared_calls(work.detector),
    )
    return outcome


def _time_one(images: Sequence[ImageRef], work: Work) -> float:
    """Seconds one image takes, warm-up included, so that shards come out rather too small than too large."""
    for image in images[:TIMING_TRIES]:
        start = time.monotonic()
        with waiting("timing a photo, which says how large shards are"):
            outcome = extract_one(image, work)
        if not isinstance(outcome, Failure):
            return time.monotonic() - start
    return 1.0
