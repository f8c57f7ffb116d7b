"""What noise decides in the original tool's selection: bounds of a region's best class score, however ties are broken.

Proposals that fall on the same cells of the map have the same scores up to the last digits, and in each class NMS keeps
one of them: which one, and with it what else is suppressed, differs between two correct programs.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ScoreBounds:
    """Best class score after NMS inside each class, (R,) each; equal where no tie matters."""

    low: np.ndarray
    high: np.ndarray

    def distance(self, scores: np.ndarray | float, rows: np.ndarray) -> np.ndarray:
        """(n,) how far a score of each of the regions `rows` is outside its bounds."""
        return np.asarray(np.maximum(np.maximum(self.low[rows] - scores, scores - self.high[rows]), 0.0))


def best_score_bounds(boxes: np.ndarray, scores: np.ndarray, *, iou: float, noise: float, floor: float) -> ScoreBounds:
    """NMS with three answers: kept, suppressed, or one of both.

    Args:
        boxes: (R, 4), x1 y1 x2 y2, sides counted as x2 - x1 + 1.
        scores: (R, C), probabilities.
        iou: threshold above which the lower-scored box is suppressed.
        noise: relative difference of scores, and difference of overlaps, below which the order is open.
        floor: scores below it are left out, so results below it are bounded by 0 and it.
    """
    overlap = _overlaps(boxes.astype(np.float64))
    np.fill_diagonal(overlap, 0.0)
    surely_overlaps, may_overlap = overlap > iou + noise, overlap > iou - noise
    low, high = np.zeros(len(boxes)), np.full(len(boxes), floor)
    for class_scores in scores.T.astype(np.float64):
        ids = np.flatnonzero(class_scores >= floor)
        kept = np.zeros(len(boxes), bool)  # for sure
        open_ = class_scores >= floor  # not suppressed for sure
        for row in ids[np.argsort(-class_scores[ids], kind="stable")]:
            score = class_scores[row]
            better = class_scores > score * (1 + noise)
            if (surely_overlaps[row] & better & kept).any():
                open_[row] = False
                continue
            rivals = class_scores >= score * (1 - noise)
            kept[row] = not (may_overlap[row] & rivals & open_).any()
        low = np.maximum(low, np.where(kept, class_scores, 0.0))
        high = np.maximum(high, np.where(open_, class_scores, 0.0))
    return ScoreBounds(low, high)


def _overlaps(boxes: np.ndarray) -> np.ndarray:
    """(R, R) intersection over union."""
    ends = boxes[:, 2:] + 1
    sides = ends - boxes[:, :2]
    area = sides.prod(axis=1)
    shared = np.minimum(ends[:, None], ends[None]) - np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    intersection = np.maximum(shared, 0.0).prod(axis=2)
    return np.asarray(intersection / (area[:, None] + area[None] - intersection))
