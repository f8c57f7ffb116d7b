"""One, two and four processes with the same global batch train alike, whatever falls to each of them."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_reductions import count_reductions
from objectives import NUM_CAPTIONS, OBJECTIVES
from poisoned_run import PoisonedRun
from rank_deviations import BOUNDS, SAMPLES, Logs, largest_difference, log_in, too_far, trained_on
from ranks import run_ranks, said
from small_pretraining import Training, make_task, rows_of_steps, seen_by, settings
from soak_share import share_of

from roibeam.pipelines.pretraining.task import RowsTask

# The first objective of each system.
OF_EACH = list({objective.system: name for name, objective in reversed(OBJECTIVES.items())}.values())
OTHER_TEXTS = [name for name, objective in OBJECTIVES.items() if objective.task or objective.text_alone]


def trained(
    folder: Path, num_ranks: int, *, accumulation: int = 1, steps: int, stop_at_step: int | None = None, **task: Any
) -> list[dict[str, Any]]:
    """The log of a run in `folder`."""
    size = SAMPLES * OBJECTIVES[task.get("objective", "vlbert")].group // num_ranks // accumulation
    work = Training(folder, settings(steps=steps, accumulation=accumulation), size, task, stop_at_step)
    logs = folder.with_name(f"{folder.name}.said")
    assert run_ranks(work, num_ranks, logs) == [0] * num_ranks, said(logs)
    return log_in(folder)


Both = list[Logs]  # of one process and of two


def on_one_and_two(folder: Path, runs: dict[str, list[str]]) -> Both:
    """The first steps of objectives by float type."""
    logs: Both = [{}, {}]
    for kind, chosen in runs.items():
        for both, ranks in zip(logs, (1, 2), strict=True):
            both |= trained_on(ranks, chosen, folder / f"{kind}-{ranks}", steps=4, kinds=[kind])
    return logs


@pytest.fixture(scope="module")
def first_steps(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Of each objective in float64, and of one of each system in float32."""
    return on_one_and_two(tmp_path_factory.mktemp("objectives"), {"float64": list(OBJECTIVES), "float32": OF_EACH})


def assert_as_one(logs: Both, objective: str, kind: str) -> None:
    one, two = (each[kind, objective] for each in logs)
    assert largest_difference(one, two) < BOUNDS[kind]
    counted = {name for line in one for name, value in line.items() if value is not None}
    assert OBJECTIVES[objective].losses <= counted
    assert one[0]["loss"] != one[-1]["loss"]


@pytest.mark.parametrize(
    ("kind", "objective"), [("float64", name) for name in OBJECTIVES] + [("float32", name) for name in OF_EACH]
)
def test_two_processes_train_every_objective_as_one(first_steps: Both, kind: str, objective: str) -> None:
    assert_as_one(first_steps, objective, kind)


@pytest.mark.soak(cases=True)
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name not in OF_EACH])
def test_two_processes_train_the_other_objectives_as_one_in_float32(tmp_path: Path, objective: str) -> None:
    """What differs between objectives float64 shows, to ten digits; float32 takes the same way."""
    assert_as_one(on_one_and_two(tmp_path, {"float32": [objective]}), objective, "float32")


@pytest.mark.soak
@pytest.mark.parametrize("kind", BOUNDS)
def test_fifty_steps_of_one_two_and_four_processes(tmp_path: Path, kind: str) -> None:
    """Each of four processes has one sample of a step, or two where they are a group. Of all objectives, or a share."""
    chosen = share_of(list(OBJECTIVES), kind)
    one, two, four = (trained_on(ranks, chosen, tmp_path / str(ranks), steps=50, kinds=[kind]) for ranks in (1, 2, 4))
    assert not too_far(one, two) and not too_far(one, four)


@pytest.mark.slow
def test_ten_steps_on_texts_that_are_no_captions(tmp_path: Path) -> None:
    """On lines of text alone and on the texts of each task; two processes have their first steps above."""
    one, four = (trained_on(ranks, OTHER_TEXTS, tmp_path / str(ranks), steps=10) for ranks in (1, 4))
    assert not too_far(one, four)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_samples_masks_and_draws_are_those_of_one_process(objective: str) -> None:
    """Whatever the number of processes, of micro-batches and of workers, over three epochs."""
    steps = 3 * NUM_CAPTIONS // SAMPLES
    alone = rows_of_steps(objective, steps=steps)
    assert len({row for step in alone for row in step}) > 2 * NUM_CAPTIONS  # seldom drawn alike
    assert rows_of_steps(objective, num_ranks=4, steps=steps) == alone
    assert rows_of_steps(objective, num_ranks=2, accumulation=2, steps=steps) == alone


