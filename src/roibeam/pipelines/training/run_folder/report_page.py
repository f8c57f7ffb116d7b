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

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import escaped, plural
from roibeam.pipelines.common.charts import CANVAS_STYLE, DrawnBox, box_canvas
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import duration
from roibeam.pipelines.common.page_layout import PAGE_END, folded, note, page_start, table, tiles, verdict_markup
from roibeam.pipelines.common.plot import plot_svg
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import INTERVALS, NOT_KNOWN, judged_line, lacks_intervals
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

_WORDS_ALONE = (
    "Words alone: what counting neighbouring words of the training captions finds, without any picture. A model that "
    "is trained on words alone may find more."
)
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
    page = "".join(_run_html(run, curves, best_step=best_step, ended_early=ended_early))
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


def _run_html(run: _Run, curves: Sequence[str], *, best_step: int | None, ended_early: bool) -> Iterator[str]:
    last, config = run.lines[-1], run.config
    weights, encoder = number_of_weights(run.folder), _found(run, ENCODER_NAME)
    seconds = training_seconds(run.lines)
    steps, samples = len(run.lines) / max(seconds, 1e-9), last["samples"] / max(seconds, 1e-9)
    name = run.folder.absolute().name
    what = f"{model_sentence(config, run.summary, weights)}, trained {data_sentence(config, run.lines)}"
    how_long = f"{plural(last['step'], 'step')} of {plural(config['global_batch'], 'sample')} in {duration(seconds)}"
    style = "" if encoder is None else f"{CANVAS_STYLE}.canvases {{ margin: 12px 0 16px; }}\n"
    yield page_start(name, f"{what}: {how_long}.", how_good_sentence(run.summary), style=style)
    if ended_early:
        train = config["train"]
        yield note(
            "Ended early.",
            f"{last['step']:,} of {train['steps']:,} steps: no better {escaped(train['best_by'])} in "
            f"{plural(train['patience'], 'evaluation')} (train.patience).",
        )
    elif last["step"] < config["train"]["steps"]:
        yield note(
            "Not finished.",
            f"{last['step']:,} of {config['train']['steps']:,} steps; the same command goes on with it.",
        )
    yield tiles(
        [
            ("steps", f"{last['step']:,}"),
            ("time", duration(seconds)),
            ("steps/s", f"{steps:.3g}"),
            ("samples/s", f"{samples:.3g}"),
            ("epochs", f"{last['epoch']:,.4g}"),
            *([] if weights is None else [("weights", f"{weights / 1e6:.3g} M" if weights >= 1e6 else f"{weights:,}")]),
            ("last loss", f"{last['loss']:.4g}"),
        ]
    )
    yield from _how_good(run)
    if encoder is not None:
        yield from _encoder(encoder)
    if notes := "".join(f"<li>{escaped(each, 1_000)}</li>" for each in config["recorded"].get("notes", ())):
        yield f"<section><h2>Notes</h2><ul>{notes}</ul></section>\n"
    yield _training(run, curves)
    if run.evaluations:
        yield _evaluations(run, best_step)
    yield _files(run, best_step)
    yield _settings(config)
    yield PAGE_END


def _how_good(run: _Run) -> Iterator[str]:
    summary = run.summary
    if summary is not None:
        yield f"<section><h2>How good <small>evaluated on {escaped(summary.asked, 200)}</small></h2>\n"
        yield _results(summary)
        yield f"<p>{escaped(summary.question, 1_000)} {INTERVALS}</p>\n"
        if lacks_intervals(summary.figures):
            yield note("No verdict.", NOT_KNOWN)
        if summary.words_alone:
            yield f"<p>{_WORDS_ALONE}</p>\n"
        if not summary.held_out:
            yield note(
                "Not held out.",
                "The run was trained on these captions, with other words hidden. --validation-captions names held-out "
                "ones; roibeam evaluate measures more, of a finished run.",
            )
        yield "</section>\n"
    detector = _found(run, DETECTOR_NAME)
    if detector is not None:
        what = f"{plural(detector['photos'], 'held-out photo')}, with the first weights and the last"
        rows = [[escaped(cell, 60) for cell in row] for row in change_rows(detector)]
        yield f"<section><h2>Detector <small>judged on {what}</small></h2>\n"
        yield table(["measure", "before", "after"], rows, numbers=(1, 2)) + "</section>\n"


