"""The plan of a run: which images are in which shard. A grown source adds shards, old ones stay; only images of which
nothing was extracted yet may be planned anew, with another location, captions or labels, or be taken out.

OUT/plan.json               source, settings, one line of facts per shard
OUT/plan/part-00003.jsonl   the images of shard 3: {"image_id": ..., "location": ...} per line, and with given boxes
                            "boxes": [[x1, y1, x2, y2], ...], "boxes_hw": [height, width] or null; where the source
                            has them, "captions": [...] and "labels": [...]
OUT/plan/part-00003.1.jsonl in its place, once they were planned anew: of revision 1
OUT/plan/plan.json          copy of OUT/plan.json, read when that is damaged: by its SHA-256, its first member
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.kept_work import DamagedError, check_sum, with_sum
from roibeam.features.shard.manifest import PLAN_FORMAT, PLAN_NAME
from roibeam.pipelines.data.given_boxes import GivenBoxes

log = logging.getLogger(__name__)

PLAN_VERSION = 1
PLAN_COPY_NAME = "plan/plan.json"
MEMBERS_START = b'{"image_id": "'  # of a file of images
MAX_SHARD_IMAGES = 4000
MAX_SHARD_SECONDS = 600.0  # a retry loses at most this much work
# Where the machines that compute cannot be timed: seconds to minutes of a GPU, and few enough that many share the work.
UNTIMED_SHARD_IMAGES = 1000
_text_json = json.encoder.encode_basestring  # what json.dumps calls, ensure_ascii=False, for a text


@dataclass(frozen=True)
class PlannedShard:
    """One unit of work.

    Attributes:
        number: from 0; names the files of the shard.
        members_digest: SHA-256 over its ids, locations and given boxes; a shard manifest must name the same.
        revision: how often its images were planned anew.
    """

    number: int
    num_images: int
    members_digest: str
    revision: int = 0


@dataclass(frozen=True)
class Plan:
    """All shards of a store, and what they are made from and with.

    Attributes:
        source: kind, location, image_root, id_rule; boxes, where they are given.
        settings: those that must not change between runs into one store, nested; see ../extract/planning.py.
        shards: in number order.
    """

    source: dict[str, str]
    settings: dict[str, Any]
    shards: tuple[PlannedShard, ...]

    @property
    def num_images(self) -> int:
        return sum(shard.num_images for shard in self.shards)


def members_name(number: int, revision: int = 0) -> str:
    return f"plan/part-{number:05d}{f'.{revision}' if revision else ''}.jsonl"


def _members_name(shard: PlannedShard) -> str:
    return members_name(shard.number, shard.revision)


def shard_size_for(seconds_per_image: float) -> int:
    """Images per shard so that a lost shard costs about ten minutes; 1 to 4,000."""
    return max(1, min(MAX_SHARD_IMAGES, int(MAX_SHARD_SECONDS / max(seconds_per_image, 1e-9))))


def members_digest(members: Iterable[ImageRef]) -> str:
    """SHA-256 over ids and locations in order, each with its length in bytes before it.

    Given boxes follow their image: a length that no text has, their number, height and width (0 where they are not
    known), four doubles each. Captions and labels follow likewise, each kind with a mark of its own and their number.
    """
    parts: list[bytes] = []  # hashed at once: a call for each takes longer than its bytes

    def add(texts: Sequence[str]) -> None:
        for data in map(str.encode, texts):
            parts.append(len(data).to_bytes(4, "little"))
            parts.append(data)

    for member in members:
        add((member.image_id, member.location))
        if member.boxes is not None:
            parts.append(b"\xff\xff\xff\xff" + struct.pack("<3Q", len(member.boxes), *(member.boxes_hw or (0, 0))))
            edges = itertools.chain.from_iterable(member.boxes)
            parts.append(struct.pack(f"<{4 * len(member.boxes)}d", *edges))
        for mark, texts in ((b"\xfe\xff\xff\xff", member.captions), (b"\xfd\xff\xff\xff", member.labels)):
            if texts:
                parts.append(mark + struct.pack("<Q", len(texts)))
                add(texts)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def read_plan(folder: OutputFolder) -> Plan | None:
    """The plan of a store, or None where there is none; from its copy, with a line, where plan.json is damaged. Raises
    ValueError if plan.json is of another format or version, or is damaged and so is its copy."""
    try:
        plan, damage = _plan_at(folder, PLAN_NAME), None
    except DamagedError as error:
        plan, damage = None, error
    if plan is not None:
        return plan
    finished = [int(found[1]) for found in map(_SHARD_MANIFEST.fullmatch, folder.listing("part-")) if found]
    copy = None
    if damage is not None or finished:  # else a kill may have left a copy alone: no plan yet
        with suppress(ValueError):
            copy = _plan_at(folder, PLAN_COPY_NAME)
    if copy is None or max(finished, default=-1) >= len(copy.shards):  # by a version without copies
        if damage is not None:
            raise damage
        return None
    what = f"{folder.where(PLAN_NAME)}: is missing" if damage is None else str(damage).rpartition("; ")[0]
    _warn_once(f"{what}; {PLAN_COPY_NAME} takes its place")
    return copy


_SHARD_MANIFEST = re.compile(r"part-(\d{5,18})\.json")
_warn_once = cache(log.warning)  # a run and its workers each read the plan


def plan_of_now(folder: OutputFolder, known: Plan | None) -> Plan | None:
    """The plan that was read before, unless another run has written another one since."""
    try:
        data = folder.read_bytes(PLAN_NAME)
    except FileNotFoundError:
        data = None
    return known if data == (None if known is None else _plan_bytes(known)) else read_plan(folder)


def _plan_at(folder: OutputFolder, name: str) -> Plan | None:
    try:
        data = folder.read_bytes(name)
    except FileNotFoundError:
        return None
    try:
        check_sum(data, folder.where(name))
        content = json.loads(data)
        _require(content["format"] == PLAN_FORMAT, f"format {content['format']!r}")
        _require(content["version"] == PLAN_VERSION, f"version {content['version']!r}")
        source, settings = content["source"], content["settings"]
        shards = tuple(PlannedShard(**entry) for entry in content["shards"])
        _require(isinstance(settings, dict) and isinstance(source, dict), "source or settings are no objects")
        _require(all(isinstance(value, str) for value in source.values()), "source holds more than texts")
        _require([shard.number for shard in shards] == list(range(len(shards))), "shards are not numbered 0, 1, 2, ...")
        for shard in shards:
            numbers = (shard.number, shard.num_images, shard.revision)
            _require(all(type(number) is int for number in numbers), "a number is no number")
            _require(isinstance(shard.members_digest, str), "a digest is no text")
        return Plan(source, settings, shards)
    except DamagedError as error:
        raise DamagedError(f"{error}; restore it, or choose another folder") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(
            f"{folder.where(name)}: expected {PLAN_FORMAT} version {PLAN_VERSION}, got another or a damaged file "
            f"({error}); restore it, or choose another folder"
        ) from None


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def read_members(folder: OutputFolder, shard: PlannedShard) -> list[ImageRef]:
    """The images of one shard, checked against the plan's digest. Raises DamagedError if the file is missing, damaged
    or another one."""
    try:
        data = folder.read_bytes(_members_name(shard))
    except FileNotFoundError:
        data = None
    return _members_of(folder, shard, data)


def _members_of(folder: OutputFolder, shard: PlannedShard, data: bytes | None) -> list[ImageRef]:
    try:
        _require(data is not None, "it is missing")
        members = [_parse_member(line) for line in io.BytesIO(data or b"")]
        _require(members_digest(members) == shard.members_digest, "its images are not those that plan.json states")
    except (ValueError, TypeError, AttributeError, RecursionError, struct.error) as error:
        where = folder.where(_members_name(shard))
        raise DamagedError(f"{where}: {error}; run `roibeam extract` as before, which makes it anew") from None
    return members


def _parse_member(line: bytes) -> ImageRef:
    entry = json.loads(line)
    if "boxes" in entry:
        entry["boxes"] = tuple((float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in entry["boxes"])
        if entry["boxes_hw"] is not None:
            height, width = entry["boxes_hw"]
            entry["boxes_hw"] = (height, width)
    for name in ("captions", "labels"):
        if name in entry:
            entry[name] = tuple(entry[name])
    return ImageRef(**entry)


def _member_line(member: ImageRef) -> str:
    # Put together from texts: a json encoder that is handed a whole member takes five times as long for millions.
    parts = [f'"image_id": {_text_json(member.image_id)}', f'"location": {_text_json(member.location)}']
    if member.boxes is not None:
        parts.append(f'"boxes": {json.dumps(member.boxes)}, "boxes_hw": {json.dumps(member.boxes_hw)}')
    for name, texts in (("captions", member.captions), ("labels", member.labels)):
        if texts:
            parts.append(f'"{name}": [{", ".join(map(_text_json, texts))}]')
    return "{" + ", ".join(parts) + "}\n"


def extend_plan(
    folder: OutputFolder, plan: Plan | None, *, source: dict[str, str], settings: dict[str, Any],
    images: Sequence[ImageRef], shard_size: int, boxes: GivenBoxes | None = None, replaced: Plan | None = None,
) -> Plan:  # fmt: skip
    """Writes a new plan, or adds shards to `plan` for the `images`, which must not be in it yet.

    Given boxes are put to their images here, shard by shard: those of all images at once would fill the memory.

    Members first, plan.json last: a kill in between leaves files that the next run overwrites.

    Args:
        plan: None where there is none, or where nothing was extracted under the one that is there: it is `replaced`.
    """
    shards = list(plan.shards) if plan else []

    def members_files() -> Iterator[tuple[str, bytes]]:
        for start in range(0, len(images), shard_size):
            members = list(images[start : start + shard_size])
            if boxes is not None:
                members = [boxes.attach(member) for member in members]
            number = len(shards)
            shards.append(PlannedShard(number, len(members), members_digest(members)))
            yield members_name(number), _members_bytes(members)

    folder.put_many(members_files())
    grown = Plan(source, settings, tuple(shards))
    _put_plan(folder, grown, replaced)
    return grown


def mend_plan(folder: OutputFolder, plan: Plan, changes: Iterable[tuple[int, Mapping[str, ImageRef | None]]]) -> Plan:
    """Plans images of some shards anew; their boxes stay.

    Args:
        changes: the number of each shard, and by their ids those of its images that change: as they are now, or None
            for one that is taken out.
    """

    def mended() -> Iterator[tuple[int, list[ImageRef]]]:
        for number, changed in changes:
            members = []
            for member in read_members(folder, plan.shards[number]):
                now = changed.get(member.image_id, member)
                if now is not None:
                    members.append(replace(now, boxes=member.boxes, boxes_hw=member.boxes_hw))
            yield number, members

    return put_members(folder, plan, mended())


def put_members(folder: OutputFolder, plan: Plan, changed: Iterable[tuple[int, Sequence[ImageRef]]]) -> Plan:
    """Writes the images of some shards: in the place of a damaged file where they are those of the plan.

    Others come as files of their own, plan.json last: a kill leaves the plan as it was or as it shall be.
    """
    shards = list(plan.shards)

    def members_files() -> Iterator[tuple[str, bytes]]:
        for number, members in changed:
            digest = members_digest(members)
            if digest != shards[number].members_digest:
                shards[number] = PlannedShard(number, len(members), digest, shards[number].revision + 1)
            yield _members_name(shards[number]), _members_bytes(members)

    folder.put_many(members_files())
    grown = replace(plan, shards=tuple(shards))
    if grown != plan:
        _put_plan(folder, grown, plan)
    return grown


def _members_bytes(members: Iterable[ImageRef]) -> bytes:
    return "".join(map(_member_line, members)).encode("utf-8")


def _put_plan(folder: OutputFolder, plan: Plan, replaced: Plan | None) -> None:
    """Writes plan.json, from when on it counts, and removes members that only the replaced one names."""
    data = _plan_bytes(plan)
    folder.put_many([(PLAN_COPY_NAME, data)])
    folder.put_bytes(PLAN_NAME, data)
    named = set(map(_members_name, plan.shards))
    for name in map(_members_name, () if replaced is None else replaced.shards):
        if name not in named:
            folder.delete(name)


def restore_plan(folder: OutputFolder, plan: Plan) -> None:
    """Writes plan.json and its copy as far as they are damaged, or without a sum as in earlier versions."""
    data = _plan_bytes(plan)
    found = dict(folder.read_many([PLAN_NAME, PLAN_COPY_NAME]))
    if found[PLAN_COPY_NAME] != data:
        folder.put_many([(PLAN_COPY_NAME, data)])
    if found[PLAN_NAME] != data:
        folder.put_bytes(PLAN_NAME, data)


def _plan_bytes(plan: Plan) -> bytes:
    shards = [asdict(shard) for shard in plan.shards]
    for entry in shards:
        if not entry["revision"]:
            del entry["revision"]
    content = {"format": PLAN_FORMAT, "version": PLAN_VERSION, "source": plan.source, "settings": plan.settings}
    return with_sum(json_bytes({**content, "shards": shards}))


def planned_members(folder: OutputFolder, plan: Plan) -> Iterator[ImageRef]:
    """The images of all shards, few shards at a time in memory."""
    for _, members in planned_shards(folder, plan):
        yield from members


def planned_shards(folder: OutputFolder, plan: Plan) -> Iterator[tuple[PlannedShard, list[ImageRef]]]:
    """All shards with their images, few at a time in memory."""
    files = folder.read_many(map(_members_name, plan.shards))
    for shard, (_, data) in zip(plan.shards, files, strict=True):
        yield shard, _members_of(folder, shard, data)
