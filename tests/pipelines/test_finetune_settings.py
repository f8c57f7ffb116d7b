"""What a fine-tuning run is asked: seeds, answers and tables of one's own (published runs: test_task_recipes.py)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from roibeam.pipelines.data.datasets.tables import read_table
from roibeam.pipelines.finetuning.metrics.own_labels import own_label_measures
from roibeam.pipelines.finetuning.metrics.vqa import UNKNOWN
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.finetuning.rows import LABEL
from roibeam.pipelines.finetuning.run.finetune_request import seed_requests, seed_summary
from roibeam.pipelines.finetuning.run.finetune_settings import (
    config_of,
    evaluation_interval,
    evaluation_words,
    resume_notes,
    steps_for,
    with_recorded_evaluation,
)
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.task import Prediction, check_best_by
from roibeam.pipelines.finetuning.tasks.labels import LabelsOptions, open_labels
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions, open_vqa
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedTraining
from roibeam.pipelines.pretraining.requested_settings import train_config_of

HEADER = "image,text,label\n"


def request(**changes: Any) -> FinetuneRequest:
    named: dict[str, Any] = {"out": Path("o"), "task": "vqa", "from_": "none", "store": "s", "data": Path("d")}
    return FinetuneRequest(**{**named, **changes})


def test_seeds_are_runs_of_their_own() -> None:
    assert [(each.out, each.seed, each.seeds) for each in seed_requests(request(seeds=2, seed=5))] == [
        (Path("o/seed-5"), 5, 1), (Path("o/seed-6"), 6, 1),
    ]  # fmt: skip
    assert seed_requests(request()) == [request()]
    summary = seed_summary([(Path("a"), {"x": 0.5, "y": None}), (Path("b"), {"x": 0.7, "y": 1.0})], "x")
    assert summary["best"] == "b" and summary["measures"].keys() == {"x"}
    assert summary["measures"]["x"]["sd"] == pytest.approx(0.02**0.5)
    chosen = seed_summary([(Path("a"), {"x": 0.5}), (Path("b"), {"x": 0.7})], "x", [4, 8])
    assert chosen["steps"] == [4, 8] and "steps" not in summary


def test_steps_that_nobody_names_are_those_of_the_run_that_goes_on(tmp_path: Path) -> None:
    """A finished run of 20 steps would go on to the 1,000 of a new one."""

    def steps(**named: Any) -> list[int]:
        tuned = config_of(request(out=tmp_path, **named), VqaOptions, None).train.steps
        pretrained = PretrainRequest(tmp_path, training=RequestedTraining(**named))
        return [tuned, train_config_of(pretrained, None)(1).steps]

    assert steps() == [1000, 1000]
    (tmp_path / "config.json").write_text(json.dumps({"train": {"steps": 20}, "task": {}, "recorded": {}}), "utf-8")
    assert steps() == [20, 20] and steps(steps=30) == [30, 30]


def begun(folder: Path, recipe: str, task: str, options: dict[str, Any], **described: Any) -> Path:
    """The configuration of a run that a recipe began, as far as a run that goes on reads it."""
    named = {"task": task, "task_options": options, "layout": {}, "photos": {}, "model": {}, **described}
    content = {"train": {"steps": 20}, "task": named, "recorded": {"recipe": recipe}}
    (folder / "config.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_a_run_of_a_recipe_goes_on_as_it_began(tmp_path: Path) -> None:
    """Recipes change: the paper's runs on VCR had grounded words when nothing said so. What the user names wins, and a
    run that another recipe began is none of this one."""
    recipe = TASK_RECIPES["vlbert-vcr-answer-paper"]
    out = begun(tmp_path, "vlbert-vcr-answer-paper", "vcr", {"problem": "answer", "loss_scales": [1.0, 1.0]})

    def vcr(**changes: Any) -> VcrOptions:
        named = {"out": out, "task": "vcr", "recipe": "vlbert-vcr-answer-paper", **changes}
        made: VcrOptions = config_of(request(**named), VcrOptions, recipe).task
        return made

    found = [made.grounding for made in (vcr(), vcr(out=tmp_path / "new"), vcr(resume=False))]
    assert found == ["auto", "none", "none"]
    assert vcr().loss_scales == (1.0, 1.0)
    assert vcr(set=["vcr.grounding=words"]).grounding == "words"
    asked = request(out=out, task="vcr", recipe="vlbert-vcr-answer-paper")
    said = "vcr.grounding stays 'auto', as this run began; vlbert-vcr-answer-paper has 'none' now"
    assert said in resume_notes(asked, VcrOptions, recipe)
    assert resume_notes(replace(asked, out=tmp_path / "new"), VcrOptions, recipe) == []
    begun(tmp_path, "vlbert-vcr-answer", "vcr", {})
    assert vcr().grounding == "none"


def test_a_run_from_photos_goes_on_with_its_own(tmp_path: Path) -> None:
    """`vlbert-vqa-paper` named no photos when it was a recipe of stored features."""
    network = {"region_encoder": {"detector": {"short_edge": 64, "long_edge": 96}}}
    out = begun(tmp_path, "vlbert-vqa-paper", "vqa", {"train": "train"}, photos={"flip": True}, model=network)
    named = {"recipe": "vlbert-vqa-paper", "end_to_end": True, "detector": "toy"}
    recipe = TASK_RECIPES["vlbert-vqa-paper"]
    found, fresh = (config_of(request(out=each, **named), VqaOptions, recipe) for each in (out, tmp_path / "new"))
    for sections, expected in ((found, ("train", True, 64, 96)), (fresh, ("train+val", False, 600, 1000))):
        detector = sections.from_photos.detector
        ours = (sections.task.train, sections.from_photos.photos.flip, detector.short_edge, detector.long_edge)
        assert ours == expected
    stored = json.loads((out / "config.json").read_text("utf-8"))
    del stored["task"]["photos"], stored["task"]["model"]["region_encoder"]
    (out / "config.json").write_text(json.dumps(stored), "utf-8")
    now = config_of(request(out=out, **named), VqaOptions, recipe)  # through the detector: refused by what differs
    assert (now.task.train, now.from_photos.photos.flip, now.from_photos.detector.short_edge) == ("train", False, 600)


def write_vqa(folder: Path, answers: list[str]) -> Path:
    """One question for each answer, which ten people gave."""
    for year in ("train2014", "val2014"):
        shared = {"data_subtype": year}
        asked = [{"question_id": n, "image_id": n, "question": f"what {n}?"} for n in range(len(answers))]
        told = [
            {"question_id": n, "image_id": n, "question_type": "what", "answer_type": "other",
             "multiple_choice_answer": answer,
             "answers": [{"answer": answer, "answer_confidence": "yes", "answer_id": each} for each in range(10)]}
            for n, answer in enumerate(answers)
        ]  # fmt: skip
        (folder / f"v2_OpenEnded_mscoco_{year}_questions.json").write_text(json.dumps({**shared, "questions": asked}))
        (folder / f"v2_mscoco_{year}_annotations.json").write_text(json.dumps({**shared, "annotations": told}))
    return folder


def test_a_release_s_rates_leave_no_share_to_the_encoder() -> None:
    slower, ruled = "encoder.learning_rate_scale=0.1", "train.parameter_groups=vl-bert"
    given = {"steps": 4, "end_to_end": True, "detector": "toy"}
    with pytest.raises(ValueError, match=r"rule 'vl-bert' .* add --set train.parameter_groups=task"):
        config_of(request(**given, set=[slower, ruled]), VqaOptions, None)
    found = config_of(request(**given, set=[slower]), VqaOptions, None).from_photos
    assert found.encoder.learning_rate_scale == 0.1


def test_answers_are_the_majority_ones_or_a_file(tmp_path: Path) -> None:
    """ "the dog" is a label without its article; people's own words match it only when they are normalised."""
    data = write_vqa(tmp_path, ["cat", "cat", "the dog", "the dog", "rare"])
    raw = open_vqa(data, VqaOptions(min_occurrence=2), None)
    assert raw.labels == ("cat", "dog")
    read = raw.read("train")
    assert [group.target for group in read.groups] == [{0: 1.0}, {0: 1.0}, {}, {}, {}]
    assert read.notes == (
        "train: 3 questions (60.0%) have no answer among the labels: answers of at least 2 training questions; --set "
        "vqa.min_occurrence=1 takes all",
    )
    assert read.groups[0].images == ("COCO_train2014_000000000000",)
    normalised = open_vqa(data, VqaOptions(min_occurrence=2, targets="normalised"), None).read("train")
    assert [group.target for group in normalised.groups][2:] == [{1: 1.0}, {1: 1.0}, {}]
    (tmp_path / "list.txt").write_text("<unk>\nrare\ncat\n")
    given = open_vqa(data, VqaOptions(answers=str(tmp_path / "list.txt")), None)
    assert given.labels == (UNKNOWN, "rare", "cat")
    assert open_vqa(data, VqaOptions(), ("kept", "with", "the model")).labels == ("kept", "with", "the model")
    (tmp_path / "list.txt").write_text("cat\ncat\n")
    with pytest.raises(ValueError, match="the label 'cat' stands in it twice"):
        open_vqa(data, VqaOptions(answers=str(tmp_path / "list.txt")), None)
    with pytest.raises(ValueError, match="0 majority answers of at least 9 questions"):
        open_vqa(data, VqaOptions(), None)


