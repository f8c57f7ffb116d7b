"""VQA on a table of one's own: how right answers are, what is written and scored, settings that no table has."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roibeam.pipelines.data.datasets.tables import read_answer_table
from roibeam.pipelines.finetuning.score_run import ScoreRequest, run_score
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions

TRAIN = (("Which?", ["Red", "Red", "blue", "Red"]), ("Why?", ["left"]), ("Who?", ["the left", "right", "Red"]))
VALIDATION = (("What?", "Red"), ("Where?", "left|right"), ("How?", "blue|blue|Blue|Red|Red|Red|Red"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"image": f"{n}.jpg", "text": text, "answers": told} for n, (text, told) in enumerate(TRAIN)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (tmp_path / "val.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "image", "text", "answers"])
        table.writerows((f"row {n}", "9.jpg", *each) for n, each in enumerate(VALIDATION))
    (tmp_path / "test.csv").write_text("image,text\n7.jpg,What?\n")
    return tmp_path


def opened(folder: Path, labels: Any = None, **fields: Any) -> DownstreamTask:
    options = VqaOptions(**{"min_occurrence": 1, **fields})
    return TASKS["vqa"].open(folder, options, labels)


def test_answers_are_those_of_the_training_table_as_they_stand_there(folder: Path) -> None:
    """Of more than three people each is left out in turn; of fewer their share counts, so that one person is right."""
    task = opened(folder)
    assert task.labels == ("Red", "left", "the left") and task.reported_by == "labels"
    assert [group.target for group in task.read("train").groups] == [
        {0: pytest.approx((3 * 2 / 3 + 1) / 4)},
        {1: 1.0},
        {0: pytest.approx(1 / 3), 2: pytest.approx(1 / 3)},
    ]
    validation = task.read("val")
    assert [group.target for group in validation.groups] == [{0: 1.0}, {1: 0.5}, {0: 1.0}] and validation.notes == ()
    assert opened(folder, targets="normalised").labels == ("red", "left")
    assert [group.target for group in task.read("test").groups] == [None]
    assert opened(folder, ("right", "Red")).labels == ("right", "Red")


def test_columns_may_have_the_names_of_vqas_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("image,question,answer\na,Is it red?,yes\nb,What?,a dog|dog\n")
    found = [(row.image, row.text, row.answers) for row in read_answer_table(tmp_path / "train.csv")]
    assert found == [("a", "Is it red?", ("yes",)), ("b", "What?", ("a dog", "dog"))]
    row = {"image": "a", "question": "Is it red?", "answers": [{"answer": "yes", "answer_id": 1}, {"answer": "no"}]}
    (tmp_path / "val.jsonl").write_text(json.dumps({**row, "answer": "yes"}) + "\n")
    assert [row.answers for row in read_answer_table(tmp_path / "val.jsonl")] == [("yes", "no")]


def test_answers_of_parquet_are_those_of_jsonl(folder: Path, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "own.parquet"
    rows = [{"image": f"{n}.jpg", "text": text, "answers": told} for n, (text, told) in enumerate(TRAIN)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    found = [(row.text, list(row.answers)) for row in read_answer_table(path)]
    assert found == [(row.text, list(row.answers)) for row in read_answer_table(folder / "train.jsonl")] == list(TRAIN)


def test_left_and_right_change_places_beside_a_mirrored_photo(folder: Path) -> None:
    (folder / "labels.txt").write_text("left\nright\n")
    task = opened(folder, answers=str(folder / "labels.txt"))
    assert task.mirrored is not None
    turned = task.mirrored(task.read("train").groups[1])
    assert turned.target == {1: 1.0} and turned.mirrored


def test_what_is_written_is_scored_as_it_was_judged(folder: Path, tmp_path: Path) -> None:
    """No official number of rows is known; a row too few is one line."""
    task = opened(folder)
    groups = task.read("val").groups
    said = [Prediction(np.eye(3, dtype=np.float32)[place]) for place in (0, 1, 0)]
    (judged,) = task.judge(groups, said).values()
    assert list(judged.values) == [1.0, 0.5, 1.0]
    out = tmp_path / "said.json"
    task.write(out, list(task.answers(groups, said)))
    assert json.loads(out.read_text())[0] == {"question_id": "row 0", "answer": "Red"}
    score = run_score(ScoreRequest("vqa", out, folder))
    assert score.figures[0].value == judged.mean and score.card["official_rows"] is None
    out.write_text(json.dumps(json.loads(out.read_text())[1:]))
    with pytest.raises(ValueError, match=r"1 question without a row \(first: row 0\)"):
        run_score(ScoreRequest("vqa", out, folder))
    with pytest.raises(ValueError, match="no split 'minival'; choose one of val, train, test"):
        run_score(ScoreRequest("vqa", out, folder, split="minival"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"train": "train+val"},
            "vqa.train 'train\\+val' is of VQA's official files, and --data has tables of your own",
        ),
        ({"question": "imdb"}, "vqa.question 'imdb' is of VQA's official files"),
        ({"min_occurrence": 3}, "0 majority answers of at least 3 questions; set vqa.min_occurrence lower"),
    ],
)
def test_settings_that_no_table_has_are_refused(folder: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        opened(folder, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"train": "train+val", "score_rule": "left_out"}, {"question": "imdb"}, {"visual_genome": "coco"}],
)
def test_a_model_of_the_official_files_is_asked_about_a_table(folder: Path, fields: dict[str, Any]) -> None:
    """Its training settings are kept with it, so prediction cannot leave them out."""
    task = opened(folder, ("Red", "blue"), **fields)
    (group,) = task.read("test").groups
    assert group.rows[0].parts[0].text == ("what" if "question" in fields else "What?")
    assert [each.target for each in task.read("val").groups] == [{0: 1.0}, {}, {0: 1.0, 1: pytest.approx(4 / 7)}]


def test_labels_that_no_question_has_stop_a_run_and_no_prediction(folder: Path) -> None:
    (folder / "labels.txt").write_text('[\n "Red",\n "left"\n]\n')
    with pytest.raises(ValueError, match=r"train: 0 of 3 questions have an answer among the 4 labels \('\[', ' \"Red"):
        opened(folder, answers=str(folder / "labels.txt")).read("train")
    assert opened(folder, ("cat", "dog")).read("train").groups[0].target == {}
    (folder / "labels.txt").rename(folder / "labels.json")
    assert opened(folder, answers=str(folder / "labels.json")).labels == ("Red", "left")


def test_a_training_row_without_answers_is_named(folder: Path) -> None:
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps({"image": "1.jpg", "text": "Who?"}) + "\n")
    with pytest.raises(ValueError, match=r"train.jsonl', row 3: no answers, and this is trained on"):
        opened(folder)
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps({"image": "1.jpg", "text": "Who?", "answers": [1]}) + "\n")
    with pytest.raises(ValueError, match=r"row 4: answers must be texts, got \[1\]"):
        list(read_answer_table(folder / "train.jsonl"))
