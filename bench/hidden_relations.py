"""Whether pre-training learned how things stand to each other:
`python bench/hidden_relations.py bench/evidence/weights/perfect/*`, after `make evidence ARGS="--only ..."` made them.

A caption's word for a relation, such as left, is hidden and predicted, with its own picture and with another one. A
model that sees the relation is better with its own. Beside them stand the share of the commonest word, which needs no
picture, and how many captions say what the store's boxes say. All words may be predicted: "and" in place of "above" is
wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from evidence.questions import Asked
from evidence.worlds import FULL, World
from store_rounds import table

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.captioned_store import join_captions
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.toyworld.world import CATEGORIES

RELATIONS = (("left", "right"), ("above", "below"), ("larger", "smaller"), ("behind", "front"), ("inside", "around"))

# By the word, whether it is so of two boxes, x1 y1 x2 y2. What is behind or inside is not told by boxes alone.
_BY_BOXES: Mapping[str, Callable[[np.ndarray, np.ndarray], bool]] = {
    "left": lambda one, other: bool(one[0] + one[2] < other[0] + other[2]),
    "right": lambda one, other: bool(one[0] + one[2] > other[0] + other[2]),
    "above": lambda one, other: bool(one[1] + one[3] < other[1] + other[3]),
    "below": lambda one, other: bool(one[1] + one[3] > other[1] + other[3]),
}


def told_by_boxes(corpus: Corpus, pair: tuple[str, str]) -> Iterator[bool]:
    """For each caption with one word of the pair between two kinds of things that its picture has once each."""
    names = list(CATEGORIES)
    for row in range(len(corpus)):
        words = corpus.caption(row).split()
        said = [place for place, word in enumerate(words) if word in pair]
        kinds = [names.index(word) for word in words if word in names]
        if len(said) != 1 or len(kinds) != 2 or kinds[0] == kinds[1]:
            continue
        record = corpus.record(row)
        places = [np.flatnonzero(record.class_ids == kind) for kind in kinds]
        if all(len(each) == 1 for each in places):
            one, other = (np.asarray(record.boxes[each[0]]) for each in places)
            yield _BY_BOXES[words[said[0]]](one, other)


def _share(right: float, asked: float) -> str:
    return f"{100 * right / asked:.1f} %" if asked else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model folders or runs")
    parser.add_argument("--work", type=Path, default=Path("build/evidence"), help="of make evidence [build/evidence]")
    parser.add_argument("--store", default="perfect", help="by its name in WORK [perfect]")
    arguments = parser.parse_args()
    world = World(arguments.work, FULL)
    with FeatureStore(world.store(arguments.store)) as store:
        rows, _ = join_captions(store, CaptionFile(str(world.captions("test"))).captions(), 1.0)
        corpus = Corpus(store, rows)
        words = Counter(word for row in range(len(corpus)) for word in corpus.caption(row).split())
        lines: dict[tuple[str, str], list[str]] = {}
        for pair in RELATIONS:
            counts = [words[word] for word in pair]
            lines[pair] = ["/".join(pair), str(sum(counts)), _share(max(counts), sum(counts))]
            agree = list(told_by_boxes(corpus, pair)) if set(pair) <= set(_BY_BOXES) else []
            lines[pair].append(f"{sum(agree)} of {len(agree)}" if agree else "-")
        for path in arguments.models:
            model = Asked(path, store, world)
            for pair, line in lines.items():
                with_own, with_other = (tally for _, tally in model.words(frozenset(pair)))
                shares = (_share(each.right.sum(), each.asked.sum()) for each in (with_own, with_other))
                line.append(" / ".join(shares))
    head = ("word", "hidden", "commonest", "agree with the boxes", *(path.name for path in arguments.models))
    print(table(head, [tuple(line) for line in lines.values()]))


if __name__ == "__main__":
    main()
