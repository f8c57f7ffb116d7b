"""VQA by the rules of the releases: labels, scores, wording, splits, what is stored and what is mirrored; and on a
table of one's own."""

import csv
import json
import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_finetuning import make_task
from task_groups import batches, small_network, tokenizer
from tiny_commands import ok
from toy_questions import write_questions

from roibeam.pipelines.data.datasets.tables import read_answer_table
from roibeam.pipelines.data.datasets.vqa import read_answer_labels, read_imdb
from roibeam.pipelines.data.record_regions import mirrored_boxes
from roibeam.pipelines.finetuning.metrics.measure import write_csv_entries
from roibeam.pipelines.finetuning.metrics.own_labels import read_csv_results
from roibeam.pipelines.finetuning.prediction_card import write_card
from roibeam.pipelines.finetuning.rows import LABEL, TaskText
from roibeam.pipelines.finetuning.run.network import start_from_words
from roibeam.pipelines.finetuning.score_run import ScoreRequest, run_score
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import HeadOptions, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import Pieces, lay_out
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions, open_vqa
from roibeam.pipelines.finetuning.tasks.vqa_rules import pythia_tokens, scores_of

LABELS = ("<unk>", "yes", "left", "right", "skate-board")


def write_part(folder: Path, year: str, questions: dict[int, tuple[str, list[str]]]) -> None:
    asked = [{"question_id": number, "image_id": 7, "question": text} for number, (text, _) in questions.items()]
    told = [
        {"question_id": number, "image_id": 7, "question_type": "what", "answer_type": "other",
         "multiple_choice_answer": answers[0],
         "answers": [{"answer": each, "answer_confidence": "yes", "answer_id": n} for n, each in enumerate(answers)]}
        for number, (_, answers) in questions.items()
    ]  # fmt: skip
    (folder / f"v2_OpenEnded_mscoco_{year}_questions.json").write_text(json.dumps({"questions": asked}))
    (folder / f"v2_mscoco_{year}_annotations.json").write_text(json.dumps({"annotations": told}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_part(tmp_path, "train2014", {1: ("Left, or right?", ["left"] * 4 + ["Right"] * 6), 2: ("A?", ["yes"] * 10)})
    write_part(tmp_path, "val2014", {9: ("B?", ["yes"] * 10), 3: ("C?", ["no"] * 10), 5: ("D?", ["skate board"] * 10)})
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n\n")
    return tmp_path


def opened(folder: Path, labels: Any = None, **fields: Any) -> DownstreamTask:
    return open_vqa(folder, VqaOptions(**{"answers": str(folder / "labels.txt"), **fields}), labels)


def test_labels_are_read_in_the_forms_of_public_files(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "label2ans.pkl").write_bytes(pickle.dumps(list(LABELS), protocol=2))
    (tmp_path / "ans2label.pkl").write_bytes(pickle.dumps({label: n for n, label in enumerate(LABELS)}))
    (tmp_path / "label2ans.json").write_text(json.dumps(LABELS, indent=1))
    (tmp_path / "ans2label.json").write_text(json.dumps({label: n for n, label in reversed([*enumerate(LABELS)])}))
    for name in ("labels.txt", "label2ans.pkl", "ans2label.pkl", "label2ans.json", "ans2label.json"):
        assert read_answer_labels(str(tmp_path / name)) == LABELS
    assert opened(folder, label_form="without_signs").labels[4] == "skate board"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("labels.txt", b"yes\nno\nyes\n", "'yes' stands in it twice, as 0 and 2"),
        ("labels.txt", b"yes\n", "1 answer labels"),
        ("labels.txt", b"\xff\xfe", "no text in UTF-8"),
        ("labels.json", b"yes\nno\n", "no JSON: .*labels one a line are called"),
        ("labels.json", b'{"yes": 1, "no": 2}', "the numbers of its 2 labels are not 0 to 1, each once"),
        ("labels.json", b'{"0": "yes", "1": "no"}', "the numbers of its 2 labels are not 0 to 1, each once"),
        ("labels.json", b'"yes"', "expected a JSON list of labels, or a dict of their numbers"),
    ],
)
def test_a_wrong_label_file_is_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read_answer_labels(str(tmp_path / name))


