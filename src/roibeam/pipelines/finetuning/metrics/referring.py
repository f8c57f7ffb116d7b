"""Referring expressions: accuracy of predicted boxes by overlap with the annotated box, and their result files.

Each public code has its own overlap and threshold (`BOX_RULES`); "refer" is that of the data set's authors (lichengunc/
refer pyEvalDemo.ipynb), which MAttNet shares. Published codes choose among detections in the order of their det_id; of
equal scores the first wins.

A result file has a record for each sentence: {"sent_id": 7, "box": [x, y, width, height]}, or, as jackroos/VL-BERT
refcoco/function/test.py, {"ref_id": 3, "box": [x1, y1, x2, y2]} once for each sentence of a reference. A null box is an
image without a detection: a miss, which is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.data.datasets.image_boxes import excerpt
from roibeam.pipelines.data.datasets.refer import ReferringSentence
from roibeam.pipelines.data.datasets.rows import is_number, read_json_list
from roibeam.pipelines.finetuning.metrics.measure import Measure, rows_by_id

HALF = 0.5
Box = Sequence[float]  # x, y, width, height in pixels


def pixel_iou(first: Box, second: Box) -> float:
    """IoU of boxes whose last pixel is x + width - 1. Boxes that share one row or column of pixels have 0.

    Source: lichengunc/refer, lichengunc/MAttNet and ChenRocks/UNITER, alike. Raises ValueError for two boxes without
    area.
    """
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    left, top = max(x1, x2), max(y1, y2)
    right, bottom = min(x1 + w1 - 1, x2 + w2 - 1), min(y1 + h1 - 1, y2 + h2 - 1)
    shared = (right - left + 1) * (bottom - top + 1) if left < right and top < bottom else 0
    union = w1 * h1 + w2 * h2 - shared
    if union == 0:
        raise ValueError("two boxes without area have no overlap that can be measured")
    return float(shared / union)


def corner_iou(first: Box, second: Box) -> float:
    """IoU of boxes whose last pixel is x + width, in float64: a little too high, and over 0 for boxes that touch.

    Source: jackroos/VL-BERT, evaluation.
    """
    return _inclusive_iou(first, second, np.float64)


def corner_iou_float32(first: Box, second: Box) -> float:
    """`corner_iou` in float32. Source: jackroos/VL-BERT's training label, jiasenlu/vilbert_beta."""
    return _inclusive_iou(first, second, np.float32)


@dataclass(frozen=True)
class BoxRule:
    """Attributes:
    iou: of a predicted box and the object's.
    is_half_a_hit: whether an overlap of exactly one half hits.
    words: for the card.
    """

    iou: Callable[[Box, Box], float]
    is_half_a_hit: bool
    words: str

    def hits(self, predicted: Box, right: Box) -> bool:
        """Whether the overlap hits; two boxes without area are a miss."""
        try:
            overlap = self.iou(predicted, right)
        except ValueError:
            return False
        return overlap >= HALF if self.is_half_a_hit else overlap > HALF


BOX_RULES: Mapping[str, BoxRule] = MappingProxyType(
    {
        "refer": BoxRule(pixel_iou, True, "IoU of pixels >= 0.5 (refer, MAttNet)"),
        "uniter": BoxRule(pixel_iou, False, "IoU of pixels > 0.5 (UNITER)"),
        "vl-bert": BoxRule(corner_iou, True, "IoU with one pixel too many >= 0.5 (VL-BERT, evaluation)"),
        "vl-bert-label": BoxRule(
            corner_iou_float32, False, "IoU with one pixel too many > 0.5, float32 (VL-BERT, training label)"
        ),
        "vilbert": BoxRule(corner_iou_float32, False, "IoU with one pixel too many > 0.5, float32 (ViLBERT)"),
    }
)


