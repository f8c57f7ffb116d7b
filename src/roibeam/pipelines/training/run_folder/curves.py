"""The curves of a training run: a plot for each loss, accuracy and rate of log.jsonl and evaluation.jsonl.

RUN/curves.svg has them as one picture. matplotlib draws them (pipelines/common/plot.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.pipelines.common.plot import Level, Plot, Series, plot_svg, svg_file
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import BESIDE

CURVES_NAME = "curves.svg"
FEWEST_STEPS = 20  # a run of fewer has a table of them instead
_POSITION = ("step", "samples", "epoch", "seconds")
_RATES = ("learning_rate", "gradient_norm")
_POINTS = 300  # a longer run is drawn as means over equal parts
_SMOOTH = 25  # points of the running mean
_RECALLS = ("_r1", "_r5", "_r10")

_LEVEL_COLOURS = {WORDS_ALONE: 2}  # chance has that of quiet text

Lines = Sequence[Mapping[str, Any]]
Levels = Mapping[str, Mapping[str, float]]


def write_curves(run_dir: Path, drawn: Sequence[str]) -> None:
    """Writes plots, as `drawn_curves` gives them, to RUN/curves.svg."""
    write_bytes_atomically(run_dir / CURVES_NAME, svg_file(drawn).encode())


def drawn_curves(lines: Lines, evaluations: Lines, levels: Levels, *, evaluated: str) -> list[str]:
    """The plots of a run as elements of a page.

    Args:
        lines, evaluations: of log.jsonl and evaluation.jsonl.
        levels: values to compare with: by the name of the level, values by the names of the numbers.
        evaluated: in the legend, for the points of the evaluations: "held out".
    """
    plots = run_plots(lines, evaluations, levels, evaluated=evaluated)
    return [plot_svg(plot, f"curve-{number}") for number, plot in enumerate(plots)]


def run_plots(lines: Lines, evaluations: Lines, levels: Levels, *, evaluated: str) -> Iterator[Plot]:
    """See `drawn_curves`: losses and accuracies first, then numbers of evaluations alone, then the rates."""
    # A loss that is 0 at every step has nothing to judge, such as that of attributes of a detector without any.
    can_be_0 = [name for name in names_of(lines) if name in _RATES or measure_name(name).is_share]
    of_steps = [name for name in names_of(lines) if name in can_be_0 or any(line.get(name) for line in lines)]
    of_evaluations = names_of(evaluations)
    for name in (name for name in of_steps if name not in _RATES):
        yield _measure_plot(name, lines, evaluations if name in of_evaluations else (), levels, evaluated=evaluated)
    alone = [name for name in of_evaluations if name not in of_steps]
    recalls = [name for name in alone if name.endswith(_RECALLS)]
    for direction in dict.fromkeys(name.rpartition("_")[0] for name in recalls):
        yield _recall_plot([name for name in recalls if name.startswith(direction)], evaluations, levels)
    for name in (name for name in alone if name not in recalls):
        yield _measure_plot(name, (), evaluations, levels, evaluated=evaluated)
    for name in _RATES:
        if name in of_steps:
            yield _rate_plot(name, lines)


def stage_plots(stages: Sequence[tuple[Lines, Lines]], *, evaluated: str) -> Iterator[Plot]:
    """The losses and accuracies of stages in a row, on one axis of steps; `stages` are lines of log.jsonl, at least
    one, and of evaluation.jsonl."""
    first_steps = [0]
    for lines, _ in stages:
        first_steps.append(first_steps[-1] + int(lines[-1]["step"]))
    names = dict.fromkeys(name for lines, evaluations in stages for name in (*names_of(lines), *names_of(evaluations)))
    marks = [(float(step), f"stage {number}") for number, step in enumerate(first_steps[:-1], start=1)]
    for name in (name for name in names if name not in _RATES):
        called = measure_name(name)
        series: list[Series] = []
        for (lines, evaluations), first_step in zip(stages, first_steps, strict=False):
            means = [each for each in step_series(name, lines, first_step=first_step) if each.style == "line"]
            x, y = _column(evaluations, name)
            points = [Series(evaluated, (x + first_step).tolist(), y.tolist(), 1, "points")] if len(x) else []
            known = {each.name for each in series}
            series += [replace(each, name="" if each.name in known else each.name) for each in (*means, *points)]
        yield Plot(
            called.title, "step, over all stages", called.unit or "value", series, percent=called.is_share, marks=marks
        )
    rates, label = _learning_rates([lines for lines, _ in stages], first_steps)
    yield Plot(measure_name("learning_rate").title, "step, over all stages", label, rates, marks=marks)


def names_of(lines: Lines) -> list[str]:
    """Names that have a number in some line, in their order, without step, samples, epoch and seconds."""
    names = dict.fromkeys(name for line in lines for name in line if name not in (*_POSITION, BESIDE))
    return [name for name in names if any(line.get(name) is not None for line in lines)]


def dashed_levels(lines: Lines, evaluations: Lines, levels: Levels) -> list[str]:
    """Names of the levels that have a line in some plot of `drawn_curves`, for the same arguments."""
    names = [name for name in (*names_of(lines), *names_of(evaluations)) if not name.endswith(_RECALLS)]
    return [level for level, values in levels.items() if any(name in values for name in names)]


def _measure_plot(name: str, lines: Lines, evaluations: Lines, levels: Levels, *, evaluated: str) -> Plot:
    called = measure_name(name)
    series = list(step_series(name, lines))
    if evaluations:
        x, y = _column(evaluations, name)
        series.append(Series(evaluated, x.tolist(), y.tolist(), 1, "points"))
    lines_at = [
        Level(f"{level} {called.formatted(values[name])}", values[name], _LEVEL_COLOURS.get(level))
        for level, values in levels.items()
        if name in values
    ]
    return Plot(called.title, "step", called.unit or "value", series, lines_at, percent=called.is_share)


def step_series(name: str, lines: Lines, *, first_step: int = 0) -> Iterator[Series]:
    """A number of log.jsonl at each step, and its running mean; `first_step` is added for a stage after others."""
    x, y = _column(lines, name)
    if not len(x):
        return
    x, y, in_one = _thinned(x, y)
    x = x + first_step
    steps = "each step" if in_one == 1 else f"mean of {in_one:,} steps"
    yield Series(steps, x.tolist(), y.tolist(), style="faint")
    yield Series("running mean", x.tolist(), _smoothed(y).tolist())


def _recall_plot(names: Sequence[str], evaluations: Lines, levels: Levels) -> Plot:
    series, chance = [], levels.get(CHANCE, {})
    for colour, name in enumerate(names):
        x, y = _column(evaluations, name)
        short = measure_name(name).title.rpartition(": ")[2]
        guessed = f" (chance {100 * chance[name]:.1f} %)" if name in chance else ""
        series.append(Series(short + guessed, x.tolist(), y.tolist(), colour, "points"))
    title = measure_name(names[0]).title.rpartition(": ")[0]
    return Plot(f"{title}: found among the first", "step", "found (%)", series, percent=True)


def _rate_plot(name: str, lines: Lines) -> Plot:
    called = measure_name(name)
    if name != "learning_rate":
        return Plot(called.title, "step", called.unit, list(step_series(name, lines)))
    series, label = _learning_rates([lines], [0])
    return Plot(called.title, "step", label, series)


def _learning_rates(logs: Sequence[Lines], first_steps: Sequence[int]) -> tuple[list[Series], str]:
    """The unaveraged rate of each log, since a mean would hide its peak; and the name of the axis with its unit."""
    columns = [_column(lines, "learning_rate") for lines in logs]
    power = math.floor(math.log10(max([float(y.max()) for _, y in columns if len(y)], default=1.0) or 1.0))
    series = []
    for (x, y), first_step in zip(columns, first_steps, strict=False):
        chosen = np.unique(np.concatenate([np.linspace(0, len(x) - 1, _POINTS).astype(int), [int(y.argmax())]]))
        series.append(Series("", (x[chosen] + first_step).tolist(), (y[chosen] / 10.0**power).tolist()))
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return series, f"rate (10{exponent})"


def _column(lines: Lines, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) float64 steps and values, where the number exists."""
    found = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    steps, values = np.array(found, np.float64).reshape(-1, 2).T
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Many values as means over equal parts, and the largest number of steps in a part."""
    if len(values) <= _POINTS:
        return steps, values, 1
    parts = np.array_split(np.arange(len(values)), _POINTS)
    ends = np.array([steps[part[-1]] for part in parts])
    return ends, np.array([values[part].mean() for part in parts]), len(parts[0])


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Means over a few points before and after, of one side alone at the ends."""
    sums = np.concatenate([[0.0], values.cumsum()])
    places = np.arange(len(values))
    starts, ends = np.maximum(places - _SMOOTH // 2, 0), np.minimum(places + _SMOOTH // 2 + 1, len(values))
    return (sums[ends] - sums[starts]) / (ends - starts)
