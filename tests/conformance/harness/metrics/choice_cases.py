"""The family "metrics_vcr_nlvr_glue": VCR's choices, NLVR2's judgements, and GLUE's lists and submission files."""

import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family
from harness.tolerances import METRICS
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueTask
from roibeam.pipelines.data.datasets.vcr import VcrLabels, read_vcr_labels
from roibeam.pipelines.finetuning.metrics import glue
from roibeam.pipelines.finetuning.metrics.measure import OFFICIAL, Measure, rows_by_id
from roibeam.pipelines.finetuning.metrics.nlvr2 import judged_statements, nlvr2_measures, predictions_of
from roibeam.pipelines.finetuning.metrics.vcr import (
    ChosenRow,
    VcrScores,
    best_choice,
    chosen_rows,
    read_vcr_results,
    vcr_measures,
)

_BY_R2C, _R2C_DECIMALS = "printed_by_r2c", 3  # rowanz/r2c models/eval_q2ar.py
_VCR_NAMES = {"q_to_a": "Q->A", "qa_to_r": "QA->R", "q_to_ar": "Q->AR"}


def _vcr_labels(case: MetricCase) -> list[VcrLabels]:
    return list(read_vcr_labels(str(case.file("annotations"))))


def _vcr_shares(measures: dict[str, Measure]) -> dict[str, float]:
    return {theirs: measures[ours].mean for theirs, ours in _VCR_NAMES.items()}


def _vcr_arrays(case: MetricCase) -> Ours:
    labels = _vcr_labels(case)
    answers, rationales = case.content("answer_probabilities"), case.content("rationale_probabilities")
    rows = [
        ChosenRow(best_choice(answer), best_choice(rationale), each.answer or 0, each.rationale or 0, each.image)
        for each, answer, rationale in zip(labels, answers, rationales, strict=True)
    ]
    measures = vcr_measures(rows)
    shares = _vcr_shares(measures)
    printed = dict(zip(("answer", "rationale", "joint"), shares.values(), strict=True))
    return {**shares, _BY_R2C: printed, "joint_hits": [hit == 1 for hit in measures["Q->AR"].values]}


def _vcr_leaderboard(case: MetricCase) -> Ours:
    labels = _vcr_labels(case)
    questions = [each.annot_id for each in labels]

    def score(rows: Iterable[tuple[str, VcrScores]]) -> dict[str, float]:
        return _vcr_shares(vcr_measures(chosen_rows(labels, rows_by_id("csv", rows, questions, unit="question"))))

    def score_file(name: str) -> dict[str, float]:
        return score(read_vcr_results(str(case.file(name))))

    ours = {name: caught(functools.partial(score_file, name)) for name in case.inputs if name != "annotations"}
    # Variants that the reference describes and has no file of.
    rows = list(read_vcr_results(str(case.file("as_written"))))
    ours.setdefault("rows_shuffled", caught(lambda: score(rows[::-1])))
    ours.setdefault("row_repeated", caught(lambda: score([*rows, rows[0]])))
    ours.setdefault("unknown_id", caught(lambda: score([(f"{rows[0][0]}-unknown", rows[0][1]), *rows[1:]])))
    return ours


def _changed_as_named(plain: str) -> dict[str, str]:
    """The variants of a file of predictions that the reference describes by a name alone."""
    lines = plain.split("\n")
    first, *others = lines
    numbers = {"true": "1", "false": "0"}
    pairs = [line.split(",") for line in lines if line]
    return {
        "plain": plain,
        "lower_case": "\n".join(f"{name},{word.lower()}" for name, word in pairs) + "\n",
        "no_newline_at_end": plain.rstrip("\n"),
        "crlf": plain.replace("\n", "\r\n"),
        "space_after_comma": plain.replace(",", ", "),
        "one_missing": "\n".join(others),
        "extra_unknown": f"{plain}{first.split('-')[0]}-0-0-unknown,True\n",
        "blank_line": "\n".join([first, "", *others]),
        "zero_one": "\n".join(f"{name},{numbers[word.lower()]}" for name, word in pairs) + "\n",
        "third_column": "\n".join(f"{line},0.5" for line in lines if line) + "\n",
        "header": f"identifier,prediction\n{plain}",
    }


def _nlvr2(case: MetricCase) -> Ours:
    statements = list(read_nlvr2(str(case.file("labels"))))
    identifiers = [each.identifier for each in statements]
    with open(case.file("predictions"), encoding="utf-8", newline="") as file:
        texts: dict[str, Any] = {**_changed_as_named(file.read()), **case.content("prediction_variants")}

    def measured(lines: list[str]) -> dict[str, float]:
        predictions = predictions_of(lines, identifiers, "predictions", OFFICIAL)
        found = nlvr2_measures(judged_statements(statements, predictions))
        return {name: measure.mean for name, measure in found.items()}

    def filtered(lines: list[str]) -> dict[str, Any]:
        """As compute_filtered_accuracy.py: among the predictions that are true or false."""
        if any(line.count(",") != 1 for line in lines):
            raise ValueError("expected two columns")
        predictions = predictions_of(lines, identifiers, "predictions", OFFICIAL)
        words = [(predictions[each.identifier], str(each.is_true).lower()) for each in statements]
        counted = [word == label for word, label in words if word in ("true", "false")]
        percent = 100.0 * sum(counted) / len(counted) if counted else None
        return {"accuracy_percent": percent, "lines_not_counted": len(words) - len(counted)}

    def both(text: str) -> dict[str, Any]:
        lines = text.split("\n")
        lines = lines[:-1] if not lines[-1] else lines
        return {"metrics": caught(lambda: measured(lines)), "filtered_accuracy": caught(lambda: filtered(lines))}

    return {name: both(text) for name, text in texts.items()}


# --- GLUE ---

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


def _prediction_lists(case: MetricCase) -> Ours:
    """The figures of every list, and the averages of those of the kind "ordinary"."""
    lists = case.content("cases")
    figures = [_figures(each) for each in lists]
    values = {each["task"]: own for each, own in zip(lists, figures, strict=True) if each["kind"] == "ordinary"}
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


def _submission_files(case: MetricCase) -> Ours:
    """What is read of each file, written anew: the same bytes, so many lines. Raises ValueError for a file that ours
    writes otherwise."""
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


_KINDS_OF_CASE: dict[str, Callable[[MetricCase], Ours]] = {
    "answer_probabilities": _vcr_arrays,
    "as_written": _vcr_leaderboard,
    "prediction_variants": _nlvr2,
    "cases": _prediction_lists,
    "CoLA.tsv": _submission_files,
}


CHOICE_METRICS = metric_family(
    "metrics_vcr_nlvr_glue",
    _KINDS_OF_CASE,
    lambda name: METRICS.exact,
    marks=frozenset(_KINDS_OF_CASE),
    decimals=lambda case, name: _R2C_DECIMALS if name == _BY_R2C else None,
)
