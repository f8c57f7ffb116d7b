"""Whether the attributes that a detector gives are known of the object."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.common.statistics.verdict import Figure, mean_figure
from roibeam.pipelines.training.detector.average_precision import PrecisionCounter
from roibeam.pipelines.training.detector.matching import match_detections


@dataclass(frozen=True)
class AttributeAccuracy:
    """Share of the objects whose best attribute is one of their known ones. Objects of which no attribute is known, and
    ignored ones, do not count.

    Attributes:
        matched_boxes: 0..1, of the objects that a detection of their class found, at an overlap above 0.5, with the
            attribute of that detection; None when none was found. An object that was missed does not count, so read it
            beside `num_matched`.
        num_matched: how many objects that is.
        given_boxes: 0..1, with the attribute that the heads give the object's true box: does not depend on how well
            objects are found. None when there is none.
        num_given: how many objects that is: all with a known attribute.
        given_low, given_high: ends of the 95 % interval of `given_boxes` over photos; None where there is none.
        given_chance: 0..1, of always the attribute that most of these objects have; None when there is none.
    """

    matched_boxes: float | None
    num_matched: int
    given_boxes: float | None
    num_given: int
    given_low: float | None = None
    given_high: float | None = None
    given_chance: float | None = None

    @property
    def figure(self) -> Figure:
        """`given_boxes` beside chance."""
        ends = self.given_low, self.given_high
        return Figure("attribute_accuracy", self.given_boxes, *ends, self.given_chance, None, self.num_given)


class AttributeCounter:
    """Counts objects whose best attribute is a known one, photo by photo, and how many have each attribute."""

    def __init__(self) -> None:
        self._right: list[int] = []
        self._objects: list[int] = []
        self._known = Counter[int]()

    def add(self, best_ids: np.ndarray, known_ids: np.ndarray) -> None:
        """Adds one photo.

        Args:
            best_ids: (K,) the best attribute of each object.
            known_ids: (K, A) its known ones, filled with NO_ATTRIBUTE (-1).
        """
        self._objects.append(int((known_ids >= 0).any(axis=1).sum()))
        self._right.append(int((known_ids == best_ids[:, None]).any(axis=1).sum()))
        for ids in known_ids.tolist():
            self._known.update({each for each in ids if each >= 0})

    @property
    def num_right(self) -> int:
        return sum(self._right)

    @property
    def num_objects(self) -> int:
        return sum(self._objects)

    @property
    def accuracy(self) -> float | None:
        return self.num_right / self.num_objects if self.num_objects else None

    def figure(self) -> Figure:
        """The accuracy with its interval over photos, beside always the commonest attribute."""
        chance = max(self._known.values()) / self.num_objects if self._known else None
        right, objects = np.array(self._right, np.float64), np.array(self._objects)
        return mean_figure("attribute_accuracy", right, objects, Bootstrap(len(objects)), chance=chance)


def count_attribute_detections(
    counter: PrecisionCounter,
    probabilities: np.ndarray,
    boxes: np.ndarray,
    known_ids: np.ndarray,
    *,
    max_per_image: int = 400,
) -> None:
    """Adds one photo's attributes to a count of average precision whose classes are the attributes.

    As bottom-up attention judges attributes (lib/fast_rcnn/test.py::test_net_with_gt_boxes, vg_eval.py with
    eval_attributes): the heads are asked about the true boxes; every attribute of every box is a detection, without
    suppression, the best `max_per_image` of a photo are kept; an object is one to be found for each of its attributes.
    So an object of which no attribute is known makes wrong detections only, as there.

    Args:
        probabilities: (K, A) float32, of the true boxes.
        boxes: (K, 4) float32, the true boxes of objects that are not ignored.
        known_ids: (K, M) their attributes, filled with NO_ATTRIBUTE (-1).
    """
    scores = probabilities.reshape(-1)
    best = np.argsort(-scores, kind="stable")[:max_per_image]
    rows, attribute_ids = np.divmod(best, probabilities.shape[1])
    objects, columns = np.nonzero(known_ids >= 0)
    object_attributes = known_ids[objects, columns]
    nothing = np.zeros(len(objects), bool)
    found = match_detections(
        boxes[rows], attribute_ids, scores[best], boxes[objects], object_attributes, ignored=nothing, crowds=nothing
    )
    counter.add(scores[best], attribute_ids, found, object_attributes)
