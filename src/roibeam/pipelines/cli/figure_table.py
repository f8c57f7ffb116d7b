"""Results for the terminal: figures with intervals, beside chance, in words; and what a run folder holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.statistics.measure_names import WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import Figure, remark_on, verdict_of

if TYPE_CHECKING:
    from roibeam.pipelines.training.hooks import TrainResult

# The first figures of a table; others come behind them as they are given.
_ORDER = (
    "masked_words", "masked_word_accuracy", "text_only_words", "text_only_word_accuracy", "masked_regions",
    "masked_region_accuracy", "masked_region_features", "matching", "matching_accuracy",
    *(f"{way}_{what}" for way in ("image_to_text", "text_to_image") for what in ("r1", "r5", "r10", "median_rank")),
)  # fmt: skip


def label_of(name: str) -> str:
    """ "masked words, right" of "masked_word_accuracy"."""
    return measure_name(name).lower_title.replace(": ", ", ")


def in_order(names: Sequence[str]) -> list[str]:
    """Sorts names, with losses and shares of one kind side by side."""
    return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


def figure_lines(figures: Sequence[Figure], *, with_possible: bool = False) -> Iterator[str]:
    """Table of the measures of a pre-trained model.

    Args:
        with_possible: whether it has a column of the upper limits by the data.
    """
    named = {figure.name: figure for figure in figures}
    possible = f"{'possible':>9}" if with_possible else ""
    yield f"{'':<30}{'value':>8}{'95 % interval':>20}{'chance':>9}{possible}{'of':>8}"
    for figure in map(named.__getitem__, in_order(list(named))):
        called = measure_name(figure.name)
        interval = "" if figure.low is None else f"{called.formatted(figure.low)} .. {called.formatted(figure.high)}"
        best = "" if figure.best_possible is None else called.formatted(figure.best_possible)
        possible = f"{best:>9}" if with_possible else ""
        line = (
            f"{label_of(figure.name):<30}{called.formatted(figure.value):>8}{interval:>20}{called.formatted(figure.chance):>9}"
            f"{possible}{figure.items:>8,}  {verdict_of(figure)}"
        )
        yield line.rstrip()
        if figure.words_alone is not None:
            yield f"{f'  {WORDS_ALONE}':<30}{called.formatted(figure.words_alone):>8}"
    if remark := remark_on(figures):
        yield remark


def task_lines(figures: Sequence[Figure], last: Mapping[str, float | None] = MappingProxyType({})) -> Iterator[str]:
    """Table of the measures of a task, all in percent, by the names that `train.best_by` takes.

    Args:
        last: those of the last checkpoint, where the figures are of another one.
    """
    column = f"{'the last':>10}" if last else ""
    yield f"{'':<28}{'percent':>9}{'95 % interval':>18}{'chance':>9}{'of':>9}{column}"
    for figure in figures:
        interval = "" if figure.low is None else f"{_percent(figure.low)} .. {_percent(figure.high)}"
        column = f"{_percent(last.get(figure.name)):>10}" if last else ""
        items = f"{figure.items:,}" if figure.items else ""
        line = (
            f"{figure.name:<28}{_percent(figure.value):>9}{interval:>18}"
            f"{'' if figure.chance is None else _percent(figure.chance):>9}{items:>9}{column}  {verdict_of(figure)}"
        )
        yield line.rstrip()
    if remark := remark_on(figures):
        yield remark


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def origin_facts(run_dir: Path) -> dict[str, str]:
    """Origin of a run, for --json: "started_from", and end to end "region_encoder_started_from"."""
    from roibeam.pipelines.training.run_folder.folder import saved_config
    from roibeam.pipelines.training.run_folder.run_summary import origins

    return {name.replace(" ", "_"): words for name, words in origins(saved_config(run_dir)).items()}


def origin_lines(run_dir: Path) -> str:
    """Origin of a run, for the terminal."""
    return "\n".join(f"{name.replace('_', ' ')} {words}" for name, words in origin_facts(run_dir).items())


def print_dry_run(run: Callable[[Path], object], *, as_json: bool) -> None:
    """Starts a run in a folder that is removed, and prints what it would take.

    Args:
        run: takes the run folder; raises `DryRunDone`.
    """
    from roibeam.pipelines.common.compute import num_processes
    from roibeam.pipelines.training.task import DryRunDone

    if num_processes() > 1:
        raise ValueError("--dry-run times one process; start it without torchrun")
    with TemporaryDirectory(prefix="roibeam-") as folder:
        try:
            run(Path(folder) / "run")
        except DryRunDone as done:
            typer.echo(json_line(asdict(done.found), event="dry_run") if as_json else done.found.text())


def run_folder_lines(run_dir: Path, result: TrainResult) -> list[str]:
    """Files of a run folder that every training writes, with a word on each, for the terminal."""
    best = [] if result.best is None else [f"  {result.best.relative_to(run_dir)}/   the best by its evaluations"]
    curves = ["  curves.svg   its curves, as a picture"] if (run_dir / "curves.svg").is_file() else []
    return [
        *best,
        "  report.html   look here first: how good, curves, settings",
        *curves,
        "  log.jsonl   one line per step",
        "  config.json   everything this run was made with",
    ]