def test_samples_from_workers_are_those_of_one_process() -> None:
    alone = rows_of_steps("vilbert-contrastive", steps=3)
    assert rows_of_steps("vilbert-contrastive", num_ranks=2, workers=2, steps=3) == alone


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_process_of_four_has_nothing_masked_now_and_then(objective: str) -> None:
    """What the comparisons rest on: a process whose batch no masked item counts in, beside others that have some."""
    task = make_task(objective, batch_size=OBJECTIVES[objective].group)
    streams = [RowsTask.batches(task, 0, rank=rank, num_ranks=4) for rank in range(4)]  # without notes of what it sees
    found = 0
    for _ in range(50):
        counts = [task.counts(next(stream)) for stream in streams]
        masked = [sum(count for name, count in each.items() if name != "matching") for each in counts]
        found += any(masked) and not all(masked)
        if found == 10:
            break
    assert found == 10


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


# Two processes with three samples each: 0 to 5 are the first step, 3 to 5 those of the second process; with two
# micro-batches a step, 0 to 11.
@pytest.mark.parametrize(
    ("poisoned", "accumulation", "guilty", "step"),
    [
        ((4,), 1, "sample-4", 1),
        ((7,), 1, "sample-7", 2),
        ((1, 5), 1, "sample-1, sample-5", 1),
        ((10,), 2, "sample-10", 1),
    ],
)
def test_what_is_not_finite(
    tmp_path: Path, poisoned: tuple[int, ...], accumulation: int, guilty: str, step: int
) -> None:
    work = PoisonedRun(tmp_path / "run", dict.fromkeys(poisoned, math.nan), accumulation)
    assert run_ranks(work, 2, tmp_path / "said") == [0, 0], said(tmp_path / "said")
    found = [(tmp_path / f"run.refused-{rank}").read_text().splitlines() for rank in range(2)]
    for line, weights in found:
        assert line.startswith(f"step {step}: loss nan")
        blamed = f"; not finite by itself: {guilty} (of {6 * accumulation} samples in the step); see what is stored"
        assert blamed in line, line
        assert weights == f"moved={step > 1} finite=True"
    assert found[0] == found[1]
    assert [line["step"] for line in log_in(tmp_path / "run")] == list(range(1, step))
    kept = sorted(path.name for path in (tmp_path / "run").glob("checkpoints/*"))
    assert kept == [f"step-{before:08}" for before in range(1, step)]


def test_all_samples_of_all_processes_are_named_where_none_is_to_blame(tmp_path: Path) -> None:
    """A task that cannot split its batches: the bad sample is unknown."""
    work = PoisonedRun(tmp_path / "run", {4: math.nan}, splits_batches=False)
    assert run_ranks(work, 2, tmp_path / "said") == [0, 0], said(tmp_path / "said")
    names = ", ".join(f"sample-{number}" for number in range(6))
    for rank in range(2):
        assert f"; samples: {names}; look at their features" in (tmp_path / f"run.refused-{rank}").read_text()


def test_losses_that_only_some_processes_have(tmp_path: Path) -> None:
    """A batch of text alone has no loss of regions, and the head of regions no gradient, in that process."""
    task = {"double": True, "objective": "vlbert-without-image"}
    logs = [trained(tmp_path / str(ranks), ranks, steps=8, **task) for ranks in (1, 4)]
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


@pytest.mark.parametrize("objective", ["vlbert", "vilbert-contrastive"])
def test_another_number_of_processes_goes_on_with_the_next_sample(tmp_path: Path, objective: str) -> None:
    """Two processes, then one that accumulates, then two with workers: samples and losses of one process alone."""
    alone = trained(tmp_path / "alone", 1, steps=9, double=True, objective=objective)
    seen, folder, before, half = [], tmp_path / "moved", 0, 2 * OBJECTIVES[objective].group
    for stop, ranks, accumulation, workers in ((3, 2, 1, 0), (7, 1, 2, 0), (9, 2, 1, 2)):
        for old in tmp_path.glob("moved.seen-*"):
            old.unlink()
        task = {"objective": objective, "workers": workers, "double": True}
        log = trained(folder, ranks, accumulation=accumulation, steps=9, stop_at_step=stop, **task)
        seen += seen_by(folder, ranks, half)[: 2 * half * (stop - before)]
        before = stop
    assert seen == seen_by(tmp_path / "alone", 1, 2 * half)[: 9 * 2 * half]
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
