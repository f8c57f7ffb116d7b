"""VCR as groups: names, tags, rows with and without labels, cutting, regions, outlines, and the result file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness.finetuning.prepared_photos import prepare_vcr_photo

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.pipelines.data.datasets.vcr import object_classes, read_vcr_metadata
from roibeam.pipelines.data.record_regions import outline_mask
from roibeam.pipelines.finetuning.metrics.vcr import read_vcr_results, write_vcr_results
from roibeam.pipelines.finetuning.rows import PieceCoder, TaskGroup, TaskText
from roibeam.pipelines.finetuning.task import Prediction, check_best_by
from roibeam.pipelines.finetuning.tasks.vcr import (
    VcrOptions,
    group_lengths,
    group_pieces,
    judge_vcr,
    open_vcr,
    read_vcr_groups,
    vcr_scores,
)
from roibeam.pipelines.finetuning.tasks.vcr_rules import (
    TRUNCATIONS,
    KeptPieces,
    PieceRules,
    cut_rows,
    join_regions,
    read_people_names,
    row_lengths,
    row_pieces,
)

LINE: dict[str, Any] = {
    "annot_id": "val-7", "img_id": "val-3", "img_fn": "a/one.jpg", "objects": ["person", "cup", "person", "person"],
    "question": ["Why", "is", [2], "near", [1, 0], "?"],
    "answer_choices": [[[3], "waits"], [[0], "drinks"], ["No", "reason"], [[2], "sleeps"]], "answer_label": 1,
    "rationale_choices": [["yes"], ["no"], [[3], "left"], ["maybe"]], "rationale_label": 2,
}  # fmt: skip
RATIONALES = VcrOptions(problem="rationale")


def groups(folder: Path, options: VcrOptions, *lines: dict[str, Any]) -> list[TaskGroup]:
    path = folder / "val.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines or (LINE,)), "utf-8")
    return list(read_vcr_groups(str(path), options))


def untold(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.endswith("_label")}


def texts(group: TaskGroup) -> list[list[str]]:
    return [[part.text for part in row.parts] for row in group.rows]


def test_a_question_is_a_group_of_four_rows(tmp_path: Path) -> None:
    (group,) = groups(tmp_path, VcrOptions())
    assert (group.id, group.images, group.target) == ("val-7", ("a/one",), 1)
    assert texts(group) == [
        ["Why is Casey near cup Riley ?", answer]
        for answer in ("Jessie waits", "Riley drinks", "No reason", "Casey sleeps")
    ]
    assert group.rows[0].parts[0].tags == (-1, -1, 2, -1, 1, 0, -1)
    (group,) = groups(tmp_path, RATIONALES)
    assert group.target == 2 and [len(row.parts) for row in group.rows] == [3] * 4
    assert texts(group)[2] == ["Why is Casey near cup Riley ?", "Riley drinks", "Jessie left"]


def test_where_the_answer_is_not_told_rationales_are_asked_for_each(tmp_path: Path) -> None:
    (group,) = groups(tmp_path, RATIONALES, untold(LINE))
    assert group.target is None and len(group.rows) == 16
    assert [texts(group)[row][1:] for row in (0, 7, 15)] == [
        ["Jessie waits", "yes"], ["Riley drinks", "maybe"], ["Casey sleeps", "maybe"]
    ]  # fmt: skip
    labelled = list(read_vcr_groups(str(tmp_path / "val.jsonl"), RATIONALES, labelled=False))
    assert texts(labelled[0]) == texts(group)


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("mention", ("Casey", "Riley", "Jessie"), ("Casey", "Riley", "Jessie")),
        ("restarted", ("Casey", "Riley", "Casey"), ("Casey", "Riley", "Casey")),  # the third has the first one's name
        ("in-turn", ("Riley", "Casey", "Jessie"), ("Avery", "Jackie", "Jaime")),
    ],
)
def test_rules_for_names(rule: str, first: tuple[str, ...], second: tuple[str, ...], tmp_path: Path) -> None:
    asked_of = groups(tmp_path, VcrOptions(names=rule, joining="and"), LINE, LINE)
    for group, (asked, beside, other) in zip(asked_of, (first, second), strict=True):
        assert texts(group)[0] == [f"Why is {asked} near cup and {beside} ?", f"{other} waits"]
        assert group.rows[0].parts[0].tags == (-1, -1, 2, -1, 1, -1, 0, -1)


def test_drawn_names_follow_from_the_seed(tmp_path: Path) -> None:
    table = tmp_path / "names.csv"
    table.write_text(",name,total\n0,avery,9\n1,blake,9\n2,casey,9\n", "utf-8")
    assert read_people_names(str(table)) == ("avery", "blake", "casey")
    options = VcrOptions(names="drawn", people=str(table))
    made = [texts(groups(tmp_path, replace(options, seed=seed), *[LINE] * 8)[-1])[0] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    table.write_text("total\n3\n", "utf-8")
    with pytest.raises(ValueError, match='expected a table with names in a column "name", got none'):
        groups(tmp_path, options)


def test_regions_that_a_question_names(tmp_path: Path) -> None:
    named = VcrOptions(boxes="named")
    plain = {**LINE, "question": ["Why", "?"], "answer_choices": [["a"]] * 4, "rationale_choices": [["b"]] * 4}
    lines = ({**plain, "rationale_choices": [[[1]], *[["b"]] * 3]}, plain, {**plain, "question": ["Everyone"]})
    one, no_person, all_people = groups(tmp_path, named, *lines)
    assert [each.facts["input_boxes"] for each in (one, no_person, all_people)] == [(1,), (0, 2, 3), (0, 2, 3)]


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        ("each-row", [((4, 3), (0, 3)), ((5, 3), (0, 1))]),
        ("shared", [((2, 3), (0, 5)), ((2, 3), (0, 1))]),
        ("running", [((5, 0), (0, 5)), ((5, 0), (0, 1))]),
        ("choice-end", [((5, 3), (0, 2)), ((5, 3), (0, 1))]),
        ("choice-front", [((5, 3), (7, 9)), ((5, 3), (0, 1))]),
    ],
)
def test_cutting(rule: str, want: list[Any]) -> None:
    """A question of five pieces and an answer of three, before choices of nine and of one, where ten fit."""
    assert cut_rows((5, 3), (9, 1), 10, rule) == [KeptPieces(*row) for row in want]


def test_cutting_keeps_the_limit_and_takes_nothing_from_what_fits() -> None:
    generator = np.random.default_rng(5)
    for _ in range(200):
        context, choices = generator.integers(1, 9, 2).tolist(), generator.integers(1, 20, 4).tolist()
        limit = int(generator.integers(sum(context), 30))
        for rule in TRUNCATIONS:
            for kept, choice in zip(cut_rows(context, choices, limit, rule), choices, strict=True):
                length = sum(kept.context) + kept.choice[1] - kept.choice[0]
                assert length <= limit
                if rule in ("each-row", "choice-end", "choice-front"):
                    assert length == min(limit, sum(context) + choice)


CODER = PieceCoder(
    lambda text: np.array([ord(letter) for letter in text.replace(" ", "")], np.int64),
    lambda number: f"#{chr(number)}" if number > 109 else chr(number),  # "n" to "z" have a mark before them
)


def test_pieces_know_their_words_and_boxes() -> None:
    rows = [(TaskText(("ab", "c"), (-1, 4)), TaskText(("d",)), TaskText(("xy", "z"), (2, -1)))]
    ((question, between, answer, choice),) = row_pieces(rows, CODER, PieceRules(0, separator=1))
    assert (question.words.tolist(), question.tags.tolist()) == ([0, 0, 1], [-1, -1, 4])
    assert (between.ids.tolist(), between.words.tolist(), answer.ids.tolist()) == ([1], [-1], [ord("d")])
    assert choice.tags.tolist() == [2, 2, -1]
    ((*_, choice),) = row_pieces(rows, CODER, PieceRules(0, twice=True))
    assert "".join(map(chr, choice.ids)) == "#x#y#z" and choice.words.tolist() == [0, 0, 0, 0, 1, 1]


def test_lengths_are_those_of_the_pieces() -> None:
    """Told before anything is cut, for every rule, separators counted."""
    generator = np.random.default_rng(6)
    for _ in range(60):
        texts = [TaskText(tuple("word"[: n % 5] for n in generator.integers(1, 5, 4))) for _ in range(4)]
        rows = [(texts[0], texts[1], choice) for choice in (texts[2], texts[3])]
        for rule in TRUNCATIONS:
            for twice in (False, True):
                uncut = row_pieces(rows, CODER, PieceRules(0, rule, twice, separator=1))
                context = sum(len(part.ids) for part in uncut[0][:-1])
                limit = int(generator.integers(context, max(sum(len(part.ids) for part in row) for row in uncut)))
                rules = PieceRules(limit, rule, twice, separator=1)
                cut = row_pieces(rows, CODER, rules)
                sizes = [[sum(len(part.ids) for part in row) for row in pieces] for pieces in (uncut, cut)]
                assert row_lengths(rows, CODER, rules) == list(zip(*sizes, strict=True))


def test_a_question_without_room_for_a_choice_is_told(tmp_path: Path) -> None:
    """The release takes a piece from an empty list there."""
    options = VcrOptions(truncation="choice-end", max_pieces=10)
    for asked in (group_pieces, group_lengths):
        with pytest.raises(ValueError, match=r"val-7: a context of \d+ pieces where 10 fit; .*'choice-end'"):
            asked(groups(tmp_path, options)[0], CODER, options)


@pytest.mark.parametrize("split", ["val", "test"])
def test_only_rationales_of_a_test_split_stay_whole(split: str, tmp_path: Path) -> None:
    """Validation asks for rationales of each answer, too, and is cut as training is."""
    (tmp_path / f"{split}.jsonl").write_text(json.dumps(untold(LINE) if split == "test" else LINE) + "\n")
    options = replace(RATIONALES, truncation="shared", max_pieces=12, cut_untold=False)
    task = open_vcr(tmp_path, options, None)
    (group,) = task.read(split).groups
    assert len(group.rows) == 16 and task.lengths is not None
    assert (max(left for _, left in task.lengths(group, CODER, None)) == 12) is (split == "val")


def test_rationales_of_a_test_file_may_stay_whole(tmp_path: Path) -> None:
    for cut in (True, False):
        options = replace(RATIONALES, truncation="shared", max_pieces=12, cut_untold=cut)
        rows = group_pieces(groups(tmp_path, options, untold(LINE))[0], CODER, options)
        longest = max(sum(len(part.ids) for part in row) for row in rows)
        assert longest == 12 if cut else longest > 30


def test_regions_of_two_stores() -> None:
    detected = np.array([[1.0], [3], [5]], np.float32), np.full((3, 4), 1, np.float32)
    annotated = np.array([[7.0], [9]], np.float32), np.full((2, 4), 2, np.float32)
    found = join_regions(detected, annotated, 4)
    assert (found.features[:, 0].tolist(), found.num_detected) == ([1, 7, 9], 1)
    assert found.boxes[:, 0].tolist() == [1, 2, 2]
    assert found.whole == pytest.approx((3 * 4 + 8 * 3) / 7)
    assert len(join_regions(detected, annotated).features) == 5
    assert join_regions(detected, annotated, 2).features[:, 0].tolist() == [7]


def test_classes_that_are_asked_of_regions() -> None:
    classes = object_classes(["person", "diningtable"], "a.json")
    assert classes.tolist() == [1, 61]
    with pytest.raises(ValueError, match=r"a\.json: object 'dining table' is no class"):
        object_classes(["dining table"], "a.json")


def test_outlines_and_boxes_are_mirrored_and_padded_alike(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    corner = [[[0, 0], [6, 0], [0, 6]]]
    content = {"boxes": [[0, 0, 13, 13, 0.5], [20, 2, 30, 8, 0.9]], "segms": [corner, []], "names": ["person", "cup"]}
    path.write_text(json.dumps({**content, "width": 40, "height": 20}), "utf-8")
    metadata = read_vcr_metadata(str(path))
    edges = DetectorConfig(short_edge=20, long_edge=60)
    image = np.random.default_rng(0).integers(0, 255, (20, 40, 3)).astype(np.uint8)
    rules = CONVENTIONS["vlbert-e2e"]
    plain, mirrored, one = (
        prepare_vcr_photo(image, metadata, edges, rules, flip=flip, box_numbers=box_numbers)
        for flip, box_numbers in ((False, None), (True, None), (False, [1]))
    )
    assert plain.photo.pixels.shape == (3, 20, 60) and not plain.photo.pixels[:, :, 40:].any()
    assert torch.equal(plain.photo.pixels[:, :, :40], mirrored.photo.pixels[:, :, :40].flip(-1))
    assert torch.equal(plain.masks, mirrored.masks.flip(-1)) and plain.masks[0].all()
    assert plain.masks[1].sum() == 28 and plain.masks[1, 0, 6] and not plain.masks[1, 6, 6] and not plain.masks[2].any()
    assert mirrored.photo.boxes.tolist()[1:] == [[26, 0, 39, 13], [9, 2, 19, 8]]
    assert one.photo.boxes.tolist()[1:] == [[20, 2, 30, 8]] and one.scores.tolist() == pytest.approx([1, 0.9])
    path.write_text(json.dumps({**content, "segms": [corner, [[[1]]]]}), "utf-8")
    with pytest.raises(ValueError, match="segms 1, polygon 0"):
        read_vcr_metadata(str(path))


def test_a_point_on_the_line_is_inside() -> None:
    square = np.array([[2, 2], [2, 5], [5, 5], [5, 2]], np.float32)
    mask = outline_mask([square], np.array([0, 0, 13, 13], np.float32))
    assert mask.sum() == 16 and mask[2:6, 2:6].all()


def test_the_result_file_of_two_models(tmp_path: Path) -> None:
    answers = {"test-1": np.array([2.0, 0, 0, 0]), "test-0": np.array([0.0, 1, 0, 0])}
    rationales = {name: np.arange(16.0) for name in answers}
    path = tmp_path / "both.csv"
    write_vcr_results(path, vcr_scores(answers, rationales, ["test-0", "test-1"]))
    rows = dict(read_vcr_results(str(path)))
    assert list(rows) == ["test-0", "test-1"] and np.argmax(rows["test-0"].answers) == 1
    assert np.sum(rows["test-1"].answers) == pytest.approx(1) and np.shape(rows["test-1"].rationales) == (4, 4)
    assert np.sum(rows["test-1"].rationales, axis=1) == pytest.approx(np.ones(4))
    with pytest.raises(ValueError, match="test-2: no scores of its answers"):
        write_vcr_results(path, vcr_scores(answers, rationales, ["test-0", "test-2"]))
    assert dict(read_vcr_results(str(path))) == rows  # nothing half-written
    with pytest.raises(ValueError, match="test-0: 4 scores of rationales, expected 4 for each answer"):
        list(vcr_scores(answers, {"test-0": np.arange(4.0)}, ["test-0"]))


def test_what_is_right_is_counted(tmp_path: Path) -> None:
    """Both problems of two questions: each by itself, and both right over the questions of which both are asked."""
    answers = groups(tmp_path, VcrOptions(), LINE, {**LINE, "annot_id": "val-8", "answer_label": 0})
    reasons = groups(tmp_path, RATIONALES)
    right = Prediction(np.array([0.0, 1, 0, 0]))
    measures = judge_vcr([*answers, *reasons], [right, right, Prediction(np.array([0.0, 0, 3, 0]))])
    assert {name: measure.mean for name, measure in measures.items()} == {"Q->AR": 1.0, "Q->A": 0.5, "QA->R": 1.0}
    assert list(judge_vcr(answers, [right, right])) == ["Q->A"]
    with pytest.raises(ValueError, match="val-7: no label"):
        judge_vcr(groups(tmp_path, VcrOptions(), untold(LINE)), [right])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": ["Why", [4]]}, "object numbers below 4"),
        ({"answer_choices": [["a"]] * 3}, "answer_choices must be a list of 4"),
        ({"rationale_label": None}, "rationale_label must be in 0..3"),
        ({"img_id": 3}, "img_id must be a name"),
    ],
)
def test_lines_that_are_not_as_vcr_writes_them(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"val.jsonl.*{said}"):
        groups(tmp_path, VcrOptions(), {**LINE, **change})


@pytest.mark.parametrize(("problem", "rows", "name"), [("answer", 4, "Q->A"), ("rationale", 16, "QA->R")])
def test_the_task_of_the_frame(problem: str, rows: int, name: str, tmp_path: Path) -> None:
    """Rationales are asked for each answer and judged for the right one; entries come back from JSON as lists."""
    groups(tmp_path, VcrOptions())
    task = open_vcr(tmp_path, VcrOptions(problem=problem), None)
    (group,) = task.read("val").groups
    scores = np.zeros(rows, np.float32)
    scores[{"answer": 1, "rationale": 4 + 2}[problem]] = 1.0  # answer 1, rationale 2 of it
    assert len(group.rows) == rows
    measures = task.judge([group], [Prediction(scores)])
    assert measures[name].percent == 100.0
    check_best_by(task, [group], name)
    assert task.judged is not None
    judged = task.judged(group)  # while a run trains: the right answer's rationales alone
    kept = slice(0, 4) if problem == "answer" else slice(4, 8)
    assert judged.rows == group.rows[kept] and task.judge([judged], [Prediction(scores[kept])]) == measures
    entries = json.loads(json.dumps(list(task.answers([group], [Prediction(scores)]))))
    task.write(tmp_path / "said.csv", entries)
    assert len((tmp_path / "said.csv").read_text().splitlines()[0].split(",")) == 1 + rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"truncation": "shared"}, "set that too"),
        ({"updates": "task"}, "only with problem 'both'"),
        ({"loss_scales": (2.0, 1.0)}, "of both problems beside each other; set vcr.problem=both"),
        ({"problem": "both", "loss_scales": (2.0,)}, r"loss_scales must be two numbers above 0, got \[2.0\]"),
        ({"object_loss": "shown", "object_names": "/nowhere"}, "cannot be read"),
        ({"truncation": "none"}, "truncation"),
        ({"max_pieces": -1}, "max_pieces must not be negative"),
    ],
)
def test_settings_that_would_change_nothing_are_told(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        open_vcr(tmp_path, VcrOptions(**change), None)
