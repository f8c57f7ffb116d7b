"""The family "metrics_vqa": VQA accuracy, its answer texts and the training targets of public codes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.metrics.metric_case import MetricCase, Ours, caught, metric_family
from harness.tolerances import METRICS
from roibeam.pipelines.data.datasets.vqa import VqaLabels, read_vqa_labels
from roibeam.pipelines.finetuning.metrics import vqa
from roibeam.pipelines.finetuning.metrics.measure import OFFICIAL, Measure, rows_by_id

_DECIMALS = 2  # of percents, GT-Vision-Lab/VQA vqaEval.py; a case may say another number
_KINDS = {"per_answer_type": "answer type ", "per_question_type": "question type "}


def _labels(case: MetricCase, name: str = "annotations") -> list[VqaLabels]:
    return list(read_vqa_labels(str(case.file(name))))


def _answers(case: MetricCase, name: str, labels: list[VqaLabels]) -> dict[int, str]:
    path, questions = str(case.file(name)), [each.question_id for each in labels]
    return rows_by_id(repr(path), vqa.read_vqa_results(path), questions, unit="question", rules=OFFICIAL)


def _measures(labels: list[VqaLabels], answers: dict[int, str]) -> dict[str, Measure]:
    return vqa.vqa_measures(vqa.answered_questions(labels, answers))


def _scored(case: MetricCase) -> Ours:
    labels = _labels(case)
    answers = _answers(case, "results", labels)
    measures = _measures(labels, answers)

    def of_kind(prefix: str) -> dict[str, float]:
        return {n.removeprefix(prefix): m.percent for n, m in measures.items() if n.startswith(prefix)}

    overall, kinds = measures["overall"].percent, {name: of_kind(prefix) for name, prefix in _KINDS.items()}
    rows = zip(labels, vqa.answered_questions(labels, answers), strict=True)
    return {
        "overall": overall,
        **kinds,
        "per_question": {
            str(each.question_id): 100 * vqa.answer_accuracy(row.predicted, row.answers) for each, row in rows
        },
        "exact": {"overall": overall, **kinds},
        "overall_exact": overall,
        "overall_python2": vqa.printed_percent(overall, int(case.options.get("decimals", _DECIMALS))),
    }


def _two_files(case: MetricCase) -> Ours:
    labels = _labels(case)
    of = [_measures(labels, _answers(case, f"results_{which}", labels))["overall"] for which in ("first", "second")]
    return {"first": of[0].percent, "second_fresh": of[1].percent}


def _result_files(case: MetricCase) -> Ours:
    labels = _labels(case)
    questions = [each.question_id for each in labels]

    def score(entries: Any) -> dict[str, float]:
        if not isinstance(entries, list):
            raise ValueError("a result file is a list")
        rows = vqa.vqa_result_rows(entries, "results")
        answers = rows_by_id("results", rows, questions, unit="question", rules=OFFICIAL)
        return {"overall": _measures(labels, answers)["overall"].percent}

    return {
        name: caught(functools.partial(score, entries)) for name, entries in case.content("result_variants").items()
    }


def _strings(case: MetricCase) -> Ours:
    texts = case.content("strings")
    both = [vqa.plain_answer(text) for text in texts]
    return {
        "punctuation_only": [vqa.without_signs(text) for text in texts],
        "digits_articles_only": [vqa.plain_words(text) for text in texts],
        "both": both,
        "both_python2": both,
    }


def _softscore(case: MetricCase) -> Ours:
    parts = {name: _labels(case, f"{name}_annotations") for name in ("train", "val")}
    majority = [(each.question_id, each.multiple_choice_answer) for part in parts.values() for each in part]
    counts = vqa.answer_labels(majority, int(case.options["min_occurrence"]))
    targets = {
        f"{name}_targets": [
            {
                "question_id": each.question_id,
                "image_id": each.image_id,
                "target": vqa.soft_target([answer for answer, *_ in each.answers], counts),
            }
            for each in part
        ]
        for name, part in parts.items()
    }
    return {
        "answer_counts": counts,
        "label_order_python3": list(counts),
        **targets,
        "questions_with_no_target": sum(not each["target"] for part in targets.values() for each in part),
        "preprocess_answer": [vqa.label_of(text) for text in case.content("strings")],
        "get_score": [vqa.soft_score(people) for people in range(len(case.expected.get("get_score", [])))],
    }


def _vlbert_target(case: MetricCase) -> Ours:
    vocabulary = vqa.vlbert_vocabulary(case.content("vocabulary"))
    targets = [
        {
            "question_id": each.question_id,
            "target_by_label": {
                str(place): score
                for place, score in vqa.vlbert_soft_target([answer for answer, *_ in each.answers], vocabulary).items()
            },
        }
        for each in _labels(case)
    ]
    return {"vocabulary_used": vocabulary, "targets": targets}


def _visualbert_target(case: MetricCase) -> Ours:
    num_labels, unknown = int(case.options["labels"]), int(case.options["unknown_index"])
    found = []
    for row in case.content("answer_indices"):
        people = np.bincount(np.asarray(row, dtype=np.int64), minlength=num_labels)
        # 3 people make 0.90000004 there.
        scores = np.minimum(np.float32(1.0), people.astype(np.float32) * np.float32(0.3))
        scores[unknown] = 0.0
        found.append(scores.tolist())
    return {"scores": found}


_KINDS_OF_CASE: Mapping[str, Callable[[MetricCase], Ours]] = {
    "results": _scored,
    "results_first": _two_files,
    "result_variants": _result_files,
    "train_annotations": _softscore,
    "vocabulary": _vlbert_target,
    "answer_indices": _visualbert_target,
    "strings": _strings,
}


def _tolerance(name: str) -> float:
    return METRICS.targets if name.endswith(("targets", "scores", "get_score")) else METRICS.exact


def _printed(case: MetricCase, name: str) -> int | None:
    """How an exact half is rounded shows in "overall_python2" alone, which is compared as it stands."""
    scored = case.inputs.keys() & {"results", "results_first", "result_variants"}
    return _DECIMALS if scored and "exact" not in name and name != "overall_python2" else None


VQA_METRICS = metric_family(
    "metrics_vqa",
    _KINDS_OF_CASE,
    _tolerance,
    marks=frozenset({"result_variants", "train_annotations", "answer_indices"}),
    decimals=_printed,
)