def test_unknown_is_never_an_answer(tmp_path: Path) -> None:
    """VisualBERT's release writes it into its result file."""
    import numpy as np

    task = open_vqa(write_vqa(tmp_path, ["cat", "rare"]), VqaOptions(), (UNKNOWN, "rare", "cat"))
    groups = task.read("val").groups
    said = [Prediction(np.array([9.0, 0.0, 1.0], np.float32))] * 2
    assert list(task.answers(groups, said)) == [{"question_id": number, "answer": "cat"} for number in range(2)]
    assert task.judge(groups, said)["overall"].values == [1.0, 0.0]
    assert task.kept is not None and task.kept.judge(groups, list(task.kept.of(iter(said)))) == task.judge(groups, said)


def test_epochs_are_steps_once_the_groups_are_counted() -> None:
    """Until then nothing that counts steps is refused; afterwards it is."""
    asked = request(epochs=3, warmup_steps=2000, batch_size=8)
    assert config_of(asked, VqaOptions, None).train.warmup_steps == 2000
    assert steps_for(None, asked, 101, 8) == 38 and steps_for(None, request(epochs=0.01), 8, 8) == 1
    with pytest.raises(ValueError, match="warmup_steps 2000 is more than all 38 steps"):
        config_of(asked, VqaOptions, None, steps=38)
    for given in ({"steps": 4}, {"set": ["train.steps=4"]}):
        with pytest.raises(ValueError, match=r"--epochs 3 and --(set train.steps=4|steps 4) are two values"):
            config_of(request(epochs=3, **given), VqaOptions, None)
    with pytest.raises(ValueError, match="--epochs must be above 0, got -1"):
        config_of(request(epochs=-1), VqaOptions, None)


