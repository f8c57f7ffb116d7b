"""The file of captions and labels that a store manifest names: is it there, and is it that one? Its format is parquet,
which this package writes and does not read; see `roibeam.pipelines.data.annotations`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from roibeam.features.folders.durable_files import open_regular_file
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, AnnotationsEntry


def checked_annotations(folder: str | os.PathLike[str], entry: AnnotationsEntry) -> Path:
    """The file's path; reads all of it.

    Raises:
        ValueError: when it is missing, no regular file, or not the one that the manifest names, in size or content.
    """
    path = Path(folder) / entry.file
    try:
        with open_regular_file(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            is_it = num_bytes == entry.bytes and hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except OSError as error:
        what = f"{path}: {error.strerror}; restore it, or run the command that wrote the store again"
        raise ValueError(what) from None
    if not is_it:
        raise ValueError(
            f"{path}: is damaged or of another run: {num_bytes:,} bytes, {STORE_MANIFEST_NAME} names a file of "
            f"{entry.bytes:,} with SHA-256 {entry.sha256[:12]}...; restore it, or run the command that wrote the store "
            f"again"
        )
    return path
