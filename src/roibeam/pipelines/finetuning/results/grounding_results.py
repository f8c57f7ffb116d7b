"""Predictions of phrase grounding: for each caption, the boxes of each of its counted phrases, the best first.

    [{"image_id": 36979, "sentence_id": 0, "boxes": [[[x1, y1, x2, y2], ...], ...]}, ...]

As ashkamath/mdetr's evaluator takes them (datasets/flickr_eval.py): a caption that comes again is passed over, one of
another image too; one that is missing, or has other than its number of phrases, is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.finetuning.metrics.grounding import GroundedPhrase, GroundingRule, covering
from roibeam.pipelines.sources.datasets.entities import BOXED, EntityImage

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
