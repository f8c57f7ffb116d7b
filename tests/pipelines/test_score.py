"""`roibeam score`: result files that are right and wrong, both rules, two files beside each other."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, ok

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
VQA, CHOICES, BOXES = (GOLDENS / name for name in ("metrics_vqa", "metrics_vcr_nlvr_glue", "metrics_refcoco"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Label files under their official names, those of RefCOCO+ in a folder of their own. Read only."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(VQA / "mixed.annotations.json", folder / "v2_mscoco_val2014_annotations.json")
    shutil.copy(VQA / "mixed.questions.json", folder / "v2_OpenEnded_mscoco_test2015_questions.json")
    shutil.copy(CHOICES / "vcr_leaderboard.val.jsonl", folder / "val.jsonl")
    shutil.copy(CHOICES / "nlvr2.dev.json", folder / "dev.json")
    (folder / "refcoco+").mkdir()
    refs = json.loads((BOXES / "detected_boxes.refs.json").read_text("utf-8"))
    (folder / "refcoco+" / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    shutil.copy(BOXES / "detected_boxes.instances.json", folder / "refcoco+" / "instances.json")
    return folder


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What MAttNet chose, by sentence, and what VL-BERT chose, in its own form; of the split val."""
    rows = json.loads((BOXES / "detected_boxes.json").read_text("utf-8"))["expected"]["rows"]
    rows = [row for row in rows if row["split"] == "val"]
    told = {
        "mattnet": [{"sent_id": row["sent_id"], "box": row["mattnet_box"]} for row in rows],
        "vlbert": [{"ref_id": row["ref_id"], "box": row["vlbert_box_xyxy"]} for row in rows[::-1]],
    }
    folder = tmp_path_factory.mktemp("boxes")
    for name, records in told.items():
        (folder / f"{name}.json").write_text(json.dumps(records), "utf-8")
    return {name: folder / f"{name}.json" for name in told}


def figures(roibeam: Cli, *words: object) -> dict[str, dict[str, Any]]:
    done = ok(roibeam("score", *words, "--json"))
    return {each["name"]: each for each in json.loads(done.out)["figures"]}


def test_scores_are_those_of_the_reference(roibeam: Cli, data: Path, boxes: dict[str, Path]) -> None:
    exact = json.loads((VQA / "mixed.json").read_text("utf-8"))["expected"]["exact"]
    found = figures(roibeam, "vqa", VQA / "mixed.results.json", "--data", data)
    assert 100 * found["overall"]["value"] == pytest.approx(exact["overall"])
    assert 100 * found["answer type number"]["value"] == pytest.approx(exact["per_answer_type"]["number"])
    assert found["overall"]["low"] < found["overall"]["value"] < found["overall"]["high"]
    found = figures(roibeam, "vcr", CHOICES / "vcr_leaderboard.columns_shuffled.csv", "--data", data)
    assert [found[name]["value"] for name in ("Q->A", "QA->R", "Q->AR")] == [0.675, 0.7, 0.475]
    found = figures(roibeam, "nlvr2", CHOICES / "nlvr2.predictions.csv", "--data", data)
    assert found["consistency"]["value"] == 0.56
    accuracy = json.loads((BOXES / "detected_boxes.json").read_text("utf-8"))["expected"]["accuracy"]
    for name, rules in (("mattnet", "strict"), ("vlbert", "vl-bert")):
        found = figures(roibeam, "refcoco+", boxes[name], "--data", data, "--rules", rules)
        assert found["accuracy"]["value"] == accuracy[name]["val"]


def test_the_table_has_percents_as_printed_and_the_card(roibeam: Cli, data: Path) -> None:
    done = roibeam("score", "vqa", VQA / "mixed.results.json", "--data", data)
    rows = {line[:32].strip(): line[32:].split() for line in done.out.splitlines()}
    assert rows["overall"][0] == "79.06" and rows["question type how many"] == ["83.85", "13"]
    assert "160 rows; the official split has 214,354" in done.out and "rules    strict:" in done.out
    assert done.out.count("sha256") == 2


def test_two_files_are_compared_row_by_row(roibeam: Cli, data: Path, tmp_path: Path) -> None:
    answers = json.loads((VQA / "mixed.results.json").read_text("utf-8"))
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps([*({**each, "answer": "?"} for each in answers[:40]), *answers[40:]]))
    words = ("vqa", VQA / "mixed.results.json", "--data", data, "--against")
    overall = figures(roibeam, *words, worse)["overall"]
    assert overall["less"] == pytest.approx(overall["value"] - overall["against"]) and overall["less_low"] > 0
    same = figures(roibeam, *words, VQA / "mixed.results.json")["overall"]
    assert same["less"] == same["less_low"] == same["less_high"] == 0
    assert roibeam("score", *words, worse).code == 0


