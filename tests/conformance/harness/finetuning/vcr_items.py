"""VCR's items and result files: VL-BERT (photos), both ViLBERT releases (stored regions), VisualBERT (texts).

The releases' rules are options of `VcrOptions`. Here stands only how a release lays an item out, and how a case shows
it.
"""

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from harness.case_files import ArrayError
from harness.checks import Check, close, equal, failed, guarded, within
from harness.finetuning.item_files import ItemCase
from harness.finetuning.vcr_layouts import NAMES_DRAWN, PROBLEMS, TEST, item_maker
from harness.tolerances import METRICS, Allclose
from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES, PERSON, RawVcrQuestion, read_raw_vcr
from roibeam.pipelines.finetuning.metrics.vcr import (
    VcrScores,
    best_choice,
    joined_scores,
    probabilities,
    write_vcr_results,
)
from roibeam.pipelines.finetuning.tasks.vcr import RATIONALE, vcr_scores

MAX_LABELLED = 6  # rows of which all labels are tried


def checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items."""
    questions = list(read_raw_vcr(case.written(".jsonl")))
    for mode in case.leaves():
        yield from guarded(f"out/{mode}", _mode_checks, case, questions, mode)


def _mode_checks(case: ItemCase, questions: list[RawVcrQuestion], mode: str) -> Iterator[Check]:
    make = item_maker(case, questions, mode)
    if (name := f"out/{mode}.{NAMES_DRAWN}") in case:
        yield _all_used(case, name, questions, mode)
    yield from case.mode_checks(mode, lambda: make)


def _all_used(case: ItemCase, name: str, questions: list[RawVcrQuestion], mode: str) -> Check:
    """Whether as many names were drawn as ours ask for; which they were shows in the texts."""
    people = [sum(kind == PERSON for kind in asked.objects) for asked in questions]
    contexts = NUM_CHOICES if PROBLEMS[mode.split("_")[0]] == RATIONALE and mode.endswith(TEST) else 1
    return equal(name, np.array(len(case.json(name))), np.array(contexts * sum(people)))


# --- result files ---


def prediction_checks(case: ItemCase) -> Iterator[Check]:
    """Of the parts of a case of result files that are of VCR."""
    if "in/q2a_logits" in case:
        yield from _merged_checks(case)
    if "out/vcr_result_json" in case:
        yield from _choice_checks(case)
    if "out/submission_csv" in case:
        yield from _submission_checks(case)


def _merged_checks(case: ItemCase) -> Iterator[Check]:
    """VL-BERT, vcr/function/test.py: one file of each problem, and both in one."""
    names = [str(name) for name in case.options.get("annot_ids", [])]
    answers = dict(zip(names, case.take_finite("in/q2a_logits", len(names), NUM_CHOICES), strict=True))
    logits = case.take_finite("in/qa2r_logits_per_answer", len(names), NUM_CHOICES, NUM_CHOICES)
    reasons = dict(zip(names, logits, strict=True))
    for kind, chosen, reasoned in (("Q2A", answers, None), ("QA2R", None, reasons), ("merged", answers, reasons)):
        yield _same_table(case, f"out/csv_{kind}", vcr_scores(chosen, reasoned, names))


def _choice_checks(case: ItemCase) -> Iterator[Check]:
    """ViLBERT and InterBERT, task_utils.py: probabilities by the number of the question; no other file is filled."""
    logits = case.take_finite("in/choice_logits", None, NUM_CHOICES)
    ids = case.take("in/question_ids", len(logits)).tolist()
    chances = probabilities(logits)
    name = "out/vcr_result_json"
    entries = case.json(name)
    if not isinstance(entries, list) or [set(entry) for entry in entries] != [{"question_id", "answer"}] * len(ids):
        yield failed(name, "expected a list of question_id and answer")
    elif [entry["question_id"] for entry in entries] != ids:
        yield failed(name, f"other questions than {ids}")
    else:
        yield close(name, chances, np.array([entry["answer"] for entry in entries]), Allclose(METRICS.float32))
    yield case.same_json("out/vcr_others_json", [])
    # The case does not tell which choices are right: some labels must give loss and hits.
    loss, hits, count = (float(value) for value in case.take_finite("out/vcr_loss_score_n", 3))
    name = "out/vcr_loss_score_n"
    if len(ids) > MAX_LABELLED:
        yield failed(name, f"{len(ids)} rows; labels of at most {MAX_LABELLED} are tried")
        return
    costs, best = -np.log(chances.astype(np.float64)), [best_choice(row) for row in logits]
    errors = (
        abs(float(np.mean([row[label] for row, label in zip(costs, labels, strict=True)])) - loss)
        for labels in itertools.product(range(NUM_CHOICES), repeat=len(ids))
        if sum(label == own for label, own in zip(labels, best, strict=True)) == hits and count == len(ids)
    )
    yield within(name, min(errors, default=math.inf), 10 * METRICS.float32, "of the loss, for some labels")


def _submission_checks(case: ItemCase) -> Iterator[Check]:
    """vilbert-multi-task, the script for the leaderboard: four entries of rationales for each question."""
    entries, reasoned = (case.json(f"in/submission_{kind}_json") for kind in ("Q_A", "Q_AR"))
    names = [f"test-{entry['question_id']}" for entry in entries]
    if len(reasoned) != NUM_CHOICES * len(names):
        raise ArrayError("in/submission_Q_AR_json", f"has {len(reasoned)} entries for {len(names)} questions")
    answers = {name: entry["answer"] for name, entry in zip(names, entries, strict=True)}
    rows = np.array([entry["answer"] for entry in reasoned]).reshape(len(names), NUM_CHOICES, NUM_CHOICES)
    reasons = dict(zip(names, rows, strict=True))
    yield _same_table(case, "out/submission_csv", joined_scores(answers, reasons, names))


def _same_table(case: ItemCase, name: str, rows: Iterable[tuple[str, VcrScores]]) -> Check:
    """Header, ids and their order are equal, numbers within the README's tolerance."""
    path = case.folder / "ours.csv"
    write_vcr_results(path, rows)
    ours, theirs = (list(csv.reader(io.StringIO(text))) for text in (path.read_text("utf-8"), case.text(name)))
    if not theirs or ours[0] != theirs[0] or [row[:1] for row in ours] != [row[:1] for row in theirs]:
        return failed(name, "another header, or other questions than ours")
    try:
        own, want = (np.array([[float(cell) for cell in row[1:]] for row in table[1:]]) for table in (ours, theirs))
    except ValueError as error:
        return failed(name, f"holds no numbers: {error}")
    return close(name, own, want, Allclose(METRICS.float32))
