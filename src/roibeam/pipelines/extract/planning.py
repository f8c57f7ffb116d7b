"""Plan of a run: which images are new, and how they are cut into shards."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.kept_work import DamagedError
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.reader import ShardReader
from roibeam.messages import plural, printable
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.locations import read_location
from roibeam.pipelines.data.feature_settings import OTHER_SETTINGS, flat_settings, other_run_error, setting_changes
from roibeam.pipelines.data.given_boxes import GivenBoxes
from roibeam.pipelines.data.image_table import ImageTable
from roibeam.pipelines.data.shard_plan import (
    UNTIMED_SHARD_IMAGES,
    Plan,
    PlannedShard,
    extend_plan,
    members_digest,
    members_name,
    mend_plan,
    planned_shards,
    put_members,
    read_members,
    restore_plan,
    shard_size_for,
)
from roibeam.pipelines.data.source_kinds import Source
from roibeam.pipelines.data.vocabulary import check_length
from roibeam.pipelines.extract.shard.shard_job import (
    shared_calls,
    shared_detector,
    shared_fingerprint,
    shared_global_feature,
)
from roibeam.pipelines.extract.shard.store_folder import is_unused_plan, last_attempt
from roibeam.pipelines.extract.work import Work

log = logging.getLogger(__name__)

_NAMED = 3  # images of those that a note counts
_MOVED = "; if the photos are the same and only moved, a link at the old path will do"
TRIES = 5  # images from all over the source that are looked at for one that can be extracted
UNTIMED = (
    f"shards of {UNTIMED_SHARD_IMAGES:,} images: GPUs elsewhere are not timed here; --shard-size sets another number"
)


def make_plan(work: Work, plan: Plan | None, max_failures: float, *, replaced: Plan | None) -> tuple[Plan, list[str]]:
    """The plan of the store, written or extended where the source has images that it does not hold; notes for the user.

    Args:
        plan: the store's, by `fitting_plan`.
        replaced: the store's, whether it fits or not.
        max_failures: share of all images of the store (0..1) that may fail.
    """
    if plan is not None:
        restore_plan(work.store, plan)
    new, notes, plan = _planned_now(work, plan)
    if plan is not None and not _is_cut_by(work.shard_size, plan):
        largest = max(shard.num_images for shard in plan.shards)
        notes.append(
            f"--shard-size {work.shard_size} is for new images; the shards of earlier runs stay as they are, of up to "
            f"{plural(largest, 'image')} (`roibeam store copy --shard-size` cuts a finished store anew)"
        )
    if plan is not None and not new:
        return plan, notes
    num_images = len(new) + (0 if plan is None else plan.num_images)
    seconds = _try_photos(new, work, all_may_fail=len(new) <= max_failures * num_images)
    if work.shard_size is None and work.own_detector is not None:
        notes.append(UNTIMED)
    grown = extend_plan(
        work.store, plan, source=source_facts(work), settings=_settings(work), images=new,
        shard_size=new_shard_size(work, seconds), boxes=work.boxes, replaced=replaced,
    )  # fmt: skip
    return grown, notes


def gives_distribution(work: Work) -> bool:
    """Whether its detector, which is built, has probabilities of all classes, so that fewer of them can be kept."""
    detector = shared_detector(work.detector_here)
    return bool(detector.num_classes and getattr(detector, "has_distribution", True))


def check_classes(work: Work) -> None:
    """Raises ValueError where a request does not fit its detector, which is built."""
    detector, weights, top_k = shared_detector(work.detector_here), work.detector.weights, work.options.top_k
    num_classes, config = detector.num_classes, work.detector.config
    if not isinstance(config, DetectorConfig):  # of its own networks it is known before they are built
        names = work.vocabulary
        for kind, own, expected in (
            ("classes", names.classes, num_classes), ("attributes", names.attributes, detector.num_attributes)
        ):  # fmt: skip
            if own is not None:
                check_length(own, expected, kind, "--vocab")
    elif not (num_classes or config.grid) and work.boxes is None:
        raise ValueError(f"weights {weights}: a network without classes proposes no boxes; give --boxes")
    elif not num_classes and work.vocabulary.classes is not None:
        raise ValueError(f"--vocab: weights {weights} are a ResNet alone, whose regions have no classes; leave it out")
    whole = "--image-feature region" if work.options.image_feature == "region" else None
    if (asked := whole if work.boxes is None else "--boxes") and not getattr(detector, "describes_boxes", True):
        raise ValueError(f"{asked}: this detector has no vectors of given boxes; name a --backbone that makes them")
    if top_k is not None and not gives_distribution(work):
        raise ValueError(f"distribution top-{top_k}: the detector gives no probabilities of all classes; leave it out")
    if top_k is not None and top_k > num_classes + 1:
        raise ValueError(f"distribution top-{top_k}: the detector has {num_classes} classes and background")


def fitting_plan(work: Work, plan: Plan | None) -> Plan | None:
    """The store's plan; None if it was made for other images or settings and nothing was extracted yet.

    The same run goes on with its plan, so that every image in it is accounted for. Raises ValueError unless it is of
    this source and these settings, or unused; names the difference."""
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
            moved = {"location", "image_root"} >= {
                key for key in had.keys() | now.keys() if had.get(key) != now.get(key)
            }
            raise ValueError(other_run_error(work.store, what, changes) + (_MOVED if moved else ""))
    return plan


def _is_cut_by(shard_size: int | None, plan: Plan) -> bool:
    """Whether the shards of a plan have this size, but for smaller last ones of a run; None fits every plan."""
    sizes = [shard.num_images for shard in plan.shards]
    return shard_size is None or max(sizes) == shard_size or (len(sizes) == 1 and sizes[0] <= shard_size)


def source_facts(work: Work) -> dict[str, str]:
    """Facts that identify a source, its boxes and captions, for plan and manifest."""
    source = work.source
    facts = {
        "kind": source.kind,
        "location": source.location,
        "image_root": source.image_root,
        "id_rule": source.id_rule,
    }
    if source.id_prefix:
        facts["id_prefix"] = source.id_prefix
    if source.part:
        facts["part"] = source.part
    if work.boxes is not None:
        facts["boxes"] = work.boxes.location
    if work.captions is not None:
        facts["captions"] = work.captions.location
    if work.leaks is not None:
        facts["held_out"] = ", ".join(f"{rule.rule}={rule.location}" for rule in work.leaks.rules)
    return facts


def _settings(work: Work) -> dict[str, Any]:
    """Settings that must not change between runs into one store, by field, so that a change can be named."""
    fingerprint = shared_fingerprint(work.detector_here, work.options, work.vocabulary.digest, work.boxes is not None)
    # A mode is no part of what features mean, but half a store of each is never wanted.
    return {"distribution": work.options.distribution, "mode": work.detector.mode, "feature_space": fingerprint.details}


def _planned_now(work: Work, plan: Plan | None) -> tuple[ImageTable, list[str], Plan | None]:
    """Result of `new_images`, and the plan with its images that are not extracted yet as the source has them now."""
    if plan is None:
        return work.source.images, [], None
    try:
        found = PlannedImages(work.source, work.store, plan, work.boxes, work.is_held_out)
    except DamagedError:
        plan = _with_members_restored(work, plan)
        found = PlannedImages(work.source, work.store, plan, work.boxes, work.is_held_out)
    plan = mend_plan(work.store, plan, found.changes())
    return found.new, found.notes(), plan


def _with_members_restored(work: Work, plan: Plan) -> Plan:
    """The plan, with its damaged files of images made anew from the source.

    A finished shard has the images of its records and dead letters. An unfinished one gets the images that no other
    shard has, if the plan's digest tells that they are its own; else none, and its images are planned like new ones.
    """
    planned: set[str] = set()
    damaged: list[PlannedShard] = []
    for shard in plan.shards:
        try:
            planned.update(member.image_id for member in read_members(work.store, shard))
        except DamagedError as error:
            log.warning("%s; it is made anew from %s", str(error).rpartition("; ")[0], work.source.location)
            damaged.append(shard)
    images = {image.image_id: image for image in work.source.images if image.image_id not in planned}
    if work.boxes is not None:
        images = {image_id: work.boxes.attach(image) for image_id, image in images.items()}
    restored: list[tuple[int, list[ImageRef]]] = []
    finished = {shard: _finished_images(work.store, shard) for shard in damaged}
    for shard in sorted(damaged, key=lambda shard: finished[shard] is None):
        own = finished[shard]
        members = [image for image in images.values() if own is None or image.image_id in own]
        members = members[: shard.num_images]
        if members_digest(members) != shard.members_digest:
            if own is not None:
                raise ValueError(
                    f"{work.store}: images of shard {shard.number}, whose file is damaged, are not in "
                    f"{work.source.location} as they were when the store was made; restore "
                    f"{members_name(shard.number, shard.revision)}, or extract into a new folder"
                )
            log.warning("shard %d: its %s are planned anew", shard.number, plural(shard.num_images, "image"))
            members = []
        for member in members:
            del images[member.image_id]
        restored.append((shard.number, members))
    return put_members(work.store, plan, restored)


def _finished_images(store: OutputFolder, shard: PlannedShard) -> set[str] | None:
    """The ids of a finished shard's records and dead letters; None where it was never finished."""
    attempt = last_attempt(store, shard)
    if attempt is None:
        return None
    manifest, _ = attempt
    ids = {letter.image_id for letter in manifest.dead_letters}
    if manifest.data_file is not None:
        with store.local_file(manifest.data_file, manifest.data_bytes) as path, ShardReader(path, manifest) as reader:
            ids.update(reader.ids())
    return ids


