"""`roibeam tables NAME --toy`: a row of a table is trained, predicted and scored by real commands on a toy world.

Killed and started again it is the same table; what was made by other words or another recipe is not mixed in.
"""

import csv
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roibeam.pipelines.cli.table_run import Cell, TableRequest, TableRun, write_table
from roibeam.pipelines.common.statistics.paper_figures import paper_table

ROW = "VL-BERT w/o pre-training"
CELL = f"{ROW}: VQA, accuracy, test-dev"
MADE = (
    "run-vlbert-vqa-paper-without-pretraining", "RUNS-vlbert-vqa-paper-without-pretraining-test-dev.json",
    "score-of-RUNS-vlbert-vqa-paper-without-pretraining-test-dev.json",
)  # fmt: skip


def started(out: Path, *words: object) -> subprocess.Popen[str]:
    given = ("tables", "vlbert-3", "--toy", "--only", ROW, "--out", out, *words)
    return subprocess.Popen(
        [sys.executable, "-m", "roibeam", *map(str, given)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table") / "drill"
    process = started(out)
    told, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert f"{out}/vlbert-3.html   0 of 1 figure" in told
    return out


def rows(out: Path) -> list[dict[str, str]]:
    with next(out.glob("*.csv")).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def request(out: Path, **changes: object) -> TableRequest:
    given = {"data": out / "toy" / "data", "stores": out / "toy" / "stores", "out": out, "only": (ROW,), "toy": True}
    return TableRequest("vlbert-3", **{**given, **changes})  # type: ignore[arg-type]


def copied(drill: Path, folder: Path) -> Path:
    shutil.copytree(drill, folder, symlinks=True)
    return folder


@pytest.mark.slow
def test_a_row_is_trained_predicted_and_its_submission_checked(drill: Path) -> None:
    assert sorted(path.stem for path in (drill / "made").iterdir()) == sorted(MADE)
    (row,) = rows(drill)
    assert (row["printed"], row["ours"]) == ("69.58", f"to submit: runs/{MADE[0][4:]}-test-dev.json")
    assert row["recipes"] == "vlbert-vqa-paper-without-pretraining" and float(row["hours"]) > 0
    answers = json.loads((drill / "runs" / "vlbert-vqa-paper-without-pretraining-test-dev.json").read_text())
    assert answers and {"question_id", "answer"} <= answers[0].keys()
    assert "<table" in (drill / "vlbert-3.html").read_text() and "A drill." in (drill / "vlbert-3.md").read_text()


@pytest.mark.slow
def test_a_killed_table_goes_on_and_is_the_same(drill: Path, tmp_path: Path) -> None:
    out = tmp_path / "drill"
    shutil.copytree(drill / "toy", out / "toy", symlinks=True)
    process = started(out)
    log = out / "logs" / f"{MADE[0]}.log"
    end = time.monotonic() + 300
    while not (log.exists() and "training: " in log.read_text()):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.2)
    process.kill()  # alone: its training goes on
    process.wait()
    assert not (out / "made").exists()
    again = started(out)
    told, error = again.communicate(timeout=600)
    assert again.returncode == 0 and "an earlier call's run vlbert-vqa-paper-without-pretraining" in told, error
    first, second = ((each / "runs" / f"{MADE[0][4:]}-test-dev.json").read_bytes() for each in (drill, out))
    assert first == second


@pytest.mark.slow
def test_what_is_made_is_not_made_again_and_a_server_s_figure_fills_its_cell(drill: Path, tmp_path: Path) -> None:
    out, told = copied(drill, tmp_path / "drill"), tmp_path / "told.json"
    told.write_text(json.dumps({CELL: 69.0}))
    before = {path: path.stat().st_mtime_ns for path in (out / "made").iterdir()}
    run = TableRun(request(out, scored=told), print)
    run.check()
    assert run.run() == [] and {path: path.stat().st_mtime_ns for path in before} == before
    run.write()
    (row,) = rows(out)
    assert (row["ours"], row["ours less printed"]) == ("69.00", "-0.58")
    with pytest.raises(ValueError, match=r"--data '.*/weights/vl-bert.pkl'"):
        TableRun(request(out, toy=False), print).check()
    (out / "toy" / "data" / "weights").mkdir()
    (out / "toy" / "data" / "weights" / "vl-bert.pkl").touch()
    with pytest.raises(ValueError, match="by other words"):  # a table on other files, and no drill
        TableRun(request(out, toy=False), print).check()
    for given, words in (({"ROW: x": 1}, "no cell 'ROW: x'"), ({CELL: "69"}, "expected a figure in percent")):
        told.write_text(json.dumps(given))
        with pytest.raises(ValueError, match=words):
            run.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "field, value, words",
    [("digest", "0" * 16, "its recipe, a store or what it needs has changed"), ("words", ["score"], "by other words")],
)
def test_what_another_recipe_or_command_made_is_refused(
    drill: Path, tmp_path: Path, field: str, value: object, words: str
) -> None:
    out = copied(drill, tmp_path / "drill")
    made = out / "made" / f"{MADE[0]}.json"
    made.write_text(json.dumps({**json.loads(made.read_text()), field: value}))
    with pytest.raises(ValueError, match=words):
        TableRun(request(out), print).check()


def test_missing_folders_are_all_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    asked = request(tmp_path, data=tmp_path / "data", stores=tmp_path / "stores", toy=False)
    with pytest.raises(ValueError) as error:
        TableRun(asked, print).check()
    assert "coco-vl-bert" in str(error.value) and str(tmp_path / "data") in str(error.value)
    with pytest.raises(ValueError, match="no command makes its figures"):
        TableRun(TableRequest("interbert-section-3.5", tmp_path, tmp_path, tmp_path), print).check()


def test_parts_share_out_all_commands(tmp_path: Path) -> None:
    asked = TableRequest("vilbert-1", tmp_path, tmp_path, tmp_path)
    every = list(TableRun(asked, print).commands)
    parts = [
        [
            each.key
            for each in TableRun(TableRequest("vilbert-1", tmp_path, tmp_path, tmp_path, part=(part, 3)), print).mine()
        ]
        for part in (1, 2, 3)
    ]
    assert sorted(key for part in parts for key in part) == sorted(every) and min(map(len, parts)) > 5
    for part in parts:
        own = [key for key in part if key.startswith("run ")]
        assert all(any(f"RUNS/{run[4:]}" in key for run in own) for key in part if not key.startswith("run "))


def test_a_cell_says_whether_the_printed_figure_lies_inside(tmp_path: Path) -> None:
    shown = paper_table("vlbert-3")
    figure = shown.own[0]  # 69.58
    cells = [
        Cell(figure, (69.0,), 68.0, 70.0), Cell(figure, (60.0, 62.0)), Cell(figure, submission="runs/a.json"),
        Cell(figure),
    ]  # fmt: skip
    write_table(tmp_path, shown, cells, is_toy=False)
    found = [(row["ours"], row["95 % interval"], row["ours less printed"], row["printed is"]) for row in rows(tmp_path)]
    assert found == [
        ("69.00", "68.00 .. 70.00", "-0.58", "inside"), ("61.00", "sd 1.41 of 2 seeds", "-8.58", ""),
        ("to submit: runs/a.json", "", "", ""), ("", "", "", ""),
    ]  # fmt: skip
    assert "2 of 4 figures measured, 1 for a test server." in (tmp_path / f"{shown.name}.md").read_text()
    assert "A drill." not in (tmp_path / f"{shown.name}.html").read_text()
