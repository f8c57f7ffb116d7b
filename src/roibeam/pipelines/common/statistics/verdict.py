"""Measured numbers beside chance: bootstrap intervals over images, and the verdict in words.

The one rule of all pages, terminals and JSON: a number is above chance, or better, where its 95 % interval over images
lies on that side of chance, and at chance where the interval holds it. Without an interval there is no verdict. The
interval of a mean, or of the difference of two, says how far it would move with other images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from roibeam.messages import plural
from roibeam.pipelines.common.statistics.measure_names import WORDS_ALONE, less_is_better, measure_name

RESAMPLES = 2000
LEVEL = 0.95
_NUMBERS_AT_ONCE = 2**22  # of a block of weights, 32 MB


class Bootstrap:
    """Draws of images with replacement, by hand: scipy.stats.bootstrap has no ratio over images nor block of draws.

    They are the same for one seed and number of images; `resamples` is how often as many images are drawn.
    """

    def __init__(self, num_images: int, *, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self._num_images, self._seed, self._resamples = num_images, seed, resamples

    def ratio(self, sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        """Lower and upper end of sums.sum() / counts.sum(), both (images,); NaN where nothing was counted."""
        return _ends(np.concatenate([_ratios(weights, sums, counts) for weights in self._weights(self._num_images)]))

    def difference(
        self, sums: np.ndarray, counts: np.ndarray, other_sums: np.ndarray, other_counts: np.ndarray
    ) -> tuple[float, float]:
        """Interval of the first ratio less the other one, both of the same images in each draw."""
        draws = [
            _ratios(weights, sums, counts) - _ratios(weights, other_sums, other_counts)
            for weights in self._weights(self._num_images)
        ]
        return _ends(np.concatenate(draws))

    def median(self, ranks: np.ndarray, image_of_rank: np.ndarray) -> tuple[float, float]:
        """Interval of `floor_median(ranks)`; ranks and image_of_rank: (n,) int, the image that each belongs to."""
        order = np.argsort(ranks, kind="stable")
        ordered = ranks[order]

        def medians(weights_NR: np.ndarray) -> np.ndarray:
            reached = np.cumsum(weights_NR, axis=1)
            total = reached[:, -1:]
            lower = (reached >= (total + 1) // 2).argmax(axis=1)
            upper = (reached >= total // 2 + 1).argmax(axis=1)
            return (ordered[lower] + ordered[upper]) // 2

        return self.whole(medians, image_of_rank[order])

    def whole(self, statistic: Callable[[np.ndarray], np.ndarray], image_of_row: np.ndarray) -> tuple[float, float]:
        """Interval of a number of all rows together that is no ratio of sums.

        Args:
            statistic: (N, rows) int64, how often each row was drawn -> (N,) the number in each draw, NaN where it is
                not defined.
            image_of_row: (rows,) int, to which image each belongs.
        """
        width = max(len(image_of_row), self._num_images)
        return _ends(np.concatenate([statistic(weights[:, image_of_row]) for weights in self._weights(width)]))

    def _weights(self, width: int) -> Iterator[np.ndarray]:
        """(n, images) int64, how often each image was drawn, a block of draws at a time.

        The draws are one stream, so that they do not depend on the blocks.
        """
        random, images = np.random.default_rng(self._seed), self._num_images
        at_once = max(1, _NUMBERS_AT_ONCE // width)
        for start in range(0, self._resamples, at_once):
            size = min(at_once, self._resamples - start)
            drawn = random.integers(images, size=(size, images)) + images * np.arange(size)[:, None]
            yield np.bincount(drawn.ravel(), minlength=size * images).reshape(size, images)


def floor_median(ranks: np.ndarray) -> int:
    """Median, rounded down where it lies between two: the median rank of the published retrieval codes."""
    return int(np.floor(np.median(ranks)))


def _ratios(weights_NI: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    totals = weights_NI @ counts.astype(np.float64)
    return np.divide(weights_NI @ sums, totals, out=np.full(len(totals), np.nan), where=totals > 0)


def _ends(values: np.ndarray) -> tuple[float, float]:
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


Word = Literal["clearly above chance", "at chance", "below chance", "better than chance", "worse than chance"]
INTERVALS = "Intervals are 95 % of a bootstrap over images: draws of other images would fall into them 95 times in 100."
NOT_KNOWN = (
    "The interval of these figures over images is not known, so none of them is called above or below chance: the run "
    "was evaluated by an earlier version. roibeam evaluate, or roibeam score of a task, measures it."
)
AT_CHANCE = (
    "The model learned nothing that can be told from chance. While the training loss falls, more steps help (a small "
    "model needs some 2,000); where it does not fall, another learning rate; where it is low already, more training "
    "data. Where intervals are wide, evaluate more images."
)
BESIDE = "beside"  # key of evaluation.jsonl: intervals and baselines of its numbers
_KEPT = ("low", "high", "chance", "items")  # of each number, there
_SURE = 1.96  # standard deviations of a 95 % interval
# Student's t of one, by degrees of freedom from 1 on; above these by an expansion (Abramowitz and Stegun, 26.7.5).
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_ROUNDING = 1e-6  # relative, of a mean of float32 losses


@dataclass(frozen=True)
class Figure:
    """One number with its interval and baselines.

    Attributes:
        name: such as "masked_word_accuracy", "image_to_text_r1", "overall".
        value: shares are 0..1, losses nats, ranks from 1; None where there was nothing to measure.
        low, high: ends of the 95 % interval over images; None where there is none.
        chance: level of a model that knows nothing; None where that is not defined.
        best_possible: upper limit by the data, where it is below a perfect score.
        items: words, regions, pairs, queries or rows that it is the mean or median of.
        words_alone: level of counting neighbouring words of the training captions; None where it is not known.
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
        """Returns JSON with the verdict in words, "" for none."""
        return {**asdict(self), "verdict": verdict_of(self)}


