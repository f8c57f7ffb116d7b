"""NLVR2 as groups: images, labels known or not, which regions, what is written and scored."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_files import write_json_lines

from roibeam.pipelines.finetuning.metrics.measure import STRICT
from roibeam.pipelines.finetuning.metrics.nlvr2 import read_nlvr2_predictions, write_nlvr2_predictions
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.tasks.nlvr2 import (
    Nlvr2Options,
    input_regions,
    judged_lines,
    nlvr2_groups,
    nlvr2_scores,
)

# Two pairs of one statement, which are consistent when both are right; the tenth statement of a pair; one of its own.
LINES = [
    {"identifier": "dev-3-0-1", "sentence": "Two dogs.", "label": "True"},
    {"identifier": "dev-3-1-1", "sentence": "Two dogs.", "label": "False"},
    {"identifier": "dev-3-1-10", "sentence": "A cat.", "label": "True"},
]


def said_to_a_group(*scores: float) -> SimpleNamespace:
    return SimpleNamespace(scores=np.array(scores, np.float32))


def read(folder: Path, split: str, lines: list[dict[str, Any]], **options: str) -> list[TaskGroup]:
    write_json_lines(folder / f"{split}.json", lines)
    return nlvr2_groups(str(folder / f"{split}.json"), Nlvr2Options(**options))


def test_a_statement_is_a_row_with_two_images(tmp_path: Path) -> None:
    groups = read(tmp_path, "dev", LINES)
    assert [group.target for group in groups] == [1, 0, 1]
    assert groups[2].images == ("dev-3-1-img0", "dev-3-1-img1")
    assert (groups[0].rows[0].parts[0].text, groups[0].rows[0].images) == ("Two dogs.", (0, 1))
    named = read(tmp_path, "dev", LINES, image_names="with-extension")
    assert named[2].images == ("dev-3-1-img0.png", "dev-3-1-img1.png")


def test_a_test_file_may_keep_its_labels_back(tmp_path: Path, roibeam: Any) -> None:
    groups = read(tmp_path, "test2", [{name: line[name] for name in ("identifier", "sentence")} for line in LINES])
    assert [group.target for group in groups] == [None] * 3
    said = [said_to_a_group(0, 1)] * 3
    with pytest.raises(ValueError, match=r"3 statements without a label \(first: dev-3-0-1\)"):
        nlvr2_scores(groups, said)
    path = tmp_path / "predictions.csv"
    write_nlvr2_predictions(path, judged_lines(groups, said))
    asked = ("score", "nlvr2", path, "--data", tmp_path, "--split", "test2")
    assert roibeam(*asked, "--check").code == 0
    assert "a file without labels can only be checked" in roibeam(*asked).err


def test_scores_and_the_written_file(tmp_path: Path) -> None:
    groups = read(tmp_path, "dev", LINES)
    said = [said_to_a_group(*scores) for scores in ((0, 1), (0.5, 0.5), (1, 0))]
    found = nlvr2_scores(groups, said)
    assert (found["accuracy"].mean, found["consistency"].mean) == (pytest.approx(2 / 3), 0.5)
    path = tmp_path / "predictions.csv"
    write_nlvr2_predictions(path, judged_lines(groups, said))
    assert path.read_bytes() == b"dev-3-0-1,True\ndev-3-1-1,False\ndev-3-1-10,False"
    ids = [group.id for group in groups]
    assert list(read_nlvr2_predictions(str(path), ids, STRICT).values()) == ["true", "false", "false"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, [0, 1, 2, 3]), ({"max_regions": 2}, [0, 1]), ({"max_regions": 2, "region_order": "best"}, [1, 3])],
)
def test_which_regions_are_shown(fields: dict[str, Any], expected: list[int]) -> None:
    scores = np.array([0.2, 0.9, 0.2, 0.5], np.float32)
    assert input_regions(scores, Nlvr2Options(**fields)).tolist() == expected


def test_wrong_files_and_options(tmp_path: Path) -> None:
    for split, lines, words in (
        ("dev", [LINES[0], LINES[0]], "1 statement with several rows"),
        ("train", [], "no statement in it"),
        ("test1", [LINES[0] | {"label": "yes"}], 'label must be "True" or "False"'),
    ):
        with pytest.raises(ValueError, match=words):
            read(tmp_path, split, lines)
    with pytest.raises(ValueError, match="region_order must be one of file, best"):
        Nlvr2Options(region_order="area")
