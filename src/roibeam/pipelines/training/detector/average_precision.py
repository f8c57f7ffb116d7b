"""Average precision at an overlap of 0.5, as bottom-up attention is judged on Visual Genome.

Facts from peteanderson80/bottom-up-attention lib/datasets/vg.py and vg_eval.py: area under the precision curve after
each precision has been raised to the best one at a higher recall (not the eleven points of VOC 2007). Not as there:
detections are not moved by a pixel and rounded to a tenth of one on their way through a text file, nor their scores to
three digits; and the plain mean is over the classes that occur, while there a class without objects counts as 0. The
mean weighted by objects is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roibeam.pipelines.training.detector.matching import IGNORED


@dataclass(frozen=True, eq=False)
class AveragePrecisions:
    """
    Attributes:
        values: (C,) float64, 0..1; NaN for a class without objects.
        num_objects: (C,) int64, ignored ones not counted.
    """

    values: np.ndarray
    num_objects: np.ndarray

    @property
    def mean(self) -> float | None:
        """Over the classes that occur; None where none does."""
        occurring = self.num_objects > 0
        return float(self.values[occurring].mean()) if occurring.any() else None

    @property
    def weighted_mean(self) -> float | None:
        """Each class counted as often as it has objects; None where there is none."""
        occurring = self.num_objects > 0
        if not occurring.any():
            return None
        return float(np.average(self.values[occurring], weights=self.num_objects[occurring]))


class PrecisionCounter:
    """Collects the detections of a set of photos: 9 bytes of each are kept.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_objects = np.zeros(num_classes, np.int64)
        self._scores: list[np.ndarray] = []
        self._class_ids: list[np.ndarray] = []
        self._right: list[np.ndarray] = []

    def add(self, scores: np.ndarray, class_ids: np.ndarray, found: np.ndarray, object_class_ids: np.ndarray) -> None:
        """Adds one photo.

        Args:
            scores, class_ids: (N,) of its detections.
            found: (N,) what each of them found, of `match_detections`.
            object_class_ids: (K,) of its objects that are not ignored.
        """
        counts = found != IGNORED
        self._scores.append(scores[counts].astype(np.float32))
        self._class_ids.append(class_ids[counts].astype(np.int32))
        self._right.append(found[counts] >= 0)
        self.num_objects += np.bincount(object_class_ids, minlength=len(self.num_objects))

    def result(self) -> AveragePrecisions:
        """Of all photos so far; detections of equal score stand in the order of the photos."""
        scores = np.concatenate([np.empty(0, np.float32), *self._scores])
        class_ids = np.concatenate([np.empty(0, np.int32), *self._class_ids])
        right = np.concatenate([np.empty(0, bool), *self._right])
        order = np.lexsort((-scores, class_ids))  # by class, then by score; stable
        bounds = np.searchsorted(class_ids[order], np.arange(len(self.num_objects) + 1))
        values = np.full(len(self.num_objects), np.nan)
        for class_id in np.flatnonzero(self.num_objects):
            of_class = order[bounds[class_id] : bounds[class_id + 1]]
            values[class_id] = area_under_curve(right[of_class], int(self.num_objects[class_id]))
        return AveragePrecisions(values, self.num_objects.copy())


def area_under_curve(right: np.ndarray, num_objects: int) -> float:
    """Average precision of one class, 0..1.

    Args:
        right: (n,) bool, whether each detection found an object, best score first.
        num_objects: how many there are to be found, at least 1.
    """
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    raised = np.maximum.accumulate(precision[::-1])[::-1]
    return float(raised[right].sum() / num_objects)