def test_evaluations_cost_a_tenth_of_the_training_or_little() -> None:
    """Ten points, or fewer where a split is large; a recipe and a setting win. What they cost is told."""
    pauses = {(1000, 32, 2_000): 100, (50_000, 32, 214_354): 50_000, (50_000, 32, 20_000): 6_250, (5, 4, 10): 1}
    assert {asked: evaluation_interval(*asked) for asked in pauses} == pauses
    asked = request(steps=50_000, set=["train.checkpoint_every=7"])
    assert config_of(asked, VqaOptions, None, evaluate_every=6_250).train.evaluate_every == 6_250
    named = request(steps=50_000, set=["train.evaluate_every=1000"])
    config = config_of(named, VqaOptions, None, evaluate_every=6_250).train
    assert config.evaluate_every == config.checkpoint_every == 1000
    assert evaluation_words(config, 32, 2_000, 214_354) == (
        "51 evaluations of 2,000 of 214,354 groups: before the first step, every 1,000 steps, at the end"
    )
    told = evaluation_words(config, 32, 214_354, 214_354)
    assert told.startswith("51 evaluations of 214,354 groups: ") and "; 683% of the groups trained on: --set" in told


def test_a_run_of_before_is_evaluated_as_it_began(tmp_path: Path) -> None:
    """Its evaluations would come at other steps behind the place where it goes on."""
    config = config_of(request(steps=50_000), VqaOptions, None, evaluate_every=5_000).train
    assert with_recorded_evaluation(config, tmp_path, ()) == config
    begun = {"train": {"steps": 50_000, "evaluate_every": 1_000}, "task": {}, "recorded": {}}
    (tmp_path / "config.json").write_text(json.dumps(begun))
    assert with_recorded_evaluation(config, tmp_path, ()) == replace(config, evaluate_every=1_000)
    assert with_recorded_evaluation(config, tmp_path, ["train.evaluate_every=5000"]) == config
    assert with_recorded_evaluation(replace(config, steps=60_000), tmp_path, ()).evaluate_every == 5_000
    patient = replace(config, best_by="overall", patience=4)  # as its recipe has it now
    assert with_recorded_evaluation(patient, tmp_path, ()) == replace(config, evaluate_every=1_000)
    assert with_recorded_evaluation(patient, tmp_path, ["train.patience=4"]).patience == 4


