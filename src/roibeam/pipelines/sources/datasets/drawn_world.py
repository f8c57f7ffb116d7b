"""The folder of a toy world, as `roibeam toyworld` leaves it, known by its toyworld.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

from roibeam.pipelines.foundation.files.remote_files import is_url

WORLD_NAME = "toyworld.json"
CONTACT_SHEET_NAME = "contact_sheet.jpg"
WORLD_FORMAT = "roibeam-toyworld"
_LEVELS = 6  # a photo lies two folders below its world; a pattern or an archive in it a little deeper
_MAX_BYTES = 2**20


def world_of(place: str) -> Path | None:
    """The toy world's folder that a file, folder or pattern lies in; None outside of one, and for URLs."""
    if is_url(place):
        return None
    path = Path(place).absolute()
    return next((folder for folder in (path, *path.parents)[:_LEVELS] if _is_world(folder)), None)


def is_contact_sheet(path: str) -> bool:
    """Whether a file is the overview that a toy world has of its pictures, and so no picture of it."""
    if not path.endswith(CONTACT_SHEET_NAME):  # of millions of files none; taking a path apart takes longer
        return False
    folder, name = os.path.split(path)
    return name == CONTACT_SHEET_NAME and _is_world(Path(folder))


def _is_world(folder: Path) -> bool:
    try:
        file = folder / WORLD_NAME
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return False
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):  # a file of this name that is none of ours
        return False
    return isinstance(found, dict) and found.get("format") == WORLD_FORMAT