class Judged(dict[str, float | None]):
    """Numbers of an evaluation by name, with their intervals and baselines.

    Attributes:
        figures: of all numbers, in their order.
    """

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.figures = tuple(figures)
        super().__init__((figure.name, figure.value) for figure in self.figures)

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> Judged:
        """Wraps plain numbers, as an own task gives them, without intervals and baselines."""
        if isinstance(values, Judged):
            return values
        return cls(Figure(name, value, None, None, None, None, 0) for name, value in values.items())

    def beside(self) -> dict[str, dict[str, float]]:
        """Intervals and baselines by name, as a line of evaluation.jsonl keeps them; read by `judged_line`."""
        found = {}
        for figure in self.figures:
            kept = {name: getattr(figure, name) for name in _KEPT if name != "items" or figure.items}
            found[figure.name] = {
                name: value for name, value in kept.items() if value is not None and math.isfinite(value)
            }
        return {name: kept for name, kept in found.items() if kept}


def judged_line(line: Mapping[str, Any], names: Iterable[str]) -> Judged:
    """Reads the numbers of these names in a line of evaluation.jsonl; those of earlier versions have no interval."""
    beside: Mapping[str, Mapping[str, Any]] = line.get(BESIDE) or {}
    nothing = Figure("", None, None, None, None, None, 0)
    return Judged(replace(nothing, name=name, value=line.get(name), **beside.get(name, {})) for name in names)


def mean_figure(name: str, sums: np.ndarray, counts: np.ndarray, bootstrap: Bootstrap, **beside: Any) -> Figure:
    """Figure of a mean over items, with its interval over images.

    Args:
        sums, counts: (images,) of the items of each image.
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
    """Figure of a number that is no mean, such as a correlation, by the ends of its interval, None without draws; NaN
    where it is not defined."""
    if math.isnan(value):
        return Figure(name, None, None, None, chance, None, items)
    low, high = _widened(name, ends, images)
    return Figure(name, value, low, high, chance, None, items)


def _widened(name: str, ends: tuple[float, float] | None, images: int) -> tuple[float | None, float | None]:
    """Ends of an interval. If all draws are equal, as with one image or with all answers right, a share has the
    interval of as many answers as there are images; others have none."""
    if ends is None or math.isnan(ends[0]):
        return None, None
    low, high = ends
    if low < high:
        return ends
    if measure_name(name).is_share and 0.0 <= low <= 1.0:
        return share_interval(low, images)
    return ends if images > 1 else (None, None)


def verdict_word(low: float, high: float, chance: float, *, lower_is_better: bool = False) -> Word:
    """Verdict on a number with the interval `low`..`high` against `chance`.

    A share of right answers is above or below chance; a loss or a rank is better or worse than chance.
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
    value = called.formatted(figure.value)
    words = [name, what, value] if what.startswith("R@") else [name, value, what]
    text = " ".join(filter(None, words))
    word = verdict_of(figure)
    beside = [f"{word}, which is {called.formatted(figure.chance)}"] if word else []
    if not word and figure.chance is not None:
        beside = [f"chance: {called.formatted(figure.chance)}"]
    if figure.words_alone is not None:
        beside.append(f"{WORDS_ALONE}: {called.formatted(figure.words_alone)}")
    return f"{text} ({'; '.join(beside)})" if beside else text


