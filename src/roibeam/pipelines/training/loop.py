"""The one training loop. What is trained is a `TrainTask`; the detector is one, pre-training another.

    micro-batches -> a step (pipelines/training/train_step.py) -> log -> evaluation -> checkpoint

A run folder holds:

    config.json                    the resolved configuration
    log.jsonl                      one JSON line for each step, each step once
    evaluation.jsonl               one for each evaluation, where there are any
    report.html                    curves, evaluations, settings, when the run has ended
    checkpoints/step-00000100/     see pipelines/training/checkpoint.py

N steps give the same bits as k steps, a resume and N - k steps (same software, device kind and number of threads).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from roibeam.model.common.exponential_average import ExponentialAverage
from roibeam.model.common.losses import SumCount
from roibeam.pipelines.foundation.console.stop_signals import StoppedBySignalError, StopSignals
from roibeam.pipelines.training.checkpoint import (
    Position,
    TrainingState,
    checkpoint_folder,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from roibeam.pipelines.training.optimizer.build import build_optimizer, chosen_groups, learning_rate_at
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.rehearsal import rehearse
from roibeam.pipelines.training.run_folder.folder import (
    CONFIG_NAME,
    Resume,
    check_run_folder,
    check_same_run,
    write_config,
)
from roibeam.pipelines.training.run_folder.kept_checkpoints import beats, best_evaluation, remove_old_checkpoints
from roibeam.pipelines.training.run_folder.train_log import TrainLog
from roibeam.pipelines.training.run_folder.training_page import write_training_page
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import TrainStep

logger = logging.getLogger(__name__)


class LossOutput(Protocol):
    """What one micro-batch gave: `losses` add up to the total loss, `metrics` are only reported."""

    @property
    def losses(self) -> Mapping[str, SumCount]: ...

    @property
    def metrics(self) -> Mapping[str, SumCount]: ...


class TrainTask(Protocol):
    """What the loop needs to know about a task. Batches are the task's own type with `to(device)`.

    Samples are numbered without end: sample n is element n % num_samples of epoch n // num_samples. Everything random
    about a sample follows from its number, so the position in the data is one integer, and a run may go on with
    another batch size or number of processes.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def batch_size(self) -> int:
        """Samples per micro-batch and process."""

    @property
    def num_samples(self) -> int:
        """Samples in one epoch."""

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[Any]:
        """Endless micro-batches from sample `start_sample` on.

        Each round takes batch_size * num_ranks samples; rank r gets the r-th batch_size of them.
        """

    def counts(self, batch: Any) -> Mapping[str, int]:
        """Elements each loss is averaged over, by its name, known before the model runs."""

    def losses(self, model: nn.Module, batch: Any) -> LossOutput:
        """Sums over one micro-batch; `model` is `self.model`, perhaps wrapped for several devices."""

    def parameter_groups(self) -> Sequence[ParameterGroup]: ...

    def sample_ids(self, batch: Any) -> Sequence[str]:
        """Names of the samples for an error message."""

    def model_config(self) -> Mapping[str, Any]:
        """What is needed to build the model again; written beside its weights."""


@runtime_checkable
class EvaluatedTask(Protocol):
    """What a `TrainTask` may offer beside."""

    def evaluate(self) -> Mapping[str, float | None]:
        """Numbers that tell how good `model` is now; None where there was nothing to measure.

        Every process calls it at the same step and must come to the same names; the main process's values are kept. It
        may draw from torch's random state, which is put back.
        """


@runtime_checkable
class PlannedTask(Protocol):
    """A `TrainTask` that says itself which samples of a step share a micro-batch, and how many micro-batches it has."""

    def steps(self, start_sample: int, *, step_samples: int, rank: int, num_ranks: int) -> Iterator[Sequence[Any]]:
        """Endless steps from sample `start_sample` on: of each the micro-batches of one process, as many as any other
        has. All processes together have the next `step_samples` samples in each."""


