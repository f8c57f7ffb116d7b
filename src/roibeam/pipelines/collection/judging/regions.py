"""The regions of pictures that are judged: as a store has them, or as a detector finds them now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.image_finder import ImageFinder
from roibeam.pipelines.data.vocabulary import Vocabulary


class Regions(Protocol):
    """Attributes:
    names: what the detector calls its classes and attributes.
    """

    names: Vocabulary

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        """One for each picture in order; None for a picture without."""


class StoredRegions:
    """Of a store whose images are named by path, by the rules of `ImageFinder`.

    Raises:
        ValueError: for a store that does not tell the names of its classes.
    """

    def __init__(self, store: FeatureStore, *, named: str) -> None:
        classes, attributes = store.vocabulary["classes"], store.vocabulary["attributes"]
        if not classes:
            raise ValueError(f"{named}: this store does not tell what its classes are called; extract it with --vocab")
        self.names = Vocabulary(tuple(classes), tuple(attributes or ()))
        self._store, self._finder = store, ImageFinder(store.ids())

    def find(self, name: str) -> str | None:
        return self._finder.find(name)

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        found = [self._finder.find(path) for path in paths]
        return [None if image_id is None else self._store.get(image_id) for image_id in found]


class FoundRegions:
    """By a detector that is built at the first picture, in exact mode: a picture's regions do not depend on others.

    Args:
        detector: "toy", or a folder of `roibeam detector train`.
    Raises:
        ValueError: for a detector that is not known, or has no names.
    """

    def __init__(self, detector: str, *, device: str = "auto", threads: int | None = None) -> None:
        from roibeam.pipelines.extract.one_photo import requested_parts
        from roibeam.pipelines.extract.request import RequestedDetector

        self._asked = RequestedDetector(detector=detector, device=device, threads=threads)
        self._chosen, self._parts, self.names = requested_parts(self._asked)
        if not self.names.classes:
            raise ValueError(f"--detector {detector!r} does not tell what its classes are called")
        self._built: Any = None

    def records(self, paths: Sequence[str]) -> list[RegionRecord | None]:
        from roibeam.extraction.engine.region_iterator import extract_regions
        from roibeam.extraction.photos.image_ref import ImageRef

        if self._built is None:
            self._built = self._build()
        refs = [ImageRef(f"{number}-{Path(path).stem}"[:200], path) for number, path in enumerate(paths)]
        outcomes = list(extract_regions(refs, self._built))
        return [outcome if isinstance(outcome, RegionRecord) else None for outcome in outcomes]

    def _build(self) -> Any:
        from roibeam.extraction.weights.loading import build_detector
        from roibeam.pipelines.common.device_choice import choose_device

        device = choose_device(self._asked.device, threads=self._asked.threads)
        return build_detector(
            self._parts["detector"], weights=self._chosen.weights, selection=self._parts["selection"],
            conventions=self._parts["conventions"], mode=self._asked.mode, device=device.name,
        )  # fmt: skip
