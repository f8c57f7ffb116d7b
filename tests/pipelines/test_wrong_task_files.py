"""Official files of each task with a doubled row, a row without an answer, a pickle that would run, and
images that the store has no record of: one line each, before anything is written. Other faults of one file are with the
tests of its reader."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from small_files import write_json, write_json_lines
from tiny_commands import Cli, one_line

ROW = '{"pair": "1", "photo": "a", "words": "b", "gold": "x"}'
ANSWERS = [{"answer": "yes", "answer_confidence": "yes", "answer_id": n + 1} for n in range(10)]


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


def write_vqa(folder: Path, fault: str) -> None:
    for number, year in enumerate(("train2014", "val2014")):
        ids = [{"question_id": 1000 * number + n, "image_id": number + 1} for n in range(2)]
        told = [
            {**each, "question_type": "is", "answer_type": "yes/no", "multiple_choice_answer": ("yes", "no")[n],
             "answers": ANSWERS}
            for n, each in enumerate(ids)
        ]  # fmt: skip
        asked = [{**each, "question": "Is it?"} for each in ids]
        if year == "train2014":
            asked += asked[:1] if fault == "doubled" else []
            told[1]["answers"] = [] if fault == "untold" else ANSWERS
        shared = {"data_type": "mscoco", "data_subtype": year}
        write_json(folder / f"v2_OpenEnded_mscoco_{year}_questions.json", {**shared, "questions": asked})
        write_json(folder / f"v2_mscoco_{year}_annotations.json", {**shared, "annotations": told})


def write_vcr(folder: Path, fault: str) -> None:
    for split in ("train", "val"):
        row = {
            "movie": "m", "objects": ["person"], "img_fn": f"m/{split}.jpg", "metadata_fn": f"m/{split}.json",
            "question": ["Is", [0], "?"], "answer_choices": [["It", "is"]] * 4, "rationale_choices": [["So"]] * 4,
            "img_id": split, "annot_id": f"{split}-0", "answer_label": 1, "rationale_label": 2,
        }  # fmt: skip
        rows = [row, row] if (split, fault) == ("train", "doubled") else [row]
        if (split, fault) == ("train", "untold"):
            rows = [{name: value for name, value in row.items() if not name.endswith("_label")}]
        write_json_lines(folder / f"{split}.jsonl", rows)


def write_nlvr2(folder: Path, fault: str) -> None:
    for split in ("train", "dev"):
        row = {"identifier": f"{split}-0-0-0", "sentence": "Both.", "label": "True"}
        rows = [row, row] if (split, fault) == ("train", "doubled") else [row]
        if fault == "untold":
            rows = [{name: value for name, value in row.items() if name != "label"}]
        write_json_lines(folder / f"{split}.json", rows)


def write_refcoco(folder: Path, fault: str) -> None:
    refs: list[Any] = [
        {"ref_id": n, "ann_id": 1, "image_id": 5, "category_id": 1, "split": split, "sent_ids": [n], "file_name": "x",
         "sentences": [{"sent_id": n, "sent": "it", "raw": "it", "tokens": ["it"]}]}
        for n, split in enumerate(("train", "val"))
    ]  # fmt: skip
    refs += refs[:1] if fault == "doubled" else [Runs()] if fault == "runs" else []
    (folder / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    boxes = [{"id": 1, "image_id": 5, "bbox": [1, 1, 9, 9], "iscrowd": 0, "category_id": 1}]
    images = [{"id": 5, "height": 40, "width": 40, "file_name": "x.jpg"}]
    write_json(folder / "instances.json", {"annotations": boxes, "images": images})


WRITERS = {"vqa": write_vqa, "vcr": write_vcr, "nlvr2": write_nlvr2, "refcoco+": write_refcoco}


@pytest.mark.parametrize(
    ("task", "fault", "said"),
    [
        ("vqa", "doubled", "vqa, train: 1 id with several rows (first: 0); expected one row for each of 2 ids"),
        ("vqa", "untold", "question 1 has no answers in"),
        ("vcr", "doubled", "vcr, train: 1 id with several rows (first: train-0)"),
        ("vcr", "untold", "vcr, train: no label for 1 row of 1 (first: train-0), and this"),
        ("nlvr2", "doubled", "1 statement with several rows (first: train-0-0-0)"),
        ("nlvr2", "untold", "(first: train-0-0-0), and this split is trained on"),
        ("refcoco+", "doubled", "refcoco+, train: 1 id with several rows (first: 0)"),
        ("refcoco+", "runs", "wants to run"),
        ("vqa", "no record", "has 0 of 1 image; missing are COCO_train2014_000000000001; extract them too"),
        ("vcr", "no record", "has 0 of 1 image; missing are m/train; extract them too"),
        ("nlvr2", "no record", "has 0 of 2 images; missing are train-0-0-img0, train-0-0-img1; extract them too"),
    ],
)
def test_wrong_files(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path, task: str, fault: str, said: str) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    WRITERS[task](data, fault)
    more = {"vqa": ("--set", "vqa.min_occurrence=1"), "refcoco+": ("--set", "refcoco+.boxes=annotated")}.get(task, ())
    done = roibeam("finetune", out, "--task", task, "--from", "none", "--system", "visualbert", "--store", store[0],
                   "--data", data, "--device", "cpu", "--steps", 1, *more)  # fmt: skip
    assert done.code == 1 and said in one_line(done), done.err
    assert "this ran" not in done.out + done.err and not out.exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{ROW}\n{{"pair": "2"}}', "row 1: the reader of the task failed: KeyError: 'photo'"),
        ("[1", "row 0: the reader of the task failed: JSONDecodeError"),
        (ROW.replace('"a"', "7"), "row 0: the reader of the task failed: TypeError: a row must be of texts"),
    ],
)
def test_wrong_files_of_ones_own(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path, line: str, said: str) -> None:
    from test_prediction_cards import OWN_TASK

    (tmp_path / "own.py").write_text(OWN_TASK)
    (tmp_path / "own_train.jsonl").write_text(line)
    done = roibeam("finetune", tmp_path / "run", "--task", tmp_path / "own.py", "--from", "none", "--system", "vlbert",
                   "--store", store[0], "--data", tmp_path, "--device", "cpu")  # fmt: skip
    assert done.code == 1 and said in one_line(done), done.err
    assert not (tmp_path / "run").exists()
    (tmp_path / "said.json").write_text('[{"pair": "1"}]')
    (tmp_path / "own_val.jsonl").write_text(ROW)
    scored = roibeam("score", tmp_path / "own.py", tmp_path / "said.json", "--data", tmp_path)
    assert scored.code == 1 and "the reader of the task's results failed: KeyError: 'said'" in one_line(scored)
