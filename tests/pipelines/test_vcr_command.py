"""VCR by its commands: two models or one, one file for the leaderboard, and what of it is told."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, command, ok, one_line, tiny_run
from toy_training import log_of

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.datasets.vcr import read_vcr_labels
from roibeam.pipelines.finetuning.metrics.vcr import COLUMNS
from roibeam.pipelines.finetuning.requests import PredictRequest
from roibeam.pipelines.finetuning.run import predict_run


def write_vcr(folder: Path, store: Path) -> Path:
    """Two questions about each of four images in train, val and test, as many boxes as the store has regions."""
    folder.mkdir()
    with FeatureStore(store) as opened:
        counts = {name: opened[name].num_regions for name in opened.ids()}
    images = list(counts)
    for split, chosen in (("train", images[:-4]), ("val", images[-4:]), ("test", images[-4:])):
        lines = []
        for number, (image, place) in enumerate((image, place) for image in chosen for place in range(2)):
            last = counts[image] - 1
            line: dict[str, Any] = {
                "annot_id": f"{split}-{number}", "img_id": f"{split}-{number}", "img_fn": f"{image}.jpg",
                "objects": ["person" if each % 2 else "cup" for each in range(counts[image])],
                "question": ["what", "is", [last], "?"], "answer_choices": [["red"], ["blue"], [[0]], [[last], "two"]],
                "rationale_choices": [["it", "is", "one", each] for each in ("red", "blue", "thing", "two")],
            }  # fmt: skip
            if split != "test":
                line |= {"answer_label": (number + place) % 4, "rationale_label": number % 4}
            lines.append(json.dumps(line) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(lines), "utf-8")
    return folder


class Runs:
    """Of one pre-trained model. Nothing may be changed there."""

    def __init__(self, folder: Path, store: Path, captions: Path) -> None:
        self.folder, self.store, self.data = folder, store, write_vcr(folder / "vcr", store)
        command("pretrain", folder / "start", "--store", store, "--captions", captions, "--system", "visualbert",
                "--set", "sampling.text_form=one_caption", *tiny_run(1))  # fmt: skip

    def run(self, problem: str) -> Path:
        out = self.folder / problem
        if not out.exists():
            command("finetune", out, "--task", "vcr", "--from", self.folder / "start", "--store", self.store, "--data",
                    self.data, "--device", "cpu", "--batch-size", 4, "--steps", 2, "--learning-rate", 0.01,
                    "--set", f"vcr.problem={problem}")  # fmt: skip
        return out

    def predict(self, roibeam: Cli, out: Path, *runs: Path, split: str = "val", more: Any = ()) -> Any:
        words = (*more, "--store", self.store, "--data", self.data, "--split", split, "--device", "cpu")
        return roibeam("predict", *runs, *words, "--out", out)


@pytest.fixture(scope="module")
def runs(store: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("vcr"), *store)


def figures(roibeam: Cli, file: Path, data: Path) -> dict[str, float]:
    done = ok(roibeam("score", "vcr", file, "--data", data, "--json"))
    return {each["name"]: each["value"] for each in json.loads(done.out)["figures"]}


def last_evaluation(run: Path) -> dict[str, float]:
    line = log_of(run, "evaluation.jsonl")[-1]
    return {name: line[name] for name in ("Q->AR", "Q->A", "QA->R") if name in line}


def test_two_models_make_one_file_for_the_leaderboard(roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    """Of validation its figures are those that each run measured; of test it is complete, sixteen rationales a row."""
    own, reasons, both = runs.run("answer"), runs.run("rationale"), tmp_path / "both.csv"
    assert runs.predict(roibeam, both, own, reasons).code == 0
    measured = {**last_evaluation(own), **last_evaluation(reasons)}
    scored = figures(roibeam, both, runs.data)
    assert {name: scored[name] for name in measured} == pytest.approx(measured) and list(measured) == ["Q->A", "QA->R"]
    assert scored["Q->AR"] <= min(measured.values())
    test = tmp_path / "test.csv"
    page = tmp_path / "page.html"
    assert runs.predict(roibeam, test, own, reasons, split="test", more=["--page", page]).code == 0
    text = page.read_text("utf-8")
    assert "nothing is evaluated" in text and "context 2 of 4" in text and "<b>right</b>" not in text
    rows = list(csv.reader(test.open()))
    names = [each.annot_id for each in read_vcr_labels(str(runs.data / "test.jsonl"))]
    assert rows[0] == list(COLUMNS) and [row[0] for row in rows[1:]] == names
    for first in range(1, 21, 4):
        assert sum(map(float, rows[1][first : first + 4])) == pytest.approx(1, abs=1e-6)
    assert roibeam("score", "vcr", test, "--data", runs.data, "--split", "test", "--check").code == 0
    assert not list(tmp_path.glob("*.parts-*"))
    card = json.loads((tmp_path / "both.csv.card.json").read_text())
    assert [part["options"]["problem"] for part in (card, card["second"])] == ["answer", "rationale"]
    assert card["told"]["measure"] == "Q->A and QA->R" and card["told"]["best_sum"] == card["told"]["judged"]
    correct = sum(measured.values()) * card["rows"]
    assert card["told"]["sum"] == pytest.approx(correct) and card["told"]["judged"] == 2 * card["rows"]


def test_one_model_of_both_problems_makes_the_whole_file(roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    run, out, page = runs.run("both"), tmp_path / "both.csv", tmp_path / "page.html"
    assert runs.predict(roibeam, out, run, more=["--page", page]).code == 0
    assert "Q-&gt;A and QA-&gt;R" in page.read_text() and ", rationale<" in page.read_text()
    assert figures(roibeam, out, runs.data) == pytest.approx(last_evaluation(run))
    for number, more in enumerate(("--permute-images", "--blind")):  # words may then name boxes that are not there
        assert runs.predict(roibeam, tmp_path / str(number), run, more=[more]).code == 0
        assert (tmp_path / str(number)).read_text() != out.read_text()
    asked_twice = runs.predict(roibeam, tmp_path / "twice", run, more=["--blind", "--permute-images"])
    assert "--blind sees no other image either" in one_line(asked_twice)
    done = runs.predict(roibeam, out, run, runs.run("rationale"))
    assert done.code == 1 and "RUN and RUN_2 both predict the rationale" in one_line(done)
    assert json.loads((run / "config.json").read_text())["task"]["task_options"]["problem"] == "both"
    assert {"answer/task", "rationale/task"} <= log_of(run)[-1].keys()


def test_the_losses_of_both_problems_have_scales_of_their_own(roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    """The same first step, its loss of answers three times as large; a run from before there were scales goes on."""
    words = ("--task", "vcr", "--from", runs.folder / "start", "--store", runs.store, "--data", runs.data,
             "--device", "cpu", "--batch-size", 4, "--learning-rate", 0.01, "--set", "vcr.problem=both")  # fmt: skip
    scaled = (*words, "--steps", 2, "--set", "vcr.loss_scales=[3, 1]")
    assert roibeam("finetune", tmp_path / "scaled", *scaled).code == 0

    def first(run: Path) -> tuple[float, float]:
        line = log_of(run)[0]
        return line["answer/task"], line["rationale/task"]

    answer, rationale = first(runs.run("both"))
    assert first(tmp_path / "scaled") == pytest.approx((3 * answer, rationale))
    run = shutil.copytree(runs.run("both"), tmp_path / "run")
    (newest,) = (run / "checkpoints").glob("step-00000002")
    saved = json.loads((newest / "config.json").read_text())
    del saved["task"]["task_options"]["loss_scales"]
    (newest / "config.json").write_text(json.dumps(saved))
    (newest / "SHA256SUMS").unlink()
    assert roibeam("finetune", run, *words, "--steps", 3, "--warmup-steps", 0).code == 0
    done = roibeam("finetune", run, *scaled)
    assert done.code == 1 and "task_options.loss_scales: [1.0, 1.0] -> [3.0, 1.0]" in one_line(done)


@pytest.mark.parametrize(("rule", "shares"), [
    pytest.param("release", [0, 1, 1, 1], marks=pytest.mark.slow), ("release-mt", [1, 0.25, 0.25, 0.5]),
])  # fmt: skip
def test_a_release_takes_turns(roibeam: Cli, runs: Runs, tmp_path: Path, rule: str, shares: list[float]) -> None:
    """ViLBERT on both problems, rates of the peak; the multi-task release moves its schedule once for both."""
    words = ("--recipe", "vilbert-vcr", "--task", "vcr", "--from", "none", "--system", "vilbert", "--model", "small",
             "--store", runs.store, "--data", runs.data, "--device", "cpu", "--batch-size", 4,
             "--steps", 4)  # fmt: skip
    settings = {"vcr.boxes": "annotated", "train.accumulation": 1, "train.decay_steps": "[]", "steps.rule": rule}
    if rule == "release-mt":
        settings |= {"train.warmup_steps": 4, "train.warmup_overwritten_every": 2}
    changed = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    ok(roibeam("finetune", tmp_path / "run", *words, *changed))
    lines = log_of(tmp_path / "run")
    assert [line.get("answer/task") is not None for line in lines] == [True, False, True, False]
    assert [line.get("rationale/task") is not None for line in lines] == [False, True, False, True]
    assert [line["learning_rate"] / 2e-5 for line in lines] == pytest.approx(shares)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"]["task_options"]["updates"] == "task"


def test_a_file_of_one_problem_is_scored_and_is_no_submission(roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    for problem, name, missing in (
        ("answer", "Q->A", "no column rationale_conditioned_on_a0_0 (16 missing)"),
        ("rationale", "QA->R", "no column answer_0 (4 missing)"),
    ):
        run, out = runs.run(problem), tmp_path / f"{problem}.csv"
        assert runs.predict(roibeam, out, run).code == 0
        assert figures(roibeam, out, runs.data) == pytest.approx(last_evaluation(run))
        assert list(last_evaluation(run)) == [name]
        done = roibeam("score", "vcr", out, "--data", runs.data, "--check")
        assert done.code == 1 and missing in one_line(done)


def test_an_ended_prediction_of_two_models_goes_on(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of both are kept, those that are there are not made again, and the bytes are the same."""
    monkeypatch.setattr(predict_run, "PART_GROUPS", 4)
    words: dict[str, Any] = {
        "run": runs.run("answer"), "run_2": runs.run("rationale"), "store": str(runs.store), "data": runs.data,
        "device": "cpu", "split": "test",
    }  # fmt: skip
    whole = predict_run.run_prediction(PredictRequest(**words, out=tmp_path / "whole"))
    assert (whole.groups, whole.made) == (8, 4)

    def ended(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predict_run, "_join_parts", ended)
        with pytest.raises(KeyboardInterrupt):
            predict_run.run_prediction(PredictRequest(**words, out=tmp_path / "again"))
    folders = sorted(tmp_path.glob("again.parts-*"))
    assert len(folders) == 2 and not (tmp_path / "again").exists()
    (folders[1] / "part-00001.json").unlink()
    again = predict_run.run_prediction(PredictRequest(**words, out=tmp_path / "again"))
    assert again.made == 1 and (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "again.card.json", "whole", "whole.card.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objects": ["person"] * 90}, "90; extract with --boxes, from the task's own files"),
        ({"objects": "unicorn"}, "object 'unicorn' is no class of COCO"),
    ],
)
def test_questions_without_record(change: dict[str, Any], said: str, roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    data = tmp_path / "vcr"
    shutil.copytree(runs.data, data)
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    last = json.loads(lines[-1])
    if isinstance(change["objects"], str):
        change = {"objects": [change["objects"]] * len(last["objects"])}
    (data / "train.jsonl").write_text("".join([*lines[:-1], json.dumps({**last, **change}) + "\n"]))
    start = runs.folder / "start"
    done = roibeam("finetune", tmp_path / "run", "--task", "vcr", "--from", start, "--store", runs.store,
                   "--data", data, "--device", "cpu", "--set", "vcr.object_loss=shown")  # fmt: skip
    assert done.code == 1 and said in one_line(done) and not (tmp_path / "run").exists()


def test_long_questions_are_told_before_anything_is_written(roibeam: Cli, runs: Runs, tmp_path: Path) -> None:
    """A rule that cuts the choice alone refuses the run and the prediction; another one says how many it cuts."""
    data = tmp_path / "vcr"
    shutil.copytree(runs.data, data)
    for split in ("train", "val"):
        lines = (data / f"{split}.jsonl").read_text().splitlines(keepends=True)
        last = json.loads(lines[-1])
        long = json.dumps({**last, "question": ["why"] * 600})
        (data / f"{split}.jsonl").write_text("".join([*lines[:-1], f"{long}\n"]))
    words = ("--task", "vcr", "--from", runs.folder / "start", "--store", runs.store, "--device", "cpu", "--steps", 1,
             "--batch-size", 4, "--set", "vcr.max_pieces=20")  # fmt: skip
    cut_choice, short = ("--set", "vcr.truncation=choice-end"), ("--data", runs.data)
    refused = one_line(roibeam("finetune", tmp_path / "run", *words, *cut_choice, "--data", data))
    assert "pieces where 20 fit" in refused and not (tmp_path / "run").exists()
    assert roibeam("finetune", tmp_path / "run", *words, *cut_choice, *short).code == 0
    asked = ("predict", tmp_path / "run", "--store", runs.store, "--device", "cpu", "--split", "val")
    before = sorted(tmp_path.iterdir())
    assert "where 20 fit" in one_line(roibeam(*asked, "--data", data, "--out", tmp_path / "said.csv"))
    assert sorted(tmp_path.iterdir()) == before
    # Nor by the first of two runs, where the second one's rule refuses.
    both = ("predict", runs.run("rationale"), *asked[1:])
    assert "where 20 fit" in one_line(roibeam(*both, "--data", data, "--out", tmp_path / "two.csv"))
    assert sorted(tmp_path.iterdir()) == before
    done = roibeam("finetune", tmp_path / "other", *words, "--data", data)
    assert done.code == 0 and "1 training text longer than a row: of the longest, 18" in done.err
