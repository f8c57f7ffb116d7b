"""Arrays that tests give to `StoreWriter`, and what they do with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.writing.store_writer import StoreWriter

SPACE: dict[str, Any] = {"feature_space": "my-detector"}


def arrays(seed: int = 0, num_regions: int = 3, width: int = 8) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    corners = draw.random((num_regions, 2)) * 100
    boxes = np.concatenate([corners, corners + 50], axis=1)
    return {"height": 480, "width": 640, "boxes": boxes, "features": draw.random((num_regions, width), np.float32)}


def labels(ids: list[int]) -> dict[str, Any]:
    return {"class_ids": ids, "class_scores": np.full(len(ids), 0.5)}


def written(folder: Path, images: dict[str, dict[str, Any]], **settings: Any) -> StoreManifest:
    with StoreWriter(folder, **SPACE | settings) as writer:
        for image_id, given in images.items():
            writer.write(image_id, **given)
    assert writer.manifest is not None
    return writer.manifest


def error_of(folder: Path, *images: dict[str, Any] | RegionRecord, **settings: Any) -> str:
    """What is said, in one line, of the last of these images."""
    with StoreWriter(folder, **SPACE | settings) as writer:
        *good, bad = images
        for number, given in enumerate(good):
            _write(writer, number, given)
        with pytest.raises(ValueError) as said:
            _write(writer, len(good), bad)
        assert len(writer) == len(good)
    text = str(said.value)
    assert "\n" not in text
    return text


def _write(writer: StoreWriter, number: int, given: dict[str, Any] | RegionRecord) -> None:
    if isinstance(given, RegionRecord):
        writer.write(given)
    else:
        writer.write(f"i{number}", **given)


class Stop(Exception):
    pass


def stopped(folder: Path, images: dict[str, dict[str, Any]], **settings: Any) -> None:
    with pytest.raises(Stop), StoreWriter(folder, **SPACE | settings) as writer:
        for image_id, given in images.items():
            writer.write(image_id, **given)
        raise Stop
