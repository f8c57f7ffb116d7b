"""What stands beside predictions: the card that the score tells, the page with its boxes, for a task in a file of one's
own and for each form of task."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_commands import Cli, command, ok, one_line

from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.metrics.grounding import CountedPhrase
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.prediction_page import (
    joined_parts,
    sections,
    summarize_predictions,
    write_prediction_page,
)
from roibeam.pipelines.finetuning.task import NUMBER_LOSS, DownstreamTask, Prediction, TaskSplit

EVIL = '<script>alert("x")</script>\u202e &'

OWN_TASK = """
import json
from roibeam.pipelines import TableRow, label_task

FILES = {"train": "own_train.jsonl", "val": "own_val.jsonl", "test": "own_test.jsonl"}

def rows(path):
    for number, line in enumerate(path.open()):
        each = json.loads(line)
        yield TableRow(f"{path}, line {number}", each["pair"], each["photo"], each["words"], each.get("gold"))

def write(path, said):
    path.write_text(json.dumps([{"pair": pair, "said": label} for pair, label in said]))

def read(path):
    return [(each["pair"], each["said"]) for each in json.load(open(path))]

TASK = label_task("own", FILES, rows, write=write, read=read, official_rows={"val": 9})
"""


@pytest.fixture(scope="module")
def own(store: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with own.py and its data. Read only."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN_TASK)
    with FeatureStore(store[0]) as opened:
        images = list(opened.ids())
    for split, chosen in (("train", images[:4]), ("val", images[4:6]), ("test", images[6:])):
        rows = [
            {"pair": f"{split} {n}", "photo": image, "words": f"a {EVIL} thing", "gold": ("x", "<b>y</b>")[n % 2]}
            for n, image in enumerate(chosen)
        ]
        told = [row if split != "test" else {name: row[name] for name in ("pair", "photo", "words")} for row in rows]
        (folder / f"own_{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in told))
    return folder


@pytest.fixture(scope="module")
def run(own: Path, store: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    command("finetune", out, "--task", own / "own.py", "--from", "none", "--system", "visualbert", "--store", store[0],
            "--data", own, "--device", "cpu", "--steps", 1, "--batch-size", 4,
            "--set", "own.min_occurrence=2")  # fmt: skip
    return out


def test_a_task_in_a_file(roibeam: Cli, run: Path, own: Path, store: tuple[Path, Path], tmp_path: Path) -> None:
    out, page, task = tmp_path / "said.json", tmp_path / "page.html", own / "own.py"
    words = ("predict", run, "--store", store[0], "--data", own, "--device", "cpu", "--out", out, "--page", page)
    ok(roibeam(*words, "--task", task))
    assert [each["pair"] for each in json.loads(out.read_text())] == ["val 0", "val 1"]
    scored = ok(roibeam("score", task, out, "--data", own))
    told = {line[:8].strip(): line[9:] for line in scored.out.splitlines()[3:]}
    assert told["task"] == "own, val: 2 rows; the official split has 9"
    assert told["model"].startswith("visualbert, step 1, ") and told["leaks"].startswith("trained on 0 of the 2 images")
    assert told["best"].startswith("100.00 %") and told["seeds"] == "seed 0, one run"
    renamed = tmp_path / "my answers.json"  # its card is known by the digest
    shutil.copyfile(out, renamed)
    (tmp_path / "a.card.json").write_text("no JSON")
    (card,) = json.loads(roibeam("score", task, renamed, "--data", own, "--json").out)["card"]["predicted"]
    assert card["results"] == "said.json" and card["model"]["system"] == "visualbert"
    (away := tmp_path / "away").mkdir()
    shutil.copyfile(out, away / "said.json")
    assert "copy its .card.json into the same folder" in roibeam("score", task, away / "said.json", "--data", own).out
    text = page.read_text("utf-8")
    assert "<script" not in text and "\u202e" not in text and "&lt;b&gt;y&lt;/b&gt;" in text
    assert "data:image/jpeg" in text and len(text) < 2_000_000
    assert roibeam(*words, "--task", task).code == 0  # files of ours give way
    notes = tmp_path / "notes.txt"
    notes.write_text("keep")
    for place in ("--out", "--page"):
        refused = one_line(roibeam(*words, "--task", task, place, notes))
        assert place in refused and "is there already, and roibeam did not write it" in refused
    assert notes.read_text() == "keep"
    entries = json.loads(out.read_text())
    out.write_text(json.dumps([entries[1], entries[0]]))
    again = json.loads(roibeam("score", task, out, "--data", own, "--json").out)["card"]["predicted"][0]
    changed = "said.json.card.json is the card of other predictions; the file was changed since"
    assert again == {"unknown": f"not known: {changed}"}


def test_rows_without_an_answer(roibeam: Cli, run: Path, own: Path, store: tuple[Path, Path], tmp_path: Path) -> None:
    """None of them has one, then the first has: page, card, terminal and --json say how many, and what can be done."""
    data = Path(shutil.copytree(own, tmp_path / "data"))
    out, page, task = tmp_path / "said.json", tmp_path / "page.html", data / "own.py"
    words = ("predict", run, "--store", store[0], "--data", data, "--device", "cpu", "--out", out, "--page", page)
    words = (*words, "--task", task, "--split", "test")
    rows = [json.loads(line) for line in (data / "own_test.jsonl").open()]
    assert len(rows) == 2
    for judged in (0, 1):
        told = json.loads(roibeam(*words, "--json").out)
        assert (told["groups"], told["judged"], told["unjudged"]) == (2, judged, 2 - judged)
        done = roibeam(*words)
        assert done.code == 0 and len(json.loads(out.read_text())) == 2
        which = "the right ones of 1 are" if judged else "the right ones are"
        assert f"2 answers; {which} not known; roibeam score own {out}" in done.out and "--check" in done.out
        text = page.read_text("utf-8")
        assert text.count("<article") == 2 and "data:image/jpeg" in text
        assert ("not judged" in text or "nothing is evaluated" in text) == (not judged)
        assert text.count("<b>right</b> <bdi>") == text.count("<b>score</b>") == judged
        assert ("Best" in text) == bool(judged) and "Surest" in text
        card = json.loads((tmp_path / "said.json.card.json").read_text())["told"]
        assert (card["judged"], card["unjudged"]) == (judged, 2 - judged)
        ok(roibeam("score", task, out, "--data", data, "--split", "test", "--check"))
        scored = roibeam("score", task, out, "--data", data, "--split", "test")
        assert scored.code == 1 and "no label, so that nothing can be scored; --check" in one_line(scored)
        rows[0]["gold"] = "x"
        (data / "own_test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "1 of 2 rows; the others have no right answers" in page.read_text("utf-8")


def test_no_file_is_run_unasked(roibeam: Cli, run: Path, own: Path, store: tuple[Path, Path], tmp_path: Path) -> None:
    assert not list(run.rglob("*.py"))
    words = ("predict", run, "--store", store[0], "--data", own, "--device", "cpu", "--out", tmp_path / "a")
    (tmp_path / "none.py").write_text("x = 1")
    (tmp_path / "fails.py").write_text("1 / 0")
    (tmp_path / "own.py").write_text("TASK = 3")
    calls: list[tuple[tuple[object, ...], str]] = [
        ((), "--task is missing: the run learned a task of your own; name its file, such as own.py"),
        (("--task", tmp_path / "none.py"), "the run learned own, of a file own.py"),
        (("--task", tmp_path / "own.py"), "sets TASK to a int; expected an OwnTask"),
    ]
    for more, said in calls:
        done = roibeam(*words, *more)
        assert done.code == 1 and said in one_line(done), (more, done.err)
    fails = "does not run: ZeroDivisionError"
    for name, said in (("none.py", "sets no TASK"), ("fails.py", fails), ("gone.py", "no such file")):
        done = roibeam("score", tmp_path / name, own / "own.py", "--data", own)
        assert done.code == 1 and said in one_line(done), done.err
    written = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}  # which Python writes beside what it runs
    assert written == {"fails.py", "none.py", "own.py"}


# --- the rows of a page, without a model


def measured(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
    right = [
        (float(scores.argmax() == group.facts["place"]), group.images[0])
        for group, each in zip(groups, said, strict=True)
        for scores in np.atleast_2d(each.scores)
    ]
    return {"accuracy": Measure("accuracy", *map(list, zip(*right, strict=True)))}


def small_task(form: str) -> DownstreamTask:
    return DownstreamTask(
        name="small", form=form,
        loss={LABEL: "class", CHOICE: "softmax", REGION: "regions", PHRASE: "captions"}[form],
        read=lambda split: TaskSplit(()), train="train", validation=None, judge=measured,
        answers=lambda groups, said: iter(()), write=lambda path, entries: None, labels=("red", "blue", "green"),
    )  # fmt: skip


def groups_of(form: str, images: Sequence[str]) -> list[TaskGroup]:
    box = np.array([0, 0, 10, 10], np.float32)
    rows = {CHOICE: tuple(TaskRow((TaskText(("what",)), TaskText(("box", EVIL), (n, -1)))) for n in range(4))}
    target = {REGION: box, PHRASE: (box[None], box[None])}.get(form, 1)
    phrases = tuple(CountedPhrase(text, (), box[None], 0) for text in ("a box", "a ball"))
    return [
        TaskGroup(f"{n:03}", (image,), rows.get(form, (TaskRow((TaskText((EVIL,)),)),)), target,
                  facts={"place": 1, "phrases": phrases})
        for n, image in enumerate(images)
    ]  # fmt: skip


@pytest.mark.parametrize("form", [LABEL, CHOICE, REGION])
def test_a_page_shows_each_form_and_is_the_same_of_parts(form: str, store: tuple[Path, Path], tmp_path: Path) -> None:
    with FeatureStore(store[0]) as opened:
        ids = list(opened.ids())
        task, groups = small_task(form), groups_of(form, [ids[n % len(ids)] for n in range(40)])
        said = predictions_of(form, groups)
        whole, told = summarize_predictions(task, groups, said), told_in_parts(task, groups, said)
        assert told["judged"] == 40 and told["sum"] == whole["sum"] and told["best_sum"] == 40
        shown = sections(told)
        assert shown == json.loads(json.dumps(sections(whole)))
        assert [len(rows) for rows in shown.values()] == [8, 8, 8]
        ids_shown = [row["id"] for rows in shown.values() for row in rows]
        assert len(set(ids_shown)) == 24
        wrong = [row for row, each in zip(groups, said, strict=True) if each.scores.argmax() != 1]
        surest = max(wrong, key=lambda group: _surest(task, said[int(group.id)].scores))  # they stand by their ids
        assert shown["confident"][0]["id"] == surest.id
        write_prediction_page(tmp_path / "page.html", EVIL, EVIL, told, opened)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in text and text.count("<svg") == 24 and len(text) < 2_000_000
    assert {LABEL: "blue", CHOICE: "box (1)", REGION: ">right<"}[form] in text


def predictions_of(form: str, groups: Sequence[TaskGroup]) -> list[Prediction]:
    draw = np.random.default_rng(0)
    boxes = np.array([[50, 50, 60, 60], [0, 0, 10, 9], [5, 5, 30, 30], [1, 1, 90, 80]], np.float32)
    shape = {LABEL: (3,), "number": (1,), PHRASE: (2, 4)}.get(form, (4,))
    has_boxes = form in (REGION, PHRASE)
    return [Prediction(draw.normal(size=shape).astype(np.float32), boxes if has_boxes else None) for _ in groups]


def told_in_parts(task: DownstreamTask, groups: list[TaskGroup], said: list[Prediction]) -> Mapping[str, Any]:
    """As several processes tell of seven groups each, by way of a file."""
    parts = [summarize_predictions(task, groups[n : n + 7], said[n : n + 7]) for n in range(0, len(groups), 7)]
    return joined_parts(json.loads(json.dumps(parts)))


def _surest(task: DownstreamTask, scores: np.ndarray) -> float:
    values = np.exp(scores.astype(float))
    return float(scores.max()) if task.form == REGION else float((values / values.sum()).max())


@pytest.mark.parametrize("form", [LABEL, CHOICE, REGION, PHRASE, "number"])
def test_rows_without_answers_come_by_how_sure_they_are(form: str, store: tuple[Path, Path], tmp_path: Path) -> None:
    """Of every form, half of the rows with an answer; what is right is said of no other, whatever their files hold."""
    with FeatureStore(store[0]) as opened:
        ids = list(opened.ids())
        is_number = form == "number"
        task = replace(
            small_task(LABEL if is_number else form), has_label=lambda group: int(group.id) % 2 == 0,
            right_words=lambda group: f"known of {group.id}",
            **({"loss": NUMBER_LOSS, "labels": ()} if is_number else {}),
        )  # fmt: skip
        groups = groups_of(form, [ids[n % len(ids)] for n in range(60)])
        told = told_in_parts(task, groups, predictions_of(form, groups))
        each = 2 if form == PHRASE else 1
        assert (told["judged"], told["unjudged"]) == (30 * each, 30 * each)
        shown = sections(told)
        assert list(shown) == ["best", "worst", "confident", "surest", "unsure", "first"]
        assert [len(shown[name]) for name in ("surest", "unsure", "first")] == [8, 8, 8]
        sure = [[row["confidence"] for row in shown[name]] for name in ("surest", "unsure")]
        assert sure[0] == sorted(sure[0], reverse=True) and sure[1] == sorted(sure[1]) and sure[0][-1] >= sure[1][-1]
        for name, rows in shown.items():
            for row in rows:
                number = int(row["id"][:3])
                is_judged = name in ("best", "worst", "confident")
                assert (number % 2 == 0) == is_judged and (row["value"] is not None) == is_judged
                assert row["right"].startswith(f"known of {number:03}") == is_judged
                assert is_judged or not (row["right"] or any(right for _, _, right in row["top"]))
                assert is_judged or not row["boxes"] or not row["boxes"]["right"]
        numbers = [int(row["id"][:3]) for row in shown["first"]]
        assert numbers == sorted(numbers)
        write_prediction_page(tmp_path / "page.html", "t", "s", told, opened)
    text = (tmp_path / "page.html").read_text("utf-8")
    unjudged = text[text.index("Surest") :]
    assert unjudged.count("<article") == 24 and "<b>right</b>" not in unjudged and "<b>score</b>" not in unjudged
    assert "what is meant" not in unjudged and len(text) < 2_000_000


def test_choices_in_several_contexts_are_rows_of_their_own() -> None:
    """As rationales are asked for each answer where the right one is not known: shares are of the four beside it."""
    texts = [(f"answer {n // 4}", f"why {n}") for n in range(16)]
    rows = tuple(TaskRow((TaskText((context,)), TaskText((choice,)))) for context, choice in texts)
    group = TaskGroup("q", ("i",), rows, None, facts={})
    scores = np.arange(16, dtype=np.float32) ** 2
    told = summarize_predictions(small_task(CHOICE), [group], [Prediction(scores)])
    assert (told["judged"], told["unjudged"]) == (0, 1)
    shown = {row["id"]: row for row in told["rows"]["first"]}
    assert list(shown) == [f"q, context {n} of 4" for n in (1, 2, 3, 4)]
    assert [row["said"] for row in shown.values()] == ["why 3", "why 7", "why 11", "why 15"]
    assert all(sum(share for _, share, _ in row["top"]) == pytest.approx(1) for row in shown.values())
    assert [row["text"] for row in shown.values()] == [[f"answer {n}"] for n in range(4)]


def test_few_wrong_rows_are_shared_by_two_sections() -> None:
    """And the rationale of a question is another row than its answer, which another model told."""
    rows = [{"id": name, "text": text} for name, text in (("a", ["q"]), ("a", ["q", "r"]), ("b", ["q"]))]
    shown = sections({"rows": {"best": [], "confident": rows, "worst": rows[::-1]}})
    assert shown == {"best": [], "worst": [rows[2]], "confident": rows[:2]}
