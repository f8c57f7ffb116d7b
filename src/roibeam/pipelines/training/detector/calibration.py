"""Whether the class probabilities of the regions are what they claim to be (Guo et al., arXiv:1706.04599).

Later losses train on these distributions, so a 0.7 in them should be right seven times in ten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roibeam.pipelines.data.datasets.labelled_image import LabelledImage
from roibeam.pipelines.training.detector.matching import AT_LEAST_HALF, IGNORED, shown_objects

NUM_BINS = 15  # as in section 4 of the paper


@dataclass(frozen=True)
class CalibrationBin:
    """Regions whose confidence is above `lower` and at most `upper`; the means are None where there is none."""

    lower: float
    upper: float
    num_regions: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Of the class distribution (background included) of the regions that a store would hold.

    Attributes:
        num_regions: regions that count.
        num_background: those of them that show no object.
        accuracy: share of them whose most probable class is right; None, as the next two, without a region.
        expected_error: expected calibration error, 0..1: the distance of confidence from accuracy in a bin, averaged
            over the bins by their regions.
        negative_log_likelihood: mean of -ln of the probability of what the region shows, in nats.
        bins: of equal width, ascending.
    """

    num_regions: int
    num_background: int
    accuracy: float | None
    expected_error: float | None
    negative_log_likelihood: float | None
    bins: tuple[CalibrationBin, ...]


class CalibrationCounter:
    """Sums over regions; its size does not depend on their number."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BINS, np.int64)
        self._confidence = np.zeros(NUM_BINS)
        self._right = np.zeros(NUM_BINS, np.int64)
        self._log_likelihood = 0.0
        self._num_background = 0

    def add(self, image: LabelledImage, boxes: np.ndarray, class_probabilities: np.ndarray) -> None:
        """Adds one photo's regions.

        What a region shows is the class of the object that it overlaps most, if by 0.5 or more, else background. A
        region that shows an ignored object or lies in a crowd is left out: nobody knows what it should say.

        Args:
            boxes: (K, 4) float32, photo pixels, x2 - x1 wide.
            class_probabilities: (K, C + 1) float32, foreground first, background last.
        """
        shown = shown_objects(
            boxes, image.boxes, image.ignored, image.crowds, above=AT_LEAST_HALF, plus_one_sides=False
        )
        counts = shown != IGNORED
        shown, probabilities = shown[counts], class_probabilities[counts].astype(np.float64)
        background = probabilities.shape[1] - 1
        truth = np.full(len(shown), background)
        truth[shown >= 0] = image.class_ids[shown[shown >= 0]]
        confidence = probabilities.max(axis=1)
        right = probabilities.argmax(axis=1) == truth
        bins = np.clip(np.ceil(confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        self._counts += np.bincount(bins, minlength=NUM_BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=NUM_BINS)
        self._right += np.bincount(bins[right], minlength=NUM_BINS)
        # A probability too small for float32 counts as its smallest number (1e-38, so 87 nats), not as infinity.
        of_truth = np.maximum(probabilities[np.arange(len(truth)), truth], np.finfo(np.float32).tiny)
        self._log_likelihood += float(np.log(of_truth).sum())
        self._num_background += int((truth == background).sum())

    def result(self) -> Calibration:
        total = int(self._counts.sum())
        bins = []
        for index, (count, confidence, right) in enumerate(
            zip(self._counts.tolist(), self._confidence.tolist(), self._right.tolist(), strict=True)
        ):
            edges = index / NUM_BINS, (index + 1) / NUM_BINS
            bins.append(
                CalibrationBin(*edges, count, *((confidence / count, right / count) if count else (None, None)))
            )
        if not total:
            return Calibration(0, 0, None, None, None, tuple(bins))
        return Calibration(
            num_regions=total,
            num_background=self._num_background,
            accuracy=float(self._right.sum() / total),
            expected_error=float(np.abs(self._confidence - self._right).sum() / total),
            negative_log_likelihood=-self._log_likelihood / total,
            bins=tuple(bins),
        )
