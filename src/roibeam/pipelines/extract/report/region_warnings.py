"""Warnings for a store or photo whose regions mean nothing, on pages and in the terminal.

Two detectors name things that are not there: one with random weights, and the toy detector on photos. Whether photos
are those of a toy world is known by the folder that they lie in; `extract` records it, since folders are moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from roibeam.extraction.weights.detector_folder import SHIPPED, WEIGHTS_NAME, read_detector_folder
from roibeam.features.shard.manifest import StoreManifest
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.data.datasets.photo_folders import DRAWN_WORLD, world_of

RANDOM_WEIGHTS = Banner(
    "Random weights.",
    "The detector was not trained: boxes, names and scores mean nothing. They show that the pipeline runs, no more.",
)
TOY_ON_PHOTOS = Banner(
    "The toy detector knows the drawn world only.",
    "These photos do not lie in a folder of roibeam toyworld. Unless they are copies of its pictures, boxes, names "
    "and scores mean nothing.",
)


def warning_of_store(manifest: StoreManifest) -> Banner | None:
    """Warning that the regions of a store, or of a part of a merged one, mean nothing; None where they may."""
    warnings = (warning_of_config(config, manifest.classes) for config in _parts(manifest.config))
    return next((each for each in warnings if each is not None), None)


def warning_of_config(config: Mapping[str, Any], classes: Sequence[str] | None) -> Banner | None:
    """The same of one run's configuration.

    Args:
        classes: names that the store has.
    """
    detector, source = _part(config, "detector"), _part(config, "source")
    if not detector.get("weights"):  # written or imported: the detector is unknown
        return None
    # A recorded yes holds when the photos have moved; a "no" may be from before more folders were known.
    drawn = config.get(DRAWN_WORLD) is True or has_toy_photos(source)
    return warning_of(str(detector.get("weights", "")), classes, drawn=drawn)


def warning_of(weights: str, classes: Sequence[str] | None, *, drawn: bool) -> Banner | None:
    """The same of a detector.

    Args:
        weights: of the detector, as it was named.
        classes: its names of classes.
        drawn: whether the photos are pictures of a toy world.
    """
    if weights.startswith("random:"):
        return RANDOM_WEIGHTS
    return TOY_ON_PHOTOS if not drawn and is_toy_world_detector(weights, classes) else None


def is_toy_world_detector(weights: str, classes: Sequence[str] | None) -> bool:
    """Whether a detector was trained on the toy world: the shipped one, or another with exactly its classes."""
    path = PurePath(weights)
    return (path.parent.name, path.name) == (SHIPPED["toy"].name, WEIGHTS_NAME) or (
        classes is not None and tuple(classes) == _toy_classes()
    )


def has_toy_photos(source: Mapping[str, Any]) -> bool:
    """Whether the photos of a source, as plans and manifests record it, lie in a toy world's folder."""
    place = source.get("image_root") or source.get("location")
    return isinstance(place, str) and world_of(place) is not None


@lru_cache(maxsize=1)
def _toy_classes() -> tuple[str, ...]:
    return read_detector_folder("toy").class_names


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration of a run, or those that a copied store was put together from."""
    sources = _part(config, "copy").get("sources")
    if not isinstance(sources, list) or not sources:
        yield config
        return
    common = {key: value for key, value in config.items() if key != "copy"}
    for source in sources:
        own = source.get("config") if isinstance(source, dict) else None
        yield from _parts({**common, **(own if isinstance(own, dict) else {})})


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}
