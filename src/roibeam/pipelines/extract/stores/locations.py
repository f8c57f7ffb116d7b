"""Locations of stores and feature files: a path of this machine, or a URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from roibeam.features.folders.local_folder import is_at_url, output_folder
from roibeam.features.reading.temporary_copy import local_store
from roibeam.features.record_pairing import RecordSource
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles, borrowed_files

StoreLocation = str | Path


def resolved(place: StoreLocation) -> str:
    """The same text for the same place."""
    return str(place).rstrip("/") if is_at_url(place) else str(Path(place).resolve())


@contextmanager
def opened_source(place: StoreLocation, scratch: str | None = None) -> Iterator[RecordSource]:
    """A store or feature file, to be compared: where it lies, or as `local_store` and `borrowed_files` copy it."""
    if not is_at_url(place):
        with RecordSource(place) as source:
            yield source
    elif output_folder(place).num_bytes(STORE_MANIFEST_NAME) is not None:
        with local_store(place, scratch=scratch) as store, RecordSource(place, store=store) as source:
            yield source
    else:
        with borrowed_files(place, scratch=scratch) as files, RecordSource(files.path, name=files.location) as source:
            yield source


def check_scratch(scratch: str | None, places: Iterable[StoreLocation | None]) -> None:
    """Raises ValueError for a scratch folder that is not there, or that no place of a command needs."""
    if scratch is None:
        return
    if not any(place is not None and is_at_url(place) for place in places):
        raise ValueError("--scratch is for files on their way from or to a URL, and none is named; leave it out")
    named = NamedFiles()
    named.need("--scratch", scratch, FOLDER)
    named.check()
