"""Phrase grounding on Flickr30k Entities: recall of the k best boxes of each phrase, and the result file.

Phrases whose chain has a box count, also those that no proposal covers; the upper bound is the share of the others.

    any      IoU >= 0.5 with any box of the chain (jnhwkim/ban-vqa, VisualBERT, MDETR's "any")
    merged   IoU >= 0.5 with the one box around all of them (BryanPlummer/pl-clc, MDETR's "merged")

    [{"image_id": 36979, "sentence_id": 0, "boxes": [[[x1, y1, x2, y2], ...], ...]}, ...]

Boxes of each phrase stand the best first, as for ashkamath/mdetr's datasets/flickr_eval.py. A caption that comes again,
or of another image, is skipped; one that is missing, or has another number of phrases, is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.common.statistics.retrieval_ranks import recall_by_chance
from roibeam.pipelines.data.datasets.entities import BOXED, EntityCounts, EntityImage, read_entities, split_names
from roibeam.pipelines.data.datasets.rows import is_number, read_json_list
from roibeam.pipelines.finetuning.metrics.measure import OFFICIAL, STRICT, Measure, OpenTask

THRESHOLD = 0.5
RANKS = (1, 5, 10)
UPPER_BOUND = "upper bound"


@dataclass(frozen=True)
class GroundingRule:
    """Rule by which a box covers a chain.

    Attributes:
        merged: the chain's boxes count as the one around them.
        plus_one: a box has one pixel more than its corners are apart, as in the authors' Matlab code.
    """

    merged: bool
    plus_one: bool
    words: str


GROUNDING_RULES: Mapping[str, GroundingRule] = MappingProxyType(
    {
        "any": GroundingRule(False, False, "IoU >= 0.5 with any box of the phrase"),
        "merged": GroundingRule(True, False, "IoU >= 0.5 with the box around all boxes of the phrase"),
        "merged-plus-one": GroundingRule(True, True, "as merged, boxes one pixel wider and higher (Matlab code)"),
    }
)


@dataclass(frozen=True, eq=False)
class GroundedPhrase:
    """One phrase that is counted.

    Attributes:
        types: such as "people"; it counts once in each.
        covering: (P,) bool, of the proposals, the best first.
    """

    image: str
    types: Sequence[str]
    covering: np.ndarray


def overlaps(proposals: np.ndarray, boxes: np.ndarray, *, plus_one: bool = False) -> np.ndarray:
    """(P, G) float64 of (P, 4) and (G, 4), x1 y1 x2 y2 in pixels; NaN for two boxes without area."""
    first, second = np.asarray(proposals, np.float64)[:, None], np.asarray(boxes, np.float64)[None]
    more = float(plus_one)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2]) + more
    shared = np.maximum(sides, 0.0).prod(axis=-1)
    areas = [(each[..., 2:] - each[..., :2] + more).prod(axis=-1) for each in (first, second)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.full(shared.shape, np.nan), where=union != 0)


def covering(proposals: np.ndarray, boxes: np.ndarray, rule: GroundingRule) -> np.ndarray:
    """(P,) bool, which proposals (P, 4) cover a chain of boxes (G, 4), G >= 1."""
    gold = np.asarray(boxes, np.float64)
    if rule.merged:
        gold = np.concatenate([gold[:, :2].min(axis=0), gold[:, 2:].max(axis=0)])[None]
    return np.asarray((overlaps(proposals, gold, plus_one=rule.plus_one) >= THRESHOLD).any(axis=1))


def region_shares(proposals: np.ndarray, boxes: np.ndarray, rule: GroundingRule) -> np.ndarray:
    """(P,) float64, training target of a phrase: 1/n at each of the n proposals that cover it, or zeros."""
    covers = covering(proposals, boxes, rule)
    return covers / max(int(covers.sum()), 1)


def ranked(scores: Sequence[float]) -> np.ndarray:
    """Places of proposals, the best first; of equal scores the first one."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")


def grounding_measures(phrases: Iterable[GroundedPhrase]) -> dict[str, Measure]:
    """Measures "R@1", "R@1 people", "upper bound" and so on: over all phrases, and over those of each type."""
    counted = list(phrases)
    types = sorted({kind for phrase in counted for kind in phrase.types})
    measures = {}
    for name, most in (*((f"R@{rank}", rank) for rank in RANKS), (UPPER_BOUND, None)):
        hits = [float(phrase.covering[:most].any()) for phrase in counted]
        for kind in ("", *types):
            rows = [phrase for phrase in counted if not kind or kind in phrase.types]
            values = [hit for hit, phrase in zip(hits, counted, strict=True) if not kind or kind in phrase.types]
            whole = f"{name} {kind}".strip()
            guess = None if most is None else partial(_chance, rows, most)
            measures[whole] = Measure(whole, values, [phrase.image for phrase in rows], guess=guess)
    return measures


def _chance(phrases: Sequence[GroundedPhrase], rank: int) -> float:
    """R@K of proposals in random order."""
    counts = Counter((int(phrase.covering.sum()), len(phrase.covering)) for phrase in phrases)
    found = sum(
        times * recall_by_chance(np.array([right]), proposals, rank)
        for (right, proposals), times in counts.items()
        if right
    )
    return found / len(phrases)


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
    """The phrases that count, in reading order; captions without one are left out."""
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
    """Judges the phrases of captions.

    Args:
        predictions: as the file has them.
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
    """The entries of a file. Raises ValueError naming one of another form."""
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
    return all(isinstance(box, list) and len(box) == 4 and all(map(is_number, box)) for box in boxes)


def both_protocols(judged: Callable[[str], list[GroundedPhrase]], first: str) -> dict[str, Measure]:
    """The figures by one rule, overall and of each type; with "any" also those of the merged boxes overall.

    Args:
        judged: name of a rule -> the phrases judged by it.
    """
    measures = grounding_measures(judged(first))
    if first == "any":
        merged = grounding_measures([replace(each, types=()) for each in judged("merged")])
        measures |= {f"merged {name}": replace(each, name=f"merged {name}") for name, each in merged.items()}
    return measures


def open_entities_labels(folder: Path, split: str, rules: str) -> OpenTask:
    """Opens the phrases of a split, see `ScoredTask.open`."""
    first = "any" if rules in (STRICT, OFFICIAL) else rules
    names = split_names(str(folder), split)
    expected = counted_phrases(read_entities(str(folder), EntityCounts(), names=names))
    files = (folder / f"{split}.txt",)

    def read(results: str) -> Callable[[str], list[GroundedPhrase]]:
        """Function that judges the phrases by the rule of a name."""
        entries = read_grounding_results(results)
        judged = cache(lambda rule: judged_phrases(entries, expected, GROUNDING_RULES[rule], repr(results)))
        judged(first)  # raises for captions that are missing
        return judged

    words = GROUNDING_RULES[first].words
    metric = f"R@1, R@5, R@10 over phrases that have a box, overall and by type; a hit is {words}"
    metric += "; beside it by the box around all of them" if first == "any" else ""
    rows = "as MDETR's evaluator: a caption that is missing, or of which a phrase is, is an error"
    score = partial(both_protocols, first=first)
    return OpenTask(metric, rows, files, len(expected), read, score, ids=["#".join(map(str, key)) for key in expected])
