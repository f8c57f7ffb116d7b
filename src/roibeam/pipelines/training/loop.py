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
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from roibeam.features.counted import counted
from roibeam.model.common.exponential_average import ExponentialAverage
from roibeam.pipelines.foundation.console.duration import duration
from roibeam.pipelines.foundation.console.progress import waiting
from roibeam.pipelines.foundation.console.progress_text import folded
from roibeam.pipelines.foundation.console.stop_signals import StoppedBySignalError, StopSignals
from roibeam.pipelines.foundation.device_choice import choose_device
from roibeam.pipelines.training.checkpoint import (
    Position,
    TrainingState,
    load_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
    set_later_aside,
)
from roibeam.pipelines.training.launched import num_processes
from roibeam.pipelines.training.optimizer.build import build_optimizer, chosen_groups
from roibeam.pipelines.training.optimizer.schedule import learning_rate_at, plateau_falls
from roibeam.pipelines.training.rehearsal import rehearse
from roibeam.pipelines.training.run_folder.best import beats, best_evaluation, is_out_of_patience
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_sums
from roibeam.pipelines.training.run_folder.files import checkpoint_folder, checkpoint_step, latest_checkpoint
from roibeam.pipelines.training.run_folder.folder import (
    CONFIG_NAME,
    Resume,
    as_begun,
    check_run_folder,
    check_same_run,
    checkpoint_to_resume,
    run_folder_lock,
    write_config,
)
from roibeam.pipelines.training.run_folder.run_figures import training_seconds
from roibeam.pipelines.training.run_folder.train_log import EVALUATION_NAME, LOG_NAME, TrainLog, read_lines
from roibeam.pipelines.training.run_folder.training_page import write_training_page
from roibeam.pipelines.training.task import EvaluatedTask, TrainTask, steps_of
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import StepOutcome, TrainStep

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """Attributes:
    step: last step that ran.
    checkpoint: folder of the newest checkpoint.
    last: the last line of log.jsonl.
    seconds: that the steps of log.jsonl took, those of earlier calls with them; of this call, where this process has
        no log.
    new_steps: how many of the steps this call took.
    ended_early: by `TrainConfig.patience`, so that the run is finished although steps are left.
    best: folder of the best checkpoint by `TrainConfig.best_by`, or None.
    evaluation: after the last step; None where this call made none there.
    device: of the main process, as torch names it.
    """

    step: int
    checkpoint: Path
    last: dict[str, Any]
    seconds: float
    new_steps: int
    ended_early: bool = False
    best: Path | None = None
    evaluation: Mapping[str, float | None] | None = None
    device: str = "cpu"

    def done(self) -> str:
        """For people: how many steps in which time."""
        if self.ended_early and not self.new_steps:
            return f"the run has ended after {counted(self.step, 'step')}, by train.patience; nothing to do"
        if not self.new_steps:
            return f"all {counted(self.step, 'step')} are there already; nothing to do"
        earlier = "" if self.new_steps == self.step else f", {self.new_steps:,} of them now"
        early = ", ended by train.patience" if self.ended_early else ""
        return f"{counted(self.step, 'step')} in {duration(self.seconds)}{earlier}{early}"


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
            starts. The name of a checkpoint, such as "step-100", goes on from it; later ones are removed.
        stop_at_step: stops (with a checkpoint) before `config.steps`; the schedule is not changed by it.
    Raises:
        ValueError: when `run_dir` holds a run and `resume` is False, when its configuration differs, when another
            training writes there, when a file of the checkpoint is damaged (naming it), or when a loss or gradient is
            not finite (naming the samples; the last checkpoint is kept).
        StoppedBySignalError: after a SIGTERM or Ctrl-C.
    """
    run_dir = Path(run_dir)
    check_run_folder(run_dir, resume=resume)
    with run_folder_lock(run_dir):
        return _train(task, config, run_dir, description, defaults, recorded, resume=resume, stop_at_step=stop_at_step)


def _train(
    task: TrainTask,
    config: TrainConfig,
    run_dir: Path,
    description: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]],
    recorded: Mapping[str, Any] | None,
    *,
    resume: Resume,
    stop_at_step: int | None,
) -> TrainResult:
    """As `train`, in a folder that no other training writes to."""
    last_step = config.steps if stop_at_step is None else min(stop_at_step, config.steps)
    _check_task(task, config)
    accelerator = make_accelerator(config)
    global_batch = task.batch_size * config.accumulation * accelerator.num_processes
    newest, begun = _newest_checkpoint(run_dir, resume=resume)
    config = config if begun is None else as_begun(begun, config)
    resolved = _resolved(config, description, recorded, global_batch)
    is_done = newest is not None and _is_done(run_dir, newest, config, last_step)
    if begun is not None:
        check_same_run(begun, resolved, defaults, goes_on=not is_done)
    model, prepared_optimizer, state = _prepared(task, config, accelerator)
    position = _start(run_dir, newest, state, config, accelerator, resume=resume)
    log = _opened_log(run_dir, config, None if is_done else resolved, accelerator, after_step=position.step)
    if not is_done:
        _tell_what_comes(task, config, accelerator, global_batch)

    run = _Run(run_dir, task, config, resolved, accelerator, state, log)
    signals = StopSignals("finishing the step and writing a checkpoint")
    step = TrainStep(
        task, model, prepared_optimizer, accelerator, config, told_to_stop=lambda: signals.number, run_dir=run_dir
    )
    started, checkpoint, stopped_by, first_step = time.monotonic(), newest, 0, position.step
    steps = steps_of(
        task,
        position.next_sample,
        accumulation=config.accumulation,
        rank=accelerator.process_index,
        num_ranks=accelerator.num_processes,
    )
    model.train()
    if not is_done:
        with waiting("trying the largest batch"):
            rehearse(task, model, state.optimizer, accelerator, accumulation=config.accumulation)
    with signals, log or nullcontext():
        run.evaluate_the_start(position, last_step)
        while position.step < last_step and not stopped_by and not run.ended_early:
            micro_batches = next(steps)
            position = Position(position.step + 1, position.next_sample + global_batch)
            rate = run.set_learning_rate(position)
            outcome = step.take(micro_batches, position.step)
            run.add_to_average(outcome)
            ends, stopped_by = position.step == last_step, outcome.stop
            run.log_step(position, rate, outcome)
            checkpoint = run.save_and_evaluate(position, ends=ends, stopped=stopped_by) or checkpoint
    if checkpoint is None:
        raise ValueError(f"nothing to do: stop_at_step {stop_at_step} lets no step run")
    run.finish()
    if stopped_by and position.step < last_step and not run.ended_early:
        raise StoppedBySignalError(_stop_message(stopped_by, position, config, checkpoint), stopped_by)
    return run.result(position, checkpoint, time.monotonic() - started, new_steps=position.step - first_step)


def _is_done(run_dir: Path, newest: Path, config: TrainConfig, last_step: int) -> bool:
    """Whether no step is left after the checkpoint to go on from: the run was complete there, or ended early."""
    step = checkpoint_step(newest)
    lines = [line for line in read_lines(run_dir / EVALUATION_NAME) if line["step"] <= step]
    is_last = newest == latest_checkpoint(run_dir)
    return is_last and (step >= last_step or is_out_of_patience(lines, config))


def _check_task(task: TrainTask, config: TrainConfig) -> None:
    """Whether the task offers what the settings ask of it; its model is told of activation checkpointing."""
    if config.evaluate_every and not isinstance(task, EvaluatedTask):
        raise ValueError(f"evaluate_every {config.evaluate_every}: this task offers no evaluation; leave it at 0")
    if config.activation_checkpointing:
        _checkpoint_activations(task.model)


def _resolved(
    config: TrainConfig, description: Mapping[str, Any], recorded: Mapping[str, Any] | None, global_batch: int
) -> dict[str, Any]:
    """The configuration as it will be when read back: tuples become lists."""
    resolved = {"train": dataclasses.asdict(config), "task": dict(description), "recorded": dict(recorded or {})}
    return json.loads(json.dumps(resolved | {"global_batch": global_batch}))


def _newest_checkpoint(run_dir: Path, *, resume: Resume) -> tuple[Path | None, Path | None]:
    """The checkpoint to go on from, and the folder with the configuration that the run has; None for what is not."""
    newest = checkpoint_to_resume(run_dir, resume)
    if newest is not None:
        with waiting("checking the checkpoint"):
            check_sums(newest)
    begun = run_dir if resume == "auto" and (run_dir / CONFIG_NAME).exists() else None
    return newest, newest or begun


def _prepared(
    task: TrainTask, config: TrainConfig, accelerator: Accelerator
) -> tuple[nn.Module, AcceleratedOptimizer, TrainingState]:
    """Model and optimizer as the accelerator takes them, and what changes from step to step."""
    groups = chosen_groups(task.model, task.parameter_groups, config)
    optimizer = build_optimizer(groups, config, device=accelerator.device)
    model, prepared_optimizer = accelerator.prepare(task.model, optimizer)
    average = None
    if config.average_rate:
        average = ExponentialAverage(task.model, rate=config.average_rate, start=config.average_start)
    return model, prepared_optimizer, TrainingState(task.model, optimizer, average, accelerator.scaler)


def _start(
    run_dir: Path,
    newest: Path | None,
    state: TrainingState,
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    resume: Resume,
) -> Position:
    """Seeds this process; with a checkpoint, `state` and position are its."""
    rank = accelerator.process_index
    torch.manual_seed(np.random.SeedSequence([config.seed, rank]).generate_state(1)[0].item())
    if newest is not None:
        position = load_checkpoint(newest, state, rank=rank)
        logger.info("resuming %s at step %d", newest, position.step)
        return position
    if resume is True:
        logger.warning("%s holds no checkpoint yet: starting at step 1", run_dir)
    return Position()


def _opened_log(
    run_dir: Path, config: TrainConfig, resolved: Mapping[str, Any] | None, accelerator: Accelerator, *, after_step: int
) -> TrainLog | None:
    """Of the main process, which also writes the configuration; all wait for it.

    Args:
        resolved: None where no step is left: the folder keeps the configuration that its steps were trained with.
    """
    log = None
    if accelerator.is_main_process:
        run_dir.mkdir(parents=True, exist_ok=True)
        log = TrainLog(run_dir, config, after_step=after_step)
        set_later_aside(run_dir, after_step)
        if resolved is not None:
            write_config(run_dir, resolved)
    accelerator.wait_for_everyone()
    return log


def _tell_what_comes(task: TrainTask, config: TrainConfig, accelerator: Accelerator, global_batch: int) -> None:
    device = accelerator.device
    name = "cpu" if device.type == "cpu" else str(device)  # "cpu:0" in a process of several
    logger.info("%s", choose_device(name).words if device.type in ("cpu", "cuda") else f"on {device}")
    shares, precision = "", config.precision.replace("fp", "float")
    if global_batch != task.batch_size:
        processes = counted(accelerator.num_processes, "process", "processes")
        shares = f" ({task.batch_size:,} at once x {config.accumulation:,} accumulated x {processes})"
    line = (
        f"{counted(config.steps, 'step')} of {counted(global_batch, 'sample')}{shares} in {precision}, "
        f"learning rate {config.learning_rate:g}, {counted(task.num_samples, 'sample')} in an epoch"
    )
    logger.info("%s", folded(line))


def _stop_message(stopped_by: int, position: Position, config: TrainConfig, checkpoint: Path) -> str:
    return (
        f"stopped by {Signals(stopped_by).name} after step {position.step:,} of {config.steps:,}; its checkpoint "
        f"{checkpoint} stays"
    )


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
    """What happens in one run beside the steps themselves."""

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
        self._evaluated: dict[int, Mapping[str, float | None]] = {}  # by step, of this call
        self.ended_early = False  # by `patience`

    def _where(self, position: Position) -> dict[str, float]:
        """What every line of a log begins with."""
        samples = position.next_sample
        return {"step": position.step, "samples": samples, "epoch": round(samples / self._task.num_samples, 4)}

    def evaluate_the_start(self, position: Position, last_step: int) -> None:
        """Of a run that evaluates: what the first step, or the checkpoint that it goes on from, has to be compared
        with."""
        if last_step and self._is_due(self._config.evaluate_every, position) and self._lacks_evaluation(position):
            self._evaluate(position)
            self._tidy()
        self._look_whether_it_ends(position)

    def _look_whether_it_ends(self, position: Position) -> None:
        """By `patience`; all processes get the answer of the main one, which tells it."""
        config = self._config
        if not config.patience or position.step == config.steps:
            return
        is_out = self._log is not None and is_out_of_patience(self._log.evaluations, config)
        self.ended_early = self._any_process(is_out)
        if is_out:
            evaluations = counted(config.patience, "evaluation")
            words = f"no better {config.best_by} in {evaluations} (train.patience): the run ends"
            logger.info("%s", folded(f"{words} after step {position.step:,} of {config.steps:,}"))

    def set_learning_rate(self, position: Position) -> float:
        """The optimizer's rate for the step that `position` is the end of."""
        config = self._config
        rate = learning_rate_at(position.step, config, falls=self._plateau_falls(position))
        for group in self._state.optimizer.param_groups:
            group["lr"] = rate * group["learning_rate_scale"]
        return rate

    def _plateau_falls(self, position: Position) -> int:
        """By the evaluations before this step; all processes get those of the main one."""
        if self._config.schedule != "plateau":
            return 0
        lines = [] if self._log is None else self._log.evaluations
        scores = [line[self._config.best_by] for line in lines if 0 < line["step"] < position.step]
        falls = plateau_falls([score for score in scores if score is not None], self._config)
        told = torch.tensor(float(falls if self._log is not None else 0), device=self._accelerator.device)
        return int(self._accelerator.reduce(told, "sum"))

    def add_to_average(self, outcome: StepOutcome) -> None:
        if self._state.average is not None and outcome.moved:
            self._state.average.update(self._task.model)

    def log_step(self, position: Position, rate: float, outcome: StepOutcome) -> None:
        if self._log is not None:
            self._log.step(self._where(position), {"learning_rate": rate, **outcome.values})

    def save_and_evaluate(self, position: Position, *, ends: bool, stopped: int) -> Path | None:
        """What is due after a step, `ends` being the last one of this call; the checkpoint, where one was written."""
        config, checkpoint = self._config, None
        if self._is_due(config.checkpoint_every, position) or ends or stopped:
            checkpoint = self._save(position)
        # It may take its time: what comes after a signal or a crash in it goes on from the checkpoint, with it.
        if self._is_due(config.evaluate_every, position) and (ends or not stopped):
            is_best = self._evaluate(position)
            self._look_whether_it_ends(position)
            if checkpoint is None and (is_best or self.ended_early):
                return self._save(position)
            if is_best:
                self._tidy()
        return checkpoint

    def finish(self) -> None:
        """The model becomes the average, where there is one, and the page is written."""
        if self._state.average is not None:
            self._task.model.load_state_dict(self._state.average.state_dict())
        if self._log is not None and self._log.last_line:
            best = self._best()
            best_step = None if best is None else best["step"]
            write_training_page(self._run_dir, best_step=best_step, ended_early=self.ended_early)

    def result(self, position: Position, checkpoint: Path, seconds: float, *, new_steps: int) -> TrainResult:
        best = self._best()
        if self._log is not None:
            seconds = training_seconds(read_lines(self._run_dir / LOG_NAME))
        return TrainResult(
            position.step,
            checkpoint,
            {} if self._log is None else self._log.last_line,
            seconds,
            new_steps,
            self.ended_early,
            None if best is None else checkpoint_folder(self._run_dir, best["step"]),
            self._evaluated.get(position.step),
            str(self._accelerator.device),
        )

    def _is_due(self, every: int, position: Position) -> bool:
        """Whether this is one of the steps `every` so many, or the last of the schedule; 0 is never."""
        return every > 0 and (position.step % every == 0 or position.step == self._config.steps)

    def _lacks_evaluation(self, position: Position) -> bool:
        """Whether none is written down yet: the run begins, or was ended after this step's checkpoint."""
        lacks = self._log is not None and all(line["step"] != position.step for line in self._log.evaluations)
        return self._any_process(lacks)

    def _evaluate(self, position: Position) -> bool:
        """Evaluates and logs; whether it is the best so far, by `best_by`."""
        config, task, device = self._config, self._task, self._accelerator.device
        assert isinstance(task, EvaluatedTask)
        # What evaluating draws must not change the training after it.
        devices = [device] if device.type == "cuda" else []
        with waiting("evaluating"), torch.random.fork_rng(devices=devices), self._state.model_to_use():
            values = task.evaluate()
        task.model.train()
        if config.best_by and config.best_by not in values:
            raise ValueError(f"best_by {config.best_by!r}: the evaluation has {', '.join(values)}")
        is_best = False
        if self._log is not None:
            is_best = bool(config.best_by) and beats(values[config.best_by], self._best(), config)
            self._log.evaluation(self._where(position), values)
        self._evaluated[position.step] = values
        return self._any_process(is_best)

    def _best(self) -> Mapping[str, Any] | None:
        """The best evaluation so far; None in all but the main process."""
        return None if self._log is None else best_evaluation(self._run_dir, self._log.evaluations, self._config)

    def _save(self, position: Position) -> Path:
        """Writes a checkpoint, and tidies up."""
        if self._log is not None:
            self._log.sync()
        with waiting("writing a checkpoint"):
            checkpoint = save_checkpoint(
                self._run_dir, self._state, self._task.model_config(), position, self._resolved, self._accelerator
            )
        self._tidy()
        return checkpoint

    def _tidy(self) -> None:
        """Removes the checkpoints that are not to stay."""
        if self._log is not None:
            best = self._best()
            remove_old_checkpoints(self._run_dir, self._config.keep, None if best is None else best["step"])

    def _any_process(self, told: bool) -> bool:
        """Whether any process says so: all get one answer."""
        said = self._accelerator.reduce(torch.tensor(float(told), device=self._accelerator.device), "sum")
        return bool(said > 0)


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Device, precision and processes of a run, by its settings; ValueError where the machine has no such device."""
    if config.device.startswith("cuda"):
        name = choose_device(config.device).name
        if ":" in name and num_processes() > 1:
            raise ValueError(
                f"--device {name} is for one process; of several each takes a GPU of its own: --device cuda"
            )
        if ":" in name:
            torch.cuda.set_device(name)
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
