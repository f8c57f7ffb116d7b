"""What `plan.json` says of a store's shards: whether a run of `roibeam extract` that adds images has not finished.

`pipelines/data/shard_plan.py` writes the plan and reads all of it. Who looks at a store needs the numbers alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from roibeam.features.counted import counted
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.shard.manifest import StoreManifest

PLAN_NAME = "plan.json"
PLAN_FORMAT = "roibeam-plan"


@dataclass(frozen=True)
class UnfinishedRun:
    """A plan of which the store manifest does not list all shards; `str()` of it is what to tell."""

    planned_shards: int
    missing_shards: int
    planned_images: int
    missing_images: int

    def __str__(self) -> str:
        of_images = f"{self.missing_images:,} of {counted(self.planned_images, 'image')}"
        return (
            f"a run that adds images has not finished: {self.missing_shards:,} of "
            f"{counted(self.planned_shards, 'planned shard')} ({of_images}) are missing"
        )


def unfinished_run(folder: OutputFolder, manifest: StoreManifest) -> UnfinishedRun | None:
    """The run of the store's plan that has not finished; None for a store that is complete, or has no plan.

    Args:
        manifest: of the store in `folder`.
    Raises:
        ValueError: naming plan.json, when it is damaged or not one of ours.
        OSError: when it cannot be read.
    """
    if manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX) or "copy" in manifest.config:
        return None
    try:
        planned = _planned_images(folder.read_bytes(PLAN_NAME))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder.where(PLAN_NAME)}: is damaged or no plan of ours ({error}); restore it") from None
    missing = planned.keys() - {entry.shard for entry in manifest.shards}
    if not missing:
        return None
    images = sum(planned[number] for number in missing)
    return UnfinishedRun(len(planned), len(missing), sum(planned.values()), images)


def _planned_images(data: bytes) -> dict[int, int]:
    """Images of each planned shard by its number."""
    content = json.loads(data)
    if content["format"] != PLAN_FORMAT:
        raise ValueError(f"format {content['format']!r}")
    return {int(shard["number"]): int(shard["num_images"]) for shard in content["shards"]}
