"""The folder that a store is written to: on a local disk, or objects at a URL."""

from __future__ import annotations

import os
from pathlib import Path

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import LocalFolder


def is_at_url(store: str | os.PathLike[str]) -> bool:
    """Whether a folder's name is a URL."""
    return isinstance(store, str) and "://" in store


def output_folder(store: str | os.PathLike[str] | OutputFolder, scratch: str | None = None) -> OutputFolder:
    """The folder at a path, or at a URL with `://` that fsspec knows; an output folder is returned as it is.

    Args:
        scratch: folder of this machine in which files of a URL lie while they are read or written; None for the
            machine's temporary folder.
    """
    if isinstance(store, str) and is_at_url(store):
        # Here, not above: it needs fsspec, which reading a local store can do without.
        from roibeam.features.folders.object_folder import ObjectFolder

        return ObjectFolder(store, scratch_parent=scratch)
    return LocalFolder(Path(store)) if isinstance(store, str | os.PathLike) else store
