"""Check of a task's official files against published counts, and against each other.

Files of annotations are read whole, once for each split. Photos, and VCR's files beside them, are looked for by their
names: 200,000 take a second on a disk, and what is inside is not looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from roibeam.messages import name_hint, plural
from roibeam.pipelines.data.datasets.entities import EntityCounts, read_entities, split_names
from roibeam.pipelines.data.datasets.karpathy import KARPATHY, read_captioned
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.refer import read_refer_detections
from roibeam.pipelines.data.datasets.rows import MissingFileError, find_file
from roibeam.pipelines.data.datasets.vcr import IMAGES_FOLDER, metadata_path, read_vcr_labels
from roibeam.pipelines.data.datasets.vqa import read_vqa_question_ids
from roibeam.pipelines.finetuning.metrics.measure import STRICT, OpenTask, check_row_ids
from roibeam.pipelines.finetuning.scored_tasks import (
    DETECTIONS_NAME,
    ENTITIES,
    MINIVAL,
    OWN_SPLITS,
    REFS,
    SCORED_TASKS,
    VQA_YEARS,
    has_own_tables,
)

# Captions, and photos, of Karpathy's splits by the name of the file.
_CAPTIONS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dataset_flickr30k.json": {"train": 145_000, "val": 5_070, "test": 5_000},
        "dataset_coco.json": {"train": 566_747, "val": 25_010, "test": 25_010},
    }
)
_CAPTIONED: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dataset_flickr30k.json": {"train": 29_000, "val": 1_014, "test": 1_000},
        "dataset_coco.json": {"train": 113_287, "val": 5_000, "test": 5_000},
    }
)
# Photos of Flickr30k Entities, of which not all captions have phrases with boxes; and of VCR.
_PHOTOS: Mapping[str, int] = MappingProxyType({"train": 29_783, "val": 1_000, "test": 1_000})
_VCR_PHOTOS: Mapping[str, int] = MappingProxyType({"train": 80_418, "val": 9_929, "test": 9_557})
_DAMAGE = ("images without an xml file", "damaged xml files", "captions that cannot be read")
_DEEPEST = 3  # folders of photos inside one another
NOT_LOOKED_AT: Mapping[str, str] = MappingProxyType(
    {
        "vqa": "COCO's photos, and the words of questions",
        **dict.fromkeys(REFS, "COCO's photos"),
        "vcr": "what is inside photos and the files beside them, and the words of questions",
        **dict.fromkeys(("nlvr2", "retrieval"), "what is inside photos"),
        ENTITIES: "Flickr30k's photos",
    }
)


class SplitCheck(NamedTuple):
    """What `check_data` finds in a split, in its photos, or in another file of a data set.

    Attributes:
        rows: those that are scored; photos of Flickr30k Entities; None where the split cannot be read.
        published: None where no count is known.
        first, last: ids of rows.
        fault: what is wrong; "" for nothing.
        is_missing: whether its file is not there.
    """

    split: str
    rows: int | None
    published: int | None
    files: tuple[str, ...]
    first: str = ""
    last: str = ""
    fault: str = ""
    is_missing: bool = False


def check_data(task: str, folder: Path) -> list[SplitCheck]:
    """Reads all splits of a task. Raises ValueError for an unknown task."""
    if task not in SCORED_TASKS:
        raise ValueError(f"no task {task!r}: {name_hint(task, SCORED_TASKS)}")
    is_own = task == "vqa" and has_own_tables(folder)
    splits = dict.fromkeys(OWN_SPLITS) if is_own else SCORED_TASKS[task].splits
    found = [_checked(task, folder, split, published) for split, published in splits.items()]
    return [*found, *_photos(task, folder, [each.split for each in found if each.rows]), *_detections(task, folder)]


def _failed(split: str, published: int | None, error: Exception) -> SplitCheck:
    words = re.sub(r"--(data|entities) ", "DATA ", re.sub(r"^--split '\w+': ", "", str(error)))
    is_missing = isinstance(error, MissingFileError | FileNotFoundError)
    return SplitCheck(split, None, published, (), fault=words, is_missing=is_missing)


def _checked(task: str, folder: Path, split: str, published: int | None) -> SplitCheck:
    published = _PHOTOS[split] if task == ENTITIES else published
    if task == "retrieval":
        published = _of_karpathy(folder, _CAPTIONS).get(split)
    try:
        found = SCORED_TASKS[task].open(folder, split, STRICT)
    except (ValueError, OSError) as error:
        return _failed(split, published, error)
    rows = len(split_names(str(folder), split)) if task == ENTITIES else found.rows
    known = None if found.is_own else published
    try:
        fault = "" if found.is_own else _beside(task, folder, split, found)
    except (ValueError, OSError) as error:
        return _failed(split, known, error)._replace(rows=rows)
    first, last = (str(found.ids[0]), str(found.ids[-1])) if len(found.ids) else ("", "")
    return SplitCheck(split, rows, known, tuple(map(str, found.files)), first, last, fault or _less(rows, known))


def _less(rows: int, published: int | None, unit: str = "row") -> str:
    if published is None or rows == published:
        return ""
    count = plural(abs(rows - published), unit)
    return f"{count} {'fewer: cut' if rows < published else 'more'}, or another version"


def _of_karpathy(folder: Path, counts: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """Counts of the file that a folder has, readable or not."""
    for name in KARPATHY:
        with suppress(ValueError):
            return counts.get(find_file(folder, name).name, {})
    return {}


def _beside(task: str, folder: Path, split: str, found: OpenTask) -> str:
    """Fault of what a split has beside what is scored: VQA's questions, and files of the images of Flickr30k Entities.
    Raises ValueError as their readers."""
    if task == "vqa":
        path = find_file(folder, f"v2_OpenEnded_mscoco_{VQA_YEARS[split]}_questions.json")
        if split not in (MINIVAL, "test", "test-dev"):
            check_row_ids(repr(str(path)), read_vqa_question_ids(str(path)), found.ids, unit="question")
    if task != ENTITIES:
        return ""
    counts, names = EntityCounts(), split_names(str(folder), split)
    unread = names - {each.name for each in read_entities(str(folder), counts, names=names) if each.sentences}
    lines = [line for line in counts.lines()[1:] if any(each in line for each in _DAMAGE)]
    if unread and not lines:
        lines = [f"{plural(len(unread), 'image')} of {split}.txt without sentences: {min(unread)}"]
    return "; ".join(lines)


def _photos(task: str, folder: Path, splits: Sequence[str]) -> Iterator[SplitCheck]:
    """Photos that the rows of the splits name, for tasks whose folder has them."""
    if task not in ("vcr", "nlvr2", "retrieval") or not splits:
        return
    inside = {"vcr": IMAGES_FOLDER, "nlvr2": "images"}.get(task)
    published = {"vcr": _VCR_PHOTOS, "nlvr2": {}}.get(task) or _of_karpathy(folder, _CAPTIONED)
    try:
        place = folder if inside is None else find_file(folder, inside)
    except ValueError as error:
        yield from (_failed(f"photos of {split}", published.get(split), error) for split in splits)
        return
    there = set(_names_below(place, _DEEPEST))
    if task != "vcr":  # in whatever folders they lie
        there = {name.rpartition("/")[2] for name in there}
    if task == "retrieval":  # which names them without extension
        there = {os.path.splitext(name)[0] for name in there if not name.endswith(".json")}
    for split in splits:
        named = dict.fromkeys(_named(task, folder, split))
        photos = [name for name in named if name in there]
        beside = {metadata_path(name) for name in named} - there if task == "vcr" else set[str]()
        gone = [name for name in named if name not in there] or sorted(beside)
        fault = f"{plural(len(gone), 'file')} not below {place}: {', '.join(gone[:3])}" if gone else ""
        ends = (photos[0], photos[-1]) if photos else ("", "")
        count = published.get(split)
        yield SplitCheck(
            f"photos of {split}", len(photos), count, (str(place),), *ends, fault or _less(len(photos), count, "photo"),
            is_missing=not photos,
        )  # fmt: skip


def _named(task: str, folder: Path, split: str) -> Iterator[str]:
    if task == "vcr":
        for each in read_vcr_labels(str(find_file(folder, f"{split}.jsonl"))):
            yield "/".join(each.image.split("/")[-2:])
    elif task == "nlvr2":
        for statement in read_nlvr2(str(find_file(folder, f"{split}.json"))):
            yield from (name.rpartition("/")[2] for name in statement.images)
    else:
        yield from (each.image.rpartition("/")[2] for each in read_captioned(folder, split)[0])


def _names_below(folder: Path, depth: int) -> Iterator[str]:
    """Files as "folder/name"; links are followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield f"{folder.name}/{entry.name}"
            elif depth:
                yield from _names_below(Path(entry.path), depth - 1)


def _detections(task: str, folder: Path) -> Iterator[SplitCheck]:
    """Detections of MAttNet, on which referring expressions are also grounded."""
    if task in REFS:
        try:
            path = find_file(folder, DETECTIONS_NAME)
            images = [image for image, _ in read_refer_detections(str(path))]
            yield SplitCheck("detections", len(images), None, (str(path),), *map(str, (images[0], images[-1])))
        except (ValueError, OSError, IndexError) as error:
            yield _failed("detections", None, error)
