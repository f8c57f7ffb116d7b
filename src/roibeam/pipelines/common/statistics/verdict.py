"""A measured number beside chance: its interval over images, and what that says in words.

The one rule of all pages, terminals and JSON: a number is above chance, or better, where its 95 % interval over images
lies on that side of chance, and at chance where the interval holds it. Without an interval nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.common.statistics.measure_names import WORDS_ALONE, less_is_better, measure_name

Word = Literal["clearly above chance", "at chance", "below chance", "better than chance", "worse than chance"]
INTERVALS = "Intervals are 95 % of a bootstrap over images: draws of other images would fall into them 95 times in 100."
NOT_KNOWN = (
    "The interval of these figures over images is not known, so none of them is called above or below chance: the run "
    "was evaluated by an earlier version. roibeam evaluate, or roibeam score of a task, measures it."
)
BESIDE = "beside"  # of a line of evaluation.jsonl: what its numbers stand beside
_KEPT = ("low", "high", "chance", "items")  # of each number, there
_SURE = 1.96  # standard deviations of a 95 % interval
_ROUNDING = 1e-6  # relative, of a mean of float32 losses


@dataclass(frozen=True)
class Figure:
    """One number with what it stands beside.

    Attributes:
        name: such as "masked_word_accuracy", "image_to_text_r1", "overall".
        value: shares are 0..1, losses nats, ranks from 1; None where there was nothing to measure.
        low, high: ends of the 95 % interval over images; None where there is none.
        chance: what a model reaches that knows nothing; None where that is not defined.
        best_possible: what the data leave possible, where they leave less than everything.
        items: words, regions, pairs, queries or rows that it is the mean or median of.
        words_alone: what counting neighbouring words of the training captions finds; None where it is not known.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    best_possible: float | None
    items: int
    words_alone: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For machines, with the verdict in words, "" for none."""
        return {**asdict(self), "verdict": verdict_of(self)}


class Judged(dict[str, float | None]):
    """The numbers of an evaluation by name, with what each stands beside.

    Attributes:
        figures: of all of them, in their order.
    """

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.figures = tuple(figures)
        super().__init__((figure.name, figure.value) for figure in self.figures)

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> Judged:
        """Plain numbers, as a task of one's own gives them, stand beside nothing."""
        if isinstance(values, Judged):
            return values
        return cls(Figure(name, value, None, None, None, None, 0) for name, value in values.items())

    def beside(self) -> dict[str, dict[str, float]]:
        """By name what a line of evaluation.jsonl keeps of each number beside its value; read by `judged_line`."""
        found = {}
        for figure in self.figures:
            kept = {name: getattr(figure, name) for name in _KEPT if name != "items" or figure.items}
            found[figure.name] = {
                name: value for name, value in kept.items() if value is not None and math.isfinite(value)
            }
        return {name: kept for name, kept in found.items() if kept}


def judged_line(line: Mapping[str, Any], names: Iterable[str]) -> Judged:
    """The numbers of these names in a line of evaluation.jsonl; those of earlier versions have no interval."""
    beside: Mapping[str, Mapping[str, Any]] = line.get(BESIDE) or {}
    nothing = Figure("", None, None, None, None, None, 0)
    return Judged(replace(nothing, name=name, value=line.get(name), **beside.get(name, {})) for name in names)


def mean_figure(name: str, sums: np.ndarray, counts: np.ndarray, bootstrap: Bootstrap, **beside: Any) -> Figure:
    """The figure of a mean over items, with its interval over images.

    Args:
        sums, counts: (images,) of the items of each image.
        bootstrap: of so many images.
        beside: fields of `Figure`; no chance where they have none.
    """
    items = int(counts.sum())
    value = float(sums.sum() / items) if items else None
    ends = bootstrap.ratio(sums, counts) if items else None
    low, high = _widened(name, ends, int(np.count_nonzero(counts)))
    return Figure(name, value, low, high, **{"chance": None, "best_possible": None, **beside}, items=items)


