"""Where stores and feature files lie: a path of this machine, or a URL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from roibeam.features.folders.folder_choice import is_at_url, output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.foundation.files.named_files import FOLDER, NamedFiles

Place = str | Path


def folder_at(place: Place, scratch: str | None = None) -> OutputFolder:
    """The folder of a store, to be read or written; `scratch` as of `output_folder`."""
    return output_folder(place if is_at_url(place) else Path(place), scratch)


def resolved(place: Place) -> str:
    """The same text for the same place."""
    return str(place).rstrip("/") if is_at_url(place) else str(Path(place).resolve())


def check_scratch(scratch: str | None, places: Iterable[Place | None]) -> None:
    """Raises ValueError for a scratch folder that is not there, or that no place of a command needs."""
    if scratch is None:
        return
    if not any(place is not None and is_at_url(place) for place in places):
        raise ValueError("--scratch is for files on their way from or to a URL, and none is named; leave it out")
    named = NamedFiles()
    named.need("--scratch", scratch, FOLDER)
    named.check()
