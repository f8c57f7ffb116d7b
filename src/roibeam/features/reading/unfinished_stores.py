"""Whether the stores that a command reads are all that their runs were asked for.

A plan that cannot be read is no matter of who reads a store: `verify_store` tells it.
"""

from __future__ import annotations

from collections.abc import Iterable

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.shard.planned_shards import UnfinishedRun, unfinished_run
from roibeam.features.store import FeatureStore


def unfinished_run_of(folder: OutputFolder, manifest: StoreManifest) -> UnfinishedRun | None:
    """As `unfinished_run`; None where the plan cannot be read."""
    try:
        return unfinished_run(folder, manifest)
    except (OSError, ValueError):
        return None


def unfinished_lines(stores: Iterable[FeatureStore]) -> list[str]:
    """A line for each store that a run has not finished; it is read as it is."""
    found = ((store.folder, unfinished_run_of(store.folder, store.manifest)) for store in stores)
    return [f"{folder}: {unfinished}; run the same command again" for folder, unfinished in found if unfinished]
