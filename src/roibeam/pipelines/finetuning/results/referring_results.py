"""Predicted boxes of referring expressions: a json list with a record for each sentence.

Two forms are read: {"sent_id": 7, "box": [x, y, width, height]}, and that of jackroos/VL-BERT refcoco/function/test.py:
{"ref_id": 3, "box": [x1, y1, x2, y2]}, in which a reference comes once for each of its sentences. A box that is null
stands for an image in which nothing was found: a miss, which stays in the denominator.

A third form, that of ViLBERT's releases, is only written (`slot_entry`): it names slots and images, so nobody can score
it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.pipelines.data.datasets.image_boxes import shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_list
from roibeam.pipelines.data.datasets.refer import ReferringSentence
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.referring import BoxRule
from roibeam.pipelines.finetuning.metrics.vcr import best_choice
from roibeam.pipelines.finetuning.results.row_ids import check_row_ids

Box = tuple[float, float, float, float]
BY_SENTENCE, BY_REFERENCE = "sent_id", "ref_id"
DETECTED_BOUND = "upper bound of MAttNet's boxes"


class PredictedBoxes(NamedTuple):
    """Attributes:
    key: `BY_SENTENCE` or `BY_REFERENCE`, what the records name.
    records: (id, box as x, y, width, height or None), in the order of the file.
    """

    key: str
    records: list[tuple[int, Box | None]]


class ChosenBox(NamedTuple):
    """The box x, y, width, height that is chosen for a sentence; None where there was nothing to choose."""

    sent_id: int
    ref_id: int
    box: Box | None


def result_entry(chosen: ChosenBox, key: str = BY_SENTENCE) -> dict[str, Any]:
    """The record of a sentence, in the form that `key` names."""
    box = chosen.box
    if key == BY_SENTENCE:
        return {BY_SENTENCE: chosen.sent_id, "box": None if box is None else list(box)}
    return {
        BY_REFERENCE: chosen.ref_id,
        "box": None if box is None else [box[0], box[1], box[0] + box[2], box[1] + box[3]],
    }


def slot_entry(image_id: int, scores: Sequence[float], overlaps: Sequence[float]) -> dict[str, Any]:
    """The record of a sentence as ViLBERT's releases write it (task_utils.py EvaluatingModel).

    Args:
        scores, overlaps: of the candidates, with the whole image first; overlaps are those with the right box.
    """
    slot = best_choice(scores)
    return {"id": image_id, "target": slot, "IOU": overlaps[slot]}


def write_referring_results(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """A json list of the records, whole or not at all."""
    write_bytes_atomically(path, json.dumps(list(entries), allow_nan=False).encode("utf-8"))


def read_referring_results(path: str) -> PredictedBoxes:
    """The records of a file; all name sentences, or all name references.

    Raises:
        ValueError: naming the entry that is not as above.
    """
    entries = read_json_list(path, expected="a json list of predicted boxes")
    return predicted_boxes(entries, repr(path))


def predicted_boxes(entries: Iterable[Any], source: str) -> PredictedBoxes:
    """See `read_referring_results`."""
    key, records = "", list[tuple[int, Box | None]]()
    for index, entry in enumerate(entries):
        where = f"{source}, entry {index}"
        fields = entry if isinstance(entry, dict) else {}
        found = BY_SENTENCE if BY_SENTENCE in fields else BY_REFERENCE
        key = key or found
        number, box = fields.get(found), fields.get("box")
        if found != key or type(number) is not int:
            raise ValueError(f"{where}: expected a whole number as {key}, as in the first entry, got {shown(entry)}")
        if box is None and "box" in fields:
            records.append((number, None))
            continue
        if not isinstance(box, list) or len(box) != 4 or not all(_is_number(each) for each in box):
            raise ValueError(f"{where}: box must be a list of 4 numbers, got {shown(box)}")
        first, second, third, fourth = map(float, box)
        if key == BY_REFERENCE:
            third, fourth = third - first, fourth - second
        if third < 0 or fourth < 0:
            raise ValueError(
                f"{where}: box {shown(box)} ends before it starts; with sent_id a box is x, y, width, height"
            )
        records.append((number, (first, second, third, fourth)))
    return PredictedBoxes(key or BY_SENTENCE, records)


def referring_measures(
    sentences: Sequence[ReferringSentence], boxes: PredictedBoxes, source: str, rule: BoxRule
) -> dict[str, Measure]:
    """ "accuracy" over all sentences of one split, by name, in the order of the sentences.

    Raises:
        RowsError: for sentences without a box, with several, or that are not of the split.
    """
    images = [str(each.image_id) for each in sentences]
    if boxes.key == BY_SENTENCE:
        check_row_ids(
            source, [number for number, _ in boxes.records], [each.sent_id for each in sentences], unit="sentence"
        )
        box_of = dict(boxes.records)
        hits = [_hit(box_of[each.sent_id], each, rule) for each in sentences]
        return {"accuracy": Measure("accuracy", hits, images)}
    # A reference comes once for each of its sentences; all of them mean the same box, so that their order is free.
    asked = Counter[int]()
    places = [(each.ref_id, _next(asked, each.ref_id)) for each in sentences]
    given = Counter[int]()
    told = [((number, _next(given, number)), box) for number, box in boxes.records]
    check_row_ids(source, [place for place, _ in told], places, unit="sentence")
    box_at = dict(told)
    hits = [_hit(box_at[place], each, rule) for place, each in zip(places, sentences, strict=True)]
    return {"accuracy": Measure("accuracy", hits, images)}


def detected_bound(
    sentences: Sequence[ReferringSentence], detections: Iterable[tuple[int, Box]], rule: BoxRule
) -> Measure:
    """The share of sentences that any detection of their photo hits: what a choice among these can reach.

    Args:
        detections: number of the photo, box as x, y, width, height.
    """
    boxes_of = defaultdict[int, list[Box]](list)
    for number, box in detections:
        boxes_of[number].append(box)
    hits = dict[tuple[int, Box], float]()  # sentences of one object share it
    for each in sentences:
        if (each.image_id, each.box) not in hits:
            found = any(rule.hits(box, each.box) for box in boxes_of.get(each.image_id, ()))
            hits[each.image_id, each.box] = float(found)
    values = [hits[each.image_id, each.box] for each in sentences]
    return Measure(DETECTED_BOUND, values, [str(each.image_id) for each in sentences])


def _hit(box: Box | None, sentence: ReferringSentence, rule: BoxRule) -> float:
    return float(box is not None and rule.hits(box, sentence.box))


def _next(counts: Counter[int], number: int) -> int:
    counts[number] += 1
    return counts[number]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
