"""`roibeam tables NAME --toy`: a row of a table is trained, predicted and scored by real commands on a toy world.

Killed and started again it is the same table; what was made by other words or another recipe is not mixed in.
"""

import csv
import hashlib
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused
from tiny_commands import Cli

from roibeam.pipelines.cli import table_run
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
    assert f"{out}/vlbert-3.html   0 of 3 figures" in told
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
    row = rows(drill)[0]
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
    assert again.returncode == 0 and "another process is making it" in told, error
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
    row = rows(out)[0]
    assert (row["ours"], row["ours less printed"]) == ("69.00", "-0.58")
    with pytest.raises(ValueError, match="by other words"):  # a table on other files, and no drill
        TableRun(request(out, toy=False), print).check()
    TableRun(request(out), print).write()  # which remembers what was told
    assert rows(out)[0]["ours"] == "69.00"
    assert "## What the run vlbert-vqa-paper-without-pretraining noted" in (out / "vlbert-3.md").read_text()


@pytest.mark.parametrize(
    "given, words",
    [
        ({"ROW: x": 1}, "no cell 'ROW: x'"), ({CELL: "69"}, "a figure in percent"), ({CELL: 0.69}, "1 to 100"),
        ({f"{CELL}, seed 1": 69}, "seed 1' is for a test server"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_figures_is_refused_before_a_world_is_drawn(
    roibeam: Cli, tmp_path: Path, given: object, words: str
) -> None:
    (tmp_path / "told.json").write_text(json.dumps(given))
    called = ("tables", "vlbert-3", "--toy", "--out", tmp_path / "out", "--scored", tmp_path / "told.json")
    result = roibeam(*called)
    assert result.code == 1 and words in result.err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_server_s_figure_is_that_of_one_submission(drill: Path, tmp_path: Path) -> None:
    """Also where a run was made anew; it is neither taken over nor given again."""
    out, told, lines = copied(drill, tmp_path / "drill"), tmp_path / "told.json", list[str]()
    kept, answers = out / "vlbert-3.scored.json", out / "runs" / f"{MADE[0][4:]}-test-dev.json"
    told.write_text(json.dumps({CELL: 69.1}))
    TableRun(request(out, scored=told), print).check()
    assert set(json.loads(kept.read_text())[CELL]) == {"percent", "submission"}
    content = answers.read_bytes()
    answers.unlink()
    TableRun(request(out), print).write()
    assert rows(out)[0]["ours"] == "for a test server"
    with pytest.raises(ValueError, match="has no submission yet that was checked"):
        TableRun(request(out, scored=told), print).check()
    answers.write_bytes(content + b"\n")  # of a run that was made anew
    run = TableRun(request(out), lines.append)
    run.check()
    assert "69.1 is left out, it was told of another submission" in lines[0]
    assert run.run() == []  # the score is of other predictions, so it is made again
    assert (rows(out)[0]["ours"], lines[1:]) == (
        f"to submit: runs/{answers.name}",
        [f"{MADE[2].replace('-of-RUNS-', ' of RUNS/')}: done"],
    )
    with pytest.raises(ValueError, match="was told of an earlier submission"):
        TableRun(request(out, scored=told), print).check()
    told.write_text(json.dumps({CELL: 69.3}))
    run = TableRun(request(out, scored=told), print)
    run.check()
    run.write()
    assert rows(out)[0]["ours"] == "69.30"
    kept.write_text(json.dumps({CELL: 69.3}))  # of an earlier version
    with pytest.raises(ValueError, match="expected percent and the digest of its submission"):
        TableRun(request(out), print).write()


def test_cells_of_one_submission_are_told_apart_and_those_of_seeds_named(tmp_path: Path) -> None:
    """VCR's three figures of one file; those of the second run have the seed's number."""
    for name in ("data", "stores", "runs", "made"):
        (tmp_path / name).mkdir()
    asked = TableRequest("vlbert-2", tmp_path / "data", tmp_path / "stores", tmp_path, seeds=2)
    run = TableRun(asked, print)
    keys = {key: run.commands[key] for key in run._served.values()}
    assert len(run._served) == 3 * len(keys) and len(keys) == 2
    for number, (key, command) in enumerate(keys.items()):
        (tmp_path / "runs" / Path(command.words[2]).name).write_text(str(number))
        card = {"results": {command.words[2]: f"digest {number}"}}
        run._made(key).write_text(json.dumps({**run._recorded(command), "answer": {"figures": [], "card": card}}))
    (first, *_), kept = run._served, tmp_path / "vlbert-2.scored.json"
    kept.write_text(json.dumps({f"{first}, seed 1": {"percent": 70, "submission": "digest 1"}}))
    file = "runs/vlbert-vcr-answer-paper{}-test.csv"
    found = {f"{each.figure.row}: {each.figure.column}": each for each in run.cells()}
    assert (found[first].values, found[first].submission) == ((70,), file.format(""))
    others = [each for name, each in found.items() if name != first and each.is_served]
    assert [(each.values, each.submission) for each in others] == [
        ((), f"{file.format('')}, {file.format('-seed-1')}")
    ] * 2


@pytest.mark.slow
def test_damaged_records_get_one_line(drill: Path, tmp_path: Path) -> None:
    out = copied(drill, tmp_path / "drill")
    for name in MADE:
        made = out / "made" / f"{name}.json"
        content = made.read_bytes()
        made.write_text("{}")
        with pytest.raises(ValueError, match="is no record of a command that was run; remove it"):
            TableRun(request(out), print).check()
        made.write_bytes(content)


@pytest.mark.parametrize(
    "table, kind, content",
    [
        ("imagebert-1", "evaluate", {"figures": []}),
        ("imagebert-1", "evaluate", {"figures": {"image_to_text_r1": {"value": "high"}}}),
        ("what-does-bert-with-vision-look-at-2", "attention", {"populations": [{"name": "det"}]}),
        ("vilbert-1", "score", {"answer": {"figures": [{}]}}),
    ],
)
def test_damaged_figures_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, kind: str, content: dict[str, object]
) -> None:
    monkeypatch.setattr(TableRun, "_has", lambda self, key: True)
    run = TableRun(TableRequest(table, tmp_path / "data", tmp_path / "stores", tmp_path), print)
    (tmp_path / "made").mkdir()
    files = {"evaluate": "results.json", "attention": "attention.json"}
    for key, command in run.commands.items():
        folder = tmp_path / "made" if command.words[0] == "score" else Path(run._filled(key))
        if command.words[0] in ("score", *files):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / files.get(command.words[0], run._made(key).name)).write_text(json.dumps(content))
    refused(f"is damaged; remove .*, and {kind} runs again", run.cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    "field, value, words",
    [
        ("recipes", "0" * 16, "a recipe that it needs has changed"),
        ("stores", "0" * 16, "a store has changed"),
        ("words", ["score"], "by other words"),
        ("toy", False, "not in a drill"),
    ],
)
def test_what_another_recipe_or_command_made_is_refused(
    drill: Path, tmp_path: Path, field: str, value: object, words: str
) -> None:
    out = copied(drill, tmp_path / "drill")
    made = out / "made" / f"{MADE[0]}.json"
    made.write_text(json.dumps({**json.loads(made.read_text()), field: value}))
    with pytest.raises(ValueError, match=words):
        TableRun(request(out), print).check()


def test_all_that_is_missing_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the files' names: an empty folder has none of them. The hub is asked too."""
    asked = list[str]()
    monkeypatch.setattr("roibeam.pipelines.cli.recipe_commands.fetch_from_hub", lambda name, files: asked.append(name))
    for name in ("stores", "data/vqa", "data/weights"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "vqa" / "v2_mscoco_val2014_annotations.json").touch()  # empty
    given = request(tmp_path, data=tmp_path / "data", stores=tmp_path / "stores", toy=False, only=())
    with pytest.raises(ValueError) as error:
        TableRun(given, print).check()
    for name in (
        "stores/coco-vl-bert", "stores/conceptual-captions-vl-bert", "weights/vl-bert.pkl",
        "vqa/v2_OpenEnded_mscoco_train2014_questions.json", "vqa/v2_OpenEnded_mscoco_test-dev2015_questions.json",
        "vqa/v2_mscoco_val2014_annotations.json", "photos/local.tsv", "tables vlbert-3 --dry-run --data",
    ):  # fmt: skip
        assert name in str(error.value), name
    # Configuration, weights, vocabulary.
    assert asked == ["hf:google-bert/bert-base-uncased"] * 3 and len(str(error.value).splitlines()) == 1
    monkeypatch.setattr("roibeam.pipelines.cli.recipe_commands.find_spec", lambda name: None)
    for table, words in (("interbert-3", "figures of GLUE"), ("what-does-bert-with-vision-look-at-2", "spaCy")):
        with pytest.raises(ValueError, match=words):
            TableRun(replace(given, name=table), print).check()
    with pytest.raises(ValueError, match="no command makes its figures"):
        TableRun(TableRequest("interbert-section-3.5", tmp_path, tmp_path, tmp_path), print).check()


def test_calls_on_one_folder_share_out_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is run once; what needs a failed one is left, and made by the next call."""
    ran, fails = list[str](), True

    def run(self: TableRun, words: list[str], log: object) -> tuple[int, bytes | None]:
        ran.append(" ".join(words))
        if words[0] == "evaluate":
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True)
            (out / "results.json").write_text('{"figures": {}}')
        answer = None
        if words[0] == "predict":
            Path(words[words.index("--out") + 1]).write_text(words[-1])
        if words[0] == "score":
            digest = hashlib.sha256(Path(words[2]).read_bytes()).hexdigest()
            answer = json.dumps({"figures": [], "card": {"results": {words[2]: digest}}}).encode()
        code = fails and words[0] == "finetune" and words[1].endswith("vilbert-vqa")
        if words[0] in ("finetune", "pretrain"):
            Path(words[1]).mkdir(parents=True, exist_ok=True)
        return int(code), answer

    monkeypatch.setattr(TableRun, "_ran", run)
    monkeypatch.setattr(table_run, "_WAIT", 0.02)
    (tmp_path / "runs").mkdir()
    asked = TableRequest("vilbert-1", tmp_path / "data", tmp_path / "stores", tmp_path)
    calls = [TableRun(replace(asked, part=(part, 2)), print) for part in (1, 2)]
    assert calls[0].in_turn[0] != calls[1].in_turn[0]
    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(TableRun.run, calls))
    every, made = calls[0].commands, len(list((tmp_path / "made").iterdir()))
    assert all([path.name for path in each] == ["run-vilbert-vqa.log"] for each in failed) and made == len(every) - 5
    fails = False
    assert TableRun(asked, print).run() == [] and len(list((tmp_path / "made").iterdir())) == len(every)
    assert len(set(ran)) == len(every) and len(ran) - len(every) in (1, 2)  # one call tried what failed, or both
    call, remade = TableRun(asked, print), next(key for key, each in every.items() if each.words[0] == "finetune")
    call._made(remade).unlink()
    before = len(ran)
    assert call.run() == []
    assert len(ran) - before == 1 + sum(remade in call._needs(key) - {key} for key in every)  # and what was made of it
    shutil.rmtree(call._filled(every[remade].words[1]))
    assert not call._has(remade)


def test_a_cell_says_whether_the_printed_figure_lies_inside(tmp_path: Path) -> None:
    shown = paper_table("vlbert-3")
    figure = shown.own[0]  # 69.58
    first = Cell(figure, (69.0,), 68.0, 70.0, noted={"a": ["starts from new weights"]})
    cells = [
        first, Cell(figure, (69.0, 70.0)), Cell(figure, (60.0, 60.2, 60.4)),
        Cell(figure, submission="runs/a.json, runs/a-seed-1.json", is_served=True), Cell(figure, is_served=True),
        Cell(figure, (69.0,), submission="runs/a-seed-1.json", is_served=True), Cell(figure),
    ]  # fmt: skip
    write_table(tmp_path, shown, cells, is_toy=False)
    found = [(row["ours"], row["95 % interval"], row["ours less printed"], row["printed is"]) for row in rows(tmp_path)]
    assert found == [
        ("69.00", "68.00 .. 70.00", "-0.58", "inside"), ("69.50", "63.15 .. 75.85 of 2 seeds", "-0.08", "inside"),
        ("60.20", "59.70 .. 60.70 of 3 seeds", "-9.38", "outside"),
        ("to submit: runs/a.json, runs/a-seed-1.json", "", "", ""), ("for a test server", "", "", ""),
        ("69.00; to submit: runs/a-seed-1.json", "", "-0.58", ""), ("", "", "", ""),
    ]  # fmt: skip
    for page in ("html", "md"):
        assert "What the run a noted" in (tmp_path / f"{shown.name}.{page}").read_text()
    assert "4 of 7 figures measured, 2 for a test server." in (tmp_path / f"{shown.name}.md").read_text()
    assert "A drill." not in (tmp_path / f"{shown.name}.html").read_text()
