"""HTML reports of training runs, RUN/report.html: of one run, and of a run in stages.

A run's page has its model, data, time, and results beside chance; then its curves, evaluations, checkpoints and
settings. That of stages has the curves of all stages on one axis, then each stage with a link to its own page.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import plural
from roibeam.pipelines.common.charts import DrawnBox, box_canvas
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import duration
from roibeam.pipelines.common.page_layout import rendered
from roibeam.pipelines.common.plot import plot_svg
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import INTERVALS, judged_line, remark_on
from roibeam.pipelines.training.run_folder.curves import (
    FEWEST_STEPS,
    dashed_levels,
    drawn_curves,
    names_of,
    stage_plots,
    write_curves,
)
from roibeam.pipelines.training.run_folder.files import PAGE_NAME
from roibeam.pipelines.training.run_folder.folder import BATCH_PAGE, CONFIG_NAME
from roibeam.pipelines.training.run_folder.run_summary import (
    DETECTOR_NAME,
    ENCODER_NAME,
    TrainingSummary,
    change_rows,
    data_sentence,
    how_good_sentence,
    how_good_table,
    model_sentence,
    number_of_weights,
    origins,
    read_summary,
    stage_rows,
    training_seconds,
)
from roibeam.pipelines.training.run_folder.stages import stage_folder
from roibeam.pipelines.training.run_folder.train_log import EVALUATION_NAME, LOG_NAME, read_lines

_MASKED, _SEEN = "#c2185b", "#aeb6c2"  # lines of boxes, as on batch.html
_ROWS = 30  # evaluations in the table; more are thinned out
# Settings at the top of the page: name, and key in config.json.
_FIRST_SETTINGS = {
    "steps": "train.steps",
    "samples a step": "global_batch",
    "learning rate, at its peak": "train.learning_rate",
    "warm-up steps": "train.warmup_steps",
    "schedule": "train.schedule",
    "optimizer": "train.optimizer",
    "weight decay": "train.weight_decay",
    "largest gradient norm": "train.clip_norm",
    "precision": "train.precision",
    "seed": "train.seed",
}


@dataclass(frozen=True)
class _Run:
    """A run folder, read; `lines` and `evaluations` are those of log.jsonl and evaluation.jsonl."""

    folder: Path
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    summary: TrainingSummary | None

    @classmethod
    def read(cls, folder: Path) -> _Run:
        lines, evaluations = (read_lines(folder / name) for name in (LOG_NAME, EVALUATION_NAME))
        return cls(folder, read_json_object(folder / CONFIG_NAME), lines, evaluations, read_summary(folder))

    @property
    def evaluated(self) -> str:
        """Name of the points of the evaluations, in legends."""
        return "held out" if self.config["recorded"].get("validation") else "evaluations"


def write_training_page(run_dir: Path, *, best_step: int | None, ended_early: bool = False) -> Path:
    """Writes RUN/report.html from the run folder, and RUN/curves.svg of a run that has enough steps for curves.

    Args:
        best_step: of the best evaluation, which has a checkpoint; None without one.
        ended_early: by `train.patience`.
    """
    run, curves = _Run.read(run_dir), list[str]()
    if len(run.lines) >= FEWEST_STEPS:
        curves = drawn_curves(run.lines, run.evaluations, _levels(run), evaluated=run.evaluated)
        write_curves(run_dir, curves)
    page = _run_html(run, curves, best_step=best_step, ended_early=ended_early)
    write_bytes_atomically(run_dir / PAGE_NAME, page.encode())
    return run_dir / PAGE_NAME


def _found(run: _Run, name: str) -> dict[str, Any] | None:
    """Content of detector.json or encoder.json; None without the file."""
    return read_json_object(run.folder / name) if (run.folder / name).is_file() else None


def _levels(run: _Run) -> dict[str, Mapping[str, float]]:
    """Values to compare the numbers with, by the name of the level; for a stopped run, those of its last evaluation."""
    summary, last = run.summary, run.evaluations[-1] if run.evaluations else {}
    judged = judged_line(last, names_of([last])).figures
    chance = {figure.name: figure.chance for figure in judged if figure.chance is not None}
    if summary is None:
        return {CHANCE: chance}
    return {CHANCE: {**chance, **summary.chance}, WORDS_ALONE: summary.words_alone}


def _run_html(run: _Run, curves: Sequence[str], *, best_step: int | None, ended_early: bool) -> str:
    last, config, summary = run.lines[-1], run.config, run.summary
    weights, seconds = number_of_weights(run.folder), training_seconds(run.lines)
    what = f"{model_sentence(config, summary, weights)}, trained {data_sentence(config, run.lines)}"
    how_long = f"{plural(last['step'], 'step')} of {plural(config['global_batch'], 'sample')} in {duration(seconds)}"
    encoder, detector = _found(run, ENCODER_NAME), _found(run, DETECTOR_NAME)
    levels = dashed_levels(run.lines, run.evaluations, _levels(run)) if curves else ()
    return rendered(
        "run.html",
        title=run.folder.absolute().name,
        summary=[f"{what}: {how_long}.", how_good_sentence(summary)],
        run=run,
        ended=_ended(run, ended_early=ended_early),
        counts=_counts(run, weights, seconds),
        how_good=None if summary is None else how_good_table(summary),
        intervals=INTERVALS,
        remark="" if summary is None else remark_on(summary.figures),
        detector=detector,
        detector_changes=None if detector is None else change_rows(detector),
        encoder=encoder,
        canvases=None if encoder is None else list(_canvases(encoder["photo"])),
        encoder_changes=None if encoder is None else stage_rows(encoder),
        curves=curves,
        dashed=[{CHANCE: "what guessing reaches"}.get(name, name) for name in levels],
        fewest_steps=FEWEST_STEPS,
        steps=_numbers(run.lines, names_of(run.lines)),
        evaluations=_evaluations(run, best_step),
        best_step=best_step,
        pages=[page for page in _pages(run.folder) if (run.folder / page).is_file()],
        checkpoints=sorted(path.name for path in (run.folder / "checkpoints").glob("step-*")),
        settings=_settings(config),
        all_settings=[(name, json.dumps(value)) for name, value in _leaves(config, "")],
    )


def _ended(run: _Run, *, ended_early: bool) -> tuple[str, str] | None:
    """Title and text of the note of a run that has not made all its steps."""
    last, train = run.lines[-1]["step"], run.config["train"]
    steps = f"{last:,} of {train['steps']:,} steps"
    if ended_early:
        waited = f"no better {train['best_by']} in {plural(train['patience'], 'evaluation')} (train.patience)"
        return "Ended early.", f"{steps}: {waited}."
    return None if last >= train["steps"] else ("Not finished.", f"{steps}; the same command goes on with it.")


def _counts(run: _Run, weights: int | None, seconds: float) -> list[tuple[str, str]]:
    last = run.lines[-1]
    steps, samples = len(run.lines) / max(seconds, 1e-9), last["samples"] / max(seconds, 1e-9)
    return [
        ("steps", f"{last['step']:,}"),
        ("time", duration(seconds)),
        ("steps/s", f"{steps:.3g}"),
        ("samples/s", f"{samples:.3g}"),
        ("epochs", f"{last['epoch']:,.4g}"),
        *([] if weights is None else [("weights", f"{weights / 1e6:.3g} M" if weights >= 1e6 else f"{weights:,}")]),
        ("last loss", f"{last['loss']:.4g}"),
    ]


def _canvases(photo: Mapping[str, Any] | None) -> Iterator[tuple[Markup, str]]:
    """A photo as the network reads it, without boxes and with them, each with its words."""
    if photo is None:
        return
    jpeg, size = base64.b64decode(photo["jpeg"]), tuple(photo["image_hw"])
    turned = ", mirrored" if photo["mirrored"] else ""
    what = f"{photo['name']}, of the first batch, as the network reads it{turned}"
    lines = sorted(zip(photo["boxes"], photo["masked"], strict=True), key=lambda each: not each[1])
    boxes = [
        DrawnBox(
            tuple(box), _MASKED if masked else _SEEN, tooltip="masked" if masked else "not masked",
            is_quiet=not masked, line=2.5 if masked else 1.25,
        )
        for box, masked in lines
    ]  # fmt: skip
    named = f"Lines: {plural(sum(photo['masked']), 'masked region')}, and the others thin."
    for drawn, words in (([], what), (boxes, named)):
        yield box_canvas(drawn, size, jpeg, description=words), words


def _evaluations(run: _Run, best_step: int | None) -> dict[str, Any]:
    """The table of evaluations; of many an even choice."""
    lines = run.evaluations
    chosen = {round(index * (len(lines) - 1) / (_ROWS - 1)) for index in range(_ROWS)}
    is_few = len(lines) <= _ROWS
    shown = [line for at, line in enumerate(lines) if is_few or at in chosen or line["step"] == best_step]
    return _numbers(shown, names_of(lines), best_step)


def _numbers(lines: Sequence[Mapping[str, Any]], names: Sequence[str], best_step: int | None = None) -> dict[str, Any]:
    """A table of these numbers, a row for each line."""
    head = ["step", *(measure_name(name).title for name in names)]
    return {
        "head": head,
        "rows": [[f"{line['step']:,}", *(_number(line.get(name)) for name in names)] for line in lines],
        "numbers": range(len(head)),
        "strong": [place for place, line in enumerate(lines) if line["step"] == best_step],
    }


def _pages(folder: Path) -> list[str]:
    """Pages that there may be beside the run's."""
    found = folder.glob(f"evaluation*/{PAGE_NAME}")
    return [BATCH_PAGE, *sorted(f"{path.parent.name}/{path.name}" for path in found)]


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings at the top: name and value."""
    values = dict(_leaves(config, ""))
    first = [
        *origins(config).items(),
        *(("other boxes or dtype", note) for note in config["recorded"].get("choices", ())),
        *((name, values[place]) for name, place in _FIRST_SETTINGS.items() if place in values),
    ]
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in first]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def write_stages_page(run_dir: Path, names: Sequence[str]) -> None:
    """Writes RUN/report.html of the stages that have a log; `names` are those of all."""
    write_bytes_atomically(run_dir / PAGE_NAME, _stages_html(run_dir, names).encode())


def _stages_html(run_dir: Path, names: Sequence[str]) -> str:
    folders = [stage_folder(run_dir, number) for number in range(1, len(names) + 1)]
    started = {
        number: _Run.read(folder) for number, folder in enumerate(folders, start=1) if read_lines(folder / LOG_NAME)
    }
    title, in_stages = run_dir.absolute().name, plural(len(names), "stage")
    if not started:
        summary = [f"A run in {in_stages}; none of them has started."]
        return rendered("stages.html", title=title, summary=summary, names=names, stages={})
    stages = list(started.values())
    last = stages[-1]
    what = model_sentence(last.config, last.summary, number_of_weights(last.folder))
    steps, seconds = sum(len(stage.lines) for stage in stages), sum(training_seconds(stage.lines) for stage in stages)
    how_long = f"{plural(steps, 'step')} in {duration(seconds)}"
    plots = [(stage.lines, stage.evaluations) for stage in stages]
    drawn = stage_plots(plots, evaluated=last.evaluated) if steps >= FEWEST_STEPS else ()
    return rendered(
        "stages.html",
        title=title,
        summary=[f"{what}, trained in {in_stages}: {how_long}.", how_good_sentence(last.summary)],
        counts=[
            ("stages", f"{len(started)} of {len(names)}"),
            ("steps", f"{steps:,}"),
            ("time", duration(seconds)),
            ("last loss", f"{last.lines[-1]['loss']:.4g}"),
        ],
        curves=[plot_svg(plot, f"curve-{number}") for number, plot in enumerate(drawn)],
        names=names,
        stages={number: _stage(number, stage) for number, stage in started.items()},
    )


def _stage(number: int, stage: _Run) -> dict[str, Any]:
    last, summary = stage.lines[-1], stage.summary
    origin = f"the weights of stage {number - 1}, with a new optimizer and schedule"
    return {
        "config": stage.config,
        "steps": last["step"],
        "data": data_sentence(stage.config, stage.lines),
        "epochs": f"{last['epoch']:,.4g}",
        "time": duration(training_seconds(stage.lines)),
        "last_loss": f"{last['loss']:.4g}",
        "origin": "; ".join(origins(stage.config).values()) if number == 1 else origin,
        "page": f"{stage.folder.name}/{PAGE_NAME}",
        "summary": summary,
        "how_good": None if summary is None else how_good_table(summary),
        "remark": "" if summary is None else remark_on(summary.figures),
    }