def steps_of(
    task: TrainTask, start_sample: int, *, accumulation: int, rank: int, num_ranks: int
) -> Iterator[Sequence[Any]]:
    """The micro-batches of each step in one process, without end."""
    if isinstance(task, PlannedTask):
        step_samples = task.batch_size * accumulation * num_ranks
        yield from task.steps(start_sample, step_samples=step_samples, rank=rank, num_ranks=num_ranks)
    stream = task.batches(start_sample, rank=rank, num_ranks=num_ranks)
    while True:
        yield [next(stream) for _ in range(accumulation)]


@dataclass(frozen=True)
class TrainResult:
    """Attributes:
    step: last step that ran.
    checkpoint: folder of the newest checkpoint.
    last: the last line of log.jsonl.
    seconds: time in the loop, by the clock.
    best: folder of the best checkpoint by `TrainConfig.best_by`, or None.
    evaluation: after the last step; None where this call made none there.
    """

    step: int
    checkpoint: Path
    last: dict[str, Any]
    seconds: float
    best: Path | None = None
    evaluation: Mapping[str, float | None] | None = None


def train(
    task: TrainTask,
    config: TrainConfig,
    run_dir: Path,
    *,
    description: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    recorded: Mapping[str, Any] | None = None,
    resume: Resume = False,
    stop_at_step: int | None = None,
) -> TrainResult:
    """Trains `task` and writes the run folder. With an average of the weights, the model has it in the end.

    SIGTERM and Ctrl-C are noted, in any process: the step is finished, a checkpoint written, then the run ends.

    Args:
        description: the task's resolved configuration; a resumed run must have the same one.
        defaults: of its sections, what settings were in runs of before they existed.
        recorded: facts worth keeping that may differ on resume (paths, versions, store numerics).
        resume: True goes on from the newest checkpoint in `run_dir`; from the start, with a warning, when there is none
            yet. "auto" is for a command that is given again and again: goes on where `run_dir` holds this run, else
            starts.
        stop_at_step: stops (with a checkpoint) before `config.steps`; the schedule is not changed by it.
    Raises:
        ValueError: when `run_dir` holds a run and `resume` is False, when its configuration differs, or when a loss or
            gradient is not finite (naming the samples; the last checkpoint is kept).
        StoppedBySignalError: after a SIGTERM or Ctrl-C.
    """
    run_dir = Path(run_dir)
    last_step = config.steps if stop_at_step is None else min(stop_at_step, config.steps)
    check_run_folder(run_dir, resume=resume)
    if config.evaluate_every and not isinstance(task, EvaluatedTask):
        raise ValueError(f"evaluate_every {config.evaluate_every}: this task offers no evaluation; leave it at 0")
    if config.activation_checkpointing:
        _checkpoint_activations(task.model)
    accelerator = make_accelerator(config)
    global_batch = task.batch_size * config.accumulation * accelerator.num_processes
    resolved = {"train": dataclasses.asdict(config), "task": dict(description), "recorded": dict(recorded or {})}
    resolved |= {"global_batch": global_batch}
    resolved = json.loads(json.dumps(resolved))  # tuples become lists, as they will be when read back
    newest = latest_checkpoint(run_dir)
    if newest is not None or (resume == "auto" and (run_dir / CONFIG_NAME).exists()):
        check_same_run(newest or run_dir, resolved, defaults)

    groups = chosen_groups(task.model, task.parameter_groups, config)
    optimizer = build_optimizer(groups, config, device=accelerator.device)
    model, prepared_optimizer = accelerator.prepare(task.model, optimizer)
    average = ExponentialAverage(task.model, rate=config.average_rate) if config.average_rate else None
    state = TrainingState(task.model, optimizer, average, accelerator.scaler)
    torch.manual_seed(np.random.SeedSequence([config.seed, accelerator.process_index]).generate_state(1)[0].item())
    position = Position()
    if newest is not None:
        position = load_checkpoint(newest, state, rank=accelerator.process_index)
        logger.info("resuming %s at step %d", newest, position.step)
    elif resume is True:
        logger.warning("%s holds no checkpoint yet: starting at step 1", run_dir)
    log = None
    if accelerator.is_main_process:
        run_dir.mkdir(parents=True, exist_ok=True)
        log = TrainLog(run_dir, config, after_step=position.step)
        write_config(run_dir, resolved)
    accelerator.wait_for_everyone()
    logger.info(
        "%d steps of %d samples (%d per micro-batch x %d accumulated x %d processes) on %s in %s, "
        "learning rate %g, %d samples in an epoch",
        config.steps, global_batch, task.batch_size, config.accumulation, accelerator.num_processes,
        accelerator.device, config.precision, config.learning_rate, task.num_samples,
    )  # fmt: skip

    run = _Run(run_dir, task, config, resolved, accelerator, state, log)
    signals = StopSignals("finishing the step and writing a checkpoint")
    step = TrainStep(task, model, prepared_optimizer, accelerator, config, told_to_stop=lambda: signals.number)
    started = time.monotonic()
    steps = steps_of(
        task,
        position.next_sample,
        accumulation=config.accumulation,
        rank=accelerator.process_index,
        num_ranks=accelerator.num_processes,
    )
    checkpoint, stopped_by = newest, 0
    model.train()
    rehearse(task, model, optimizer, accelerator, accumulation=config.accumulation)
    with signals, log or nullcontext():
        if last_step and run.is_due(config.evaluate_every, position) and run.lacks_evaluation(position):
            run.evaluate(position)
            run.tidy()
        while position.step < last_step and not stopped_by:
            micro_batches = next(steps)
            position = Position(position.step + 1, position.next_sample + global_batch)
            rate = learning_rate_at(position.step, config)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["learning_rate_scale"]
            outcome = step.take(micro_batches, position.step)
            if average is not None and outcome.moved:
                average.update(task.model)
            stopped_by = outcome.stop
            if log is not None:
                show = position.step % config.log_every == 0 or position.step == last_step
                log.step(run.where(position), {"learning_rate": rate, **outcome.values}, show=show)
            ends, saved = position.step == last_step, False
            if run.is_due(config.checkpoint_every, position) or ends or stopped_by:
                checkpoint, saved = run.save(position), True
            # It may take its time: what comes after a signal or a crash in it goes on from the checkpoint, with it.
            if run.is_due(config.evaluate_every, position) and (ends or not stopped_by) and run.evaluate(position):
                if saved:
                    run.tidy()
                else:
                    checkpoint = run.save(position)
    if checkpoint is None:
        raise ValueError(f"nothing to do: stop_at_step {stop_at_step} lets no step run")
    if average is not None:
        task.model.load_state_dict(average.state_dict())
    best = run.best()
    if log is not None and log.last_line:
        write_training_page(run_dir, best_step=None if best is None else best["step"])
    if stopped_by and position.step < last_step:
        raise StoppedBySignalError(
            f"stopped by {Signals(stopped_by).name} after step {position.step} of {config.steps}, with the checkpoint "
            f"{checkpoint}; resuming goes on from there",
            stopped_by,
        )
    return TrainResult(
        position.step,
        checkpoint,
        {} if log is None else log.last_line,
        time.monotonic() - started,
        None if best is None else checkpoint_folder(run_dir, best["step"]),
        run.evaluated.get(position.step),
    )


