"""A detector of microseconds for tests of what surrounds one, and photos of one grey for it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.regions import Regions


class FakeDetector:
    """The given boxes, else two regions, whose features are the mean grey level of the photo, or `feature`.

    Notes the greys of each call; `answer` is called with them before each answer.
    """

    feature_dim, num_classes, num_attributes = 4, 3, 2

    def __init__(
        self, preferred_batch: int = 1, answer: Callable[[list[int]], object] = len, feature: float | None = None
    ) -> None:
        self.preferred_batch, self.answer, self._feature = preferred_batch, answer, feature
        self.calls: list[list[int]] = []

    def describe(self) -> dict[str, Any]:
        return {"fake": True}

    def __call__(self, images: Sequence[np.ndarray], /, *, boxes: Any = None, whole_image: bool = False) -> Any:
        self.calls.append([int(image[0, 0, 0]) for image in images])
        self.answer(self.calls[-1])
        given = boxes or [None] * len(images)
        found = [self._regions(image, rows) for image, rows in zip(images, given, strict=True)]
        if whole_image:
            found = [replace(regions, image_feature=np.array([1, 2, 3, 4], np.float32)) for regions in found]
        return found

    def _regions(self, image: np.ndarray, boxes: np.ndarray | None) -> Regions:
        height, width = image.shape[:2]
        proposed = Regions(
            boxes=np.array([[0, 0, width, height], [0, 0, 1, 1]], np.float32),
            features=np.full((2, 4), image.mean() if self._feature is None else self._feature, np.float32),
            class_ids=np.array([0, 2]),
            class_scores=np.array([0.5, 0.25], np.float32),
            attribute_ids=np.array([1, 0]),
            attribute_scores=np.array([0.75, 0.5], np.float32),
            class_probabilities=np.array([[0.5, 0.1, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32),
            proposal_ids=np.array([0, 1]),
        )
        if boxes is None:
            return proposed
        first = {name: rows[:1].repeat(len(boxes), 0) for name, rows in vars(proposed).items() if rows is not None}
        return Regions(**first | {"boxes": boxes})


def when(grey: int, do: Callable[[], object]) -> Callable[[list[int]], object]:
    """An `answer` that does this before calls with a photo of this grey."""
    return lambda greys: do() if grey in greys else None


def raises(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def write_photo(folder: Path, name: str, *, grey: int = 100, width: int = 8) -> ImageRef:
    path = folder / f"{name}.png"
    cv2.imwrite(str(path), np.full((6, width, 3), grey, np.uint8))
    return ImageRef(name, str(path))