def new_images(work: Work, plan: Plan | None) -> tuple[ImageTable, list[str]]:
    """Images that no shard holds yet; notes on planned ones that are gone, or are another photo now."""
    if plan is None:
        return work.source.images, []
    found = PlannedImages(work.source, work.store, plan, work.boxes, work.is_held_out)
    for _ in found.changes():
        pass  # counted on the way, for the notes
    return found.new, found.notes()


class PlannedImages:
    """The images of a plan beside those that the source has now.

    Attributes:
        new: images that no shard holds yet.
    Raises:
        ValueError: if a planned image has other boxes now: its record would say one thing and the file another; or if
            the store has the record of one that is held out now.
    """

    def __init__(
        self, source: Source, store: OutputFolder, plan: Plan, boxes: GivenBoxes | None = None,
        is_held_out: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._plan = store, plan
        self._dropped: dict[int, list[str]] = {}  # by shard
        self._changed = Counter[str]()  # by what becomes of the images
        self._first: dict[str, list[str]] = {}
        other_boxes: list[str] = []
        leaked: list[str] = []

        def planned() -> Iterator[tuple[int, ImageRef]]:
            for shard, members in planned_shards(store, plan):
                for member in members:
                    if boxes is not None and member.image_id in boxes and not boxes.are_those_of(member):
                        other_boxes.append(member.image_id)
                    yield shard.number, member
                out = [each.image_id for each in members if is_held_out is not None and is_held_out(each.image_id)]
                if out:
                    outcome_of = _outcomes(store, shard)
                    leaked.extend(image_id for image_id in out if outcome_of(image_id) == _STORED)
                    self._dropped[shard.number] = [each for each in out if outcome_of(each) == _OPEN]

        self._compared = source.images.compared_with(planned())
        self.new = self._compared.new
        if other_boxes:
            assert boxes is not None
            raise ValueError(
                f"{store} was made with other boxes than {boxes.location} holds now for "
                f"{plural(len(other_boxes), 'image')}, "
                f"such as {other_boxes[0]!r}; restore the file, or choose a new folder"
            )
        if leaked:
            raise ValueError(
                f"{store} has {plural(len(leaked), 'image')} that must not be trained on: --held-out names "
                f"{_some(leaked)} now. A copy leaves them out: `roibeam store copy {store} NEW "
                f"--without-ids FILE`, FILE a list of their ids"
            )

    def changes(self) -> Iterator[tuple[int, dict[str, ImageRef | None]]]:
        """Changes of the plan before work on it begins, as `mend_plan` takes them."""
        dropped = dict(self._dropped)
        for number, group in itertools.groupby(self._compared.changed(), key=lambda row: row[0]):
            outcome_of = _outcomes(self._store, self._plan.shards[number])
            changes: dict[str, ImageRef | None] = dict.fromkeys(dropped.pop(number, ()))
            for _, image in group:
                becomes = outcome_of(image.image_id)
                self._changed[becomes] += 1
                if self._changed[becomes] <= _NAMED:
                    self._first.setdefault(becomes, []).append(image.image_id)
                if becomes == _OPEN:
                    changes[image.image_id] = image
            if changes:
                yield number, changes
        for number, image_ids in dropped.items():
            if image_ids:
                yield number, dict.fromkeys(image_ids)

    def notes(self) -> list[str]:
        """Notes for the user, once `changes` was read to its end."""
        notes = []
        dropped = [image_id for image_ids in self._dropped.values() for image_id in image_ids]
        if dropped:
            notes.append(f"taken out of the plan, since --held-out names them now: {_some(dropped)}")
        num_gone = self._compared.num_gone - len(dropped)
        if num_gone:
            out = set(dropped)
            gone = list(itertools.islice((each for each in self._compared.gone() if each not in out), _NAMED))
            are, stay = ("is", "its record stays") if num_gone == 1 else ("are", "their records stay")
            notes.append(
                f"{plural(num_gone, 'image')} of earlier runs {are} not in the source now ({_some(gone, num_gone)}); "
                f"{stay}"
            )
        if renamed := self._compared.renamed():
            examples = _some([f"{now}, planned as {planned}" for now, planned in renamed])
            has = "has" if len(renamed) == 1 else "have"
            notes.append(
                f"{plural(len(renamed), 'image')} of earlier runs {has} another id in the source now ({examples}); the "
                f"planned ids stay"
            )
        for becomes, words in _WHAT_BECOMES.items():
            if number := self._changed[becomes]:
                has = "has" if number == 1 else "have"
                notes.append(
                    f"{plural(number, 'image')} of earlier runs {has} another location, captions or labels in the "
                    f"source now ({_some(self._first[becomes], number)}); {words}"
                )
        return notes


# What an image of a shard is: its record is stored; it failed; nothing was extracted of it yet, or it is tried again.
_STORED, _FAILED, _OPEN = "stored", "failed", "open"
_WHAT_BECOMES = {
    _OPEN: "this run takes these",
    _FAILED: "they failed before: --retry-dead-letters tries them again as they are now",
    _STORED: "records, captions and labels stay as they were: extract into a new store to have those of now",
}


def _outcomes(store: OutputFolder, shard: PlannedShard) -> Callable[[str], str]:
    """Outcome of each image of the shard, by its id."""
    attempt = last_attempt(store, shard)
    if attempt is None:
        return lambda _image_id: _OPEN
    manifest, is_retried = attempt
    failed = {letter.image_id for letter in manifest.dead_letters}
    return lambda image_id: _STORED if image_id not in failed else _OPEN if is_retried else _FAILED


def _some(image_ids: Sequence[str], total: int | None = None) -> str:
    """Text of the first few ids; it ends in "..." if there are more."""
    more = ", ..." if (len(image_ids) if total is None else total) > _NAMED else ""
    return ", ".join(printable(image_id, 80) for image_id in image_ids[:_NAMED]) + more


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
        f"({stage}), as {where}: {detail}; mend {'the detector' if stage == 'detect' else 'them'}, or give "
        "--max-failures 1 to try all"
    )