def _results(summary: TrainingSummary) -> str:
    head, cells = how_good_table(summary)
    rows = [[*map(escaped, row[:-1]), verdict_markup(row[-1])] for row in cells]
    return table(head, rows, numbers=range(1, len(head) - 1))


def _encoder(found: Mapping[str, Any]) -> Iterator[str]:
    """Input of the network from a photo, its trained parts, and how far they moved."""
    yield "<section><h2>Region encoder <small>its input, and how far it moved</small></h2>\n"
    yield f"<p>{escaped(found['masking'], 600)}</p>\n"
    photo = found["photo"]
    if photo is not None:
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
        count = plural(sum(photo["masked"]), "masked region")
        named = f"Lines: {count}, and the others thin."
        yield '<div class="canvases">'
        for drawn, words in (([], what), (boxes, named)):
            canvas = box_canvas(drawn, size, jpeg, description=words)
            yield f'<div>{canvas}<p class="quiet"><bdi>{escaped(words, 300)}</bdi></p></div>'
        yield "</div>\n"
    rows = [[escaped(cell) for cell in row] for row in stage_rows(found)]
    yield table(["part of the network", "weights", "moved, |w - w0| / |w0|"], rows, numbers=(2,))
    yield "<p>w0 are the weights that the run began with. The change is measured at the end; it is not known of a run "
    yield "that goes on without them.</p></section>\n"


def _training(run: _Run, curves: Sequence[str]) -> str:
    if curves:
        levels = dashed_levels(run.lines, run.evaluations, _levels(run))
        dashed = ", and ".join({CHANCE: "what guessing reaches"}.get(name, name) for name in levels)
        dashed = f" Dashed: {dashed}." if dashed else ""
        return (
            "<section><h2>Curves</h2>\n<p>Thin line: each step. Thick line: running mean. Points: evaluations."
            f'{dashed}</p>\n<div class="plots">{"".join(curves)}</div></section>\n'
        )
    return (
        f"<section><h2>Steps <small>curves are drawn from {FEWEST_STEPS} steps on</small></h2>\n"
        f"{_numbers(run.lines, names_of(run.lines))}</section>\n"
    )


def _evaluations(run: _Run, best_step: int | None) -> str:
    lines, train, held_out = run.evaluations, run.config["train"], run.config["recorded"].get("validation")
    what = "of the weights' exponential average" if train.get("average_rate") else "of the weights as trained"
    what += f", on {plural(held_out['captions'], 'held-out caption')}" if held_out else ""
    chosen = {round(index * (len(lines) - 1) / (_ROWS - 1)) for index in range(_ROWS)}
    is_few = len(lines) <= _ROWS
    shown = [line for at, line in enumerate(lines) if is_few or at in chosen or line["step"] == best_step]
    best = "" if best_step is None else f", best by {escaped(train['best_by'])} after step {best_step:,}"
    return (
        f"<section><h2>Evaluations <small>{len(lines):,}, {what}{best}</small></h2>\n"
        f"{folded('All numbers', _numbers(shown, names_of(lines), best_step))}</section>\n"
    )


def _numbers(lines: Sequence[Mapping[str, Any]], names: Sequence[str], best_step: int | None = None) -> str:
    """A table of these numbers, a row for each line."""
    rows = [[f"{line['step']:,}", *(_number(line.get(name)) for name in names)] for line in lines]
    head = ["step", *(measure_name(name).title for name in names)]
    best = [place for place, line in enumerate(lines) if line["step"] == best_step]
    return table(head, rows, numbers=range(len(head)), strong=best)


def _files(run: _Run, best_step: int | None) -> str:
    best = "" if best_step is None else f"step-{best_step:08d}"
    names = sorted(path.name for path in (run.folder / "checkpoints").glob("step-*"))
    rows = "".join(f"<li>checkpoints/{name}{' (best)' if name == best else ''}</li>" for name in names)
    pages = [
        BATCH_PAGE,
        *sorted(f"{path.parent.name}/{path.name}" for path in run.folder.glob(f"evaluation*/{PAGE_NAME}")),
    ]
    links = "".join(
        f'<li><a href="{escaped(page)}">{escaped(page)}</a></li>' for page in pages if (run.folder / page).is_file()
    )
    return f"<section><h2>Files</h2><ul>{links}{rows}</ul></section>\n"


