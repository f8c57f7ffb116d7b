"""GLUE's cases of the family "metrics_vcr_nlvr_glue": figures of prediction lists, and submission files."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.metrics.metric_case import MetricCase, Ours
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueTask
from roibeam.pipelines.finetuning.metrics import glue

_NAMES = {
    glue.MATTHEWS: "mcc",
    glue.ACCURACY_AND_F1: "acc_and_f1",
    glue.BOTH: "corr",
    glue.PEARSON: "pearson",
    glue.SPEARMAN: "spearmanr",
    glue.F1: "f1",
    glue.ACCURACY: "acc",
}
_MNLI = {"MNLI-m": "mnli/acc", "MNLI-mm": "mnli-mm/acc"}
_ORDINARY = "ordinary"


def prediction_lists(case: MetricCase) -> Ours:
    """The figures of every list, and the averages of those of the kind "ordinary"."""
    lists = case.content("cases")
    figures = [_figures(each) for each in lists]
    values = {each["task"]: own for each, own in zip(lists, figures, strict=True) if each["kind"] == _ORDINARY}
    mismatched, matched = values.pop("MNLI-mm"), values.pop("MNLI-m")
    means = glue.averages({**values, "MNLI": matched}, mismatched)
    heads = {task: own[glue.FIGURES[task][0]] for task, own in values.items()}
    heads["MNLI"] = (matched[glue.ACCURACY] + mismatched[glue.ACCURACY]) / 2
    return {
        "metrics": [_named(each["task"], own) for each, own in zip(lists, figures, strict=True)],
        "average_of_ordinary": {
            "per_task": heads,
            "nine_tasks_mnli_as_one": means[glue.NINE],
            "eight_tasks_without_wnli": means[glue.EIGHT],
        },
    }


def _figures(given: Mapping[str, Any]) -> dict[str, float]:
    task = "MNLI" if given["task"] in _MNLI else given["task"]
    if glue.FIGURES[task][0] == glue.BOTH:
        measures = glue.number_measures(given["predictions"], given["labels"])
    else:
        measures = glue.label_measures(task, given["predictions"], given["labels"])
    return {name: measure.mean for name, measure in measures.items()}


def _named(task: str, figures: Mapping[str, float]) -> dict[str, float | None]:
    """As the reference calls them, without figures of ours alone; None for what is not defined."""
    if task in _MNLI:
        return {_MNLI[task]: figures[glue.ACCURACY]}
    shown = ("mcc",) if task == "CoLA" else tuple(_NAMES.values())
    named = {_NAMES[name]: value for name, value in figures.items() if name in _NAMES}
    return {name: None if math.isnan(value) else value for name, value in named.items() if name in shown}


def submission_files(case: MetricCase) -> Ours:
    """What is read of each file, written anew: the same bytes, so many lines.

    Raises:
        ValueError: for a file that ours writes otherwise.
    """
    lines = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in case.inputs:
            path, ours = case.file(name), Path(folder, name)
            glue.write_glue_results(ours, glue.read_glue_results(str(path), _task_of(name)))
            if ours.read_bytes() != path.read_bytes():
                raise ValueError(f"{path}: ours writes it with other bytes")
            lines[name] = len(ours.read_text("utf-8").splitlines())
    return {"files": sorted(lines), "lines": lines}


def _task_of(file: str) -> GlueTask:
    task = file.removesuffix(".tsv")
    return next(each for each in GLUE_TASKS.values() if each.name == ("MNLI" if task in _MNLI else task))
