"""Tables of one's own: what would give other labels without a word is one line that names file and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roibeam.pipelines.data.datasets.tables import read_table
from roibeam.pipelines.finetuning.metrics.own_labels import own_label_measures
from roibeam.pipelines.finetuning.rows import LABEL
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.task import Prediction
from roibeam.pipelines.finetuning.tasks.labels import LabelsOptions, open_labels

HEADER = "image,text,label\n"
TRAIN = HEADER + "a,x,red\nb,y, red \nc,z,blue\n"


def written(folder: Path, **tables: str) -> Path:
    for split, text in tables.items():
        (folder / f"{split}.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER + "a,x,red\nb,really, no,blue\n", r"row 1 \(line 3\): 4 fields, the header has 3; .* in quotes"),
        (HEADER + 'a,"really, no",red\nb,  ,red\n', "row 1: its text is empty; fill it, or take the row out"),
        (
            "img,caption,y\na,x,red\n",
            "no image; a table has the columns image, text and label, this one img, caption, y",
        ),
        ("image;text;label\na;x;red\n", "separated by semicolons or tabs"),
    ],
)
def test_rows_that_would_be_read_otherwise_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(read_table(written(tmp_path, train=text) / "train.csv"))


def test_labels_are_told_with_the_share_of_the_commonest(tmp_path: Path) -> None:
    task = open_labels(written(tmp_path, train=TRAIN, val=HEADER + "d,w,red\ne,v,green\n"), LabelsOptions(), None)
    assert task.labels == ("blue", "red")  # white space is no other label
    assert task.read("train").notes == ("train: 2 labels; the commonest, 'red', is that of 66.7 % of the rows",)
    unknown, commonest = task.read("val").notes
    assert "1 row has a label that nothing is trained on" in unknown and "is that of 50.0 % of the rows" in commonest


def test_whole_numbers_that_pandas_wrote_as_floats_are_told(tmp_path: Path) -> None:
    """A column of whole numbers with a gap is one of floats there."""
    train = HEADER + "".join(f"{image},w,{label}\n" for image, label in (("a", "0"), ("b", "1"), ("c", "0")))
    read = open_labels(written(tmp_path, train=train, val=HEADER + "d,w,0.0\ne,w,1.0\n"), LabelsOptions(), None).read
    with pytest.raises(ValueError, match=r'as numbers they are equal: pandas .* write it with astype\("Int64"\)'):
        read("val")


@pytest.mark.parametrize(
    ("val", "words"),
    [
        (HEADER, "holds no row"),
        (HEADER + "d,w,0.0\n", r"none of its labels \(0.0, ...\) is one of .* \(blue, red, ...\)"),
    ],
)
def test_a_table_that_cannot_be_judged_is_refused(tmp_path: Path, val: str, words: str) -> None:
    task = open_labels(written(tmp_path, train=TRAIN, val=val), LabelsOptions(), None)
    with pytest.raises(ValueError, match=words):
        task.read("val")


def test_a_run_is_judged_by_both_accuracies(tmp_path: Path) -> None:
    """`train.best_by=balanced_accuracy` goes by the second."""
    task = open_labels(
        written(tmp_path, train=TRAIN, val=HEADER + "d,w,red\ne,v,red\nf,v,blue\n"), LabelsOptions(), None
    )
    said = [Prediction(np.array([0.0, 1.0], np.float32))] * 3  # always red
    measures = task.judge(task.read("val").groups, said)
    assert {name: each.mean for name, each in measures.items()} == {"accuracy": 2 / 3, "balanced accuracy": 0.5}


def test_balanced_weights_make_labels_count_alike(tmp_path: Path) -> None:
    """Two rows of red and one of blue: 3/4 and 3/2, whose mean over rows is 1."""
    folder = written(tmp_path, train=TRAIN)
    task = open_labels(folder, LabelsOptions(weights="balanced"), None)
    assert task.labels == ("blue", "red") and task.label_weights == (1.5, 0.75)
    assert open_labels(folder, LabelsOptions(), None).label_weights == ()
    scores, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    term = loss_named(LABEL, task.loss, label_weights=task.label_weights).term(scores, targets, scores > -9)
    each = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    assert int(term.count) == 3
    torch.testing.assert_close(term.total, (each * torch.tensor([1.5, 0.75, 0.75])).sum())
    with pytest.raises(ValueError, match="weights must be one of equal, balanced"):
        LabelsOptions(weights="inverse")


def test_a_rare_label_that_is_never_said_costs_half_of_the_balanced_accuracy() -> None:
    right = ["no"] * 9 + ["yes"]
    found = own_label_measures(["no"] * 10, right, [f"photo-{row}" for row in range(10)])
    assert {name: each.mean for name, each in found.items()} == {
        "accuracy": 0.9, "balanced accuracy": 0.5, "label no": 1.0, "label yes": 0.0,
    }  # fmt: skip
    assert next(iter(found)) == "accuracy" and found["label yes"].images == ["photo-9"]


def test_figures_of_single_labels_are_told_of_few_labels_and_none_of_one() -> None:
    many = [str(label) for label in range(21)]
    assert list(own_label_measures(many, many, many)) == ["accuracy", "balanced accuracy"]
    assert list(own_label_measures(["a"], ["a"], ["photo"])) == ["accuracy"]
