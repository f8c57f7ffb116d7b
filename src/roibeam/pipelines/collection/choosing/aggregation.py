"""Pairs of all pages -> one pair for an image, as the paper's aggregation has it; numbers are ours.

1. evaluation images go; 2. pictures that are one photo become one image, which keeps its best text; 3. a text that more
than `max_images_per_text` images kept goes, with all its pairs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from roibeam.pipelines.collection.choosing.same_images import groups_of_same
from roibeam.pipelines.collection.pair import Pair, Picture, TextSource, pair_id
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.thresholds import AggregationThresholds

_ORDER = {source: place for place, source in enumerate(TextSource)}
_NO_WORDS = re.compile(r"[^\w\s]|_")


@dataclass(frozen=True)
class DroppedPair:
    """A pair that aggregation drops; `detail` is for people."""

    pair: Pair
    reason: Reason
    detail: str


def aggregate(
    pairs: Sequence[Pair], limits: AggregationThresholds, evaluation: Callable[[Picture], str | None]
) -> tuple[list[Pair], list[DroppedPair]]:
    """
    Args:
        pairs: all that passed the steps before, in any order; the result does not depend on it.
        evaluation: why a picture is an evaluation image, or None.
    Returns:
        Kept pairs by id; dropped ones, one for each picture (of one address) that kept no pair.
    """
    by_picture: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_picture[pair.picture.url].append(pair)
    dropped: list[DroppedPair] = []
    pictures: list[Picture] = []
    for url in sorted(by_picture):
        picture = by_picture[url][0].picture
        if (why := evaluation(picture)) is not None:
            dropped.append(DroppedPair(_best(by_picture[url]), Reason.EVALUATION_IMAGE, why))
        else:
            pictures.append(picture)
    groups: dict[int, list[Picture]] = defaultdict(list)
    for picture, leader in zip(pictures, groups_of_same(pictures, max_bits=limits.max_phash_bits), strict=True):
        groups[leader].append(picture)
    chosen: list[Pair] = []
    for members in groups.values():
        best, others = _chosen(members, by_picture)
        chosen.append(best)
        dropped += others
    users = Counter(normalised(pair.text.text) for pair in chosen)
    kept: list[Pair] = []
    for pair in chosen:
        times = users[normalised(pair.text.text)]
        if times > limits.max_images_per_text:
            dropped.append(DroppedPair(pair, Reason.SHARED_TEXT, f"the text of {times:,} images"))
        else:
            kept.append(pair)
    return sorted(kept, key=lambda pair: pair.pair_id), dropped


def normalised(text: str) -> str:
    """A text as texts are compared: no case, no punctuation, single blanks."""
    return " ".join(_NO_WORDS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).split())


def _chosen(members: Sequence[Picture], by_picture: dict[str, list[Pair]]) -> tuple[Pair, list[DroppedPair]]:
    """The best text of an image with its largest picture; the other pictures' best pairs, dropped."""
    # The largest, for those who look at it; of equal ones the same whatever the order.
    picture = min(members, key=lambda each: (-each.width * each.height, each.sha256, each.url))
    pairs = [pair for member in members for pair in by_picture[member.url]]
    best = _best(pairs)
    num_pages = len({pair.page_url for pair in pairs})
    kept = replace(best, picture=picture, pair_id=pair_id(picture.sha256), num_pages=num_pages)
    others = [
        DroppedPair(_best(by_picture[member.url]), Reason.SAME_IMAGE, f"one image with {picture.url}"[:300])
        for member in members
        if member.url != picture.url
    ]
    return kept, others


def _best(pairs: Sequence[Pair]) -> Pair:
    """By score; without a judge by where the text stood, then by how many pages agree on it (ours)."""
    agree = Counter(normalised(pair.text.text) for pair in pairs)
    return min(
        pairs,
        key=lambda pair: (
            -(pair.score or 0.0), _ORDER[pair.text.source], -agree[normalised(pair.text.text)], pair.text.text,
            pair.page_url, pair.picture.url,
        ),
    )  # fmt: skip
