"""Scores a result file against a folder with a data set's official files; the card explains the score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import sha256_of
from roibeam.messages import printable
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.common.statistics.verdict import Bootstrap, verdict_of
from roibeam.pipelines.finetuning.metrics.measure import STRICT, Measure, Whole, figures_of, numbers_of_images
from roibeam.pipelines.finetuning.prediction_card import read_card
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS, OpenTask, ScoredTask, is_own, own_task, task_name
from roibeam.version import __version__

_WITHOUT_INTERVAL = "question type "  # VQA has 65 of them


@dataclass(frozen=True)
class ScoreRequest:
    """
    Attributes:
        task: a name of `SCORED_TASKS`, or a file of one's own.
        results: file with predictions, in the task's official format.
        data: folder with the data set's official files.
        split: None for that of the predictions if a card beside them names it, else the task's usual one.
        rules: "strict", "official", or another name that the task knows.
        against: a second result file; None for none.
    """

    task: str
    results: Path
    data: Path
    split: str | None = None
    rules: str = STRICT
    against: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class ScoredFigure:
    """One measure.

    Attributes:
        value: 0..1, or -1..1 of a correlation, None where it is not defined; percent: the same, to be rounded as
            official codes do.
        low, high: 95 % interval of the value over images, None where none is made.
        chance: value of always the commonest answer, or of a choice by lot; None where that is not known.
        verdict: the interval against chance, in words; "" where one of both is not known.
        rows: number of rows of the mean.
        against: value of the second file; less, less_low, less_high: first less second, with its paired interval.
    """

    name: str
    value: float | None
    percent: float | None
    rows: int
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    verdict: str = ""
    against: float | None = None
    less: float | None = None
    less_low: float | None = None
    less_high: float | None = None


@dataclass(frozen=True)
class Score:
    """Figures in their order for people, none for a check, and the card."""

    figures: tuple[ScoredFigure, ...]
    card: dict[str, Any]


def run_score(request: ScoreRequest, *, check_only: bool = False) -> Score:
    """Scores a result file, or with `check_only` only reads it."""
    split, task, official = _opened(request)
    if not task.rows:
        raise ValueError(f"{str(task.files[0])!r}: holds no row of {request.task}'s {split} split")
    results = [request.results, *([request.against] if request.against else [])]
    if official is None:  # tables of one's own, whose ids are often numbers of rows, which fit any split
        for path in results:
            _check_split(path, task_name(request.task), split)
    card = {
        "task": task_name(request.task),
        "split": split,
        "metric": task.metric,
        "rules": request.rules,
        "rules_words": task.rules,
        "rows": task.rows,
        "official_rows": official,
        "labels": {str(path): sha256_of(path) for path in task.files},
        "results": {str(path): sha256_of(path) for path in results},
        "predicted": [_predicted(path, task_name(request.task), split) for path in results],
        "command": request.command,
        "roibeam": __version__,
    }
    if check_only:
        for path in results:
            task.check(str(path))
        return Score((), card)
    if task.numbers is not None:
        card["numbers"] = {str(path): dict(task.numbers(task.read(str(path)))) for path in results}
    measured = [task.measures(str(path)) for path in results]
    return Score(_figures(measured), card)


def _check_split(results: Path, task: str, split: str) -> None:
    """Raises ValueError for a file whose card is of another split."""
    card, _ = read_card(results, sha256_of(results))
    if card is not None and card.get("task") == task and card.get("split") != split:
        other = printable(str(card.get("split")), 40)
        raise ValueError(f"{str(results)!r} has predictions of the split {other}, not of {split}; give --split {other}")


def _predicted(results: Path, task: str, split: str) -> dict[str, Any]:
    """The card beside a file of predictions, or the reason why it is unknown."""
    card, why = read_card(results, sha256_of(results))
    if card is not None and (card.get("task"), card.get("split")) != (task, split):
        words = f"{card.get('task')}, {card.get('split')}"
        card, why = None, f"not known: its card is of {printable(words, 60)}"
    return {"unknown": why} if card is None else card


def _known(task: str) -> ScoredTask:
    """The task of a name or file. Raises ValueError for an unknown name, or a task that cannot be scored."""
    if is_own(task):
        scored = own_task(task, "TASK").scored
        if scored is None:
            raise ValueError(f"TASK {task!r}: its OwnTask has no `scored`, so that nothing can be scored")
        return scored
    if task not in SCORED_TASKS:
        raise ValueError(f"no task {task!r}; choose one of {', '.join(SCORED_TASKS)}, or a file of your own task")
    return SCORED_TASKS[task]


def _opened(request: ScoreRequest) -> tuple[str, OpenTask, int | None]:
    named = NamedFiles()
    named.need("FILE", request.results, FILE)
    named.need("--data", request.data, FOLDER)
    named.need("--against", request.against, FILE)
    known = _known(request.task)
    split = request.split or _split_of_card(request, known) or next(iter(known.splits))
    if split not in known.splits:
        raise ValueError(f"{request.task} has no split {split!r}; choose one of {', '.join(known.splits)}")
    if request.rules not in known.rules:
        raise ValueError(f"{request.task} has no rules {request.rules!r}; choose one of {', '.join(known.rules)}")
    named.check()
    opened = known.open(request.data, split, request.rules)
    return split, opened, None if opened.is_own else known.splits[split]


def _split_of_card(request: ScoreRequest, known: ScoredTask) -> str | None:
    """The split in the card beside the predictions, None where it is none of the task's."""
    if not request.results.is_file():
        return None
    card, _ = read_card(request.results, sha256_of(request.results))
    split = card.get("split") if card is not None and card.get("task") == task_name(request.task) else None
    return split if split in known.splits else None


def _figures(measured: Sequence[dict[str, Measure]]) -> tuple[ScoredFigure, ...]:
    first, *others = measured
    number_of = numbers_of_images(first.values())
    bootstrap = Bootstrap(len(number_of))
    # VQA's 65 types of questions have no intervals.
    judged = {name: measure for name, measure in first.items() if not name.startswith(_WITHOUT_INTERVAL)}
    beside = {figure.name: figure for figure in figures_of(judged)}
    found = []
    for name, measure in first.items():
        facts: dict[str, Any] = {}
        other = others[0].get(name) if others else None
        if other is not None and not math.isnan(other.mean - measure.mean):
            facts |= {"against": other.mean, "less": measure.mean - other.mean}
        if measure.name in beside:
            figure = beside[measure.name]
            facts |= {"low": figure.low, "high": figure.high, "chance": figure.chance, "verdict": verdict_of(figure)}
            if other is not None and not isinstance(measure, Whole) and len(number_of) > 1:
                counts = measure.by_image(number_of)
                facts["less_low"], facts["less_high"] = bootstrap.difference(*counts, *other.by_image(number_of))
        value: float | None = measure.mean
        percent: float | None = measure.percent
        if isinstance(measure, Whole) and math.isnan(measure.mean):
            value = percent = None
        found.append(ScoredFigure(name, value, percent, len(measure.values), **facts))
    return tuple(found)
