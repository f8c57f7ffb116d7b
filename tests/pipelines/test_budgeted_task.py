"""Under a token budget steps have the samples, and the gradients, that they have without: in less padded batches."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from budgeted_training import BUDGET, NUM_ROWS, BudgetedTraining, make_task, whole_steps
from captioned_records import (
    CAPTIONS,
    GLOBAL_WIDTH,
    NUM_CLASSES,
    WIDTH,
    FakeStore,
    captioned,
    make_corpus,
    make_record,
    pretrain_with,
    run_pretrain,
)
from ranks import run_ranks, said
from safetensors.torch import load_file
from small_pretraining import digest, in_floats_of
from torch import nn
from toy_training import log_of

from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndTask
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import BudgetedTask, RowLengths, count_regions
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

STEP = 12


@pytest.fixture(scope="module")
def tokenizer() -> CaptionTokenizer:
    return load_tokenizer("captions", CAPTIONS)  # once: rare words are cut into pieces


def make_rows() -> tuple[FakeStore, Corpus]:
    """Eight images of 0 to 90 regions, three captions each, of up to 90 words."""
    counts = (0, 3, 8, 20, 36, 37, 64, 90)
    store = FakeStore({f"i{n}": make_record(f"i{n}", n, num_regions=count) for n, count in enumerate(counts)})
    texts = [" ".join([CAPTIONS[n % 8]] * (1 + n % 5 * 2)) for n in range(24)]
    return store, make_corpus(store, [(n // 3, text) for n, text in enumerate(texts)])


WITH_PAIRS = {"with_relationship_head": True, "with_pooler": True}
RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vlbert": ("vlbert", {}, {}),
    "vlbert, pairs, uncut": ("vlbert", {"max_elements": 0}, WITH_PAIRS),
    "vilbert": ("vilbert", {}, {}),
    "vilbert, images": ("vilbert", {"negatives": "caption_or_image", "max_pieces": 20}, {}),
    "single stream": ("vilbert-single-stream", {"max_regions": 10}, {}),
    "interbert": ("interbert", {"masking": "single"}, {}),
    "interbert, two rows": ("interbert", {"conditional_masking": True, "max_pieces": 12}, {}),
    "imagebert": ("imagebert", {}, {}),
    "imagebert, all regions": ("imagebert", {"max_regions": 0}, {"global_feature_size": GLOBAL_WIDTH}),
    "visualbert": ("visualbert", {}, {}),
    "visualbert, cut": ("visualbert", {"max_pieces": 30, "max_regions": 36}, {}),
    "visualbert, released cut": ("visualbert", {"cut": "release_front", "max_pieces": 30}, {}),
    "visualbert, one caption": ("visualbert", {"text_form": "one_caption", "with_regions": False}, {}),
    "visualbert, words": ("visualbert", {"text_form": "words_only"}, {"with_match_head": False}),
}


@pytest.mark.parametrize("rules", RULES)
def test_lengths_that_are_planned_with_are_those_of_the_samples(rules: str, tokenizer: CaptionTokenizer) -> None:
    name, sampling, model = RULES[rules]
    system = SYSTEMS[name]
    fields = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "max_position_embeddings": 200}
    config = system.sizes["small"](**(fields | dict(system.region_label_fields(NUM_CLASSES)) | model))
    sampler = system.sampler(system.sampling(**sampling), tokenizer, config, num_classes=NUM_CLASSES)
    store, corpus = make_rows()
    lengths = RowLengths(corpus, np.repeat([each.num_regions for each in store.values()], 3), tokenizer)
    seen = set()
    for number in range(120):
        row = number % len(corpus)
        sample = sampler.sample(corpus, row, np.random.default_rng([7, number]))
        rows = [each for each in (sample, sample.twin) if each is not None]
        sizes = sampler.sizes(corpus, row, lengths, np.random.default_rng([7, number]))
        assert sizes == [(len(each.text_ids), len(each.boxes)) for each in rows]
        seen |= set(sizes)
    assert len(seen) > 4


def test_regions_are_counted_from_the_index(tokenizer: CaptionTokenizer) -> None:
    from roibeam.pipelines.data.captions.corpus import CaptionTable

    store, _ = make_rows()
    table = CaptionTable(list(store), [(7, "a"), (2, "b"), (7, "c"), (0, "d")])
    assert count_regions([(store, table), (store, table)]).tolist() == [90, 8, 90, 0] * 2  # type: ignore[list-item]


def read(task: Any, count: int, *, start: int = 0, ranks: int = 1) -> list[list[str]]:
    """The samples of each step, of all processes together, in no order."""
    streams = [task.steps(start, step_samples=STEP, rank=rank, num_ranks=ranks) for rank in range(ranks)]
    for step in islice(zip(*streams, strict=True), count):
        assert len({len(share) for share in step}) == 1  # as many micro-batches in each process
    shares = [task.seen[rank::ranks] for rank in range(ranks)]
    return [sorted(each for share in step for each in share) for step in zip(*shares, strict=True)]


def test_steps_have_their_samples_whatever_processes_and_workers() -> None:
    task = make_task(batch_size=STEP)
    wanted = [sorted(digest(batch.row(row)) for row in range(STEP)) for batch in islice(whole_steps(task, 0, STEP), 10)]
    assert read(task, 10) == wanted
    assert read(make_task(batch_size=6), 10, ranks=2) == read(make_task(batch_size=3), 10, ranks=4) == wanted
    assert read(make_task(batch_size=6, workers=2), 10, ranks=2) == wanted
    names = [name.split("-")[1] for batch in islice(whole_steps(task, 0, 1), NUM_ROWS) for name in batch.sample_ids]
    assert sorted(map(int, names)) == list(range(NUM_ROWS))  # VL-BERT replaces captions, so images come once


def test_a_step_may_begin_anywhere_for_any_number_of_processes() -> None:
    whole = read(make_task(batch_size=STEP), 8)
    assert read(make_task(batch_size=STEP), 4, start=4 * STEP) == whole[4:]
    assert read(make_task(batch_size=3), 4, start=4 * STEP, ranks=4) == whole[4:]


def test_workers_make_the_same_micro_batches() -> None:
    alone, helped = (make_task(batch_size=6, workers=workers) for workers in (0, 2))
    for task in (alone, helped):
        list(islice(task.steps(0, step_samples=STEP, rank=1, num_ranks=2), 12))
    assert alone.seen == helped.seen and alone.padded == helped.padded


def test_batches_keep_the_budget_and_have_less_padding() -> None:
    task = make_task(batch_size=STEP)
    steps = list(islice(task.steps(0, step_samples=STEP, rank=0, num_ranks=1), 10))
    assert max(task.padded) <= BUDGET and sum(map(len, steps)) == len(task.padded) > 20
    real = sum(int(batch.text_mask.sum() + batch.region_mask.sum()) for step in steps for batch in step)
    fixed = list(islice(make_task(batch_size=3).batches(0, rank=0, num_ranks=1), 10 * STEP // 3))
    padded = sum(batch.batch_size * (batch.text_ids.shape[1] + batch.region_mask.shape[1]) for batch in fixed)
    assert real == sum(int(batch.text_mask.sum() + batch.region_mask.sum()) for batch in fixed)
    assert 1 - real / sum(task.padded) < 0.6 * (1 - real / padded)
    batches = list(task.evaluation_batches(20))
    assert sum(batch.batch_size for batch in batches) == 20 and len(batches) > 4


def test_gradients_of_a_step_are_those_of_one_big_batch() -> None:
    task = make_task(batch_size=STEP)
    step = next(task.steps(0, step_samples=STEP, rank=0, num_ranks=1))
    assert len(step) > 2
    task.model.train()

    def gradients(batches: list[Any]) -> list[torch.Tensor]:
        task.model.zero_grad()
        counts = [task.counts(batch) for batch in batches]
        for batch in batches:
            for name, term in task.losses(task.model, batch).losses.items():
                (term.total / sum(each[name] for each in counts)).backward(retain_graph=True)
        return [each.grad.clone() for each in task.model.parameters() if each.grad is not None]

    whole = gradients([in_floats_of(next(whole_steps(task, 0, STEP)), torch.float64)])
    assert len(whole) > 20 and max(float(each.abs().max()) for each in whole) > 1e-3
    for left, right in zip(gradients(step), whole, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def trained(folder: Path, ranks: int, *, accumulation: int = 1, stop_at_step: int | None = None) -> list[Any]:
    """The log of a run whose steps have twelve captions."""
    work = BudgetedTraining(folder, 6, accumulation, STEP // ranks // accumulation, stop_at_step)
    assert run_ranks(work, ranks, folder.with_name(f"{folder.name}-said-{stop_at_step}")) == [0] * ranks, said(folder)
    return log_of(folder)


def assert_alike(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right) == 6
    for ours, theirs in zip(left, right, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-10)


@pytest.mark.slow
def test_a_run_moved_from_two_processes_to_one_trains_as_one(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", 1)
    assert [line["samples"] for line in one] == [STEP * step for step in range(1, 7)]
    trained(tmp_path / "moved", 2, stop_at_step=3)
    assert_alike(one, trained(tmp_path / "moved", 1, accumulation=2))


@pytest.mark.slow
def test_two_and_four_processes_train_as_one(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", 1)
    for ranks in (2, 4):
        assert_alike(one, trained(tmp_path / str(ranks), ranks))


@pytest.mark.parametrize("system", ["vlbert", "imagebert"])
def test_a_run_goes_on_in_the_same_bits(system: str, tmp_path: Path) -> None:
    store, _ = make_rows()
    store.pop("i0")
    rows = [(image_id, " ".join([text] * (1 + n))) for n, image_id in enumerate(store) for text in CAPTIONS[:3]]
    settings: dict[str, Any] = {
        "train_config": TrainConfig(steps=4, learning_rate=1e-3, device="cpu", checkpoint_every=2, accumulation=2),
        "system": SYSTEMS[system],
    }
    budget = DataConfig(batch_size=5, max_tokens=200)
    whole = run_pretrain(store, tmp_path / "whole", rows, data=budget, inspect_rows=2, **settings)
    assert (whole.run_dir / "batch.html").read_text().count("sequence: text") in (1, 2)
    run_pretrain(store, tmp_path / "parts", rows, data=budget, stop_at_step=3, **settings)
    helped = DataConfig(batch_size=5, max_tokens=200, workers=2)
    parts = run_pretrain(store, tmp_path / "parts", rows, data=helped, resume=True, **settings)
    left, right = (load_file(each.training.checkpoint / "model" / "model.safetensors") for each in (whole, parts))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert parts.evaluation == whole.evaluation


def test_a_budget_changed_on_resume_changes_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = make_rows()
    rows = [(image_id, text) for image_id in store for text in CAPTIONS[:3]]
    settings: dict[str, Any] = {"train_config": TrainConfig(steps=4, learning_rate=1e-3, device="cpu")}
    plain = run_pretrain(store, tmp_path / "a", rows, data=DataConfig(batch_size=8), stop_at_step=2, **settings)
    moved = run_pretrain(store, tmp_path / "a", rows, data=DataConfig(8, max_tokens=200), resume=True, **settings)
    assert plain.training.step == 2 and moved.training.step == 4
    settings["train_config"] = replace(settings["train_config"], steps=6)
    with caplog.at_level("WARNING"):
        other = run_pretrain(store, tmp_path / "a", rows, data=DataConfig(6, max_tokens=300), resume=True, **settings)
    assert other.training.step == 6 and "another global_batch: 8 -> 6" in caplog.text
    assert [line["samples"] for line in log_of(tmp_path / "a")] == [8, 16, 24, 32, 38, 44]  # none left out, none twice


def test_rows_of_text_alone_count_too(tokenizer: CaptionTokenizer, tmp_path: Path) -> None:
    system = SYSTEMS["vlbert"]
    sizes = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "num_region_labels": 21}
    config = system.sizes["small"](**sizes, with_text_only=True)
    sampler = system.sampler(system.sampling(max_text_pieces=30), tokenizer, config, num_classes=NUM_CLASSES)
    store, corpus = make_rows()
    lengths = RowLengths(corpus, np.repeat([each.num_regions for each in store.values()], 3), tokenizer)
    data = DataConfig(batch_size=8, max_tokens=500, texts_per_caption=2)
    lines = [" ".join(CAPTIONS)] * 3
    model: Any = nn.Identity()  # nothing is trained
    model.config = config
    task = BudgetedTask(model, corpus, sampler, data, lengths=lengths, pad_id=tokenizer.pad_id, seed=0, lines=lines)
    for step in islice(task.steps(0, step_samples=8, rank=0, num_ranks=1), 6):
        assert sum(batch.batch_size for batch in step) == 24
        for batch in step:
            assert batch.batch_size * (batch.text_ids.shape[1] + batch.region_mask.shape[1]) <= 500
            assert batch.text_only is not None and batch.text_only.tolist() == sorted(batch.text_only.tolist())


def test_budgets_that_are_none(tmp_path: Path) -> None:
    store, _ = make_rows()
    with pytest.raises(ValueError, match="max_tokens must not be negative, got -1"):
        DataConfig(max_tokens=-1)
    rows, small = [(image_id, text) for image_id in store for text in CAPTIONS[:2]], DataConfig(max_tokens=40)
    words = r"max_tokens 40 is less than one caption .* may need, 90 regions and its words; give at least {}"
    with pytest.raises(ValueError, match=words.format(93)):
        run_pretrain(store, tmp_path / "run", rows, data=small, system=SYSTEMS["imagebert"])
    with pytest.raises(ValueError, match=words.format(63)):  # VL-BERT cuts to 64 elements, the whole image one of them
        pretrain_with([captioned(store, rows)], tmp_path / "run", data=small, train_config=TrainConfig(1, device="cpu"))
    assert not (tmp_path / "run" / "log.jsonl").exists()
    nothing: Any = [None] * 4
    with pytest.raises(ValueError, match="max_tokens is 99; end to end photos fill the memory, not tokens"):
        EndToEndTask(*nothing, DataConfig(max_tokens=99), pad_id=0, seed=0)
