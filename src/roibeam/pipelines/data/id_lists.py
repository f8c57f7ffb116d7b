"""Images that a copy shall have: a list of ids, or a split of Karpathy's files."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from pathlib import Path

from roibeam.messages import printable
from roibeam.pipelines.data.datasets.karpathy import SPLITS, read_karpathy
from roibeam.pipelines.data.datasets.known_files import describe_file
from roibeam.pipelines.data.datasets.rows import BadRow, read_lines

_FIRST_BYTES = 4_096
_EXPECTED = "where one image id a line was expected"
_COLUMNS = frozenset(("image", "image_id", "id", "file_name", "filename", "path", "url", "caption", "text", "label"))


class NoIdListError(ValueError):
    """A file of another kind where a list of ids was expected."""


@dataclass(frozen=True)
class IdSelection:
    """Attributes:
    origin: the file they come from, and the splits.
    ids: all held in memory.
    is_without: whether these are the images to leave out.
    """

    origin: str
    ids: frozenset[str]
    is_without: bool = False


def read_id_list(path: Path) -> IdSelection:
    """One image id a line, UTF-8; empty lines are passed over, spaces are part of an id. Or what `roibeam store ids
    --json` prints, or its list `ids` alone: such a file can name every id, also one that holds a line break.

    Raises:
        NoIdListError: for other JSON, and a table with a header.
        ValueError: naming the line that cannot be read, or when there is no id.
    """
    ids = _json_ids(path)
    if not ids:
        if words := describe_file(str(path), but=("image-list", "lineidx")):  # numbers may be ids
            raise NoIdListError(f"{path}: {words}, {_EXPECTED}")
        _refuse_table(path)
    for row in () if ids else read_lines(str(path)):
        if isinstance(row, BadRow):
            raise ValueError(f"{path}, line {row.line}: {row.reason}; expected one image id a line in UTF-8")
        if row[1]:
            ids.add(row[1])
    if not ids:
        raise ValueError(f"{path} holds no image id; expected one a line")
    return IdSelection(str(path), frozenset(ids))


def _json_ids(path: Path) -> set[str]:
    """The ids of a JSON file; none for any other file, also for a list whose first id begins like JSON."""
    with open(path, "rb") as file:
        first = b"".join(file.read(_FIRST_BYTES).removeprefix(codecs.BOM_UTF8).split())[:2]
    if first[:1] not in (b"[", b"{"):
        return set()
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        if first in (b'{"', b"[{", b'["'):
            raise NoIdListError(f"{path} begins like JSON, {_EXPECTED}") from None
        return set()
    ids = found.get("ids") if isinstance(found, dict) else found
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise NoIdListError(f"{path} is JSON without a list of ids, {_EXPECTED}")
    return set(ids)


def _refuse_table(path: Path) -> None:
    """Raises NoIdListError for a first line of several columns of which one has a name that tables of images have."""
    row = next(iter(read_lines(str(path))), None)
    if isinstance(row, tuple):
        columns = [column.strip().strip('"').lower() for column in re.split("[,\t]", row[1])]
        if len(columns) > 1 and not _COLUMNS.isdisjoint(columns):
            raise NoIdListError(f"{path} begins with the header of a table, {printable(row[1], 80)}, {_EXPECTED}")


def read_split(path: str, names: str) -> IdSelection:
    """The images of a split of a Karpathy file, "val", or of several, "train,restval"; ids by the id rule of
    `roibeam.pipelines.data.datasets.karpathy`.
    """
    splits = names.split(",")
    if not set(splits) <= set(SPLITS):
        raise ValueError(
            f"--split {names!r}: choose one of {', '.join(SPLITS)}, or several of them with commas between"
        )
    ids = frozenset(image.image_id for image in read_karpathy(path) if image.split in splits)
    if not ids:
        raise ValueError(f"{path} has no image of the split {names}")
    return IdSelection(f"{path}:{names}", ids)
