"""Wrong pairs made of right ones, in four kinds, for the judge of pairs. The paper does not speak of them: all ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.collection.judging.pair_words import WORD, NameReader

RANDOM, SAME_PAGE, SAME_CLASS, SWAPPED = "random", "same page", "same class", "swapped noun"
KINDS = (RANDOM, SAME_PAGE, SAME_CLASS, SWAPPED)
_TRIES = 8


@dataclass(frozen=True)
class TrainedPair:
    """
    Attributes:
        image: its name.
        text: beside it; others: the other texts beside it on the page.
        label: whether the text describes the image.
        kind: "curated", "labelled" or one of `KINDS`.
        page: where it stood; "" for a curated caption.
    """

    image: str
    text: str
    others: tuple[str, ...]
    label: bool
    kind: str
    page: str = ""


def negatives(
    right: Sequence[TrainedPair], top_class: dict[str, int], records: dict[str, RegionRecord], reader: NameReader,
    generator: np.random.Generator,
) -> Iterator[TrainedPair]:  # fmt: skip
    """For each right pair at most one wrong one of each kind, as far as there is one.

    Args:
        right: pairs that belong together.
        top_class: of each image the class of its best region.
        records: of each image.
    """
    by_image: dict[str, list[TrainedPair]] = defaultdict(list)
    by_class: dict[int, list[str]] = defaultdict(list)
    by_site: dict[str, list[str]] = defaultdict(list)
    for pair in right:
        if pair.image not in by_image:
            if pair.image in top_class:
                by_class[top_class[pair.image]].append(pair.image)
        by_image[pair.image].append(pair)
        for place in places_of(pair.page):
            by_site[place].append(pair.image)
    images = list(by_image)
    for pair in right:
        pools = {
            RANDOM: images,
            SAME_PAGE: next((by_site[place] for place in places_of(pair.page) if len(set(by_site[place])) > 1), []),
            SAME_CLASS: by_class.get(top_class.get(pair.image, -1), []),
        }
        for kind, pool in pools.items():
            other = _another(pool, pair.image, generator)
            if other is not None:
                wrong = by_image[other][int(generator.integers(len(by_image[other])))]
                # What stands beside a wrong text is as wrong in half of the cases: a page about another picture.
                others = wrong.others if generator.random() < 0.5 else pair.others
                yield TrainedPair(pair.image, wrong.text, others, False, kind, pair.page)
        swapped = swapped_noun(pair.text, records.get(pair.image), reader, generator)
        if swapped is not None:
            yield TrainedPair(pair.image, swapped, pair.others, False, SWAPPED, pair.page)


def places_of(page: str) -> tuple[str, ...]:
    """The page, then what its address stands in: images of one page are rare, those of one site are next to them."""
    return (page, page.rpartition("/")[0]) if "/" in page else (page,) if page else ()


def swapped_noun(
    text: str, record: RegionRecord | None, reader: NameReader, generator: np.random.Generator
) -> str | None:
    """The text with one thing exchanged for another that the detector does not see there; None where it names none."""
    spans = list(WORD.finditer(text))
    things = reader.things([span.group().lower() for span in spans])
    if not things:
        return None
    thing = things[int(generator.integers(len(things)))]
    seen = set() if record is None else set(record.class_ids[record.class_scores >= 0.2].tolist())
    free = [number for number in range(len(reader.class_names)) if number not in seen and number != thing.class_id]
    if not free:
        return None
    name = reader.class_names[free[int(generator.integers(len(free)))]].split(",")[0]
    # In place: a text that lost its capitals and full stops would be known by that.
    first, last = spans[thing.place].start(), spans[thing.place + thing.length - 1].end()
    return text[:first] + name + text[last:]


def _another(images: Sequence[str], image: str, generator: np.random.Generator) -> str | None:
    for _ in range(_TRIES if len(images) > 1 else 0):
        found = images[int(generator.integers(len(images)))]
        if found != image:
            return found
    return None
