"""`roibeam finetune` and `roibeam predict` by their commands: a table of one's own, VQA's files over a drawn world,
runs that go on, and what is refused."""

import csv
import dataclasses
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicting import Predicting
from ranks import run_ranks, said
from small_files import write_json, write_json_lines, write_text
from tiny_commands import Cli, command, ok, one_line, tiny_run
from toy_questions import write_questions

from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.prediction_card import card_lines, card_path
from roibeam.pipelines.finetuning.requests import PredictRequest
from roibeam.pipelines.finetuning.rows import LABEL
from roibeam.pipelines.finetuning.run import predict_run
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.group_task import predicted
from roibeam.pipelines.finetuning.run.predict_request import check_predict, checkpoints_of
from roibeam.pipelines.finetuning.run.task_model import load_task_model
from roibeam.pipelines.training import processes
from roibeam.pipelines.training.run_folder.training_data import trained_among
from roibeam.pipelines.training.train_config import precision_of

WEIGHTS = Path(__file__).parents[2] / "bench" / "evidence" / "weights" / "perfect" / "vilbert"


def write_table(folder: Path, store: Path) -> Path:
    """train.csv and val.jsonl: which of two words stands in the text; images of both splits differ."""
    folder.mkdir()
    with FeatureStore(store) as opened:
        images = list(opened.ids())
    rows = [
        {"id": f"row {number}", "image": image, "text": f"a {('red', 'blue')[number % 2]} thing",
         "label": ("r", "b")[number % 2]}
        for number, image in enumerate(images)
    ]  # fmt: skip
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows[:-4])
    write_json_lines(folder / "val.jsonl", rows[-4:])
    return folder


class Labels:
    """A pre-trained model and what it learns from a table of labels. Nothing may be changed there."""

    def __init__(self, folder: Path, store: Path, captions: Path) -> None:
        self.store, self.start, self.run = store, folder / "start", folder / "run"
        self.data = write_table(folder / "table", store)
        command("pretrain", self.start, "--store", store, "--captions", captions, "--system", "visualbert",
                "--set", "sampling.text_form=one_caption", *tiny_run(2))  # fmt: skip
        command(*self.finetune(self.run, "--steps", 30, "--learning-rate", 0.003))

    def finetune(self, out: Path, *more: object, **others: object) -> tuple[Any, ...]:
        """Words of `roibeam finetune`; `others` stand in place of its start, store, data or task."""
        given = {"task": "labels", "from": self.start, "store": self.store, "data": self.data}
        given |= {name.rstrip("_"): value for name, value in others.items()}
        named = (word for name, value in given.items() for word in (f"--{name}", value))
        return ("finetune", out, *named, "--device", "cpu", "--batch-size", 4, *more)

    def predict(self, out: Path, *more: object, run: Path | None = None, data: Path | None = None) -> tuple[Any, ...]:
        named = ("--store", self.store, "--data", data or self.data, "--out", out, "--device", "cpu")
        return ("predict", run or self.run, *named, *more)

    def request(self, out: Path, **changes: Any) -> PredictRequest:
        given = PredictRequest(run=self.run, store=str(self.store), data=self.data, out=out, device="cpu")
        return replace(given, **changes)


