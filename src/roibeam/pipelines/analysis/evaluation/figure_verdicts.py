"""What a figure of an evaluation says beside chance, in words; and what a difference of two says."""

from __future__ import annotations

from roibeam.pipelines.analysis.evaluation.evaluation_results import Difference, Figure
from roibeam.pipelines.foundation.statistics.measure_names import WORDS_ALONE, measure_name
from roibeam.pipelines.foundation.statistics.verdict import share_interval, verdict_word


def verdict_of(figure: Figure) -> str:
    """ "clearly above chance", "at chance", ...; "" where there is no chance or no interval to compare with."""
    if figure.low is None or figure.high is None or figure.chance is None:
        return ""
    called = measure_name(figure.name)
    low, high = figure.low, figure.high
    if called.is_share and low == high in (0.0, 1.0):
        # All answers are alike, so every draw of the bootstrap is too; that few of them may come about by chance.
        low, high = share_interval(low, figure.items)
    return verdict_word(low, high, figure.chance, lower_is_better=called.lower_is_better)


def sentence_of(figure: Figure) -> str:
    """ "masked words 33.1 % right (clearly above chance, which is 12.2 %)"."""
    called = measure_name(figure.name)
    name, _, what = called.title.partition(": ")
    words = [name.lower(), called.shown(figure.value), what]
    if what.startswith("R@"):
        words = [name.lower(), what, called.shown(figure.value)]
    shown = " ".join(words)
    word = verdict_of(figure)
    beside = [f"{word}, which is {called.shown(figure.chance)}"] if word else []
    if figure.words_alone is not None:
        beside.append(f"{WORDS_ALONE}: {called.shown(figure.words_alone)}")
    return f"{shown} ({'; '.join(beside)})" if beside else shown


def verdict_of_difference(difference: Difference) -> str:
    """Which of two models is better in this figure, "the first" or "the second", where the interval tells."""
    if not difference.excludes_zero:
        return "no clear difference"
    first_is_better = (difference.low > 0) != measure_name(difference.name).lower_is_better
    return f"the {'first' if first_is_better else 'second'} is better"
