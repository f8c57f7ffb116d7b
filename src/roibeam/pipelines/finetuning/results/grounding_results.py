"""Predictions of phrase grounding: for each caption, the boxes of each of its counted phrases, the best first.

    [{"image_id": 36979, "sentence_id": 0, "boxes": [[[x1, y1, x2, y2], ...], ...]}, ...]

As ashkamath/mdetr's evaluator takes them (datasets/flickr_eval.py): a caption that comes again is passed over, one of
another image too; one that is missing, or has other than its number of phrases, is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.pipelines.data.datasets.entities import (
    BOXED,
    EntityCounts,
    EntityImage,
    read_entities,
    split_names,
)
from roibeam.pipelines.data.datasets.json_pieces import read_json_list
from roibeam.pipelines.finetuning.metrics.grounding import (
    GROUNDING_RULES,
    GroundedPhrase,
    GroundingRule,
    covering,
    grounding_measures,
)
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.open_task import Measures, OpenTask
from roibeam.pipelines.finetuning.results.row_ids import OFFICIAL, STRICT

DATA_SPLITS = ("train", "val", "test")
CaptionKey = tuple[str, int]  # the image's name, and the number of the caption


class CountedPhrase(NamedTuple):
    """Attributes:
    text, types: as marked.
    boxes: of its chain, x1 y1 x2 y2; at least one.
    last_word: its place among the words of the caption.
    """

    text: str
    types: tuple[str, ...]
    boxes: np.ndarray
    last_word: int


def counted_phrases(images: Iterable[EntityImage]) -> dict[CaptionKey, list[CountedPhrase]]:
    """The phrases that count, in reading order; a caption without one is not there."""
    found: dict[CaptionKey, list[CountedPhrase]] = {}
    for image in images:
        for number, sentence in image.sentences.items():
            phrases = [
                CountedPhrase(each.text, each.types, np.array(image.boxes.boxes[each.chain]), each.last_word)
                for each in sentence.phrases
                if image.boxes.kind_of(each) == BOXED
            ]
            if phrases:
                found[image.name, number] = phrases
    return found


def judged_phrases(
    predictions: Iterable[Mapping[str, Any]],
    expected: Mapping[CaptionKey, Sequence[CountedPhrase]],
    rule: GroundingRule,
    where: str,
) -> list[GroundedPhrase]:
    """
    Args:
        predictions: as the file has them.
        where: the file, for errors.
    Raises:
        ValueError: for a caption without predictions, or with those of more or fewer phrases than it has.
    """
    given: dict[CaptionKey, list[Any]] = {}
    for each in predictions:
        given.setdefault((str(each["image_id"]), int(each["sentence_id"])), each["boxes"])
    found = []
    for key, phrases in expected.items():
        image, number = key
        if key not in given:
            raise ValueError(f"{where}: no boxes for caption {number} of image {image}")
        if len(given[key]) != len(phrases):
            raise ValueError(
                f"{where}: boxes of {len(given[key])} phrases for caption {number} of image {image}, which has "
                f"{len(phrases)} that count"
            )
        for boxes, phrase in zip(given[key], phrases, strict=True):
            proposals = np.array(boxes, np.float64).reshape(-1, 4)
            found.append(GroundedPhrase(image, phrase.types, covering(proposals, phrase.boxes, rule)))
    return found


def read_grounding_results(path: str) -> list[dict[str, Any]]:
    """The entries of a file.

    Raises:
        ValueError: naming the entry that is not as above.
    """
    entries = list(read_json_list(path, expected="a list of objects with image_id, sentence_id and boxes"))
    for place, each in enumerate(entries):
        where = f"{path!r}, entry {place}"
        if not isinstance(each, dict) or not {"image_id", "sentence_id", "boxes"} <= each.keys():
            raise ValueError(f"{where}: expected an object with image_id, sentence_id and boxes")
        if not isinstance(each["sentence_id"], int | str) or not str(each["sentence_id"]).isdigit():
            raise ValueError(f"{where}: sentence_id must be the number of a caption, from 0")
        if not isinstance(each["boxes"], list) or not all(map(_is_boxes, each["boxes"])):
            raise ValueError(f"{where}: boxes must hold a list of x1 y1 x2 y2 for each phrase, all of them finite")
    return entries


def _is_boxes(boxes: Any) -> bool:
    if not isinstance(boxes, list):
        return False
    return all(isinstance(box, list) and len(box) == 4 and all(_is_finite(edge) for edge in box) for box in boxes)


def _is_finite(edge: Any) -> bool:
    return isinstance(edge, int | float) and not isinstance(edge, bool) and math.isfinite(edge)


def write_grounding_results(path: Path, entries: Sequence[Any]) -> None:
    write_bytes_atomically(path, json.dumps(list(entries)).encode())


def both_protocols(judged: Callable[[str], list[GroundedPhrase]], first: str) -> dict[str, Measure]:
    """The figures by one rule, overall and of each type, and beside "any" those of the merged boxes overall.

    Args:
        judged: name of a rule -> the phrases by it.
    """
    measures = grounding_measures(judged(first))
    if first == "any":
        merged = grounding_measures([replace(each, types=()) for each in judged("merged")])
        measures |= {f"merged {name}": replace(each, name=f"merged {name}") for name, each in merged.items()}
    return measures


def open_entities_labels(folder: Path, split: str, rules: str) -> OpenTask:
    """The phrases of a split, see `ScoredTask.open`."""
    first = "any" if rules in (STRICT, OFFICIAL) else rules
    names = split_names(str(folder), split)
    expected = counted_phrases(read_entities(str(folder), EntityCounts(), names=names))
    files = (folder / f"{split}.txt",)

    def check(results: str) -> list[GroundedPhrase]:
        return judged_phrases(read_grounding_results(results), expected, GROUNDING_RULES[first], repr(results))

    def scored(results: str) -> Measures:
        entries = read_grounding_results(results)
        return both_protocols(
            lambda rule: judged_phrases(entries, expected, GROUNDING_RULES[rule], repr(results)), first
        )

    words = GROUNDING_RULES[first].words
    metric = f"R@1, R@5, R@10 over phrases that have a box, overall and by type; a hit is {words}"
    metric += "; beside it by the box around all of them" if first == "any" else ""
    rows = "as MDETR's evaluator: a caption that is missing, or of which a phrase is, is an error"
    return OpenTask(metric, rows, files, len(expected), check, scored)
