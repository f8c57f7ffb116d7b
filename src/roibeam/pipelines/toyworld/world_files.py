"""Files of a toy world: whole or absent; and folders of drawn data beside it: whether one can be made, or is there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


def write_text(path: Path, text: str) -> None:
    """Writes aside and renames: a file under its own name is a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(text.encode("utf-8"))
    os.replace(temporary, path)


class JsonListFile:
    """A JSON object with one long list that is written as it grows, and more members before and after it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        # Not a `with`: it lives as long as this object; without a name, it leaves nothing behind.
        self._entries: IO[bytes] = tempfile.TemporaryFile()
        self._count = 0

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.write((b",\n" if self._count else b"") + _json(entry))
        self._count += 1

    def close(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Puts the file in place."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        self._entries.seek(0)
        with open(temporary, "wb") as file:
            file.write(b"{")
            for key, value in before.items():
                file.write(_json(key) + b": " + _json(value) + b",\n")
            file.write(_json(self._name) + b": [\n")
            shutil.copyfileobj(self._entries, file)
            file.write(b"\n]")
            for key, value in after.items():
                file.write(b",\n" + _json(key) + b": " + _json(value))
            file.write(b"}\n")
        self._entries.close()
        os.replace(temporary, self._path)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii")


@dataclass(frozen=True)
class WrittenFiles:
    """Files that a run found or made.

    Attributes:
        manifest: content of the folder's own .json.
        is_new: whether this run made it.
        seconds: that the run took.
    """

    manifest: dict[str, Any]
    is_new: bool
    seconds: float


def check_beside(option: str, folder: str, world: Path, *, holds: str) -> None:
    """Checks the folder of drawn data beside a world.

    Args:
        option: that names the folder, such as "--tasks".
        folder: as it was typed.
        holds: its content, for people: "tasks".
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
    """Returns the manifest of a folder that is there; None where the folder is new or empty.

    Args:
        manifest: name of its file in the folder.
        plan: its required entries; "format" identifies the kind of folder.
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
                f"{option} {folder!r}: holds {holds} with {key} {found.get(key)}, requested {want}; name another folder"
            )
    return found
