"""What a step does with its micro-batches and its rate, correct and as the releases do (docs/models.md)."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from roibeam.model.common.losses import SumCount
from roibeam.pipelines.training.optimizer import learning_rate_at, plateau_falls
from roibeam.pipelines.training.task import AlternatingTask
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import reported, share_of_step


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_schedules_that_overwrite_each_other_when_tasks_take_turns(tasks: int) -> None:
    """Against both schedules step by step: that of the rise is stepped by each round's first update, until it is over,
    that of epochs by each epoch's end."""
    length, epochs, warmup = 3, 6, 4.5
    want, rate, rise = [], 1.0, 0
    for epoch in range(1, epochs + 1):
        for _ in range(length):
            for task in range(tasks):
                want.append(rate)
                if task == 0 and rise < warmup:
                    rise += 1
                    rate = min(rise / warmup, 1.0)
        rate = 0.2 ** ((epoch >= 3) + (epoch >= 5))
    config = TrainConfig(
        steps=len(want), learning_rate=1.0, warmup_steps=warmup, schedule="steps", decay_factor=0.2,
        decay_steps=(3 * length - 1, 5 * length - 1), starts_at_zero=True, warmup_overwritten_every=length,
        updates_per_schedule_step=tasks,
    )  # fmt: skip
    np.testing.assert_allclose([learning_rate_at(step, config) for step in range(1, len(want) + 1)], want, rtol=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("lags", [False, True])
def test_schedules_of_names_are_those_of_transformers(name: str, lags: bool) -> None:
    """Its first step has rate 0, as ours with `starts_at_zero`; else ours are one step ahead."""
    get: Any = {
        "linear": transformers.get_linear_schedule_with_warmup,
        "cosine": transformers.get_cosine_schedule_with_warmup,
        "constant": lambda optimizer, warmup, _: transformers.get_constant_schedule_with_warmup(optimizer, warmup),
    }
    theirs = get[name](torch.optim.SGD([torch.zeros(1)], lr=0.5), 5, 20).lr_lambdas[0]
    config = TrainConfig(steps=20, learning_rate=0.5, warmup_steps=5, schedule=name, starts_at_zero=lags)
    for step in range(1, 21):
        want = 0.5 * theirs(step - lags)
        assert learning_rate_at(step, config) == pytest.approx(want, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("best_is, mode", [("highest", "max"), ("lowest", "min")])
def test_a_plateau_is_that_of_torch(best_is: str, mode: Any) -> None:
    for seed in range(20):
        scores = np.random.default_rng(seed).normal(1.0, 0.01 + 0.1 * (seed % 3), 40).tolist()
        config = TrainConfig(
            steps=40, schedule="plateau", evaluate_every=1, best_by="score", best_is=best_is,
            plateau_patience=seed % 4, plateau_cooldown=seed % 3,
        )  # fmt: skip
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, factor=0.5, patience=seed % 4, cooldown=seed % 3, threshold=1e-3, eps=0.0
        )
        for count, score in enumerate(scores, 1):
            theirs.step(score)
            assert 0.5 ** plateau_falls(scores[:count], config) == optimizer.param_groups[0]["lr"]


def test_shares_add_up_to_the_mean_of_the_step_or_of_the_micro_batches() -> None:
    terms = [SumCount(torch.tensor(6.0), torch.tensor(2)), SumCount(torch.tensor(8.0), torch.tensor(6))]
    count = torch.tensor(8)
    for config, mean in (
        (TrainConfig(steps=1, accumulation=2), 14 / 8),
        (TrainConfig(steps=1, accumulation=2, loss_mean="micro_batch"), (3 + 8 / 6) / 2),
    ):
        shares = [float(share_of_step(term, count, config, num_processes=1)) for term in terms]
        assert sum(shares) == pytest.approx(mean)
        assert float((reported(terms[0], config) + reported(terms[1], config)).mean) == pytest.approx(mean)
        # In two processes each has half of the share that all together have.
        if config.loss_mean == "micro_batch":
            assert float(share_of_step(terms[0], count, config, num_processes=2)) == pytest.approx(shares[0] / 2)


class CountingTask:
    """Batches are their own first sample's number, after the task's name."""

    batch_size, num_samples, model = 2, 100, None

    def __init__(self, name: str) -> None:
        self.name = name

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Any:
        return (f"{self.name}{n}" for n in itertools.count(start_sample + 2 * rank, 2 * num_ranks))

    def losses(self, model: Any, batch: str) -> Any:
        return SimpleNamespace(losses={"loss": SumCount(torch.tensor(3.0), torch.tensor(2))}, metrics={})

    def counts(self, batch: str) -> dict[str, int]:
        return {"loss": 2}


def alternating(**options: Any) -> Any:
    tasks: Any = {"a": CountingTask("a"), "b": CountingTask("b")}
    return AlternatingTask(tasks, **options)


def taken(task: Any, start: int, step_samples: int, count: int, **ranks: int) -> list[str]:
    steps = task.steps(start, step_samples=step_samples, **({"rank": 0, "num_ranks": 1} | ranks))
    return [" ".join(part.batch for part in step) for step in itertools.islice(steps, count)]


def test_tasks_make_one_update_together_or_each_its_own() -> None:
    together, apart = alternating(), alternating(updates="task")
    assert together.batch_size == 4 and apart.batch_size == 2
    assert taken(together, 0, 8, 2) == ["a0 b0 a2 b2", "a4 b4 a6 b6"]
    # The first task's update has what the others left; each of the others has its last micro-batch alone.
    assert taken(apart, 0, 4, 4) == ["a0 b0 a2", "b2", "a4 b4 a6", "b6"]
    assert taken(apart, 0, 2, 4) == ["a0", "b0", "a2", "b2"]
    # Two processes share what one takes.
    assert [taken(together, 0, 8, 1, rank=rank, num_ranks=2) for rank in (0, 1)] == [["a0 b0"], ["a2 b2"]]


@pytest.mark.parametrize("updates, step_samples", [("step", 8), ("task", 4)])
def test_alternating_tasks_go_on_where_they_stood(updates: str, step_samples: int) -> None:
    task = alternating(updates=updates)
    whole = taken(task, 0, step_samples, 7)
    for done in range(7):
        assert taken(task, done * step_samples, step_samples, 7 - done) == whole[done:]


def test_a_task_s_loss_has_its_name_and_scale() -> None:
    task = alternating(loss_scales={"b": 2.0})
    first, second = itertools.islice(task.batches(0, rank=0, num_ranks=1), 2)
    assert {name: float(t.total) for name, t in task.losses(None, first).losses.items()} == {"a/loss": 3.0}
    assert {name: float(t.total) for name, t in task.losses(None, second).losses.items()} == {"b/loss": 6.0}
    assert task.counts(second) == {"b/loss": 2}


def test_what_is_wrong_with_alternating_tasks_is_told() -> None:
    for options, words in (
        ({"loss_scales": {"c": 1.0}}, "a loss scale for 'c'; the tasks are a, b"),
        ({"updates": "release"}, "updates must be step or task, got 'release'"),
    ):
        with pytest.raises(ValueError, match=words):
            alternating(**options)