def _inclusive_iou(first: Box, second: Box, kind: type[np.floating]) -> float:
    """IoU with one pixel too many: corners are added in float64, all else is computed in `kind`."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = first, second
    start_1, start_2 = np.array([x1, y1], dtype=kind), np.array([x2, y2], dtype=kind)
    end_1, end_2 = np.array([x1 + w1, y1 + h1], dtype=kind), np.array([x2 + w2, y2 + h2], dtype=kind)
    one, zero = kind(1), kind(0)
    sides = np.maximum(np.minimum(end_1, end_2) - np.maximum(start_1, start_2) + one, zero)
    area_1, area_2 = np.prod(end_1 - start_1 + one), np.prod(end_2 - start_2 + one)
    shared = np.prod(sides)
    return float(shared / (area_1 + area_2 - shared))


PredictedBox = tuple[float, float, float, float]
BY_SENTENCE, BY_REFERENCE = "sent_id", "ref_id"
DETECTED_BOUND = "upper bound of MAttNet's boxes"


class PredictedBoxes(NamedTuple):
    """Attributes:
    key: `BY_SENTENCE` or `BY_REFERENCE`, what the records name.
    records: (id, box as x, y, width, height or None), in the order of the file.
    """

    key: str
    records: list[tuple[int, PredictedBox | None]]


class ChosenBox(NamedTuple):
    """The box x, y, width, height that is chosen for a sentence; None without candidates."""

    sent_id: int
    ref_id: int
    box: PredictedBox | None


def result_entry(chosen: ChosenBox, key: str = BY_SENTENCE) -> dict[str, Any]:
    """The record of a sentence, in the form that `key` names."""
    box = chosen.box
    if key == BY_SENTENCE:
        return {BY_SENTENCE: chosen.sent_id, "box": None if box is None else list(box)}
    return {
        BY_REFERENCE: chosen.ref_id,
        "box": None if box is None else [box[0], box[1], box[0] + box[2], box[1] + box[3]],
    }


def read_referring_results(path: str) -> PredictedBoxes:
    """The records of a file; all name sentences, or all name references. Raises ValueError naming an entry of another
    form."""
    key, records = "", list[tuple[int, PredictedBox | None]]()
    for index, entry in enumerate(read_json_list(path, expected="a json list of predicted boxes")):
        where = f"{path!r}, entry {index}"
        fields = entry if isinstance(entry, dict) else {}
        found = BY_SENTENCE if BY_SENTENCE in fields else BY_REFERENCE
        key = key or found
        number, box = fields.get(found), fields.get("box")
        if found != key or type(number) is not int:
            raise ValueError(f"{where}: expected a whole number as {key}, as in the first entry, got {excerpt(entry)}")
        if box is None and "box" in fields:
            records.append((number, None))
            continue
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            raise ValueError(f"{where}: box must be a list of 4 numbers, got {excerpt(box)}")
        first, second, third, fourth = map(float, box)
        if key == BY_REFERENCE:
            third, fourth = third - first, fourth - second
        if third < 0 or fourth < 0:
            raise ValueError(
                f"{where}: box {excerpt(box)} ends before it starts; with sent_id a box is x, y, width, height"
            )
        records.append((number, (first, second, third, fourth)))
    return PredictedBoxes(key or BY_SENTENCE, records)


def referring_measures(
    sentences: Sequence[ReferringSentence], boxes: PredictedBoxes, source: str, rule: BoxRule
) -> dict[str, Measure]:
    """ "accuracy" over all sentences of one split, by name, in the order of the sentences. Raises ValueError for
    sentences without a box, with several, or that are not of the split."""
    places: list[Any] = [each.sent_id for each in sentences]
    records: list[Any] = list(boxes.records)
    if boxes.key != BY_SENTENCE:
        # A reference comes once for each of its sentences; all of them mean the same box, so that their order is free.
        seen, given = Counter[int](), Counter[int]()
        places = [(each.ref_id, _next(seen, each.ref_id)) for each in sentences]
        records = [((number, _next(given, number)), box) for number, box in boxes.records]
    box_at = rows_by_id(source, records, places, unit="sentence")
    chosen = [box_at[place] for place in places]
    hits = [float(box is not None and rule.hits(box, each.box)) for box, each in zip(chosen, sentences, strict=True)]
    return {"accuracy": Measure("accuracy", hits, [str(each.image_id) for each in sentences])}


def detected_bound(
    sentences: Sequence[ReferringSentence], detections: Iterable[tuple[int, PredictedBox]], rule: BoxRule
) -> Measure:
    """The share of sentences that any detection of their photo hits: what a choice among these can reach.

    Args:
        detections: number of the photo, box as x, y, width, height.
    """
    boxes_of = defaultdict[int, list[PredictedBox]](list)
    for number, box in detections:
        boxes_of[number].append(box)
    hits = dict[tuple[int, PredictedBox], float]()  # sentences of one object share it
    for each in sentences:
        if (each.image_id, each.box) not in hits:
            found = any(rule.hits(box, each.box) for box in boxes_of.get(each.image_id, ()))
            hits[each.image_id, each.box] = float(found)
    values = [hits[each.image_id, each.box] for each in sentences]
    return Measure(DETECTED_BOUND, values, [str(each.image_id) for each in sentences])


def _next(counts: Counter[int], number: int) -> int:
    counts[number] += 1
    return counts[number]