def whole_figure(
    name: str, value: float, ends: tuple[float, float] | None, images: int, items: int, chance: float | None
) -> Figure:
    """The figure of a number that is no mean, such as a correlation, by the ends of its interval.

    Args:
        value: NaN where it is not defined.
        ends: None where nothing draws it.
        images: that it is of.
    """
    if math.isnan(value):
        return Figure(name, None, None, None, chance, None, items)
    low, high = _widened(name, ends, images)
    return Figure(name, value, low, high, chance, None, items)


def _widened(name: str, ends: tuple[float, float] | None, images: int) -> tuple[float | None, float | None]:
    """The ends of an interval, where draws tell them. Where all draws are alike, as of one image, or where all answers
    are right, a share has the interval of as many answers as there are images; others have none."""
    if ends is None or math.isnan(ends[0]):
        return None, None
    low, high = ends
    if low < high:
        return ends
    if measure_name(name).is_share and 0.0 <= low <= 1.0:
        return share_interval(low, images)
    return ends if images > 1 else (None, None)


def verdict_word(low: float, high: float, chance: float, *, lower_is_better: bool = False) -> Word:
    """What the interval `low`..`high` of a number says of it beside `chance`.

    A share of right answers is above or below chance; of a loss or a rank, where less is more, better or worse.
    """
    rounding = _ROUNDING * abs(chance)
    if low - rounding <= chance <= high + rounding:
        return "at chance"
    if lower_is_better:
        return "better than chance" if high < chance else "worse than chance"
    return "clearly above chance" if low > chance else "below chance"


def verdict_of(figure: Figure) -> Word | Literal[""]:
    """ "clearly above chance", "at chance", ...; "" where there is no chance or no interval to compare with."""
    if figure.low is None or figure.high is None or figure.chance is None:
        return ""
    return verdict_word(figure.low, figure.high, figure.chance, lower_is_better=less_is_better(figure.name))


def sentence_of(figure: Figure) -> str:
    """ "masked words 33.1 % right (clearly above chance, which is 12.2 %)"."""
    called = measure_name(figure.name)
    name, _, what = called.lower_title.partition(": ")
    value = called.shown(figure.value)
    words = [name, what, value] if what.startswith("R@") else [name, value, what]
    shown = " ".join(filter(None, words))
    word = verdict_of(figure)
    beside = [f"{word}, which is {called.shown(figure.chance)}"] if word else []
    if not word and figure.chance is not None:
        beside = [f"chance: {called.shown(figure.chance)}"]
    if figure.words_alone is not None:
        beside.append(f"{WORDS_ALONE}: {called.shown(figure.words_alone)}")
    return f"{shown} ({'; '.join(beside)})" if beside else shown


def lacks_intervals(figures: Sequence[Figure]) -> bool:
    """Whether chance is known of some figures, and the interval of none: `NOT_KNOWN` says why there is no verdict."""
    beside_chance = [figure for figure in figures if figure.chance is not None and figure.value is not None]
    return bool(beside_chance) and all(figure.low is None for figure in beside_chance)


def with_words_alone(figures: Iterable[Figure], found: Mapping[str, float]) -> tuple[Figure, ...]:
    """The figures with what counting words alone found, by name."""
    return tuple(replace(figure, words_alone=found.get(figure.name)) for figure in figures)


def share_interval(share: float, items: int) -> tuple[float, float]:
    """The 95 % interval of a share of `items` answers that do not hang together (E. B. Wilson, 1927).

    Args:
        share: 0..1.
        items: at least 1.
    """
    squared = _SURE**2 / items
    middle = (share + squared / 2) / (1 + squared)
    reach = _SURE * math.sqrt(share * (1 - share) / items + squared / (4 * items)) / (1 + squared)
    # The ends are exact where no answer, or every one, is right; in arithmetic they are a digit off.
    return (0.0 if share == 0 else max(middle - reach, 0.0)), (1.0 if share == 1 else min(middle + reach, 1.0))