def test_labels_in_another_order_are_not_those_of_the_model(folder: Path) -> None:
    with pytest.raises(ValueError, match="label 1 is 'yes', of the model's 5 it is 'left'"):
        opened(folder, ("<unk>", "left", "yes", "right", "skate-board"))
    (folder / "labels.txt").unlink()  # the model has its own
    assert opened(folder, LABELS).labels == LABELS


def test_scores_of_few_people() -> None:
    """Counting takes the people to be ten; leaving each out does not. The label for other answers is never right."""
    assert scores_of(["yes", "yes", "<unk>"], LABELS, text="raw", rule="count") == {1: 0.6}
    left_out = scores_of(["yes", "yes", "<unk>"], LABELS, text="raw", rule="left_out")
    assert left_out == {1: pytest.approx((2 * 1 / 3 + 2 / 3) / 3)}
    assert scores_of(["The left."] * 10, LABELS, text="normalised", rule="count") == {2: 1.0}


def test_minival_is_the_last_questions_by_their_ids(folder: Path) -> None:
    task = opened(folder, train="train+val-minival", minival_questions=2)
    assert [group.id for group in task.read("train+val-minival").groups] == ["1", "2", "3"]
    minival = task.read("minival")
    assert task.validation == "minival" and [group.id for group in minival.groups] == ["9", "5"]
    assert "other questions about its images are trained on" in minival.notes[-1]
    inside = opened(folder, train="train+val", minival_questions=2)
    assert inside.validation is None and "minival lies inside train+val" in inside.read("minival").notes[-1]
    assert "train+val holds minival too" in inside.read("train+val").notes[-1]


def test_stored_targets_count_in_place_of_answers(folder: Path) -> None:
    targets = [{"question_id": 1, "labels": [3], "scores": [0.9]}, {"question_id": 2, "labels": [], "scores": []}]
    path = folder / "train_target.pkl"
    path.write_bytes(pickle.dumps(targets))
    read = opened(folder, targets="stored").read
    assert [group.target for group in read("train").groups] == [{3: 0.9}, {}]
    targets[0]["labels"] = [5]
    path.write_bytes(pickle.dumps(targets))
    with pytest.raises(ValueError, match="target 0: a label of number 5; there are 5 labels"):
        read("train")
    path.write_bytes(pickle.dumps(targets[1:]))
    with pytest.raises(ValueError, match="question 1 has no target"):
        read("train")
    assert next(group.target for group in opened(folder, LABELS, targets="stored").read("val").groups) == {1: 1.0}


