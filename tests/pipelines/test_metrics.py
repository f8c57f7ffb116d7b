"""Official metrics: that every value of a case is compared, and rules by hand that no case shows by itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.runner import CaseResult, run_conformance

from roibeam.pipelines.finetuning.metrics.nlvr2 import JudgedStatement, nlvr2_measures
from roibeam.pipelines.finetuning.metrics.referring import BOX_RULES
from roibeam.pipelines.finetuning.metrics.vcr import ChosenRow, best_choice, vcr_measures
from roibeam.pipelines.finetuning.metrics.vqa import (
    MOST_PERIODS,
    HumanAnswer,
    answer_accuracy,
    label_of,
    plain_answer,
    printed_percent,
    soft_target,
    without_signs,
)

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
FAMILIES = ("metrics_vqa", "metrics_refcoco", "metrics_vcr_nlvr_glue", "metrics_entities", "metrics_retrieval")


def results(folder: Path) -> dict[str, CaseResult]:
    return {result.name: result for result in run_conformance(folder)}


def _change_a_leaf(value: Any) -> Any:
    """The same with its last leaf changed by what a mistake would change: a hit, an answer, a percent."""
    if isinstance(value, dict) and "error" in value:
        return {"overall": 1.0}  # a refusal that is none
    if isinstance(value, dict) and value:
        *_, last = value
        return {**value, last: _change_a_leaf(value[last])}
    if isinstance(value, list) and value:
        return [*value[:-1], _change_a_leaf(value[-1])]
    if isinstance(value, bool):
        return not value
    return f"{value} " if isinstance(value, str) else value + 0.01 if isinstance(value, int | float) else 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reference_that_is_changed_in_one_leaf_misses(family: str, tmp_path: Path) -> None:
    """Each expected name is compared to its last leaf."""
    folder = Path(shutil.copytree(GOLDENS / family, tmp_path / family))
    changed = 0
    for path in folder.glob("*.json"):
        case = json.loads(path.read_text("utf-8")) if path.name.count(".") == 1 else {}
        if "expected" in case:
            case["expected"] = {name: _change_a_leaf(value) for name, value in case["expected"].items()}
            path.write_text(json.dumps(case), "utf-8")
    for name, each in results(folder).items():
        passed = {check.array for check in each.checks if check.passed and check.rule != "not compared"}
        assert not passed, (name, passed)
        changed += len(each.checks)
    assert changed > 15


def test_a_file_beside_the_cases_that_none_names_is_unknown(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDENS / "metrics_refcoco", tmp_path / "metrics_refcoco"))
    (folder / "more.boxes.json").write_text("[]")
    (folder / "odd.json").write_text('{"inputs": {"boxes": "more.boxes.json"}, "options": {}, "expected": {"a": 1}}')
    (folder / "lost.json").write_text("[]")
    found = results(folder)
    assert not found["metrics_refcoco/lost"].known
    (check,) = found["metrics_refcoco/odd"].checks
    assert not check.passed and "not laid out as known cases are" in check.note


def printed_by_r2c(folder: Path, questions: int, **options: Any) -> tuple[Path, dict[str, Any]]:
    """The first questions of a case, with what eval_q2ar.py prints of them; the case is written by `write_printed`."""
    family = Path(shutil.copytree(GOLDENS / "metrics_vcr_nlvr_glue", folder / "metrics_vcr_nlvr_glue"))
    path = family / "vcr_arrays.json"
    case = json.loads(path.read_text("utf-8"))
    for name in case["inputs"].values():
        text = (family / name).read_text("utf-8")
        kept = text.splitlines()[:questions] if name.endswith(".jsonl") else json.loads(text)[:questions]
        (family / name).write_text("\n".join(kept) if name.endswith(".jsonl") else json.dumps(kept), "utf-8")
    labels = [json.loads(line) for line in (family / case["inputs"]["annotations"]).read_text("utf-8").splitlines()]
    hits = {
        what: [
            max(range(4), key=row.__getitem__) == label[f"{what}_label"]
            for row, label in zip(json.loads((family / case["inputs"][name]).read_text("utf-8")), labels, strict=True)
        ]
        for what, name in (("answer", "answer_probabilities"), ("rationale", "rationale_probabilities"))
    }
    joint = [both == (True, True) for both in zip(hits["answer"], hits["rationale"], strict=True)]
    case["expected"] = {"printed_by_r2c": {k: sum(v) / questions for k, v in {**hits, "joint": joint}.items()}}
    case["options"] |= options
    return path, case


def write_printed(path: Path, case: dict[str, Any], decimals: int, *, moved: float = 0.0) -> None:
    """With the text of numbers as a code prints them; `moved` is added to the first."""
    shares = case["expected"]["printed_by_r2c"]
    texts = [f"{value + moved * (place == 0):.{decimals}f}" for place, value in enumerate(shares.values())]
    printed = ", ".join(f'"{name}": {text}' for name, text in zip(shares, texts, strict=True))
    rest = json.dumps({name: value for name, value in case.items() if name != "expected"})
    path.write_text(f'{rest[:-1]}, "expected": {{"printed_by_r2c": {{{printed}}}}}}}', "utf-8")


@pytest.mark.parametrize("questions", [118, 113, 100, 60, 7, 3])
@pytest.mark.parametrize("decimals", [3, 4, 6])
def test_what_a_code_printed_is_compared_at_its_decimals(tmp_path: Path, questions: int, decimals: int) -> None:
    """Other numbers of questions than the reference's give shares that no three decimals hold."""
    path, case = printed_by_r2c(tmp_path, questions)
    write_printed(path, case, decimals)
    (check,) = results(path.parent)["metrics_vcr_nlvr_glue/vcr_arrays"].checks
    assert check.passed and check.tolerance == pytest.approx(0.5 * 10**-decimals), check
    write_printed(path, case, decimals, moved=1.01 * 10**-decimals)
    (check,) = results(path.parent)["metrics_vcr_nlvr_glue/vcr_arrays"].checks
    assert not check.passed