@pytest.fixture(scope="module")
def labels(store: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Labels:
    return Labels(tmp_path_factory.mktemp("labels"), *store)


def test_a_table_of_ones_own_is_learned_predicted_and_scored(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    out = tmp_path / "said.jsonl"
    ok(roibeam(*labels.predict(out)))
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == [json.loads(line)["id"] for line in (labels.data / "val.jsonl").open()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said.jsonl", "said.jsonl.card.json"]
    scored = roibeam("score", "labels", out, "--data", labels.data, "--json")
    figure, balanced, *of_labels = json.loads(scored.out)["figures"]
    lines = [json.loads(line) for line in (labels.run / "evaluation.jsonl").open()]
    assert figure["name"] == "accuracy" and figure["value"] == lines[-1]["accuracy"] == 1.0
    assert balanced["name"] == "balanced accuracy" and balanced["value"] == 1.0
    assert all(each["name"].startswith("label ") and each["value"] == 1.0 for each in of_labels) and len(of_labels) > 1


def with_evaluations(run: Path, found: dict[int, float], other: float, *, without: str = "") -> None:
    """Changes what a run's evaluations found, and lets `accuracy` choose its best checkpoint."""
    (run / "SHA256SUMS").unlink()
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", {**config, "train": {**config["train"], "best_by": "accuracy"}})
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").open()]
    lines = [{**line, "accuracy": found.get(line["step"], other)} for line in lines]
    kept = [{name: value for name, value in line.items() if name != without} for line in lines]
    write_json_lines(run / "evaluation.jsonl", kept)


def test_page_terminal_and_score_stand_beside_chance(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    """The legend of the page promised a dashed line that no plot had, and 66.67 % stood alone where always "no" has as
    much. A run of an earlier version has no interval: it gets chance, and no verdict."""
    page = (labels.run / "report.html").read_text()
    assert "Dashed: what guessing reaches." in page
    rows = [json.loads(line) for line in (labels.data / "val.jsonl").open()]
    truth = [row["label"] for row in rows]
    commonest = max(map(truth.count, truth)) / len(truth)
    assert f"chance {100 * commonest:.1f} %" in page.partition("<h2>Curves")[2]
    words = labels.finetune(tmp_path / "run", "--steps", 30, "--learning-rate", 0.003)
    shutil.copytree(labels.run, tmp_path / "run")
    told = json.loads(roibeam(*words, "--json").out.splitlines()[-1])
    (figure, balanced) = told["figures"]
    assert figure["name"] == "accuracy" and figure["chance"] == commonest and balanced["chance"] == 0.5
    assert roibeam(*labels.predict(tmp_path / "said")).code == 0
    ok(roibeam(*labels.predict(tmp_path / "said.csv", "--page", tmp_path / "said.html")))  # the format follows the name
    assert f"rows, chance {100 * commonest:.2f} %, predicted" in (tmp_path / "said.html").read_text()
    assert (tmp_path / "said.csv").read_text().startswith("id,image,text,label\n")
    wrong = one_line(roibeam(*labels.predict(tmp_path / "said.json")))
    assert "labels has no predictions as .json; call it said.jsonl or said.csv" in wrong
    scored = json.loads(roibeam("score", "labels", tmp_path / "said", "--data", labels.data, "--json").out)["figures"]
    for ours, theirs in zip(told["figures"], scored, strict=False):
        assert all(ours[name] == theirs[name] for name in ("value", "low", "high", "chance", "verdict"))
    shown = next(line for line in roibeam(*words).out.splitlines() if line.startswith("accuracy "))
    assert shown.split()[1:] == [
        "100.00", f"{100 * figure['low']:.2f}", "..", f"{100 * figure['high']:.2f}", f"{100 * commonest:.2f}",
        str(len(rows)), *figure["verdict"].split(),
    ]  # fmt: skip
    with_evaluations(tmp_path / "run", {27: 0.875}, 0.25, without="beside")
    done = roibeam(*words, "--set", "train.best_by=accuracy")
    shown = next(line for line in done.out.splitlines() if line.startswith("accuracy "))
    assert shown.split()[1:] == ["87.50", f"{100 * commonest:.2f}", str(len(rows)), "100.00"], done.out
    assert "The interval of these figures over images is not known" in done.out
    assert "<b>Note:</b> The interval of these figures" in (tmp_path / "run" / "report.html").read_text()


def test_a_question_in_python_has_the_numbers_of_predict(labels: Labels, tmp_path: Path) -> None:
    """Scores are those of the batches of `roibeam predict`; none of the task's files is needed."""
    rows = [json.loads(line) for line in (labels.data / "val.jsonl").open()]
    out = tmp_path / "said.jsonl"
    request = labels.request(out)
    predict_run.run_prediction(request)
    trained = predict_run.TrainedTask.read(*checkpoints_of(request), labels.data)
    model = load_task_model(labels.run)
    assert (model.labels, model.task, model.system) == (("b", "r"), "labels", "visualbert")
    with FeatureStore(labels.store) as opened:
        assert model.check_store(opened) == []
        records = [opened[row["image"]] for row in rows]
        said = model.answer([row["text"] for row in rows], records)
        (alone,) = load_task_model(model.source.parent).answer([rows[1]["text"]], [[records[1]]])
        groups = trained.task.read("val").groups
        batches = GroupBatches(
            trained.system, trained.network.encoder_config, model.tokenizer, trained.layout, trained.output, opened,
            loss=None, task=trained.task,
        )  # fmt: skip
        wanted = list(predicted(trained.network.module, batches, groups, LABEL, 64))
    assert [each.label for each in said] == [json.loads(line)["label"] for line in out.open()]
    scores = [[each.scores[label] for label in model.labels] for each in said]
    assert scores == [each.scores.tolist() for each in wanted]
    assert all(next(iter(each.scores)) == each.label for each in said)
    assert alone.label == said[1].label and alone.scores == pytest.approx(said[1].scores, abs=1e-5)


def test_a_question_that_does_not_fit_is_told(labels: Labels) -> None:
    model = load_task_model(labels.run)
    with FeatureStore(labels.store) as opened:
        record = opened[next(iter(opened.ids()))]
    narrow = dataclasses.replace(record, features=record.features[:, :4])
    for texts, regions, words in (
        (["a red thing"], [], "1 text and regions of 0; each question has its own"),
        (["a red thing"], [[record, record]], "question 0: 2 images; labels has 1 image"),
        ([("a", "b")], [record], "question 0: 2 texts; labels has 1 text"),
        ("a red thing", [record], "texts is a list, got one alone"),
        (["a red thing"], [narrow], "features have width 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            model.answer(texts, regions)
    with pytest.raises(ValueError, match="is no run of roibeam finetune"):
        load_task_model(labels.start)


def test_a_run_keeps_all_that_predicting_needs(labels: Labels) -> None:
    """The labels lie in every checkpoint, with a digest of them; the images of the start stay known."""
    newest = sorted((labels.run / "checkpoints").iterdir())[-1]
    config = json.loads((newest / "config.json").read_text())
    assert config["recorded"]["labels"] == ["b", "r"] and config["task"]["system"] == "visualbert"
    assert config["task"]["head"] == {"kind": "ours", "start": "drawn"} and config["train"]["steps"] == 30
    pieces, before = ((run / "tokenizer" / "tokenizer.json").read_text() for run in (labels.run, labels.start))
    assert pieces == before


def test_a_dry_run_times_three_steps_and_writes_nothing(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    run = labels.finetune(tmp_path / "run", "--steps", 7, "--seeds", 2)
    told = json.loads(ok(roibeam(*run, "--dry-run", "--json")).out)
    assert (told["steps"], told["samples"], len(told["seconds"])) == (7, 4, 3) and told["memory"] > told["parameters"]
    assert not list(tmp_path.iterdir())
    assert "--resume-from is for one run" in one_line(roibeam(*run, "--resume-from", "step-1"))


def test_a_fine_tuned_model_learns_more(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    """On the same labels it begins where it was; on others with a new head. Both lists of images are known, and the
    command again goes on."""
    other = tmp_path / "other"
    for path in labels.data.iterdir():
        write_text(other / path.name, path.read_text().replace('"b"', '"c"').replace(",b", ",c"))
    (other / "train.csv").write_text("\n".join((other / "train.csv").read_text().splitlines()[:4]) + "\n")
    more = ("--steps", 1, "--set", "data.shared_images=true")
    done = ok(roibeam(*labels.finetune(tmp_path / "same", *more, from_=labels.run)))
    assert "the model learned labels before: its head goes on too" in done.err
    first = json.loads((tmp_path / "same" / "evaluation.jsonl").read_text().splitlines()[0])
    assert (first["step"], first["accuracy"]) == (0, 1.0)
    given = labels.finetune(tmp_path / "new", *more, from_=labels.run, data=other)
    assert "the head is a new one (this task has other labels)" in ok(roibeam(*given)).err
    images = [row["image"] for row in csv.DictReader((labels.data / "train.csv").open())]
    assert trained_among(tmp_path / "new", images) == images
    assert "nothing to do" in ok(roibeam(*given)).out
    done = ok(roibeam("convert", labels.run, tmp_path / "model", "--to", "roibeam"))
    assert "the head of the task that it was fine-tuned for is left out" in done.out


def test_labels_that_were_changed_are_refused(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    run = Path(shutil.copytree(labels.run, tmp_path / "run"))
    config = sorted((run / "checkpoints").iterdir())[-1] / "config.json"
    before, after = (f'"labels": [\n      "{first}",\n      "{second}"' for first, second in ("br", "rb"))
    config.write_text(config.read_text().replace(before, after))
    assert f"{config}: is damaged" in one_line(roibeam(*labels.predict(tmp_path / "a", run=run)))
    (config.parent / "SHA256SUMS").unlink()
    done = roibeam(*labels.predict(tmp_path / "a", run=run))
    assert done.code == 1 and "its labels are not those that the model learned" in done.err
    other = Path(shutil.copytree(labels.data, tmp_path / "other"))
    (other / "train.csv").write_text((labels.data / "train.csv").read_text().replace(",b", ",c"))
    start = json.loads(config.read_text())["recorded"]["start"]
    words = ("--steps", 30, "--learning-rate", 0.003)
    done = roibeam(*labels.finetune(labels.run, *words, from_=start, data=other))
    assert done.code == 1 and "belongs to another configuration" in one_line(done)


def end_before_parts_are_joined(request: PredictRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(predict_run, "_join_parts", ended)
        predict_run.run_prediction(request)


def test_predictions_that_were_ended_go_on(labels: Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one group: one is there already, and is not made again."""
    monkeypatch.setattr(predict_run, "PART_GROUPS", 1)
    request = labels.request(tmp_path / "whole")
    whole = predict_run.run_prediction(request)
    assert whole.made == whole.groups == 4
    for out in ("again", "other"):
        end_before_parts_are_joined(replace(request, out=tmp_path / out), monkeypatch)
    assert not (tmp_path / "again").exists()
    (folder,) = tmp_path.glob("again.parts-*")
    (folder / "part-00002.json").unlink()
    again = predict_run.run_prediction(replace(request, out=tmp_path / "again"))
    assert again.made == 1 and (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()
    command("store", "copy", labels.store, tmp_path / "copy", "--max-regions", 1)  # other regions: all are made
    copied = replace(request, out=tmp_path / "other", store=str(tmp_path / "copy"))
    assert predict_run.run_prediction(copied).made == whole.groups


def test_a_missing_picture_is_answered_without_regions_and_scored(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    """Such a row gets what --blind says of it, the others what they get else; the file is whole, and is scored."""
    lacking = Path(shutil.copytree(labels.data, tmp_path / "lacking"))
    rows = [json.loads(line) for line in (labels.data / "val.jsonl").open()]
    rows[1]["image"] = "no-such-image"
    write_json_lines(lacking / "val.jsonl", rows)
    out = tmp_path / "said.jsonl"
    line = one_line(roibeam(*labels.predict(out, data=lacking)))
    assert "missing are no-such-image" in line and "without regions with a lower --min-match" in line
    found = {}
    for name, data, words in (
        ("seen", labels.data, ()),
        ("blind", labels.data, ("--blind",)),
        ("lacking", lacking, ("--min-match", 0.5, "--page", tmp_path / "page.html")),
    ):
        done = ok(roibeam(*labels.predict(out, *words, "--scores", tmp_path / f"{name}.npz", data=data)))
        with np.load(tmp_path / f"{name}.npz") as scores:
            found[name] = scores["scores"]
            assert scores["ids"].tolist() == [row["id"] for row in rows] and scores["labels"].tolist() == ["b", "r"]
            assert json.loads(str(scores["about"])).items() >= {"task": "labels", "probability": "softmax"}.items()
    assert "1 row answered without regions: the store lacks 1 image, such as no-such-image" in done.out
    lack = [0, 2, 3]
    np.testing.assert_allclose(found["lacking"][lack], found["seen"][lack], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["lacking"][1], found["blind"][1], rtol=1e-5, atol=1e-6)
    assert found["seen"].dtype == np.float32 and abs(found["seen"][1] - found["blind"][1]).max() > 1e-4
    said = [json.loads(line)["label"] for line in (tmp_path / "said.jsonl").open()]
    assert said == ["br"[place] for place in found["lacking"].argmax(axis=1)]
    scored = roibeam("score", "labels", tmp_path / "said.jsonl", "--data", lacking)
    assert "1 row without regions: the store lacks 1 image, such as no-such-image" in scored.out


def test_scores_of_parts_are_those_of_all(labels: Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries without scores are there from a call that did not ask for these: the parts are made again."""
    request = labels.request(tmp_path / "said", batch_size=1, scores=tmp_path / "whole.npz")
    predict_run.run_prediction(request)
    monkeypatch.setattr(predict_run, "PART_GROUPS", 3)
    end_before_parts_are_joined(replace(request, scores=None), monkeypatch)
    assert predict_run.run_prediction(replace(request, scores=tmp_path / "parts.npz")).made == 2
    assert _scores(tmp_path / "parts.npz") == _scores(tmp_path / "whole.npz")
    assert not list(tmp_path.glob("*parts-*"))


def _scores(file: Path) -> list[Any]:
    with np.load(file) as kept:
        return [kept[name].tolist() for name in ("ids", "labels", "scores")]


def test_predictions_name_their_precision(labels: Labels, tmp_path: Path) -> None:
    request = labels.request(tmp_path / "said")
    told = []
    for name, precision in (("plain", None), ("short", "bf16")):
        chosen = replace(request, precision=precision, out=tmp_path / name, scores=tmp_path / f"{name}.npz")
        result = predict_run.run_prediction(chosen)
        told.append((dict(card_lines(json.loads(card_path(chosen.out).read_text())))["computed"], result.notes))
    assert told[0][0] == "in float32" and not any("computed in" in note for note in told[0][1])
    assert told[1][0] == "in bf16; the run learned in float32"
    assert "computed in bf16; the run was trained and evaluated in float32" in told[1][1]
    plain, short = (np.array(_scores(tmp_path / f"{name}.npz")[2]) for name in ("plain", "short"))
    assert 1e-6 < abs(plain - short).max() < 0.1
    assert precision_of(None, "bf16", "cuda:1") == "bf16" and precision_of(None, "bf16", "cpu") == "float32"
    with pytest.raises(ValueError, match="fp16 needs an accelerator"):
        predict_run.run_prediction(replace(request, precision="fp16"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": "said.npy"}, "--scores '.*said.npy': call it said.npz"),
        ({"scores": "taken.npz"}, "is there already, and roibeam did not write it"),
        ({"precision": "float16"}, "--precision 'float16': choose one of float32, bf16, fp16"),
        ({"min_match": 0.5, "permute_images": True}, "--permute-images shows every question another image"),
        ({"data": "strange"}, "a table has the columns image, text and label, this one colour, size"),
        ({"data": "empty"}, "holds no table of the split val: expected one of val.jsonl, val.csv, val.parquet"),
    ],
)
def test_what_cannot_be_predicted_is_told(labels: Labels, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (tmp_path / "taken.npz").write_text("mine")
    for folder in ("strange", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "strange" / "val.csv").write_text("colour,size\nred,2\n")
    changes = {name: tmp_path / value if name in ("scores", "data") else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=words):
        check_predict(labels.request(tmp_path / "a", **changes))


def test_what_is_waited_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Machines without a common disk wait for ever: the folder is told after a minute, and then rarely."""
    clock = iter([0, 30, 61, 62, 700])
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock))
    looks = iter([*range(3), "last"])
    monkeypatch.setattr(processes.time, "sleep", lambda _: next(looks) == "last" and (tmp_path / "part-00001").touch())
    (tmp_path / "part-00000").touch()
    processes.wait_for_files([tmp_path / "part-00000", tmp_path / "part-00001"])
    line = f"waiting for 1 of 2 files that other processes write, such as {tmp_path / 'part-00001'}"
    assert [record.message.partition(";")[0] for record in caplog.records] == [line] * 2


def test_texts_that_the_vocabulary_does_not_know_stop_a_run(labels: Labels, tmp_path: Path, roibeam: Cli) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhund\nkatze\n")
    new = ("--system", "visualbert", "--tokenizer", tmp_path / "vocab.txt", "--steps", 1)
    line = one_line(roibeam(*labels.finetune(tmp_path / "run", *new, from_="none")))
    assert "training texts: the tokenizer (vocab.txt) does not know 100 % of the pieces" in line
    assert not (tmp_path / "run" / "tokenizer").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--task": "lables"}, "--task 'lables': did you mean labels?"),
        ({"--set": "labels.validaton=test"}, "labels has no field 'validaton'; did you mean validation"),
        ({"--set": "head.kind=theirs"}, "kind must be one of ours, release"),
        ({"--model": "base"}, "--model: only with --from none"),
        ({"--system": "vlbert"}, "is a model of visualbert, not of vlbert"),
        ({"--recipe": "vlbert-vqa"}, "--recipe vlbert-vqa is for the task vqa, not labels"),
        ({"--from": "none"}, "--from none: name the model with --system"),
        ({"--task": "vqa"}, "no answers, and this is trained on; vqa"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(
    roibeam: Cli, labels: Labels, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    given = list(labels.finetune(tmp_path / "new"))
    for option, value in changes.items():
        place = given.index(option) if option in given else len(given)
        given[place : place + 2] = [option, value]
    done = roibeam(*given)
    assert done.code == 1 and words in one_line(done)
    assert not (tmp_path / "new").exists()


def test_missing_and_shared_pictures_are_told_before_training(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    """Nothing is written. With a lower share the rest is trained on."""
    lacking = Path(shutil.copytree(labels.data, tmp_path / "lacking"))
    with (lacking / "train.csv").open("a") as file:
        file.write("x,no-such-image,a red thing,r\n")
    refused = one_line(roibeam(*labels.finetune(tmp_path / "new", data=lacking)))
    assert "missing are no-such-image" in refused and not (tmp_path / "new").exists()
    unfinished = Path(shutil.copytree(labels.store, tmp_path / "unfinished"))
    plan = json.loads((unfinished / "plan.json").read_text())
    del plan["sha256"]
    plan["shards"].append({"number": len(plan["shards"]), "num_images": 1, "members_digest": "0" * 64})
    write_json(unfinished / "plan.json", plan)
    given = labels.finetune(tmp_path / "new", "--min-match", 0.5, "--steps", 1, store=unfinished, data=lacking)
    done = ok(roibeam(*given))
    assert "1 group left out: the store lacks 1 of" in done.err
    assert f"{unfinished}: a run that adds images has not finished: 1 of " in done.err
    shared = Path(shutil.copytree(labels.data, tmp_path / "shared"))
    shutil.copy(shared / "val.jsonl", shared / "train.jsonl")
    (shared / "train.csv").unlink()
    refused = one_line(roibeam(*labels.finetune(tmp_path / "other", data=shared)))
    assert "4 of 4 validation images are in the training split too" in refused


def test_seeds_give_mean_spread_and_best(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = ok(roibeam(*labels.finetune(out, "--epochs", 0.1, "--seeds", 2)))
    assert " groups are 1 step of 4\n" in done.err and "0.1 epochs of " in done.err
    assert "2 evaluations of 4 groups: before the first step, every 1 step, at the end\n" in done.err
    summary = json.loads((out / "seeds.json").read_text())
    values = summary["measures"]["accuracy"]["values"]
    assert summary["runs"] == ["seed-0", "seed-1"] and len(values) == 2
    assert summary["measures"]["accuracy"]["mean"] == pytest.approx(sum(values) / 2)
    assert summary["best"] == f"seed-{values.index(max(values))}" and "2 seeds, the best is" in done.out
    said_by = roibeam(*labels.predict(tmp_path / "a", "--json", run=out))
    assert f"/{summary['best']}/" in json.loads(said_by.out.splitlines()[-1])["checkpoint"]
    card = json.loads((tmp_path / "a.card.json").read_text())
    mean = summary["measures"]["accuracy"]["mean"]
    assert card["model"]["seeds"].items() >= {"count": 2, "is_best": True, "mean": mean}.items()
    # The pictures of the small world are those of the pre-training too.
    assert card["leaks"]["trained_on"] == card["leaks"]["images"] == 4 and card["leaks"]["start_is_known"]


def test_a_checkpoint_that_best_by_chose_is_reported_and_asked(roibeam: Cli, labels: Labels, tmp_path: Path) -> None:
    """It was the last one, whatever `best_by` said. What the evaluations found is changed, so that 27 is best of 30."""
    run = Path(shutil.copytree(labels.run, tmp_path / "run"))
    with_evaluations(run, {27: 0.875, 30: 0.25}, 0.0)
    options = ("--steps", 30, "--learning-rate", 0.003, "--set", "train.best_by=accuracy")
    again = roibeam(*labels.finetune(run, *options))
    assert "of the validation split, the best checkpoint, step 27:" in again.out, again.err
    (row,) = (line.split() for line in again.out.splitlines() if line.startswith("accuracy "))
    assert row[1] == "87.50" and row[-4:] == ["100.00", "clearly", "above", "chance"], again.out
    said_by = roibeam(*labels.predict(tmp_path / "a", "--json", run=run))
    told, newest = json.loads(said_by.out.splitlines()[-1]), run / "checkpoints" / "step-00000030"
    assert told["notes"][0] == f"{run}: takes step 27, the best by accuracy; {newest} is the newest"
    assert told["checkpoint"] == str(run / "checkpoints" / "step-00000027" / "model")
    assert json.loads((tmp_path / "a.card.json").read_text())["model"]["step"] == 27


# VQA's official files, over a drawn world with a perfect store


@pytest.mark.slow
def test_a_fine_tuned_model_beats_itself_without_images(roibeam: Cli, tmp_path: Path) -> None:
    """From weights that the evidence keeps, on another world: the interval over images excludes 0."""
    store, data, run = tmp_path / "store", tmp_path / "vqa", tmp_path / "run"
    command("toyworld", tmp_path / "world", "--num-images", 800, "--perfect-store", store)
    write_questions(tmp_path / "world", data)
    options = ("--store", store, "--data", data, "--device", "cpu", "--threads", 1)
    command("finetune", run, "--task", "vqa", "--from", WEIGHTS, *options, "--steps", 300, "--batch-size", 32,
            "--learning-rate", 0.0005, "--set", "data.validation_groups=100", "--set", "vqa.loss=ce")  # fmt: skip
    for name, more in (("seen", ()), ("blind", ("--blind",)), ("permuted", ("--permute-images",))):
        assert roibeam("predict", run, *options, "--out", run / name, *more).code == 0
    for other in ("blind", "permuted"):
        done = roibeam("score", "vqa", run / "seen", "--data", data, "--against", run / other, "--json")
        overall = json.loads(done.out)["figures"][0]
        assert overall["name"] == "overall" and overall["less_low"] > 0, overall


@pytest.mark.slow
def test_several_processes_write_the_same_bytes_as_one(labels: Labels, tmp_path: Path) -> None:
    """Four parts of one group, shared by 1, 2 and 4 processes."""
    written = []
    for ranks in (1, 2, 4):
        out = tmp_path / f"said-{ranks}.jsonl"
        request = labels.request(out)
        assert run_ranks(Predicting(request), ranks, tmp_path / str(ranks)) == [0] * ranks, said(tmp_path / str(ranks))
        written.append(out.read_bytes())
    assert written[0] == written[1] == written[2]
