"""The family "metrics_vcr_nlvr_glue": VCR's choices, NLVR2's judgements, and GLUE (glue_cases.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from harness.metrics.glue_cases import prediction_lists, submission_files
from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family
from harness.tolerances import METRICS
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.vcr import VcrLabels, read_vcr_labels
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


_KINDS_OF_CASE: dict[str, Callable[[MetricCase], Ours]] = {
    "answer_probabilities": _vcr_arrays,
    "as_written": _vcr_leaderboard,
    "prediction_variants": _nlvr2,
    "cases": prediction_lists,
    "CoLA.tsv": submission_files,
}


CHOICE_METRICS = metric_family(
    "metrics_vcr_nlvr_glue",
    _KINDS_OF_CASE,
    lambda name: METRICS.exact,
    marks=frozenset(_KINDS_OF_CASE),
    decimals=lambda case, name: _R2C_DECIMALS if name == _BY_R2C else None,
)
