"""What the looks of all heads come to: accuracy by head and layer, the baseline of the same questions, and how sure it
is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roibeam.pipelines.analysis.attention.looks import Looks
from roibeam.pipelines.analysis.attention.paper_table import PaperRow, paper_rows
from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.finetuning.metrics.grounding import RANKS, UPPER_BOUND

ACTIVE = 0.2  # share of the attention that an active head gives to regions, on the mean (section 3.1)
MOST_RELATIONS = 10  # the paper's table has the ten commonest
# What the paper calls relations that spaCy's models, or Universal Dependencies, spell otherwise.
PAPER_NAMES = {"compound": "nn", "nummod": "num", "acl": "partmod", "relcl": "rcmod", "obj": "dobj"}
ABOVE_FOR_ANY_WORD = "above the baseline, whatever the word"
ABOVE, BELOW, UNDECIDED = "above the baseline", "below the baseline", "not told from the baseline"
TOO_FEW = "too few to tell"
# Intervals are over images. Of fewer they are too narrow: of six that agree there is none at all.
LEAST_IMAGES = 30


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 95 % interval over images; NaN where nothing was counted."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HalfChoice:
    """The head that is best on one half of the images, on the other one.

    Attributes:
        layer, head: counted from 1; None when the half has no question.
        chosen: accuracy where it was chosen; other: on the other half; baseline: there.
    """

    layer: int | None
    head: int | None
    chosen: float
    other: float
    baseline: float


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """One population of questions.

    Attributes:
        name: "entity", or a relation as the parses call it; paper_name: as the paper does.
        questions, images: that were asked.
        baseline: accuracy of the region with the best detection score; by_lot: of a region drawn by lot; ceiling: share
            of questions that any region answers.
        uniform: share of regions among all that could be looked at.
        accuracy, mass: (L, H), of every head; active: (L, H) bool.
        layer, head: of the best active head, counted from 1; of all heads where none is active.
        best: its accuracy, on the same images on which it was chosen.
        recalls: of its 1, 5 and 10 regions, "R@1" and so on, and the ceiling, over all questions and by type of phrase.
        blind: what it reaches with one look for all words of a caption.
        halves: the same choice on one half, judged on the other, both ways.
        crossed: accuracy of the best heads of the halves on the other half each, over all images.
        difference: `crossed` less the baseline, images drawn in pairs.
        word_difference: `crossed` less what the same heads reach with one look for all words of a caption: a head that
            only likes some regions has none.
        verdict: what the intervals of both say; `TOO_FEW` below `LEAST_IMAGES`.
    """

    name: str
    paper_name: str
    questions: int
    images: int
    baseline: Interval
    by_lot: float
    ceiling: float
    uniform: float
    accuracy: np.ndarray
    mass: np.ndarray
    active: np.ndarray
    layer: int
    head: int
    best: Interval
    recalls: dict[str, float]
    blind: float
    halves: tuple[HalfChoice, HalfChoice]
    crossed: float
    difference: Interval
    word_difference: Interval
    verdict: str

    @property
    def best_of_all(self) -> tuple[int, int]:
        """Layer and head, counted from 1, whether active or not: what the paper names for phrases."""
        layer, head = _best(self.accuracy, np.ones_like(self.active))
        return layer + 1, head + 1

    @property
    def best_by_layer(self) -> list[float]:
        return [float(each) for each in self.accuracy.max(axis=1)]

    def to_json(self) -> dict[str, Any]:
        best = {"layer": self.layer, "head": self.head, "layer_from_0": self.layer - 1, "head_from_0": self.head - 1}
        paper = paper_rows().get(self.paper_name)
        return {
            "name": self.name,
            "paper_name": self.paper_name,
            "paper": None if paper is None else paper.to_json(),
            "questions": self.questions,
            "images": self.images,
            "baseline": _json(self.baseline),
            "region_by_lot": _number(self.by_lot),
            "ceiling": _number(self.ceiling),
            "uniform_mass": _number(self.uniform),
            "best_head": {**best, "active": bool(self.active[self.layer - 1, self.head - 1]), **_json(self.best)},
            "best_of_all_heads": dict(zip(("layer", "head"), self.best_of_all, strict=True)),
            "best_head_recalls": {name: _number(value) for name, value in self.recalls.items()},
            "best_head_whatever_the_word": _number(self.blind),
            "best_by_layer": [_number(each) for each in self.best_by_layer],
            "mean_by_layer": [_number(float(each)) for each in self.accuracy.mean(axis=1)],
            "halves": [
                {name: _number(each) if isinstance(each, float) else each for name, each in vars(half).items()}
                for half in self.halves
            ],
            "best_of_the_other_half": _number(self.crossed),
            "difference_from_baseline": _json(self.difference),
            "difference_from_any_word": _json(self.word_difference),
            "verdict": self.verdict,
            "active_heads": int(self.active.sum()),
            "accuracy": _rows(self.accuracy),
            "mass_on_regions": _rows(self.mass),
            "active": self.active.tolist(),
        }


def _json(interval: Interval) -> dict[str, float | None]:
    return {"value": _number(interval.value), "low": _number(interval.low), "high": _number(interval.high)}


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _rows(values_LH: np.ndarray) -> list[list[float | None]]:
    return [[_number(float(each)) for each in row] for row in values_LH]


def relations_of(looks: Looks, without: str) -> list[str]:
    """The commonest first; of equally common ones in the order of their names."""
    counts = Counter(looks.population.tolist())
    counts.pop(without, None)
    return [name for name, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]


def head_figures(looks: Looks, population: str, *, seed: int) -> HeadFigures:
    """
    Args:
        population: that has at least one question.
        seed: of the halves and of the intervals.
    """
    asked = looks.population == population
    hit, mass, image = looks.hit[asked], looks.mass[asked], looks.image[asked]
    strongest = looks.strongest[asked]
    num_images = len(looks.images)
    # Of all images, so that every population has the same halves.
    is_first = np.zeros(num_images, bool)
    is_first[np.random.default_rng(seed).permutation(num_images)[: num_images // 2]] = True
    accuracy, mass_LH = hit.mean(axis=0), mass.mean(axis=0)
    active = mass_LH > ACTIVE
    layer, head = _best(accuracy, active)
    halves, chosen_hit, chosen_blind = _halves(hit, looks.blind_hit[asked], mass, strongest, is_first[image])
    bootstrap = Bootstrap(num_images, seed=seed)
    counts = np.bincount(image, minlength=num_images)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(image, weights=values, minlength=num_images)

    def less(other: np.ndarray) -> Interval:
        ends = bootstrap.difference(summed(chosen_hit), counts, summed(other), counts)
        return Interval(float(chosen_hit.mean() - other.mean()), *ends)

    difference, word_difference = less(strongest), less(chosen_blind)
    return HeadFigures(
        name=population,
        paper_name=PAPER_NAMES.get(population, population),
        questions=len(image),
        images=len(np.unique(image)),
        baseline=Interval(float(strongest.mean()), *bootstrap.ratio(summed(strongest), counts)),
        by_lot=float(looks.anyone[asked].mean()),
        ceiling=float(looks.covered[asked].mean()),
        uniform=float(looks.uniform[asked].mean()),
        accuracy=accuracy,
        mass=mass_LH,
        active=active,
        layer=layer + 1,
        head=head + 1,
        best=Interval(float(accuracy[layer, head]), *bootstrap.ratio(summed(hit[:, layer, head]), counts)),
        recalls=_recalls(looks, asked, layer, head),
        blind=float(looks.blind_hit[asked][:, layer, head].mean()),
        halves=halves,
        crossed=float(chosen_hit.mean()),
        difference=difference,
        word_difference=word_difference,
        verdict=_verdict(len(np.unique(image)), difference, word_difference),
    )


def _recalls(looks: Looks, asked: np.ndarray, layer: int, head: int) -> dict[str, float]:
    """Named as `grounding_measures` names them."""
    places = np.flatnonzero(asked)
    columns = {f"R@{rank}": looks.hits[places, layer, head, column] for column, rank in enumerate(RANKS)}
    found = {}
    for name, values in {**columns, UPPER_BOUND: looks.covered[places]}.items():
        found[name] = float(values.mean())
        for kind in sorted({kind for place in places for kind in looks.types[place]}):
            found[f"{name} {kind}"] = float(values[[kind in looks.types[place] for place in places]].mean())
    return found


def _verdict(images: int, difference: Interval, word_difference: Interval) -> str:
    if images < LEAST_IMAGES:
        return TOO_FEW
    if difference.low > 0:
        return ABOVE if word_difference.low > 0 else ABOVE_FOR_ANY_WORD
    return BELOW if difference.high < 0 else UNDECIDED


def _best(accuracy: np.ndarray, active: np.ndarray) -> tuple[int, int]:
    """Layer and head from 0; of equal ones the first."""
    among = np.where(active, accuracy, -1.0) if active.any() else accuracy
    layer, head = np.unravel_index(int(among.argmax()), among.shape)
    return int(layer), int(head)


def _halves(
    hit: np.ndarray, blind_hit: np.ndarray, mass: np.ndarray, strongest: np.ndarray, is_first: np.ndarray
) -> tuple[tuple[HalfChoice, HalfChoice], np.ndarray, np.ndarray]:
    """The choices, and twice (N,) of each question's head, chosen on the half that it is not in (by all of them where
    that half has none): its hits, and those of one look for all words."""
    chosen_hit, chosen_blind = np.empty(len(hit)), np.empty(len(hit))
    choices: list[HalfChoice] = []
    for half in (is_first, ~is_first):
        rows = half if half.any() else ~half
        layer, head = _best(hit[rows].mean(axis=0), mass[rows].mean(axis=0) > ACTIVE)
        found = hit[:, layer, head].astype(np.float64)
        chosen_hit[~half], chosen_blind[~half] = found[~half], blind_hit[~half, layer, head]
        means = [
            float(each.mean()) if len(each) else math.nan for each in (found[half], found[~half], strongest[~half])
        ]
        is_there = bool(half.any())
        choices.append(HalfChoice(layer + 1 if is_there else None, head + 1 if is_there else None, *means))
    return (choices[0], choices[1]), chosen_hit, chosen_blind


def commonest(figures: Sequence[HeadFigures]) -> list[HeadFigures]:
    """The paper's table: the ten commonest relations."""
    return sorted(figures, key=lambda each: -each.questions)[:MOST_RELATIONS]


def beside_paper(entity: HeadFigures, relations: Sequence[HeadFigures]) -> list[tuple[PaperRow, HeadFigures | None]]:
    """The paper's rows, each with the commonest of ours that the paper calls so; of phrases alone without relations.

    Args:
        relations: the commonest first.
    """
    rows = paper_rows()
    ours = {each.paper_name: each for each in [*reversed(relations), entity]}
    return [(row, ours.get(name)) for name, row in rows.items() if relations or name == entity.name]
