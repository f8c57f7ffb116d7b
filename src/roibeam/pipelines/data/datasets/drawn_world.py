"""The folders with pictures that `roibeam toyworld` draws, known by the file that says what is in them: a world's
toyworld.json, the tasks.json of its tasks, the web.json of its web; of pictures that were fetched from that web the
collection.json, or download.json, that says so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from roibeam.pipelines.common.files.archives import parse_location
from roibeam.pipelines.common.files.remote_files import is_url

WORLD_NAME, WORLD_FORMAT = "toyworld.json", "roibeam-toyworld"
TASKS_NAME, TASKS_FORMAT = "tasks.json", "roibeam-toyworld-tasks"
WEB_NAME, WEB_FORMAT = "web.json", "roibeam-toyworld-web"
COLLECTION_NAME, DOWNLOAD_NAME = "collection.json", "download.json"
CONTACT_SHEET_NAME = "contact_sheet.jpg"
DRAWN_WORLD = "drawn_world"  # in these two, and in a store's configuration: whether all photos are of a toy world
_LEVELS = 6  # a photo lies up to four folders below such a file; a pattern or an archive a little deeper
_MAX_BYTES = 2**20


def world_of(place: str) -> Path | None:
    """The folder of a toy world, of its tasks or web, or of what was fetched from that web, that a file, folder or
    pattern lies in; None outside of one, and for URLs."""
    if is_url(place):
        return None
    path = Path(place).absolute()
    return next((folder for folder in (path, *path.parents)[:_LEVELS] if _is_drawn(folder)), None)


def are_drawn(locations: Iterable[str]) -> bool:
    """Whether all photos lie in such folders; False for none. Each folder is looked at once.

    Args:
        locations: of photos: absolute paths, URLs, or members of archives. What has no usable name is left out.
    """
    places = ((location, parse_location(location)) for location in locations)
    files = (location if place is None else place.archive for location, place in places)
    folders = (os.path.dirname(file) for file in files if os.path.isabs(file) or is_url(file))
    known, is_any = cache(world_of), False
    for folder in folders:
        if known(folder) is None:
            return False
        is_any = True
    return is_any


def is_contact_sheet(path: str) -> bool:
    """Whether a file is the overview that a toy world has of its pictures, and so no picture of it."""
    if not path.endswith(CONTACT_SHEET_NAME):  # of millions of files none; taking a path apart takes longer
        return False
    folder, name = os.path.split(path)
    return name == CONTACT_SHEET_NAME and _read(Path(folder, WORLD_NAME)).get("format") == WORLD_FORMAT


def _is_drawn(folder: Path) -> bool:
    written = {WORLD_NAME: WORLD_FORMAT, TASKS_NAME: TASKS_FORMAT, WEB_NAME: WEB_FORMAT}
    if any(_read(folder / name).get("format") == wanted for name, wanted in written.items()):
        return True
    return any(_read(folder / name).get(DRAWN_WORLD) is True for name in (COLLECTION_NAME, DOWNLOAD_NAME))


def _read(file: Path) -> dict[str, object]:
    """An object of JSON; empty for a file that is not there, or is none of ours under this name."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