def test_pythias_files_have_questions_and_answers(folder: Path) -> None:
    cut = "what 's the man 's 3 . 5 - inch hat here".replace("'s", "' s").split()
    assert pythia_tokens("What's the man's 3.5-inch hat, here?") == cut
    header = {"dataset_name": "vqa"}
    known = {"question_id": 4, "image_name": "COCO_val2014_7", "question_tokens": ["left", "or"]}
    known["valid_answers"] = ["yes"]
    entries = np.empty(2, object)
    entries[:] = [header, known]
    np.save(folder / "imdb_val2014.npy", entries, allow_pickle=True)
    (group,) = opened(folder, question="imdb").read("val").groups
    assert (group.id, group.images, group.target) == ("4", ("COCO_val2014_7",), {1: 0.3})
    assert group.rows[0].parts[0].text == "left or"
    np.save(folder / "bad.npy", np.array([header, {"question_id": 4}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="entry 1: expected Pythia's question_id, image_name and question_tokens"):
        list(read_imdb(str(folder / "bad.npy")))


class Runs:
    def __reduce__(self) -> Any:
        return print, ("run",)


def test_a_pickle_that_tries_to_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "imdb.npy", np.array([Runs()], object), allow_pickle=True)
    (tmp_path / "labels.pkl").write_bytes(pickle.dumps([Runs()]))
    for read, name in ((read_imdb, "imdb.npy"), (read_answer_labels, "labels.pkl")):
        with pytest.raises(ValueError, match="nothing was run"):
            list(read(str(tmp_path / name)))
    assert capsys.readouterr().out == ""


def test_a_mirrored_question(folder: Path) -> None:
    task = opened(folder, mirror=True)
    group = task.read("train").groups[0]
    assert task.mirrored is not None and task.mirrors and not opened(folder).mirrors
    mirrored = task.mirrored(group)
    assert mirrored.rows[0].parts[0].text == "Right, or left?" and mirrored.mirrored
    assert (group.target, mirrored.target) == ({2: 1.0}, {3: 1.0})  # "Right" is no label, nor is "Left"


def test_unknown_is_said_only_on_request(folder: Path) -> None:
    said = [Prediction(np.array([9.0, 0, 1, 2, 0], np.float32))]
    for says_unknown, answer in ((False, "right"), (True, "<unk>")):
        task = opened(folder, says_unknown=says_unknown)
        assert list(task.answers(task.read("train").groups[:1], said)) == [{"question_id": 1, "answer": answer}]


def test_a_long_question_of_visualberts_release_loses_its_mask() -> None:
    spans = SYSTEMS["visualbert"].text(Pieces(tokenizer()), [TaskText(("two dogs run after",))], LABEL, 1)
    laid = lay_out(spans, 6, "before_sep")
    assert " ".join(tokenizer().piece(int(piece)) for piece in laid.ids) == "[CLS] two dogs run after [SEP]"
    assert len(laid.ids) == len(laid.segments) == len(laid.tags)


def test_boxes_are_mirrored_and_features_are_not(folder: Path) -> None:
    assert mirrored_boxes(np.array([[10.0, 1, 30, 2]]), 100).tolist() == [[69.0, 1, 89, 2]]
    made = batches(small_network("vlbert", LABEL), "vlbert", LABEL)
    group = opened(folder).read("train").groups[0]
    group = replace(group, images=("image-0",))
    plain, mirrored = (made.batch([replace(group, mirrored=flag)]).inputs for flag in (False, True))
    width = float(plain.image_hw[0, 1])
    assert np.array_equal(mirrored.region_boxes[0], mirrored_boxes(plain.region_boxes[0].numpy(), width))
    assert mirrored.region_features.equal(plain.region_features)


def test_answers_start_as_the_mean_of_their_words() -> None:
    network, labels = small_network("vlbert", LABEL, head="release"), ("two dogs", "a", "kitchen")
    start_from_words(network, labels, tokenizer())
    state = network.module.state_dict()
    words, rows = state["vlbert.embeddings.words.weight"], state["answer_head.decoder.weight"]
    assert rows[0].equal(words[tokenizer().encode("two dogs").ids[1:-1]].mean(dim=0))
    with pytest.raises(ValueError, match="the label '' has no word piece"):
        start_from_words(network, ("yes", "", "no"), tokenizer())
    with pytest.raises(ValueError, match="only the head of VL-BERT's release"):
        start_from_words(small_network("vilbert", LABEL), labels, tokenizer())
    with pytest.raises(ValueError, match="start 'words' is of a release's head"):
        HeadOptions(start="words")


def test_which_groups_are_mirrored_depends_on_seed_epoch_and_group() -> None:
    """A run that goes on sees what the undisturbed one sees."""
    task = make_task("vlbert", LABEL, batch_size=4, mirrored=lambda group: replace(group, mirrored=True))
    seen = list(islice(task.batches(0, rank=0, num_ranks=1), 8))
    (again,) = islice(task.batches(20, rank=0, num_ranks=1), 1)
    assert again.ids == seen[5].ids and again.inputs.region_boxes.equal(seen[5].inputs.region_boxes)
    boxes = [inputs.region_boxes[ids.index("group-0"), 0].tolist() for ids, inputs in ((b.ids, b.inputs) for b in seen)]
    kinds = {tuple(each) for each in boxes}
    assert len(kinds) == 2 and all(1 < boxes.count(list(each)) < 7 for each in kinds)


def test_which_regions_and_whole_image_are_shown(folder: Path) -> None:
    network = small_network("vlbert", LABEL)
    group = replace(opened(folder).read("train").groups[0], images=("image-0",))
    every = batches(network, "vlbert", LABEL).batch([group]).inputs
    mean = every.region_features[0].float().mean(dim=0)
    layout = LayoutOptions(max_regions=2, region_order="file", whole_image="all")
    inputs = batches(network, "vlbert", LABEL, options=layout).batch([group]).inputs
    assert inputs.region_features.equal(every.region_features[:, :2])
    assert inputs.whole_image_features is not None and inputs.whole_image_features[0].allclose(mean)
    stored = batches(network, "vlbert", LABEL, options=replace(layout, whole_image="stored"))
    with pytest.raises(ValueError, match="its feature of the whole image has width 7, its regions 48"):
        stored.batch([group])  # of another network, as ImageBERT reads it


def write_genome(folder: Path) -> None:
    """Two photos: COCO's 7, which VQA asks about too, and one that COCO has not."""
    photos = [
        {"image_id": 1, "url": "https://x/VG_100K_2/1.jpg", "coco_id": 7, "flickr_id": None},
        {"image_id": 2, "url": "https://x/VG_100K/2.jpg", "coco_id": None, "flickr_id": 5},
    ]
    asked = [("Where?", "The left."), ("What?", "A rare thing."), ("Which?", "Yes")]
    entries = [
        {"id": photo, "qas": [{"qa_id": 10 * photo + place, "image_id": photo, "question": question, "answer": answer}
                              for place, (question, answer) in enumerate(asked)]}
        for photo in (1, 2)
    ]  # fmt: skip
    (folder / "image_data.json").write_text(json.dumps(photos))
    (folder / "question_answers.json").write_text(json.dumps(entries))


def test_questions_of_visual_genome_are_trained_on_too(folder: Path) -> None:
    """Those whose answer is a label, none about an image that is judged on; their split is of training alone."""
    write_genome(folder)
    task = opened(folder, visual_genome="coco", train="train+val", mirror=True)
    read = task.read(task.train)
    assert [group.id for group in read.groups] == ["1", "2", "9", "3", "5", "vg-10", "vg-12"]
    where, which = read.groups[-2:]
    assert (where.images, where.target, which.target) == (("000000000007",), {2: 1.0}, {1: 1.0})
    note = "2 questions; left out are 1 whose answer is no label, and 0 about images that the run is evaluated on"
    assert note in read.notes[-1]
    assert task.mirrored is not None and task.mirrored(where).target == {3: 1.0}
    assert task.splits == opened(folder).splits and task.train not in task.splits
    every = opened(folder, visual_genome="all").read("train+visual-genome")  # judged on val, whose image is COCO's 7
    assert [(group.id, group.images) for group in every.groups[2:]] == [
        ("vg-20", ("VG_100K/2",)), ("vg-22", ("VG_100K/2",)),
    ]  # fmt: skip
    assert "and 3 about images that the run is evaluated on" in every.notes[-1]
    with pytest.raises(ValueError, match="no question is left whose answer is a label"):
        opened(folder, visual_genome="coco").read("train+visual-genome")
    (folder / "image_data.json").write_text("[]")
    with pytest.raises(ValueError, match=r"photo 1 is not in .*; are both of one release"):
        opened(folder, visual_genome="all").read("train+visual-genome")


def test_labels_are_counted_on_what_is_trained_on_or_on_both_parts(folder: Path) -> None:
    """The releases count both parts whatever they train on: "yes" is told once in each."""
    options = {"answers": "majority", "min_occurrence": 1}
    assert open_vqa(folder, VqaOptions(**options), None).labels == ("left", "yes")
    both = VqaOptions(**{**options, "answers": "majority-train+val"})
    assert open_vqa(folder, both, None).labels == ("left", "yes", "no", "skate board")
    with pytest.raises(ValueError, match="expected majority or majority-train\\+val, or a file with one label a line"):
        open_vqa(folder, VqaOptions(answers="majorty"), None)


@pytest.mark.slow
def test_vqa_on_the_command_line(roibeam: Any, tmp_path: Path) -> None:
    """A published run over a drawn world; labels in the checkpoint; minival by its name; test without annotations."""
    world, store, data = tmp_path / "world", tmp_path / "store", tmp_path / "vqa"
    assert roibeam("toyworld", world, "--num-images", 200, "--perfect-store", store).code == 0
    write_questions(world, data)
    run = ("--task", "vqa", "--from", "none", "--model", "small", "--store", store, "--data", data, "--device", "cpu")
    words = ("--recipe", "vlbert-vqa", "--steps", 1, "--batch-size", 8, "--set", "vqa.min_occurrence=2")
    done = roibeam("finetune", tmp_path / "run", *run, *words)
    assert done.code == 0 and "this one from new weights" in done.err, done.err
    assert "no question" not in done.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"]["head"] == {"kind": "release", "start": "words"} and config["train"]["accumulation"] == 32
    assert len(config["recorded"]["labels"]) > 10
    asked = ("predict", tmp_path / "run", "--store", store, "--data", data, "--device", "cpu")
    told = roibeam(*asked, "--split", "minival", "--out", tmp_path / "minival.json")
    assert told.code == 0 and "minival lies inside train+val, on which the model is trained" in told.out
    ok(roibeam("score", "vqa", tmp_path / "minival.json", "--data", data, "--split", "minival", "--json"))
    (bare := tmp_path / "test").mkdir()
    first = json.loads((data / "v2_OpenEnded_mscoco_val2014_questions.json").read_text())["questions"][0]
    number, text = first["question_id"], first["question"]
    image = {"question_id": number, "image_id": number // 1000, "question": text}
    (bare / "v2_OpenEnded_mscoco_test2015_questions.json").write_text(json.dumps({"questions": [image]}))
    out, page = tmp_path / "test.json", tmp_path / "test.html"
    words = ("predict", tmp_path / "run", "--store", store, "--data", bare, "--split", "test", "--out", out)
    ok(roibeam(*words, "--page", page))
    assert text in page.read_text("utf-8") and "nothing is evaluated" in page.read_text("utf-8")
    assert [entry["question_id"] for entry in json.loads(out.read_text())] == [number]
    assert roibeam("score", "vqa", out, "--data", bare, "--split", "test", "--check").code == 0


# --- a table of one's own ---


TRAIN = (("Which?", ["Red", "Red", "blue", "Red"]), ("Why?", ["left"]), ("Who?", ["the left", "right", "Red"]))
VALIDATION = (("What?", "Red"), ("Where?", "left|right"), ("How?", "blue|blue|Blue|Red|Red|Red|Red"))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    rows = [{"image": f"{n}.jpg", "text": text, "answers": told} for n, (text, told) in enumerate(TRAIN)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (tmp_path / "val.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "image", "text", "answers"])
        table.writerows((f"row {n}", "9.jpg", *each) for n, each in enumerate(VALIDATION))
    (tmp_path / "test.csv").write_text("image,text\n7.jpg,What?\n")
    return tmp_path


def opened_table(tables: Path, labels: Any = None, **fields: Any) -> DownstreamTask:
    options = VqaOptions(**{"min_occurrence": 1, **fields})
    return TASKS["vqa"].open(tables, options, labels)


def test_answers_are_those_of_the_training_table_as_they_stand_there(tables: Path) -> None:
    """Of more than three people each is left out in turn; of fewer their share counts, so that one person is right."""
    task = opened_table(tables)
    assert task.labels == ("Red", "left", "the left") and task.reported_by == "labels"
    assert [group.target for group in task.read("train").groups] == [
        {0: pytest.approx((3 * 2 / 3 + 1) / 4)},
        {1: 1.0},
        {0: pytest.approx(1 / 3), 2: pytest.approx(1 / 3)},
    ]
    validation = task.read("val")
    assert [group.target for group in validation.groups] == [{0: 1.0}, {1: 0.5}, {0: 1.0}] and validation.notes == ()
    assert opened_table(tables, targets="normalised").labels == ("red", "left")
    assert [group.target for group in task.read("test").groups] == [None]
    assert opened_table(tables, ("right", "Red")).labels == ("right", "Red")


def test_columns_may_have_the_names_of_vqas_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("image,question,answer\na,Is it red?,yes\nb,What?,a dog|dog\n")
    found = [(row.image, row.text, row.answers) for row in read_answer_table(tmp_path / "train.csv")]
    assert found == [("a", "Is it red?", ("yes",)), ("b", "What?", ("a dog", "dog"))]
    row = {"image": "a", "question": "Is it red?", "answers": [{"answer": "yes", "answer_id": 1}, {"answer": "no"}]}
    (tmp_path / "val.jsonl").write_text(json.dumps({**row, "answer": "yes"}) + "\n")
    assert [row.answers for row in read_answer_table(tmp_path / "val.jsonl")] == [("yes", "no")]


def test_answers_of_parquet_are_those_of_jsonl(tables: Path, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "own.parquet"
    rows = [{"image": f"{n}.jpg", "text": text, "answers": told} for n, (text, told) in enumerate(TRAIN)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    found = [(row.text, list(row.answers)) for row in read_answer_table(path)]
    assert found == [(row.text, list(row.answers)) for row in read_answer_table(tables / "train.jsonl")] == list(TRAIN)


def test_left_and_right_change_places_beside_a_mirrored_photo(tables: Path) -> None:
    (tables / "labels.txt").write_text("left\nright\n")
    task = opened_table(tables, answers=str(tables / "labels.txt"))
    assert task.mirrored is not None
    turned = task.mirrored(task.read("train").groups[1])
    assert turned.target == {1: 1.0} and turned.mirrored


def test_what_is_written_is_scored_as_it_was_judged(tables: Path, tmp_path: Path) -> None:
    """No official number of rows is known; a row too few is one line."""
    task = opened_table(tables)
    groups = task.read("val").groups
    said = [Prediction(np.eye(3, dtype=np.float32)[place]) for place in (0, 1, 0)]
    (judged,) = task.judge(groups, said).values()
    assert list(judged.values) == [1.0, 0.5, 1.0]
    out = tmp_path / "said.json"
    task.write(out, list(task.answers(groups, said)))
    first = {"question_id": "row 0", "image": "9.jpg", "question": "What?", "answer": "Red"}  # read without the table
    assert json.loads(out.read_text())[0] == first
    score = run_score(ScoreRequest("vqa", out, tables))
    assert score.figures[0].value == judged.mean and score.card["official_rows"] is None
    write_csv_entries(tmp_path / "said.csv", list(task.answers(groups, said)))  # as `predict --out said.csv`
    assert (tmp_path / "said.csv").read_text().splitlines()[:2] == [",".join(first), ",".join(first.values())]
    assert run_score(ScoreRequest("vqa", tmp_path / "said.csv", tables)).figures == score.figures
    with pytest.raises(
        ValueError, match=r"said\.csv', row 0: expected the columns id and label, got question_id, image"
    ):
        list(read_csv_results(str(tmp_path / "said.csv"), "id", "label"))
    out.write_text(json.dumps(json.loads(out.read_text())[1:]))
    with pytest.raises(ValueError, match=r"1 question without a row \(first: row 0\)"):
        run_score(ScoreRequest("vqa", out, tables))
    with pytest.raises(ValueError, match="no split 'minival'; choose one of val, train, test"):
        run_score(ScoreRequest("vqa", out, tables, split="minival"))


def test_the_split_of_the_predictions_is_scored_unless_another_is_named(tables: Path, tmp_path: Path) -> None:
    """Those of the training rows are compared with the training rows; with a card of other bytes with the default."""
    task = opened_table(tables)
    groups = task.read("train").groups
    out = tmp_path / "predicted.json"
    task.write(out, list(task.answers(groups, [Prediction(np.eye(3, dtype=np.float32)[0])] * len(groups))))
    write_card(out, {"task": "vqa", "split": "train"})
    assert run_score(ScoreRequest("vqa", out, tables)).card["split"] == "train"
    with pytest.raises(ValueError, match="has predictions of the split train, not of val; give --split train"):
        run_score(ScoreRequest("vqa", out, tables, split="val"))
    out.write_text(out.read_text() + "\n")
    with pytest.raises(ValueError, match="3 questions without a row"):
        run_score(ScoreRequest("vqa", out, tables))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"train": "train+val"}, r"train 'train\+val' is of VQA's official files, and --data has tables of your own"),
        ({"question": "imdb"}, "vqa.question 'imdb' is of VQA's official files"),
        ({"validation": "dev"}, "validation must be val, test or nothing, got 'dev'"),
        ({"min_occurrence": 3}, "0 majority answers of at least 3 questions; lower it: --set vqa.min_occurrence=1"),
    ],
)
def test_settings_that_no_table_has_are_refused(tables: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        opened_table(tables, **fields)


@pytest.mark.parametrize(
    "fields", [{"train": "train+val", "score_rule": "left_out"}, {"question": "imdb"}, {"visual_genome": "coco"}]
)
def test_a_model_of_the_official_files_is_asked_about_a_table(tables: Path, fields: dict[str, Any]) -> None:
    """Its training settings are kept with it, so prediction cannot leave them out."""
    task = opened_table(tables, ("Red", "blue"), **fields)
    (group,) = task.read("test").groups
    assert group.rows[0].parts[0].text == ("what" if "question" in fields else "What?")
    assert [each.target for each in task.read("val").groups] == [{0: 1.0}, {}, {0: 1.0, 1: pytest.approx(4 / 7)}]


def test_labels_that_no_question_has_stop_a_run_and_no_prediction(tables: Path) -> None:
    (tables / "labels.txt").write_text('[\n "Red",\n "left"\n]\n')
    with pytest.raises(ValueError, match=r"train: 0 of 3 questions have an answer among the 4 labels \('\[', ' \"Red"):
        opened_table(tables, answers=str(tables / "labels.txt")).read("train")
    assert opened_table(tables, ("cat", "dog")).read("train").groups[0].target == {}
    (tables / "labels.txt").rename(tables / "labels.json")
    assert opened_table(tables, answers=str(tables / "labels.json")).labels == ("Red", "left")


def test_a_training_row_without_answers_is_named(tables: Path) -> None:
    with (tables / "train.jsonl").open("a") as file:
        file.write(json.dumps({"image": "1.jpg", "text": "Who?"}) + "\n")
    with pytest.raises(ValueError, match=r"train.jsonl', row 3: no answers, and this is trained on"):
        opened_table(tables)
    with (tables / "train.jsonl").open("a") as file:
        file.write(json.dumps({"image": "1.jpg", "text": "Who?", "answers": [1]}) + "\n")
    with pytest.raises(ValueError, match=r"row 4: answers must be texts, got \[1\]"):
        list(read_answer_table(tables / "train.jsonl"))
