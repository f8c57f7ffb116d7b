"""What a run found: counts of each step, and figures of the kept pairs, gathered in one pass over them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection as SomeOf
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from roibeam.pipelines.collection.choosing.aggregation import Aggregated
from roibeam.pipelines.collection.pair import Pair
from roibeam.pipelines.collection.reasons import STEP_OF, Reason, Step
from roibeam.pipelines.collection.running.part import Counts
from roibeam.pipelines.common.statistics.paper_figures import figures_of as paper_figures_of

FORMAT, VERSION = "roibeam-collection", 1
NUM_TENTHS = 10


@dataclass
class KeptFigures:
    """
    Attributes:
        words: words of a text -> pairs.
        sides: shorter side of the picture, pixels -> pairs.
        tenths: tenth of the score, 0 to 9 -> pairs; none without a judge.
        hosts: host of the page -> pairs, of the hosts that were asked for.
        examples: pairs spread over all ids.
        digest: of the kept pairs, without paths: equal for any number of workers.
    """

    words: Counter[int] = field(default_factory=Counter)
    sides: Counter[int] = field(default_factory=Counter)
    tenths: Counter[int] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)
    examples: list[Pair] = field(default_factory=list)
    digest: str = ""

    def mean_words(self) -> float:
        return sum(words * pairs for words, pairs in self.words.items()) / max(self.words.total(), 1)


def paper_mean_words() -> str:
    """Of LAIT's texts, as its paper prints it."""
    [figure] = paper_figures_of("ImageBERT", "LAIT, data set", "words of a text")
    return figure.printed


def figures_of(found: Aggregated, *, hosts: SomeOf[str], num_examples: int) -> KeptFigures:
    """
    Args:
        hosts: to be counted.
        num_examples: at most.
    """
    figures = KeptFigures()
    digest = hashlib.sha256()
    every = max(found.num_kept // num_examples, 1)
    for number, pair in enumerate(found.kept()):
        figures.words[len(pair.text.text.split())] += 1
        figures.sides[min(pair.picture.width, pair.picture.height)] += 1
        if pair.score is not None:
            figures.tenths[min(int(pair.score * NUM_TENTHS), NUM_TENTHS - 1)] += 1
        if (host := urlsplit(pair.page_url).hostname) in hosts and host is not None:
            figures.hosts[host] += 1
        if number % every == 0 and len(figures.examples) < num_examples:
            figures.examples.append(pair)  # in the order of ids, which is a random one
        fields = (pair.pair_id, pair.text.text, pair.text.source.value, pair.picture.url, pair.picture.sha256)
        digest.update("\0".join((*fields, pair.page_url, repr(pair.score))).encode() + b"\n")
    figures.digest = digest.hexdigest()
    return figures


@dataclass(frozen=True)
class Collection:
    """
    Attributes:
        pages, fetch, pictures: counts of steps 1 to 4, of the fetch, and of steps 5 and 6.
        pairs: kept and dropped by aggregation.
        figures: of the kept ones.
        notes: steps that are off, for people.
    """

    pages: Counts
    fetch: Counts
    pictures: Counts
    pairs: Aggregated
    figures: KeptFigures
    notes: tuple[str, ...]

    def reasons(self) -> dict[Step, Counter[str]]:
        """Dropped ones by step and reason: pages in the first four, images in the others."""
        found: dict[Step, Counter[str]] = {step: Counter() for step in Step}
        for counts in (self.pages, self.fetch, self.pictures):
            for reason, count in counts.reasons.items():
                found[STEP_OF[Reason(reason)]][reason] += count
        for dropped, count in self.pairs.num_dropped.items():
            if count:
                found[STEP_OF[dropped]][dropped.value] += count
        return found

    def summary(self) -> dict[str, Any]:
        """As JSON: what collection.json holds."""
        return {
            "format": FORMAT, "version": VERSION, "pages": self.pages.taken, "candidates": self.pages.kept,
            "images": self.fetch.taken, "fetched": self.fetch.kept, "pairs": self.pairs.num_kept,
            "mean_words": round(self.figures.mean_words(), 2), "digest": self.figures.digest,
            "notes": list(self.notes),
            "dropped": {step.value: dict(sorted(counts.items())) for step, counts in self.reasons().items()},
            "dropped_texts": dict(sorted(self.pages.text_reasons.items())),
        }  # fmt: skip
