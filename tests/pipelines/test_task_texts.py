"""A task's own text as pre-training reads it: the official files, which text stands where, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned_records import WIDTH
from dataset_examples import error_of
from task_corpora import corpus_of, joined, store_of
from tiny_commands import Cli, ok
from toy_training import log_of

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.data.batches.sample import collate
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.caption_join import CaptionJoin
from roibeam.pipelines.data.captions.captioned_store import digest_of_captions
from roibeam.pipelines.data.captions.task_texts import NLVR2, VCR, VQA, TaskCorpus, TaskCorpusText, TaskTable, TaskTexts
from roibeam.pipelines.data.datasets.vcr import read_vcr_questions
from roibeam.pipelines.pretraining.samples.sampling import VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler, review_captions
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import RowLengths, count_regions
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

QUESTIONS = "v2_OpenEnded_mscoco_train2014_questions.json"
ANNOTATIONS = "v2_mscoco_train2014_annotations.json"


def files(made_data: Path, task: str) -> list[Path]:
    folder = made_data / "formats"
    return {
        VQA: [folder / "vqa_v2" / QUESTIONS, folder / "vqa_v2" / ANNOTATIONS],
        VCR: [folder / "vcr" / "train.jsonl"],
        NLVR2: [folder / "nlvr2" / "train.json"],
    }[task]


def test_vqa_of_the_pack(made_data: Path) -> None:
    texts = TaskTexts(files(made_data, VQA)[::-1])  # in any order
    assert texts.task == VQA and not texts.as_pair
    found = list(texts.texts())
    assert len(found) == 13
    assert found[0].text.split("\n") == ["Are they building a tower ?", *["yes"] * 10]
    assert found[0].names == ("COCO_train2014_000000000790",) and found[0].fits is None
    assert found[0].most_words == 7


def test_vcr_of_the_pack(made_data: Path) -> None:
    texts = TaskTexts(files(made_data, VCR))
    found = list(texts.texts())
    assert texts.as_pair and len(found) == 7 * 8
    assert [text.fits for text in found[:8]] == [True, False, False, False] * 2
    question, answer = "Why are Casey Riley Jessie sitting with Jackie ?", "They are about to eat a cake ."
    assert found[0].text.split("\n") == [question, answer]
    # A rationale follows question and right answer; people keep their names, new ones go on in the list.
    rationale = "cake is on diningtable between them and they look at it ."
    assert found[4].text.split("\n") == [f"{question} {answer}", rationale]
    assert found[3].text.split("\n")[1] == "Casey is teaching Jessie to drive ."
    assert all(text.names == ("pack/000000000790",) for text in found[:8])


def test_a_person_that_only_the_choice_names_gets_a_name_of_its_own(tmp_path: Path) -> None:
    """The release counts people anew in the choice, so two would be called Casey."""
    row = {
        "img_fn": "a/b.jpg", "annot_id": "train-0", "objects": ["person", "person", "cup"], "answer_label": 0,
        "rationale_label": 1, "question": ["Who", "is", [1], "?"],
        "answer_choices": [[[0], "knows", [1, 2], "."]] + [["no"]] * 3, "rationale_choices": [["so"]] * 4,
    }  # fmt: skip
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    (question,) = read_vcr_questions(str(tmp_path / "train.jsonl"))
    assert question.choices[0][0].words == "Who is Casey ?"
    assert question.choices[0][1] == ("Riley knows Casey cup .", ((0, 0), (2, 1), (3, 2)))
    context = ("Who is Casey ? Riley knows Casey cup .", ((2, 1), (4, 0), (6, 1), (7, 2)))
    assert question.choices[5] == (context, ("so", ()), True)


def test_nlvr2_of_the_pack(made_data: Path) -> None:
    found = list(TaskTexts(files(made_data, NLVR2)).texts())
    assert [text.fits for text in found] == [True, True, False, True, False]
    said = "The left image shows a red bus and the right image shows a red truck."
    assert found[1] == TaskCorpusText(said, ("train-1-0-img0", "train-1-0-img1"), True)


def test_a_statement_needs_both_of_its_images(made_data: Path) -> None:
    texts = TaskTexts(files(made_data, NLVR2))
    store = store_of(texts)
    del store["train-2-0-img1"]
    join = CaptionJoin(store.ids())

    named = ((text, [Caption(text.text, name) for name in text.names]) for text in texts.texts())
    rows = TaskTable(list(store), join.joined(named))
    assert len(rows) == 4 and all("giraffe" not in caption for _, caption in rows)
    report = join.report()
    assert (report.captions, report.joined, report.without_image) == (5, 4, 1)
    assert report.examples["without_image"] == ("train-2-0-img1",)
    # What is held out goes with either image, and the leak guard sees both.
    assert len(rows.captioned_ids()) == 8
    fewer = rows.without(["train-1-0-img1"])
    pairs = [[f"train-{pair}-0-img{side}" for side in (0, 1)] for pair in (0, 3, 4)]
    assert [fewer.ids_of(row) for row in range(len(fewer))] == pairs
    assert [fewer.text(row).fits for row in range(3)] == [True, True, False]
    half = rows.share_of_images(0.5, 0)
    assert isinstance(half, TaskTable) and len(half) == 2


def test_what_else_the_texts_say_is_in_the_digest(made_data: Path) -> None:
    table = TaskTable(["a", "b", "c"], [((0, 1), TaskCorpusText("x", ("a", "b"), True))])
    for places, fits in (((0, 2), True), ((0, 1), False), ((0,), True)):
        other = TaskTable(["a", "b", "c"], [(places, TaskCorpusText("x", ("a", "b"), fits))])
        assert digest_of_captions([other]) != digest_of_captions([table])


# --- samples ---


def sampler_for(corpus: TaskCorpus, *, head: bool = True, **settings: Any) -> tuple[VisualBertSampler, Any]:
    tokenizer = load_tokenizer("captions", [corpus.caption(row) for row in range(len(corpus))] * 2)
    config = VisualBertConfig(
        vocab_size=tokenizer.vocab_size, region_feature_size=WIDTH + 6 * ("box_numbers" in settings),
        with_match_head=head,
    )  # fmt: skip
    rules = VisualBertSampling(text_form="task_text", **settings)
    return VisualBertSampler(rules, tokenizer, config, num_classes=0), tokenizer


def words(sample: Any, tokenizer: Any) -> list[str]:
    """The text of each segment, before masking."""
    ids = np.where(sample.text_labels == IGNORE_INDEX, sample.text_ids, sample.text_labels)
    segments = np.where(np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id]), -1, sample.text_segments)
    return [tokenizer.decode(ids[segments == segment]) for segment in range(segments.max() + 1)]


def plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def test_vqa_samples_are_a_question_and_one_of_its_answers_in_one_text(made_data: Path) -> None:
    corpus = corpus_of(TaskTexts(files(made_data, VQA)))
    sampler, tokenizer = sampler_for(corpus, head=False)
    row = max(range(len(corpus)), key=lambda row: len(set(corpus.text(row).following)))
    first, following, *_ = corpus.text(row)
    assert len(set(following)) > 1
    seen, predicted = set(), 0
    for seed in range(200):
        sample = sampler.sample(corpus, row, np.random.default_rng(seed))
        assert sample.match is None and sample.region_images is None and not sample.text_segments.any()
        (text,) = words(sample, tokenizer)
        assert plain(text).startswith(plain(first))
        seen.add(plain(text)[len(plain(first)) :])
        answer = len(tokenizer.encode(first).ids) - 1
        predicted += int((sample.text_labels[answer:-1] != IGNORE_INDEX).any())
    assert seen == {plain(answer) for answer in following}
    assert 10 < predicted < 100  # answers are masked as often as any other word


def test_vcr_samples_are_two_texts_and_ask_whether_the_choice_is_right(made_data: Path) -> None:
    corpus = corpus_of(TaskTexts(files(made_data, VCR)))
    sampler, tokenizer = sampler_for(corpus)
    for row in range(8):
        sample = sampler.sample(corpus, row, np.random.default_rng(row))
        first, (choice,), fits, *_ = corpus.text(row)
        assert [plain(part) for part in words(sample, tokenizer)] == [plain(first), plain(choice)]
        assert sample.match == int(fits is True) == int(row in (0, 4))
    alone, _ = sampler_for(corpus, head=False)
    assert alone.sample(corpus, 0, np.random.default_rng(0)).match is None


def test_nlvr2_samples_have_the_regions_of_both_images(made_data: Path) -> None:
    corpus = corpus_of(TaskTexts(files(made_data, NLVR2)))
    sampler, tokenizer = sampler_for(corpus, max_regions=4)
    samples = [sampler.sample(corpus, row, np.random.default_rng(row)) for row in range(len(corpus))]
    assert [sample.match for sample in samples] == [1, 1, 0, 1, 0]
    left, right = corpus.records(2)
    assert (left.image_id, right.image_id) == ("train-2-0-img0", "train-2-0-img1")
    batch = collate(samples, pad_id=tokenizer.pad_id)
    assert batch.region_images is not None and batch.region_images[2].tolist() == [0] * 4 + [1] * 4
    for record, place in ((left, slice(0, 4)), (right, slice(4, 8))):
        best = np.sort(np.argsort(-record.class_scores)[:4])
        np.testing.assert_array_equal(batch.region_features[2, place], record.features[best])
    assert len(words(samples[0], tokenizer)) == 1


def test_box_numbers_are_of_each_image_by_itself(made_data: Path) -> None:
    corpus = corpus_of(TaskTexts(files(made_data, NLVR2)))
    sampler, _ = sampler_for(corpus, box_numbers=True)
    sample = sampler.sample(corpus, 0, np.random.default_rng(0))
    left, right = corpus.records(0)
    assert sample.features.shape == (left.num_regions + right.num_regions, WIDTH + 6)
    assert float(sample.features[-1, -6]) == pytest.approx(right.boxes[-1, 0] / right.width)


def test_texts_of_a_task_and_captions_are_not_taken_for_one_another(made_data: Path) -> None:
    corpus = corpus_of(TaskTexts(files(made_data, NLVR2)))
    assert review_captions(corpus, VisualBertSampling(text_form="task_text")) == []
    with pytest.raises(ValueError, match=r"--task-text\) with sampling.text_form=two_captions"):
        review_captions(corpus, VisualBertSampling())
    assert [name for name, system in SYSTEMS.items() if system.reads_task_text] == ["visualbert"]


@pytest.mark.parametrize("task", [VQA, VCR, NLVR2])
def test_lengths_that_are_planned_with_are_those_of_the_samples(made_data: Path, task: str) -> None:
    store, rows = joined(TaskTexts(files(made_data, task)))
    corpus = TaskCorpus(store, rows)
    sampler, tokenizer = sampler_for(corpus, max_pieces=20)
    lengths = RowLengths(corpus, count_regions([(store, rows)]), tokenizer)  # type: ignore[list-item]
    seen = set()
    for number in range(8 * len(corpus)):
        row = number % len(corpus)
        sample = sampler.sample(corpus, row, np.random.default_rng(number))
        (size,) = sampler.sizes(corpus, row, lengths, np.random.default_rng(number))
        assert size == (len(sample.text_ids), len(sample.boxes))
        seen.add(size)
    assert len(seen) > 2
    few, _ = sampler_for(corpus, max_regions=4)
    (size,) = few.sizes(corpus, 0, lengths, np.random.default_rng(0))
    assert size.regions == len(few.sample(corpus, 0, np.random.default_rng(0)).boxes) == (8 if task == NLVR2 else 4)


# --- what is refused ---


def changed(path: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """The first line of a file of json lines, changed."""
    row = json.loads(path.read_text().splitlines()[0])
    change(row)
    target.write_text(json.dumps(row) + "\n")
    return target


@pytest.mark.parametrize(
    ("task", "field", "value", "message"),
    [
        (VCR, "annot_id", "val-3", "line 1: of the split 'val', on which results are reported; give the training file"),
        (VCR, "answer_label", 4, "line 1: answer_label must be in 0..3, got 4"),
        (VCR, "question", ["Is", [99], "?"], "question: expected words and lists of object numbers below 9, got [99]"),
        (VCR, "rationale_choices", [["a"]], 'rationale_choices must be a list of 4, got [["a"]]'),
        (VCR, "img_fn", "../x.jpg", "img_fn '../x.jpg': path leaves the image folder"),
        (NLVR2, "identifier", "dev-0-0-0", "line 1: of the split 'dev'"),
        (NLVR2, "identifier", "test1-0-0-0", "of the split 'test1'"),
        (NLVR2, "identifier", "train-0", "<split>-<set>-<pair>-<sentence>, got"),
        (NLVR2, "label", True, 'label must be "True" or "False", got true'),
        (NLVR2, "sentence", 3, "sentence must be a text, got 3"),
        (NLVR2, "sentence", " ", "no text in it"),
    ],
)
def test_wrong_lines(made_data: Path, tmp_path: Path, task: str, field: str, value: object, message: str) -> None:
    (good,) = files(made_data, task)
    bad = changed(good, tmp_path / "train.json", lambda row: row.update({field: value}))
    assert message in error_of(lambda: list(TaskTexts([bad]).texts()))


def test_files_that_do_not_make_a_task(made_data: Path, tmp_path: Path) -> None:
    questions, annotations = files(made_data, VQA)
    folder = questions.parent
    nlvr2, vcr = files(made_data, NLVR2), files(made_data, VCR)
    others = made_data / "formats" / "karpathy" / "dataset_coco.json"
    wrong: list[tuple[list[Path], str]] = [
        ([questions], "holds VQA's questions alone; name its annotations file too"),
        ([annotations], "holds VQA's annotations alone; name its questions file too"),
        ([*nlvr2, *vcr], "the files of one task, not of several"),
        ([*nlvr2, *nlvr2], "one training file of NLVR2"),
        ([others], "expected the questions or annotations of VQA, train.jsonl of VCR or train.json of NLVR2"),
        ([tmp_path / "none.json"], "no such file"),
        ([folder / name.replace("train", "val") for name in (QUESTIONS, ANNOTATIONS)], "of the split 'val', on which"),
        ([vcr[0].with_name("test.jsonl")], "of the split 'test'"),
    ]
    for given, message in wrong:
        assert message in error_of(lambda given=given: list(TaskTexts(given).texts())), message
    content = json.loads(annotations.read_text())
    content["annotations"] = content["annotations"][1:]
    short = tmp_path / "annotations.json"
    short.write_text(json.dumps(content))
    assert "has no answers in" in error_of(lambda: list(TaskTexts([questions, short]).texts()))
    content["annotations"] = [{"id": 1, "image_id": 2, "caption": "a cat"}]
    short.write_text(json.dumps(content))
    wrong_rows = error_of(lambda: list(TaskTexts([questions, short]).texts()))
    assert "expected VQA's question_id, of type int, got null" in wrong_rows


def test_blank_texts_are_counted(made_data: Path, tmp_path: Path) -> None:
    (good,) = files(made_data, NLVR2)
    lines = good.read_text().splitlines()
    blank = json.loads(lines[0]) | {"sentence": " \n "}
    (tmp_path / "train.json").write_text("\n".join([json.dumps(blank), *lines[1:]]))
    texts = TaskTexts([tmp_path / "train.json"])
    assert len(list(texts.texts())) == 4 and texts.notes == ["1 text of NLVR2 left out: empty, or nothing follows"]


# --- as a user runs it ---


def test_statements_are_trained(roibeam: Cli, made_data: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    folder = made_data / "formats" / "nlvr2"
    assert roibeam("extract", folder / "images", tmp_path / "store", *tiny_network).code == 0
    options = ("--store", tmp_path / "store", "--system", "visualbert", "--steps", 2, "--batch-size", 4)
    tiny = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=64")
    tiny += ("hidden_dropout=0", "attention_dropout=0")
    options += tuple(part for each in tiny for part in ("--set", f"model.{each}"))
    texts = ("--task-text", folder / "train.json", "--set", "sampling.text_form=task_text")
    done = ok(roibeam("pretrain", tmp_path / "run", *options, *texts, "--inspect-batch", 2))
    assert "5 of 5 captions joined (5 by id); 10 of 10 captioned images found" in done.err
    assert "matching" in done.out
    ok(roibeam("pretrain", tmp_path / "budgeted", *options, *texts, "--set", "data.max_tokens=150"))
    losses = [[line["loss"] for line in log_of(tmp_path / run)] for run in ("run", "budgeted")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    page = (tmp_path / "run" / "batch.html").read_text()
    assert page.count('aria-label="regions of image') == 4
    # Either image of a pair may be the one that is held out.
    (tmp_path / "out.txt").write_text("train-1-0-img1\n")
    held = roibeam("pretrain", tmp_path / "held", *options, *texts, "--held-out", f"list={tmp_path / 'out.txt'}")
    assert held.code == 1 and "1 image of 10 must not be trained on" in held.err
    for wrong, message in (
        (("--task-text", folder / "train.json"), "text_form=two_captions; texts of a task"),
        ((*texts, "--captions", folder / "train.json"), "--captions and --task-text: a run reads one of them"),
        ((*texts, "--end-to-end", "--weights", "random:1", "--detector", "toy"), "read with stored features"),
    ):
        refused = roibeam("pretrain", tmp_path / "wrong", *options, *wrong)
        assert refused.code == 1 and message in refused.err, refused.err
        assert refused.err.count("\n") == 1 or "Traceback" not in refused.err
    store = ("--system", "vlbert", "--store", tmp_path / "store")
    other = roibeam("pretrain", tmp_path / "w", *store, "--task-text", folder / "train.json")
    assert "VL-BERT was not pre-trained on a task's own text" in other.err
