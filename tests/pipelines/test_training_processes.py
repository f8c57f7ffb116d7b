"""One, two and four processes with the same global batch train alike, whatever falls to each of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_reductions import count_reductions
from ranks import run_ranks, said
from small_pretraining import SomeTextOnly, Training, make_task, seen_by, settings

GLOBAL_BATCH = 4


def trained(
    folder: Path, num_ranks: int, *, accumulation: int = 1, steps: int, stop_at_step: int | None = None, **task: Any
) -> list[dict[str, Any]]:
    """The log of a run in `folder`."""
    work = Training(
        folder,
        settings(steps=steps, accumulation=accumulation),
        GLOBAL_BATCH // num_ranks // accumulation,
        task,
        stop_at_step,
    )
    logs = folder.with_name(f"{folder.name}.said")
    assert run_ranks(work, num_ranks, logs) == [0] * num_ranks, said(logs)
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def largest_difference(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> float:
    """Of any number of any step, relative; what is null in one must be in the other."""
    largest = 0.0
    for ours, theirs in zip(left, right, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert (ours[name] is None) == (theirs[name] is None), name
            if ours[name]:
                largest = max(largest, abs(ours[name] - theirs[name]) / abs(ours[name]))
    return largest


def test_a_process_of_four_has_nothing_masked_now_and_then() -> None:
    """What the comparisons below rest on: a batch of one of the four that no loss counts in, beside others that do."""
    task = make_task(batch_size=1)
    streams = [task.batches(0, rank=rank, num_ranks=4) for rank in range(4)]
    empty = [[not sum(task.counts(next(stream)).values()) for stream in streams] for _ in range(50)]
    assert sum(any(step) and not all(step) for step in empty) > 25


def test_a_batch_is_the_sum_of_its_rows() -> None:
    """So that a bad row can be named by itself."""
    task = make_task(batch_size=6, double=True)
    task.model.eval()
    batch = next(task.batches(0, rank=0, num_ranks=1))
    whole = task.losses(task.model, batch).losses
    rows = [task.losses(task.model, row).losses for row in task.one_by_one(batch)]
    assert [row.sample_ids for row in task.one_by_one(batch)] == [(name,) for name in batch.sample_ids]
    for name, term in whole.items():
        assert int(term.count) == sum(int(row[name].count) for row in rows)
        torch.testing.assert_close(sum(row[name].total for row in rows), term.total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("double", "bound"), [(True, 1e-10), (False, 1e-5)])
def test_two_processes_train_as_one(tmp_path: Path, double: bool, bound: float) -> None:
    logs = [trained(tmp_path / str(ranks), ranks, steps=8, double=double) for ranks in (1, 2)]
    assert largest_difference(*logs) < bound
    assert seen_by(tmp_path / "2", 2, 2)[:32] == seen_by(tmp_path / "1", 1, 4)[:32]


@pytest.mark.slow
@pytest.mark.parametrize(("double", "bound"), [(True, 1e-10), (False, 1e-5)])
@pytest.mark.parametrize("options", [{}, {"sampler": SomeTextOnly}], ids=["images", "some without image"])
def test_fifty_steps_of_one_two_and_four_processes(
    tmp_path: Path, double: bool, bound: float, options: dict[str, Any]
) -> None:
    one, *others = (trained(tmp_path / str(ranks), ranks, steps=50, double=double, **options) for ranks in (1, 2, 4))
    for other in others:
        assert largest_difference(one, other) < bound


def test_losses_that_only_some_processes_have(tmp_path: Path) -> None:
    """A batch of text alone has no loss of regions, and the head of regions no gradient, in that process."""
    logs = [trained(tmp_path / str(ranks), ranks, steps=8, double=True, sampler=SomeTextOnly) for ranks in (1, 4)]
    assert largest_difference(*logs) < 1e-10
    named = {name for line in logs[0] for name in line}
    assert {"text_only_words", "masked_words", "masked_regions"} <= named
    assert any("text_only_words" not in line for line in logs[0])


def test_with_dropout_the_samples_and_masks_are_the_same(tmp_path: Path) -> None:
    for ranks, accumulation in ((1, 1), (1, 2), (2, 1)):
        trained(tmp_path / f"{ranks}-{accumulation}", ranks, accumulation=accumulation, steps=6, dropout=0.2)
    one = seen_by(tmp_path / "1-1", 1, 4)[:24]
    assert len(set(one)) > 20  # ten captions, seldom with the same mask
    assert seen_by(tmp_path / "1-2", 1, 2)[:24] == seen_by(tmp_path / "2-1", 2, 2)[:24] == one


def test_another_number_of_processes_goes_on_with_the_next_sample(tmp_path: Path) -> None:
    """Two processes, then one that accumulates, then two again: the samples, and the losses, of one process alone."""
    alone = trained(tmp_path / "alone", 1, steps=9, double=True)
    seen, folder = [], tmp_path / "moved"
    for stop, ranks, accumulation in ((3, 2, 1), (7, 1, 2), (9, 2, 1)):
        before = stop - (3 if stop == 3 else 4 if stop == 7 else 2)
        for old in tmp_path.glob("moved.seen-*"):
            old.unlink()
        log = trained(folder, ranks, accumulation=accumulation, steps=9, stop_at_step=stop, double=True)
        seen += seen_by(folder, ranks, 2)[: GLOBAL_BATCH * (stop - before)]
    assert seen == seen_by(tmp_path / "alone", 1, 4)[:36]
    assert largest_difference(alone, log) < 1e-10


def test_accumulation_reduces_gradients_once_a_step(tmp_path: Path) -> None:
    counts = {}
    for accumulation in (1, 4):
        folder = tmp_path / str(accumulation)
        work = partial(count_reductions, Training(folder, settings(steps=3, accumulation=accumulation), 1), folder)
        assert run_ranks(work, 2, tmp_path / f"said-{accumulation}") == [0, 0], said(tmp_path / f"said-{accumulation}")
        counts[accumulation] = json.loads(folder.with_name(f"{folder.name}.reductions").read_text())
    # In each step one of gradients (one bucket), one of counts and one of sums; the first of the last two, with names
    # that are new, twice.
    assert counts[4] == counts[1] == {"gradients": 3, "others": 3 * 2 + 2}
