"""Counts of a data set's official files beside the published ones: what is missing, cut or of another version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from roibeam.messages import name_hint, plural
from roibeam.pipelines.finetuning.metrics.measure import STRICT
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS

# Captions of Karpathy's splits, by the name of the file.
_CAPTIONS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dataset_flickr30k.json": {"train": 145_000, "val": 5_070, "test": 5_000},
        "dataset_coco.json": {"train": 566_747, "val": 25_010, "test": 25_010},
    }
)


@dataclass(frozen=True)
class SplitCheck:
    """
    Attributes:
        rows: None where the split cannot be read.
        published: None where no count is known.
        first, last: ids of rows.
        fault: what is wrong; "" for nothing.
    """

    split: str
    rows: int | None
    published: int | None
    files: tuple[str, ...]
    first: str = ""
    last: str = ""
    fault: str = ""


def check_data(task: str, folder: Path) -> list[SplitCheck]:
    """Reads all splits of a task. Raises ValueError for an unknown task."""
    if task not in SCORED_TASKS:
        raise ValueError(f"no task {task!r}: {name_hint(task, SCORED_TASKS)}")
    return [_checked(task, folder, split, published) for split, published in SCORED_TASKS[task].splits.items()]


def _checked(task: str, folder: Path, split: str, published: int | None) -> SplitCheck:
    try:
        found = SCORED_TASKS[task].open(folder, split, STRICT)
    except (ValueError, OSError) as error:
        return SplitCheck(split, None, published, (), fault=str(error))
    published = next((_CAPTIONS[path.name][split] for path in found.files if path.name in _CAPTIONS), published)
    fault = ""
    if published is not None and found.rows != published and not found.is_own:
        less = plural(abs(found.rows - published), "row")
        fault = f"{less} fewer: cut" if found.rows < published else f"{less} more"
        fault += ", or another version"
    files, ends = tuple(map(str, found.files)), [str(found.ids[place]) for place in (0, -1) if len(found.ids)]
    return SplitCheck(split, found.rows, None if found.is_own else published, files, *ends, fault=fault)
