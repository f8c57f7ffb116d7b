"""What comparing samples takes: the same draws for both sides, made texts and records, the errors of each field."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.captions.corpus import Corpus

NUM_CLASSES, WIDTH, IMAGES = 20, 16, 12
# Sums over regions in another order; everything else is equal to the bit.
TOLERANCES = {"whole image": 1e-5}


class Draws:
    """Draws by number, for both sides: a sequence of uniform numbers, and one of random pieces.

    `rows` are the rows that theirs drew from their data, which ours must draw too.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.uniforms, self.pieces = random.random(4000), random.integers(2**31, size=4000)
        self.rows: list[int] = []


class TheirRandom:
    """In the place of the module `random`."""

    def __init__(self, draws: Draws) -> None:
        self._uniforms, self._pieces = iter(draws.uniforms), iter(draws.pieces)
        self._rows = draws.rows
        self._other = np.random.default_rng(int(draws.pieces[-1]))

    def random(self) -> float:
        return float(next(self._uniforms))

    def choice(self, options: Any) -> Any:
        return options[int(next(self._pieces)) % len(options)]

    def randint(self, first: int, last: int) -> int:
        self._rows.append(int(self._other.integers(first, last + 1)))
        return self._rows[-1]

    def randrange(self, first: int, end: int) -> int:
        return self.randint(first, end - 1)


class OurRandom:
    """In the place of numpy's generator. Theirs mismatch a pair above a half, ours below it."""

    def __init__(self, draws: Draws, choice: int | None, *, pairs: bool) -> None:
        self._uniforms = list(draws.uniforms)
        if pairs:
            self._uniforms[0] = 1 - self._uniforms[0]
        self._pieces, self._choice = iter(draws.pieces), choice

    def random(self, size: int | None = None) -> Any:
        drawn = [self._uniforms.pop(0) for _ in range(1 if size is None else size)]
        return drawn[0] if size is None else np.array(drawn)

    def integers(self, high: int, size: int | None = None) -> Any:
        if size is None:
            return self._choice
        return np.array([int(next(self._pieces)) % high for _ in range(size)], np.int64)


class Errors:
    """The largest error of each field; of another shape, infinite."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        self.samples: dict[str, int] = {}

    def add(self, system: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
        for name, (ours, theirs) in fields.items():
            key, ours, theirs = f"{system}: {name}", np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
            error = float("inf")
            if ours.shape == theirs.shape:
                error = float(np.abs(ours - theirs).max(initial=0.0))
            self.largest[key] = max(self.largest.get(key, 0.0), error)
            self.samples[key] = self.samples.get(key, 0) + 1

    def report(self) -> bool:
        """Prints all; whether each is within its tolerance."""
        within = True
        for key, error in self.largest.items():
            tolerance = TOLERANCES.get(key.split(": ")[1], 0.0)
            within &= error <= tolerance
            print(f"{key:<40} {self.samples[key]:>5} samples, largest error {error:.2g} (at most {tolerance:g})")
        return within


def make_texts(count: int, *, longest: int) -> list[str]:
    """Sentences with words of several pieces, punctuation and accents; some as long as `longest` words."""
    words = "a dog runs after the xylophonist's ball , café tables don't tessellate ; under electroluminescent signs !"
    random, pool = np.random.default_rng(0), words.split()
    lengths = [longest if place % 5 == 0 else int(random.integers(3, 15)) for place in range(count)]
    return [" ".join(random.choice(pool, length)) for length in lengths]


def make_records() -> dict[str, RegionRecord]:
    records = {}
    for place in range(IMAGES):
        random = np.random.default_rng(place)
        count = int(random.integers(1, 90))
        corner = random.uniform(0, 200, (count, 2))
        # No two regions have one largest probability: VL-BERT sorts by it, equal ones in any order.
        largest = 0.5 + random.permutation(800)[:count, None] / 2048
        probabilities = np.repeat(((1 - largest) / NUM_CLASSES), NUM_CLASSES + 1, axis=1).astype(np.float16)
        probabilities[np.arange(count), random.integers(NUM_CLASSES + 1, size=count)] = largest[:, 0]
        records[str(place)] = RegionRecord(
            image_id=str(place),
            height=420,
            width=480,
            boxes=np.concatenate([corner, corner + random.uniform(1, 200, (count, 2))], 1).astype(np.float32),
            features=random.standard_normal((count, WIDTH)).astype(np.float32),
            class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
            class_scores=probabilities.max(1).astype(np.float32),  # background included, as VL-BERT has it
            class_distribution=probabilities,
        )
    return records


def labels_of(theirs: Any) -> np.ndarray:
    """-1 is where theirs predict nothing."""
    labels = np.asarray(theirs)
    return np.where(labels == -1, IGNORE_INDEX, labels)


def choice_for(corpus: Corpus, row: int, wanted: int) -> int:
    """What `Corpus.draw_row_of_another_image` must draw to give the row `wanted`."""
    others = len(corpus) - len(corpus.rows_of_image(row))
    give = (SimpleNamespace(integers=lambda high, number=number: number) for number in range(others))
    drawn: list[Any] = [corpus.draw_row_of_another_image(row, random) for random in give]
    return drawn.index(wanted)
