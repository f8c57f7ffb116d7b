"""What counting neighbouring words finds on the words that a run's evaluation hides: the level beside chance."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, make_store
from hidden_words import ALL_ROWS, ASKED, run
from ranks import run_ranks, said
from small_pretraining import make_task
from text_training import LINES, run_on_text

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
from roibeam.pipelines.analysis.evaluation.measures import ALL, NONE, HiddenWords, count_words, words_alone
from roibeam.pipelines.common.statistics.neighbour_counts import UNKNOWN, count_neighbours
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.pretraining.task import DataConfig, evaluate
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary, read_summary
from roibeam.pipelines.training.run_folder.training_data import WORD_COUNTS, read_word_counts, write_word_counts

pytestmark = pytest.mark.usefixtures("one_thread")

NAME = "masked_word_accuracy"


def summary(folder: Path) -> TrainingSummary:
    found = read_summary(folder)
    assert found is not None
    return found


def test_the_hidden_words_are_those_that_the_model_is_asked_for() -> None:
    """With the words beside them that it is shown: none that is hidden too, or kept or replaced to mislead."""
    task = make_task("visualbert", batch_size=4)
    evaluate(task)
    expected = []
    for batch in task.evaluation_batches(256):
        for row in range(batch.batch_size):
            ids, labels = batch.text_ids[row].tolist(), batch.text_labels[row].tolist()  # type: ignore[index]
            for place in (place for place, label in enumerate(labels) if label != IGNORE_INDEX):
                beside = [
                    ids[side] if side < len(ids) and labels[side] == IGNORE_INDEX and batch.text_mask[row, side] else -1
                    for side in (place - 1, place + 1)
                ]
                expected.append((batch.sample_ids[row], (beside[0], labels[place], beside[1])))
    assert task.hidden_words is not None
    assert [(sample, triple) for _, sample, triple in task.hidden_words] == expected and len(expected) > 10
    assert any(UNKNOWN in triple for _, triple in expected)


def test_a_level_counted_by_hand() -> None:
    tokenizer = load_tokenizer("captions", ["a red car runs", "a red ball runs"] * 2)
    counts = count_words([["a red car runs", "a red ball runs"], ["a red ball\nred ball runs"]], tokenizer, seed=0)
    batch = next(make_task("vlbert", batch_size=1).batches(0, rank=0, num_ranks=1))
    ids = torch.from_numpy(tokenizer.encode("a red car runs").ids)[None]
    labels = torch.tensor([[IGNORE_INDEX, int(ids[0, 1]), IGNORE_INDEX, int(ids[0, 3]), IGNORE_INDEX, IGNORE_INDEX]])
    words = HiddenWords()
    words.see(replace(batch, text_ids=ids, text_labels=labels, text_segments=0 * ids, text_mask=ids >= 0))
    # "a" between the beginning and "red" is right; between "red" and "runs" stands "ball" twice and "car" once.
    assert words_alone(words, counts, tokenizer, counted_ids=NONE) == {NAME: 0.5}
    one = count_words([["a red car runs"]], tokenizer, seed=0)
    assert words_alone(words, one, tokenizer, counted_ids=NONE) == {NAME: 1.0}
    assert words_alone(words, one, tokenizer, counted_ids=ALL) == {NAME: 0.0}  # the text itself is no evidence


def test_texts_are_drawn_by_seed_when_there_are_too_many() -> None:
    tokenizer = load_tokenizer("captions", CAPTIONS * 2)

    def drawn(seed: int) -> list[list[int]]:
        return count_words([CAPTIONS[:3], CAPTIONS[3:]], tokenizer, seed=seed, most_texts=3).triples.tolist()

    assert drawn(1) == drawn(1) and len({str(drawn(seed)) for seed in range(4)}) > 1
    every = count_words([CAPTIONS], tokenizer, seed=0)
    assert len(drawn(1)) < len(every.triples) and all(triple in every.triples.tolist() for triple in drawn(1))


@pytest.mark.parametrize(("system", "of_batch"), [("vlbert", 2), ("imagebert", 4)])
def test_a_run_tells_it_beside_chance_of_the_words_it_was_scored_on(system: str, of_batch: int, tmp_path: Path) -> None:
    """ImageBERT's words in pairs that do not match count nowhere. How many captions a batch has changes nothing."""
    run(tmp_path / "run", system=system, asked=ASKED if system == "vlbert" else None)
    told = summary(tmp_path / "run")
    right = told.evaluation[NAME]
    assert right is not None and right * told.items[NAME] == pytest.approx(round(right * told.items[NAME]), abs=1e-3)
    assert 0 <= told.words_alone[NAME] < 1 and set(told.words_alone) == {NAME}
    assert told.words_alone[NAME] * told.items[NAME] == pytest.approx(round(told.words_alone[NAME] * told.items[NAME]))
    assert "words alone" in (tmp_path / "run" / "report.html").read_text()
    if of_batch != 4:
        run(tmp_path / "again", system=system, data=DataConfig(batch_size=of_batch))
        assert summary(tmp_path / "again").words_alone == told.words_alone