def is_main_process() -> bool:
    """Whether this process speaks for all of a run, before and after `train`."""
    return int(os.environ.get("RANK", "0")) == 0  # torchrun's


def num_processes() -> int:
    """Of a run, before `train`."""
    return int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's


@runtime_checkable
class _CheckpointingModel(Protocol):
    """As models of transformers are."""

    def activation_checkpointing_enable(self) -> None: ...


def _checkpoint_activations(model: nn.Module) -> None:
    if not isinstance(model, _CheckpointingModel):
        raise ValueError(
            f"activation_checkpointing: {type(model).__name__} has no layers that compute their activations again; "
            f"leave it at false"
        )
    model.activation_checkpointing_enable()


class _Run:
    """What happens between the steps of one run."""

    def __init__(
        self,
        run_dir: Path,
        task: TrainTask,
        config: TrainConfig,
        resolved: Mapping[str, Any],
        accelerator: Accelerator,
        state: TrainingState,
        log: TrainLog | None,
    ) -> None:
        self._run_dir, self._task, self._config, self._resolved = run_dir, task, config, resolved
        self._accelerator, self._state, self._log = accelerator, state, log
        self.evaluated: dict[int, Mapping[str, float | None]] = {}  # by step, of this call

    def where(self, position: Position) -> dict[str, float]:
        """What every line of a log begins with."""
        samples = position.next_sample
        return {"step": position.step, "samples": samples, "epoch": round(samples / self._task.num_samples, 4)}

    def is_due(self, every: int, position: Position) -> bool:
        """Whether this is one of the steps `every` so many, or the last of the schedule; 0 is never."""
        return every > 0 and (position.step % every == 0 or position.step == self._config.steps)

    def lacks_evaluation(self, position: Position) -> bool:
        """Whether none is written down yet: the run begins, or was ended after this step's checkpoint."""
        lacks = self._log is not None and all(line["step"] != position.step for line in self._log.evaluations)
        return self._any_process(lacks)

    def evaluate(self, position: Position) -> bool:
        """Evaluates and logs; whether it is the best so far, by `best_by`."""
        config, task, device = self._config, self._task, self._accelerator.device
        assert isinstance(task, EvaluatedTask)
        # What evaluating draws must not change the training after it.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), self._state.model_to_use():
            values = task.evaluate()
        task.model.train()
        if config.best_by and config.best_by not in values:
            raise ValueError(f"best_by {config.best_by!r}: the evaluation has {', '.join(values)}")
        is_best = False
        if self._log is not None:
            is_best = bool(config.best_by) and beats(values[config.best_by], self.best(), config)
            self._log.evaluation(self.where(position), values)
        self.evaluated[position.step] = values
        return self._any_process(is_best)

    def best(self) -> Mapping[str, Any] | None:
        """The best evaluation so far; None in all but the main process."""
        return None if self._log is None else best_evaluation(self._run_dir, self._log.evaluations, self._config)

    def save(self, position: Position) -> Path:
        """Writes a checkpoint, and tidies up."""
        if self._log is not None:
            self._log.sync()
        checkpoint = save_checkpoint(
            self._run_dir, self._state, self._task.model_config(), position, self._resolved, self._accelerator
        )
        self.tidy()
        return checkpoint

    def tidy(self) -> None:
        """Removes the checkpoints that are not to stay."""
        if self._log is not None:
            best = self.best()
            remove_old_checkpoints(self._run_dir, self._config.keep, None if best is None else best["step"])

    def _any_process(self, told: bool) -> bool:
        """Whether any process says so: all get one answer."""
        said = self._accelerator.reduce(torch.tensor(float(told), device=self._accelerator.device), "sum")
        return bool(said > 0)


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Device, precision and processes of a run, by its settings; ValueError where the machine has no such device."""
    # accelerate keeps device and precision in a process-wide state and refuses a second, different one; a process may
    # train twice (tests, a notebook).
    AcceleratorState._reset_state(reset_partial_state=True)
    if config.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError("precision fp16 needs an accelerator, and this machine has none; choose bf16 or fp32")
    return Accelerator(
        # Without being told so, accelerate does not join processes of a machine that has no accelerator.
        cpu=config.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision="no" if config.precision == "fp32" else config.precision,
        # A loss, and with it a head, may have no sample in one process and some in another.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
