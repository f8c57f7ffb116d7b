"""VisualBERT's alignment of words with the boxes that they name, as VCR's texts have it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned_records import WIDTH, FakeStore, make_record
from task_corpora import corpus_of, joined
from tiny_commands import Cli, ok, refused
from toy_training import log_of

from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.data.batches.sample import collate
from roibeam.pipelines.data.captions.captioned_store import digest_of_captions
from roibeam.pipelines.data.captions.task_texts import Mention, TaskCorpus, TaskCorpusText, TaskTable, TaskTexts
from roibeam.pipelines.pretraining.samples.sampling import VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

NAMING = {
    "img_fn": "a/b.jpg", "annot_id": "train-0", "objects": ["person", "cup", "person", "sports ball"],
    "answer_label": 0, "rationale_label": 1, "question": ["Xylophonists", "like", [2, 1], "?"],
    "answer_choices": [[[0], "'s", [3], "and", [2], "."]] + [["no"]] * 3, "rationale_choices": [["so"]] * 4,
}  # fmt: skip


def naming(tmp_path: Path, **settings: Any) -> tuple[TaskCorpus, VisualBertSampler]:
    """Of one question whose words name boxes, and a sampler whose first word has several pieces."""
    (tmp_path / "train.jsonl").write_text(json.dumps(NAMING) + "\n")
    corpus = corpus_of(TaskTexts([tmp_path / "train.jsonl"]))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "xylo", "##phonists", "like", "casey", "riley", "cup"]
    vocabulary += ["?", "'", "s", "sports", "ball", "and", ".", "no", "so"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    config = VisualBertConfig(vocab_size=len(vocabulary), region_feature_size=WIDTH)
    sampling = VisualBertSampling(text_form="task_text", **settings)
    return corpus, VisualBertSampler(sampling, load_tokenizer(str(tmp_path / "vocab.txt")), config, num_classes=0)


def named_by_region(corpus: TaskCorpus, sampler: VisualBertSampler, row: int) -> dict[int, list[int]]:
    words = sampler.sample(corpus, row, np.random.default_rng(0)).aligned_words
    assert words is not None and words.shape[0] == corpus.record(row).num_regions
    places = {region: [place for place in of_one if place >= 0] for region, of_one in enumerate(words.tolist())}
    return {region: of_one for region, of_one in places.items() if of_one}


def test_words_that_name_boxes_are_read_with_their_places(tmp_path: Path) -> None:
    corpus, _ = naming(tmp_path)
    assert corpus.text(0).first == "Xylophonists like Casey cup ?"
    assert corpus.text(0).following == ("Riley 's sports ball and Casey .",)
    assert corpus.text(0).mentions == ((0, 2, 2), (0, 3, 1), (1, 0, 0), (1, 2, 3), (1, 5, 2))
    assert corpus.text(5).mentions[2:] == ((0, 5, 0), (0, 7, 3), (0, 10, 2))
    assert corpus.text(1).mentions == ((0, 2, 2), (0, 3, 1))


def test_what_is_left_of_the_rows_keeps_its_places(tmp_path: Path) -> None:
    rows_of_file = [json.dumps(NAMING | {"img_fn": f"a/{name}.jpg"}) + "\n" for name in "bcd"]
    (tmp_path / "train.jsonl").write_text("".join(rows_of_file))
    corpus = corpus_of(TaskTexts([tmp_path / "train.jsonl"]))
    store, rows = joined(TaskTexts([tmp_path / "train.jsonl"]))
    for fewer in (rows.without(["a/b"]), rows.share_of_images(0.7, 0)):
        assert len(fewer) == 16 and fewer.names_regions
        assert [fewer.text(row).mentions for row in range(16)] == [corpus.text(row).mentions for row in range(16)]
        assert fewer.most_named().tolist() == [3, 2, 2, 2, 3, 3, 3, 3] * 2
    assert not TaskTable(list(store), [((0,), TaskCorpusText("x", ("a/b",), None))]).names_regions


def test_mentions_are_in_the_digest_of_texts_that_have_some(tmp_path: Path) -> None:
    named = ((), (Mention(0, 1, 0),), (Mention(0, 1, 1),))
    tables = [TaskTable(["a"], [((0,), TaskCorpusText("x y", ("a",), True, mentions))]) for mentions in named]
    assert len({digest_of_captions([table]) for table in tables}) == 3
    # Without any it is what runs have recorded that began before there were some.
    assert tables[0].facts() == b"" + b"\x01" + bytes([False])


def test_an_object_without_a_name_is_named_nowhere(tmp_path: Path) -> None:
    row = NAMING | {"objects": ["person", " ", "person", "ball"], "question": ["Who", [2], "is", [1]]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    corpus = corpus_of(TaskTexts([tmp_path / "train.jsonl"]))
    assert corpus.text(1)[:2] == ("Who Casey is", ("no",)) and corpus.text(1).mentions == ((0, 1, 2),)


@pytest.mark.parametrize("settings", [{"text_form": "two_captions"}, {"text_form": "task_text", "with_regions": False}])
def test_alignment_where_nothing_can_be_aligned(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="aligned_words=release is of a task's texts with regions, got text_form="):
        VisualBertSampling(aligned_words="release", **settings)


def test_boxes_are_aligned_with_the_first_piece_of_each_word_that_names_them(tmp_path: Path) -> None:
    corpus, sampler = naming(tmp_path, aligned_words="first_piece")
    # [CLS] xylo ##phonists like casey cup ? [SEP] riley ' s sports ball and casey . [SEP]
    assert named_by_region(corpus, sampler, 0) == {0: [8], 1: [5], 2: [4, 14], 3: [11]}
    # The release counts words where it should count pieces: those behind a word of several are off.
    corpus, sampler = naming(tmp_path, aligned_words="release")
    assert named_by_region(corpus, sampler, 0) == {0: [8], 1: [4], 2: [3, 13], 3: [10]}
    corpus, sampler = naming(tmp_path)
    assert sampler.sample(corpus, 0, np.random.default_rng(0)).aligned_words is None


def test_alignment_follows_texts_that_are_cut_and_regions_that_are_chosen(tmp_path: Path) -> None:
    corpus, sampler = naming(tmp_path, aligned_words="first_piece", max_pieces=12)
    # [CLS] xylo ##phonists like casey cup [SEP] riley ' s sports [SEP]
    assert named_by_region(corpus, sampler, 0) == {0: [7], 1: [5], 2: [4], 3: [10]}
    # [CLS] xylo ##phonists like casey cup ? [SEP] ball and casey . [SEP]: the first piece of "sports ball" is gone.
    corpus, sampler = naming(tmp_path, aligned_words="first_piece", cut="release_front", max_pieces=13)
    assert named_by_region(corpus, sampler, 0) == {1: [5], 2: [4, 10]}
    record = corpus.record(0)
    corpus, sampler = naming(tmp_path, aligned_words="first_piece", max_regions=record.num_regions - 2)
    best = np.sort(np.argsort(-record.class_scores, kind="stable")[:-2]).tolist()
    words = sampler.sample(corpus, 0, np.random.default_rng(0)).aligned_words
    assert words is not None and best != list(range(len(best)))
    whole = {0: [8], 1: [5], 2: [4, 14], 3: [11]}
    assert [[place for place in one if place >= 0] for one in words.tolist()] == [whole.get(each, []) for each in best]


def test_words_that_are_cut_are_counted(tmp_path: Path) -> None:
    """Over all that may follow a question, so that no draw is needed."""
    corpus, sampler = naming(tmp_path, aligned_words="first_piece")
    assert sampler.notes_of_cuts(corpus) == [] and naming(tmp_path, max_pieces=9)[1].notes_of_cuts(corpus) == []
    whole = [named_by_region(corpus, sampler, row) for row in range(len(corpus))]
    for settings in ({"max_pieces": 12}, {"cut": "release_front", "max_pieces": 13}, {"aligned_words": "release"}):
        corpus, sampler = naming(tmp_path, **{"aligned_words": "first_piece", "max_pieces": 9, **settings})
        left = [named_by_region(corpus, sampler, row) for row in range(len(corpus))]
        all_words, found = (sum(len(each) for row in of for each in row.values()) for of in (whole, left))
        (note,) = sampler.notes_of_cuts(corpus)
        assert found < all_words
        assert note.startswith(f"{all_words - found} words of {all_words} that name a box cut from")


def test_alignment_is_padded_in_a_batch(tmp_path: Path) -> None:
    corpus, sampler = naming(tmp_path, aligned_words="first_piece")
    samples = [sampler.sample(corpus, row, np.random.default_rng(row)) for row in (0, 1, 5)]
    batch = collate(samples, pad_id=0)
    assert batch.aligned_words is not None and batch.aligned_words.shape == (3, len(samples[0].boxes), 2)
    assert batch.aligned_words[0, 2].tolist() == [4, 14] and batch.aligned_words[1, 2].tolist() == [4, -1]
    assert batch.aligned_words[1, 0].tolist() == [-1, -1]
    corpus, without = naming(tmp_path)
    assert collate([without.sample(corpus, 0, np.random.default_rng(0))], pad_id=0).aligned_words is None


def test_a_region_that_a_word_names_and_the_record_has_not(tmp_path: Path) -> None:
    _, sampler = naming(tmp_path, aligned_words="first_piece")
    text = TaskCorpusText("Riley\nno", ("a/b",), True, (Mention(0, 0, 3),))
    store = FakeStore({"a/b": make_record("a/b", 0, num_regions=3)})
    few = TaskCorpus(store, TaskTable(["a/b"], [((0,), text)], as_pair=True))
    with pytest.raises(ValueError, match=r"'a/b': a word names region 3, the record has 3; extract with the task's"):
        sampler.sample(few, 0, np.random.default_rng(0))


@pytest.mark.slow
def test_a_run_on_vcr_and_its_own_boxes(roibeam: Cli, extract: Cli, made_data: Path, tmp_path: Path) -> None:
    folder = made_data / "formats" / "vcr"
    photos = folder / "vcr1images"
    for store, boxes in (("given", ("--boxes", photos)), ("detected", ())):
        ok(extract(photos, tmp_path / store, *boxes))
    tiny = ("hidden_size=24", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=48")
    options: tuple[Any, ...] = ("--system", "visualbert", "--task-text", folder / "train.jsonl", "--steps", 2)
    options += ("--batch-size", 8, "--set", "sampling.text_form=task_text")
    options += tuple(part for each in tiny for part in ("--set", f"model.{each}"))
    aligned = ("--set", "sampling.aligned_words=first_piece")
    given = ("--store", tmp_path / "given")
    ok(roibeam("pretrain", tmp_path / "run", *given, *options, *aligned, "--inspect-batch", 8))
    assert len(re.findall(r"<sub>\d+</sub>", (tmp_path / "run" / "batch.html").read_text())) > 8
    ok(roibeam("pretrain", tmp_path / "without", *given, *options))
    assert log_of(tmp_path / "run")[0]["loss"] != log_of(tmp_path / "without")[0]["loss"]

    def refusal(store: str, options: tuple[Any, ...] = options) -> str:
        return refused(roibeam("pretrain", tmp_path / "no", "--store", tmp_path / store, *options, *aligned))

    assert "does not record that its regions are given boxes; extract with" in refusal("detected")
    # Boxes of another file, of which one photo has too few.
    rows = [
        {"image_id": str(path.relative_to(photos).with_suffix("")), "boxes": [[0, 0, 9, 9]] * count}
        for path, count in zip(sorted(photos.rglob("*.jpg")), [1, *[40] * 99], strict=False)
    ]
    (tmp_path / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ok(extract(photos, tmp_path / "few", "--boxes", tmp_path / "boxes.jsonl"))
    assert re.search(r"a word names box \d, counted from 0, of 'pack/\d+', which has 1", refusal("few"))
    # A copy that left regions out numbers the others anew.
    ok(roibeam("store", "copy", tmp_path / "given", tmp_path / "copy", "--max-regions", 30))
    assert "name boxes by number, and this copy left some of them out" in refusal("copy")
    nlvr2 = made_data / "formats" / "nlvr2"
    ok(extract(nlvr2 / "images", tmp_path / "nlvr2"))
    other = ("--system", "visualbert", "--task-text", nlvr2 / "train.json", "--set", "sampling.text_form=task_text")
    assert "no word of these texts names a box, as VCR's do" in refusal("nlvr2", other)
