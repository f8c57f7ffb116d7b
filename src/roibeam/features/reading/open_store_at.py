"""One call for a store wherever it lies."""

from __future__ import annotations

import os
from pathlib import Path

from roibeam.features.reading.staging import StagedStore
from roibeam.features.store import FeatureStore


def open_store(
    location: str | os.PathLike[str], *, stage_to: str | os.PathLike[str] | None = None, stage_bytes: int | None = None
) -> FeatureStore:
    """Opens the store in a folder, or at a URL that is copied shard by shard as it is read.

    Args:
        location: folder with `manifest.json`, or a URL as fsspec takes it (s3://, gs://, file://, ...).
        stage_to: local folder for the shards of a store at a URL; needed there, refused for a folder.
        stage_bytes: room there; None for no limit.
    Raises:
        FileNotFoundError, OSError: naming the place that cannot be read.
        ValueError: when a URL comes without `stage_to`, a folder comes with it, or the store is damaged.
    """
    at_url = isinstance(location, str) and "://" in location
    if at_url and stage_to is None:
        raise ValueError(f"{location}: a store at a URL needs stage_to, a local folder for its shards")
    if not at_url and (stage_to is not None or stage_bytes is not None):
        raise ValueError(f"{location}: stage_to and stage_bytes are for a store at a URL; this is a folder")
    if at_url:
        assert stage_to is not None
        return StagedStore(str(location), stage_to, max_bytes=stage_bytes)
    return FeatureStore(Path(location))
