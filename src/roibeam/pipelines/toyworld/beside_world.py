"""A folder written beside a toy world, of what was drawn: whether it can be there, and what is there already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WrittenFiles:
    """What a run found there or made.

    Attributes:
        manifest: content of the folder's own .json.
        is_new: whether this run made it.
        seconds: that the run took.
    """

    manifest: dict[str, Any]
    is_new: bool
    seconds: float


def check_beside(option: str, folder: str, world: Path, *, holds: str) -> None:
    """
    Args:
        option: that names the folder, such as "--tasks".
        folder: as it was typed.
        holds: what is written there, for people: "tasks".
    Raises:
        ValueError: for a URL, a file, the world itself, and what lies in it or around it.
    """
    if "://" in folder:
        raise ValueError(f"{option} {folder!r} is a URL; name a folder on a disk, and copy the {holds} from there")
    place, around = Path(folder).resolve(), world.resolve()
    if around in (place, *place.parents) or place in around.parents:
        raise ValueError(
            f"{option} {folder!r} and the world {str(around)!r} lie in one another; name a folder beside the world"
        )
    if place.exists() and not place.is_dir():
        raise ValueError(f"{option} {folder!r} is a file; name a folder")


def found_beside(
    option: str, folder: str, manifest: str, plan: Mapping[str, Any], *, holds: str
) -> dict[str, Any] | None:
    """The manifest of a folder that is there; None where the folder is new or empty.

    Args:
        manifest: name of its file in the folder.
        plan: what it must have; "format" tells whose it is.
    Raises:
        ValueError: for a folder of other things, or of another plan.
    """
    place = Path(folder)
    if not place.exists() or not any(place.iterdir()):
        return None
    try:
        found = json.loads((place / manifest).read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != plan["format"]:
        raise ValueError(f"{option} {folder!r}: is not empty and holds no {holds} of a toy world; name a new folder")
    for key, want in plan.items():
        if found.get(key) != want:
            raise ValueError(
                f"{option} {folder!r}: holds {holds} with {key} {found.get(key)}, asked for {want}; name another folder"
            )
    return found
