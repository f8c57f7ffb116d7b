"""The report of a run in stages: the curves of all stages on one axis, then each stage with the way to its own page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.printable import escaped
from roibeam.pipelines.common.console.duration import duration
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.common.pages.frame import PAGE_END, note, page_start, table, tiles, verdict_markup
from roibeam.pipelines.common.pages.plot import plot_svg
from roibeam.pipelines.common.statistics.verdict import NOT_KNOWN, lacks_intervals
from roibeam.pipelines.training.run_folder.curves import FEWEST_STEPS, stage_plots
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME
from roibeam.pipelines.training.run_folder.names import PAGE_NAME
from roibeam.pipelines.training.run_folder.run_figures import (
    RunSummary,
    number_of_weights,
    read_summary,
    training_seconds,
)
from roibeam.pipelines.training.run_folder.run_words import (
    data_sentence,
    how_good_sentence,
    how_good_table,
    model_sentence,
    origins,
)
from roibeam.pipelines.training.run_folder.stages import stage_folder
from roibeam.pipelines.training.run_folder.train_log import EVALUATION_NAME, LOG_NAME, read_lines


@dataclass(frozen=True)
class _Stage:
    """A stage that has begun."""

    number: int
    name: str
    folder: Path
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    summary: RunSummary | None


def write_stages_page(run_dir: Path, names: Sequence[str]) -> Path:
    """Writes RUN/report.html of the stages that have a log.

    Args:
        names: of all stages, for people.
    Returns:
        The path of the page.
    """
    path = run_dir / PAGE_NAME
    write_bytes_atomically(path, "".join(_page(run_dir, names)).encode())
    return path


def _page(run_dir: Path, names: Sequence[str]) -> Iterator[str]:
    begun = [stage for stage in (_read(run_dir, number, name) for number, name in enumerate(names, start=1)) if stage]
    title = run_dir.absolute().name
    if not begun:
        yield page_start(title, f"A run in {counted(len(names), 'stage')}; none of them has begun.") + PAGE_END
        return
    last = begun[-1]
    weights = number_of_weights(last.folder)
    what = model_sentence(last.config, last.summary, weights)
    steps, seconds = sum(len(stage.lines) for stage in begun), sum(training_seconds(stage.lines) for stage in begun)
    how_long = f"{counted(steps, 'step')} in {duration(seconds)}"
    yield page_start(
        title, f"{what}, trained in {counted(len(names), 'stage')}: {how_long}.", how_good_sentence(last.summary)
    )
    yield tiles(
        [
            ("stages", f"{len(begun)} of {len(names)}"),
            ("steps", f"{steps:,}"),
            ("time", duration(seconds)),
            ("last loss", f"{last.lines[-1]['loss']:.4g}"),
        ]
    )
    if steps >= FEWEST_STEPS:
        evaluated = "held out" if last.config["recorded"].get("validation") else "evaluations"
        plots = stage_plots([(stage.lines, stage.evaluations) for stage in begun], evaluated=evaluated)
        drawn = "".join(plot_svg(plot, f"curve-{number}") for number, plot in enumerate(plots))
        yield (
            "<section><h2>Curves</h2>\n<p>Running means; the page of each stage has its steps and what guessing "
            f'reaches. Points: evaluations.</p>\n<div class="plots">{drawn}</div></section>\n'
        )
    for stage in begun:
        yield from _stage(stage, len(names))
    for number, name in list(enumerate(names, start=1))[len(begun) :]:
        yield f"<section><h2>{_head(number, len(names), name)}</h2><p>Not begun.</p></section>\n"
    yield PAGE_END


def _read(run_dir: Path, number: int, name: str) -> _Stage | None:
    """None for a stage that has not begun."""
    folder = stage_folder(run_dir, number)
    lines = read_lines(folder / LOG_NAME)
    if not lines:
        return None
    config = read_json_object(folder / CONFIG_NAME)
    return _Stage(number, name, folder, config, lines, read_lines(folder / EVALUATION_NAME), read_summary(folder))


def _stage(stage: _Stage, num_stages: int) -> Iterator[str]:
    train, last = stage.config["train"], stage.lines[-1]
    origin = f"the weights of stage {stage.number - 1}, with a new optimizer and schedule"
    if stage.number == 1:
        origin = "; ".join(origins(stage.config).values())
    yield f"<section><h2>{_head(stage.number, num_stages, stage.name)}</h2>\n"
    yield (
        f"<p>{last['step']:,} of {train['steps']:,} steps of {counted(stage.config['global_batch'], 'sample')} "
        f"{escaped(data_sentence(stage.config, stage.lines))}, {last['epoch']:,.4g} epochs in "
        f"{duration(training_seconds(stage.lines))}, learning rate {train['learning_rate']:g}, "
        f"last loss {last['loss']:.4g}. From {escaped(origin, 200)}. "
        f'<a href="{stage.folder.name}/{PAGE_NAME}">All about it</a></p>\n'
    )
    if stage.summary is not None:
        head, cells = how_good_table(stage.summary)
        rows = [[*map(escaped, row[:-1]), verdict_markup(row[-1])] for row in cells]
        yield f"<p>Asked about {escaped(stage.summary.asked, 200)}:</p>\n"
        yield table(head, rows, numbers=range(1, len(head) - 1))
        if lacks_intervals(stage.summary.figures):
            yield note("No verdict.", NOT_KNOWN)
    yield "</section>\n"


def _head(number: int, num_stages: int, name: str) -> str:
    return f"Stage {number} of {num_stages} <small>{escaped(name, 200)}</small>"