def test_zeros_that_a_file_forgot_are_known_of_r2c_or_declared(tmp_path: Path) -> None:
    """0.5 is 0.500 of r2c: half a unit of its one decimal would forgive a wrong figure."""
    path, case = printed_by_r2c(tmp_path, 113)
    case["expected"]["printed_by_r2c"] = {"answer": 0.7, "rationale": 0.7, "joint": 0.5}
    for options, unit in (({}, 1e-3), ({"printed_digits": 2}, 1e-2), ({"printed_digits": {"printed_by_r2c": 1}}, 0.1)):
        path.write_text(json.dumps({**case, "options": options}), "utf-8")
        (check,) = results(path.parent)["metrics_vcr_nlvr_glue/vcr_arrays"].checks
        assert check.tolerance == pytest.approx(unit / 2)
    path.write_text(json.dumps({**case, "options": {"decimals": -1}}), "utf-8")
    (check,) = results(path.parent)["metrics_vcr_nlvr_glue/vcr_arrays"].checks
    assert not check.passed and "decimals must be a whole number from 0 to 17, got -1" in check.note


@pytest.mark.parametrize("decimals", [0, 1, 3])
def test_percents_of_vqa_are_compared_at_the_decimals_of_the_case(tmp_path: Path, decimals: int) -> None:
    family = Path(shutil.copytree(GOLDENS / "metrics_vqa", tmp_path / "metrics_vqa"))
    path = family / "mixed.json"
    case = json.loads(path.read_text("utf-8"))
    exact, unit = case["expected"]["exact"], 10.0**-decimals
    for moved in (0.0, 1.01 * unit):
        case["expected"] = {"overall": round(exact["overall"] + moved, decimals)}
        case["options"]["decimals"] = decimals
        path.write_text(json.dumps(case), "utf-8")
        (check,) = results(family)["metrics_vqa/mixed"].checks
        assert check.passed == (not moved) and check.tolerance == unit / 2


# By hand


@pytest.mark.parametrize(
    ("predicted", "answers", "accuracy"),
    [
        ("red", ["red"] * 2 + ["blue"] * 8, 0.6),
        ("Red.", ["red"] * 3 + ["blue"] * 7, 0.9),
        ("red", ["red"] * 4 + ["blue"] * 6, 1.0),
        ("Red", ["red"] * 10, 0.0),  # all wrote the same: nothing is normalised
        (" red\n", ["red"] * 10, 1.0),
        ("the", ["a"] * 5 + ["x"] * 5, 1.0),  # articles alone become the empty text
        ("red", ["red"], 0.0),  # no other person
    ],
)
def test_accuracy_leaves_one_person_out(predicted: str, answers: list[str], accuracy: float) -> None:
    told = [HumanAnswer(answer, "yes", number) for number, answer in enumerate(answers, 1)]
    before = list(told)
    assert answer_accuracy(predicted, told) == pytest.approx(accuracy)
    assert told == before  # the official object changes its answers, so that a second file scores otherwise


def test_texts_of_answers_at_the_edges() -> None:
    assert without_signs("." * 40) == "." * (40 - MOST_PERIODS)
    assert plain_answer("None") == "0" and plain_answer("eleven") == "eleven"
    assert (plain_answer("dont"), plain_answer("somebody'd"), plain_answer("Im")) == ("don't", "somebodyd", "im")
    assert (plain_answer("ice-cream"), plain_answer("ice- cream"), plain_answer("1,000 a-b")) == (
        "ice cream", "ice cream", "1000 ab",
    )  # fmt: skip
    assert printed_percent(3.125) == 3.13  # half away from zero


def test_targets_look_answers_up_as_written() -> None:
    assert label_of("The Red.") == "red"
    assert soft_target(["Red", "red", "red", "red", "red."], ["red"]) == {"red": 0.9}


def test_both_choices_of_one_question_count_and_not_the_product() -> None:
    rows = [ChosenRow(*row) for row in ((0, 0, 0, 1, "a"), (0, 1, 1, 1, "a"), (2, 3, 2, 3, "b"), (0, 0, 1, 1, "b"))]
    assert {name: each.mean for name, each in vcr_measures(rows).items()} == {"Q->A": 0.5, "QA->R": 0.5, "Q->AR": 0.25}
    assert best_choice([0.1, 0.4, 0.4, 0.1]) == 1


def test_consistency_groups_by_identifier_and_not_by_text() -> None:
    judged = {"dev-1-0-0": True, "dev-1-1-0": False, "dev-1-0-1": True, "dev-2-0-0": True}
    measures = nlvr2_measures(JudgedStatement(*each) for each in judged.items())
    assert measures["accuracy"].mean == 0.75 and measures["consistency"].mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rule", "exact_half", "touching"), [("refer", True, False), ("uniter", False, False), ("vl-bert", True, True)]
)
def test_rules_of_boxes_differ_at_one_half_and_at_the_edge(rule: str, exact_half: bool, touching: bool) -> None:
    assert BOX_RULES[rule].hits((0, 0, 10, 10), (0, 0, 10, 20)) is (exact_half if rule != "vl-bert" else True)
    assert (BOX_RULES[rule].iou((0, 0, 10, 10), (10, 0, 10, 10)) > 0) is touching
    nothing: Callable[..., bool] = BOX_RULES["refer"].hits
    assert nothing((5, 5, 0, 0), (5, 5, 0, 0)) is False