def verdict_sentence(figures: Sequence[Figure]) -> str:
    """Which of the figures are better than chance; "" where none can be compared with it."""
    judged = [figure for figure in figures if verdict_of(figure)]
    good = [figure for figure in judged if verdict_of(figure) in ("clearly above chance", "better than chance")]
    if not judged:
        return ""
    if not good:
        return AT_CHANCE
    names = [measure_name(figure.name).lower_title.replace(":", "") for figure in good]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    shares = [figure for figure in good if measure_name(figure.name).is_share and figure.words_alone is not None]
    alone = any(cast(float, figure.low) <= cast(float, figure.words_alone) for figure in shares)
    more = " Words alone, without the photo, may reach as much of the words: look at both." if alone else ""
    return (
        f"The model is clearly better than chance in {len(good)} of {plural(len(judged), 'measure')}: {listed}.{more}"
    )


def lacks_intervals(figures: Sequence[Figure]) -> bool:
    """Whether chance is known for some figures, and the interval for none: `NOT_KNOWN` gives the reason."""
    beside_chance = [figure for figure in figures if figure.chance is not None and figure.value is not None]
    return bool(beside_chance) and all(figure.low is None for figure in beside_chance)


def remark_on(figures: Sequence[Figure]) -> str:
    """`NOT_KNOWN`, `AT_CHANCE` where there are verdicts and none is good, else ""; and which targets are all equal."""
    sentence = NOT_KNOWN if lacks_intervals(figures) else verdict_sentence(figures)
    equal = [measure_name(each.name).lower_title.partition(":")[0] for each in figures if _has_one_answer(each)]
    one = f"{' and '.join(equal)}: all right answers are one and the same, so that this says nothing" if equal else ""
    one += " (regions of a young detector may all have one class: train it longer)" if "masked regions" in equal else ""
    return ". ".join(filter(None, [one, sentence if sentence in (NOT_KNOWN, AT_CHANCE) else ""]))


def _has_one_answer(figure: Figure) -> bool:
    return measure_name(figure.name).is_share and figure.chance is not None and figure.chance > 1 - _ROUNDING


def with_words_alone(figures: Iterable[Figure], found: Mapping[str, float]) -> tuple[Figure, ...]:
    """Returns the figures with their levels of words alone, by name."""
    return tuple(replace(figure, words_alone=found.get(figure.name)) for figure in figures)


def share_interval(share: float, items: int) -> tuple[float, float]:
    """95 % interval of a share (0..1) of `items` >= 1 independent answers (E. B. Wilson, 1927)."""
    squared = _SURE**2 / items
    middle = (share + squared / 2) / (1 + squared)
    reach = _SURE * math.sqrt(share * (1 - share) / items + squared / (4 * items)) / (1 + squared)
    # The ends are exact where no answer, or every one, is right; in arithmetic they are a digit off.
    return (0.0 if share == 0 else max(middle - reach, 0.0)), (1.0 if share == 1 else min(middle + reach, 1.0))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of two or more independent values."""
    free, mean = len(values) - 1, sum(values) / len(values)
    wide = _SURE + (_SURE**3 + _SURE) / (4 * free) + (5 * _SURE**5 + 16 * _SURE**3 + 3 * _SURE) / (96 * free**2)
    times = _STUDENT[free - 1] if free <= len(_STUDENT) else wide
    reach = times * math.sqrt(sum((value - mean) ** 2 for value in values) / free / len(values))
    return mean - reach, mean + reach