def _settings(config: Mapping[str, Any]) -> str:
    values = dict(_leaves(config, ""))
    recorded = config["recorded"]
    first = [
        *origins(config).items(),
        *(("other boxes or dtype", note) for note in recorded.get("choices", ())),
        *((name, values[place]) for name, place in _FIRST_SETTINGS.items() if place in values),
    ]
    rows = [[escaped(name), escaped(value if isinstance(value, str) else json.dumps(value))] for name, value in first]
    every = [[escaped(name), escaped(json.dumps(value), 100_000)] for name, value in values.items()]
    return (
        f"<section><h2>Settings</h2>\n{table(['setting', 'value'], rows)}"
        f"{folded(f'All {len(values)} settings', table(['setting', 'value'], every))}</section>\n"
    )


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
    write_bytes_atomically(run_dir / PAGE_NAME, "".join(_stages_html(run_dir, names)).encode())


def _stages_html(run_dir: Path, names: Sequence[str]) -> Iterator[str]:
    folders = [stage_folder(run_dir, number) for number in range(1, len(names) + 1)]
    started = {
        number: _Run.read(folder) for number, folder in enumerate(folders, start=1) if read_lines(folder / LOG_NAME)
    }
    title = run_dir.absolute().name
    if not started:
        yield page_start(title, f"A run in {plural(len(names), 'stage')}; none of them has started.") + PAGE_END
        return
    stages = list(started.values())
    last = stages[-1]
    what = model_sentence(last.config, last.summary, number_of_weights(last.folder))
    steps, seconds = sum(len(stage.lines) for stage in stages), sum(training_seconds(stage.lines) for stage in stages)
    how_long = f"{plural(steps, 'step')} in {duration(seconds)}"
    yield page_start(
        title, f"{what}, trained in {plural(len(names), 'stage')}: {how_long}.", how_good_sentence(last.summary)
    )
    yield tiles(
        [
            ("stages", f"{len(started)} of {len(names)}"),
            ("steps", f"{steps:,}"),
            ("time", duration(seconds)),
            ("last loss", f"{last.lines[-1]['loss']:.4g}"),
        ]
    )
    if steps >= FEWEST_STEPS:
        plots = stage_plots([(stage.lines, stage.evaluations) for stage in stages], evaluated=last.evaluated)
        drawn = "".join(plot_svg(plot, f"curve-{number}") for number, plot in enumerate(plots))
        yield (
            "<section><h2>Curves</h2>\n<p>Running means; the page of each stage has its steps and what guessing "
            f'reaches. Points: evaluations.</p>\n<div class="plots">{drawn}</div></section>\n'
        )
    for number, stage in started.items():
        yield from _stage(number, stage, names)
    for number in range(len(started) + 1, len(names) + 1):
        yield f"<section><h2>{_head(number, names)}</h2><p>Not started.</p></section>\n"
    yield PAGE_END


def _stage(number: int, stage: _Run, names: Sequence[str]) -> Iterator[str]:
    train, last = stage.config["train"], stage.lines[-1]
    origin = f"the weights of stage {number - 1}, with a new optimizer and schedule"
    if number == 1:
        origin = "; ".join(origins(stage.config).values())
    yield f"<section><h2>{_head(number, names)}</h2>\n"
    yield (
        f"<p>{last['step']:,} of {train['steps']:,} steps of {plural(stage.config['global_batch'], 'sample')} "
        f"{escaped(data_sentence(stage.config, stage.lines))}, {last['epoch']:,.4g} epochs in "
        f"{duration(training_seconds(stage.lines))}, learning rate {train['learning_rate']:g}, "
        f"last loss {last['loss']:.4g}. From {escaped(origin, 200)}. "
        f'<a href="{stage.folder.name}/{PAGE_NAME}">All about it</a></p>\n'
    )
    if stage.summary is not None:
        yield f"<p>Evaluated on {escaped(stage.summary.asked, 200)}:</p>\n"
        yield _results(stage.summary)
        if lacks_intervals(stage.summary.figures):
            yield note("No verdict.", NOT_KNOWN)
    yield "</section>\n"


def _head(number: int, names: Sequence[str]) -> str:
    return f"Stage {number} of {len(names)} <small>{escaped(names[number - 1], 200)}</small>"