def test_a_submission_without_labels_is_checked(roibeam: Cli, data: Path) -> None:
    words = ("score", "vqa", VQA / "mixed.results.json", "--data", data, "--split", "test")
    done = roibeam(*words, "--check")
    assert done.code == 0 and "complete, one row for each of 160 (official test: 447,793)" in done.out
    assert "--check checks a submission" in roibeam(*words).err


def test_strict_rules_refuse_what_official_ones_count(roibeam: Cli, data: Path, tmp_path: Path) -> None:
    answers = json.loads((VQA / "mixed.results.json").read_text("utf-8"))
    doubled, lines = tmp_path / "doubled.json", tmp_path / "lines.csv"
    doubled.write_text(json.dumps([{**answers[0], "answer": "?"}, *answers]))
    words = ("vqa", doubled, "--data", data)
    assert figures(roibeam, *words, "--rules", "official")["overall"]["rows"] == 160
    done = roibeam("score", *words)
    assert done.code == 1 and f"1 question with several rows (first: {answers[0]['question_id']})" in done.err
    text = (CHOICES / "nlvr2.predictions.csv").read_text("utf-8")
    lines.write_text(text.replace(",", ", "))
    assert "expected True or False right behind the comma" in roibeam("score", "nlvr2", lines, "--data", data).err
    official = figures(roibeam, "nlvr2", lines, "--data", data, "--rules", "official")
    assert official["accuracy"]["value"] == 0


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


def test_wrong_files_are_told_in_one_line(roibeam: Cli, data: Path, boxes: dict[str, Path], tmp_path: Path) -> None:
    mixed, other = VQA / "mixed.results.json", VQA / "ten_equal.results.json"
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "refs(unc).p").write_bytes(pickle.dumps([_Runs()]))
    shutil.copy(BOXES / "detected_boxes.instances.json", bad / "instances.json")
    (bad / "short.csv").write_text("annot_id,answer_0\nval-0,1\n")
    whole = (CHOICES / "vcr_leaderboard.as_written.csv").read_text("utf-8")
    (bad / "nan.csv").write_text(whole.replace("0.488658", "nan", 1))
    (bad / "quoted.json").write_text('[{"question_id": "17000", "answer": "yes"}]')
    (bad / "box.json").write_text('[{"sent_id": 1, "box": [1, 2, 3]}]')
    calls: list[tuple[tuple[object, ...], str]] = [
        (("vqa", other, "--data", data), "160 questions without a row (first: "),
        (("vqa", other, "--data", data), "40 questions not in the split"),
        (("vqa", CHOICES / "nlvr2.predictions.csv", "--data", data), "not a json file"),
        (
            ("vqa", bad / "quoted.json", "--data", data),
            '"17000", and VQA\'s ids are whole numbers; take the quotes away',
        ),
        (("vqa", mixed, "--data", tmp_path), "holds no v2_mscoco_val2014_annotations.json"),
        (("vqa", mixed, "--data", data, "--split", "trainval"), "choose one of val, train, test, test-dev"),
        (("vqa", mixed, "--data", data, "--rules", "uniter"), "choose one of strict, official"),
        (("vqaa", mixed, "--data", data), "no task 'vqaa'"),
        (
            ("vcr", CHOICES / "vcr_leaderboard.row_missing.csv", "--data", data),
            "1 question without a row (first: val-0)",
        ),
        (("vcr", bad / "short.csv", "--data", data), "no column answer_1 (3 missing)"),
        (("vcr", bad / "nan.csv", "--data", data), "line 2: answer_0 must be a number, got 'nan'"),
        (("refcoco+", boxes["mattnet"], "--data", data, "--split", "testA"), "not in the split"),
        (("refcoco+", bad / "box.json", "--data", data), "box must be a list of 4 numbers"),
        (("refcoco+", boxes["mattnet"], "--data", bad), "wants to run"),
    ]
    for words, said in calls:
        done = roibeam("score", *words)
        assert done.code == 1 and done.err.count("\n") == 1 and said in done.err, (words, done.err)
        assert "this ran" not in done.out + done.err