def test_a_measure_that_a_task_lacks_is_told_with_those_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked; also a measure that the last group alone has."""
    groups = open_vqa(write_vqa(tmp_path, ["cat", "rare"]), VqaOptions(), ("rare", "cat")).read("val").groups
    task = open_vqa(tmp_path, VqaOptions(), ("rare", "cat"))
    groups[-1].facts["answer_type"] = "yes/no"
    monkeypatch.setattr("roibeam.pipelines.finetuning.task._FEW_GROUPS", 1)
    for name in ("", "overall", "answer_type_other", "answer_type_yes/no"):
        check_best_by(task, groups, name)
    names = "overall, answer_type_other, answer_type_yes/no"
    with pytest.raises(ValueError, match=f"train.best_by 'accuracy': evaluations of vqa have {names}; name one"):
        check_best_by(task, groups, "accuracy")


def test_tables_of_three_kinds_are_read_alike(tmp_path: Path) -> None:
    rows = [{"image": "a", "text": "one, two", "label": "1"}, {"image": "b", "text": "three", "label": "0"}]
    (tmp_path / "t.csv").write_text('image,text,label\na,"one, two",1\nb,three,0\n')
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist([{**row, "label": int(row["label"])} for row in rows])
    parquet.write_table(table, tmp_path / "t.parquet")
    found = [[(row.id, row.image, row.text, row.label) for row in read_table(tmp_path / f"t.{kind}")]
             for kind in ("csv", "jsonl", "parquet")]  # fmt: skip
    assert found[0] == found[1] == found[2] == [("0", "a", "one, two", "1"), ("1", "b", "three", "0")]


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("jsonl", '{"image": "a"}', "row 0: no text; a table has the columns image, text and label"),
        ("jsonl", "[1]", "line 1: expected an object"),
        ("jsonl", "{", "line 1: no JSON"),
        ("csv", "picture,text\na,b", "row 0: no image"),
        ("parquet", "PAR1", "no parquet table"),
        ("csv", HEADER + "a,x,red\nb,really, no,blue\n", r"row 1 \(line 3\): 4 fields, the header has 3; .* in quotes"),
        ("csv", HEADER + 'a,"really, no",red\nb,  ,red\n', "row 1: its text is empty; fill it, or take the row out"),
        ("csv", "img,caption,y\na,x,red\n", "no image; .* columns image, text and label, this one img, caption, y"),
        ("csv", "image;text;label\na;x;red\n", "separated by semicolons or tabs"),
    ],
)
def test_a_table_that_is_none_is_told(tmp_path: Path, kind: str, content: str, words: str) -> None:
    path = tmp_path / f"t.{kind}"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        list(read_table(path))


# --- labels of one's own ---

TRAIN = HEADER + "a,x,red\nb,y, red \nc,z,blue\n"


def labels_of(folder: Path, options: LabelsOptions | None = None, **tables: str) -> Any:
    """The task of these tables, one for each split."""
    for split, text in tables.items():
        (folder / f"{split}.csv").write_text(text, encoding="utf-8")
    return open_labels(folder, options or LabelsOptions(), None)


def test_labels_are_told_with_the_share_of_the_commonest(tmp_path: Path) -> None:
    task = labels_of(tmp_path, train=TRAIN, val=HEADER + "d,w,red\ne,v,green\n")
    assert task.labels == ("blue", "red")  # white space is no other label
    assert task.read("train").notes == ("train: 2 labels; the commonest, 'red', is that of 66.7 % of the rows",)
    unknown, commonest = task.read("val").notes
    assert "1 row has a label that nothing is trained on" in unknown and "is that of 50.0 % of the rows" in commonest


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        (TRAIN, HEADER, "holds no row"),
        (TRAIN, HEADER + "d,w,0.0\n", r"none of its labels \(0.0, ...\) is one of .* \(blue, red, ...\)"),
        (  # a column of whole numbers with a gap is one of floats there
            HEADER + "a,w,0\nb,w,1\nc,w,0\n",
            HEADER + "d,w,0.0\ne,w,1.0\n",
            r'as numbers they are equal: pandas .* write it with astype\("Int64"\)',
        ),
    ],
)
def test_a_table_that_cannot_be_judged_is_refused(tmp_path: Path, train: str, val: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        labels_of(tmp_path, train=train, val=val).read("val")


def test_a_run_is_judged_by_both_accuracies(tmp_path: Path) -> None:
    """`train.best_by=balanced_accuracy` goes by the second."""
    task = labels_of(tmp_path, train=TRAIN, val=HEADER + "d,w,red\ne,v,red\nf,v,blue\n")
    said = [Prediction(np.array([0.0, 1.0], np.float32))] * 3  # always red
    measures = task.judge(task.read("val").groups, said)
    assert {name: each.mean for name, each in measures.items()} == {"accuracy": 2 / 3, "balanced accuracy": 0.5}


def test_balanced_weights_make_labels_count_alike(tmp_path: Path) -> None:
    """Two rows of red and one of blue: 3/4 and 3/2, whose mean over rows is 1."""
    assert labels_of(tmp_path, train=TRAIN).label_weights == ()
    task = labels_of(tmp_path, LabelsOptions(weights="balanced"))
    assert task.labels == ("blue", "red") and task.label_weights == (1.5, 0.75)
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