def test_a_run_that_goes_on_keeps_what_it_counted_and_damage_is_counted_anew(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=1)
    told = summary(tmp_path / "run").words_alone
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "run", other)
    run(tmp_path / "run", resume=True)
    assert summary(tmp_path / "run").words_alone == told
    write_word_counts(other, count_neighbours([np.array([0, 1, 0])]))
    run(other, resume=True)
    assert summary(other).words_alone != told
    (other / WORD_COUNTS).write_bytes(b"PK not a file of counts")
    with pytest.raises(ValueError, match=r"word_counts.npz: is damaged"):
        read_word_counts(other)
    run(other, resume=True)
    assert summary(other).words_alone == told


def test_words_of_a_text_corpus_alone_have_a_level_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "books.txt").write_text("\n".join(LINES) + "\n")
    run_on_text(tmp_path / "books.txt", tmp_path / "run", steps=2)
    told = summary(tmp_path / "run").words_alone
    assert set(told) == {"text_only_word_accuracy"} and told["text_only_word_accuracy"] > 0.2


def test_an_evaluation_tells_it_by_what_the_run_counted_and_a_copied_model_has_none(tmp_path: Path) -> None:
    run(tmp_path / "run")
    model = next((tmp_path / "run" / "checkpoints").glob("step-*")) / "model"
    tokenizer = load_tokenizer(str(tmp_path / "run" / "tokenizer"))

    def figure(model: Path, rows: list[tuple[str, str]], out: str) -> float | None:
        captions, config = [Caption(text, name) for name, text in rows], EvaluationConfig(retrieval=False, device="cpu")
        store: Any = make_store()
        loaded = load_model(str(model))
        result = evaluate_checkpoint(loaded, tokenizer, store, captions, tmp_path / out, config=config)
        page = result.page.read_text()
        found = {each.name: each.words_alone for each in result.figures}
        assert [name for name, value in found.items() if value is not None] in ([NAME], [])
        assert ("words alone" in page.lower()) == (found[NAME] is not None)
        return found[NAME]

    held_out, trained = figure(model, ASKED, "held-out"), figure(model, ALL_ROWS[2:4], "trained")
    assert held_out is not None and held_out > 0.5
    assert trained is not None and trained < 0.5  # a caption is not told by itself
    shutil.copytree(model, tmp_path / "copied")
    assert figure(tmp_path / "copied", ASKED, "copied-out") is None


@pytest.mark.slow
def test_two_processes_tell_the_level_of_one(tmp_path: Path) -> None:
    for ranks, data in ((1, DataConfig(batch_size=4)), (2, DataConfig(batch_size=2))):
        work = partial(run, tmp_path / f"of-{ranks}", data=data)
        assert run_ranks(work, ranks, tmp_path / f"said-{ranks}") == [0] * ranks, said(tmp_path / f"said-{ranks}")
    assert summary(tmp_path / "of-2").words_alone == summary(tmp_path / "of-1").words_alone
