"""Training loop; by hand on accelerate, since no trainer has losses over global counts and bit-equal resumes.

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
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from signal import Signals
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from roibeam.messages import plural
from roibeam.model.common.exponential_average import ExponentialAverage
from roibeam.pipelines.common.compute import choose_device, num_processes
from roibeam.pipelines.common.console.progress import folded, waiting
from roibeam.pipelines.common.console.termination import StoppedBySignalError, StopSignals
from roibeam.pipelines.training.checkpoint import Position, TrainingState, load_checkpoint, set_later_aside
from roibeam.pipelines.training.hooks import RunHooks, TrainResult
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups
from roibeam.pipelines.training.run_folder.files import check_sums, checkpoint_step, latest_checkpoint, write_run_json
from roibeam.pipelines.training.run_folder.folder import (
    CONFIG_NAME,
    check_run_folder,
    check_same_run,
    checkpoint_to_resume,
    is_out_of_patience,
    run_folder_lock,
    with_recorded_rules,
)
from roibeam.pipelines.training.run_folder.train_log import TrainLog, read_evaluations
from roibeam.pipelines.training.task import (
    TIMED_STEPS,
    DryRun,
    DryRunDone,
    EvaluatedTask,
    TrainTask,
    rehearse,
    steps_of,
)
from roibeam.pipelines.training.train_config import DRY_RUN, Resume, TrainConfig
from roibeam.pipelines.training.train_step import TrainStep


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Device, precision and processes of a run, by its settings; ValueError if the machine has no such device."""
    if config.device.startswith("cuda"):
        name = choose_device(config.device).name
        if ":" in name and num_processes() > 1:
            raise ValueError(f"--device {name} is for one process; with several, each takes its own GPU: --device cuda")
        if ":" in name:
            torch.cuda.set_device(name)
    # accelerate keeps device and precision in a process-wide state and refuses a second, different one; a process may
    # train twice (tests, a notebook).
    AcceleratorState._reset_state(reset_partial_state=True)
    if config.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError("precision fp16 needs an accelerator, and this machine has none; choose bf16 or fp32")
    return Accelerator(
        # By default accelerate does not join processes of a machine that has no accelerator.
        cpu=config.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision="no" if config.precision == "fp32" else config.precision,
        # A loss, and with it a head, may have no sample in one process and some in another.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


logger = logging.getLogger(__name__)


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
        defaults: of its sections, values of settings in runs from before these existed.
        recorded: facts worth keeping that may differ on resume (paths, versions, store numerics).
        resume: True resumes from the newest checkpoint in `run_dir`; from the start, with a warning, if there is
            none yet. "auto" is for a repeated command: resumes if `run_dir` holds this run, else starts. The name of a
            checkpoint, such as "step-100" or "best", resumes from it; later ones are removed. `DRY_RUN` times the first
            steps.
        stop_at_step: stops (with a checkpoint) before `config.steps`; the schedule is not changed by it.
    Raises:
        ValueError: if `run_dir` holds a run and `resume` is False, if its configuration differs, if another
            training writes there, if a file of the checkpoint is damaged (naming it), or if a loss or gradient is not
            finite (naming the samples; the last checkpoint is kept).
        StoppedBySignalError: after a SIGTERM or Ctrl-C.
        DryRunDone: after the steps of a dry run.
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
    """See `train`, in a folder that no other training writes to."""
    last_step = config.steps if stop_at_step is None else min(stop_at_step, config.steps)
    if config.evaluate_every and not isinstance(task, EvaluatedTask):
        raise ValueError(f"evaluate_every {config.evaluate_every}: this task offers no evaluation; leave it at 0")
    if config.activation_checkpointing:
        enable = getattr(task.model, "activation_checkpointing_enable", None)  # of transformers' models
        if enable is None:
            raise ValueError(
                f"activation_checkpointing: {type(task.model).__name__} has no layers that compute their activations "
                f"again; leave it at false"
            )
        enable()
    accelerator = make_accelerator(config)
    global_batch = task.batch_size * config.accumulation * accelerator.num_processes
    newest, earlier = _newest_checkpoint(run_dir, resume=resume)
    config = config if earlier is None else with_recorded_rules(earlier, config)
    resolved = _resolved(config, description, recorded, global_batch)
    is_done = newest is not None and _is_done(run_dir, newest, config, last_step)
    if earlier is not None:
        check_same_run(earlier, resolved, defaults, goes_on=not is_done)
    model, prepared_optimizer, state = _prepared(task, config, accelerator)
    position = _start(run_dir, newest, state, config, accelerator, resume=resume)
    log = _opened_log(run_dir, config, None if is_done else resolved, accelerator, after_step=position.step)
    if not is_done:
        _log_start(task, config, accelerator, global_batch)

    run = RunHooks(run_dir, task, config, resolved, accelerator, state, log)
    signals = StopSignals("finishing the step and writing a checkpoint")
    step = TrainStep(
        task, model, prepared_optimizer, accelerator, config, stop_signal=lambda: signals.number, run_dir=run_dir
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
        if resume == DRY_RUN:
            for group in prepared_optimizer.param_groups:
                group["lr"] = 0.0
            raise DryRunDone(_dry_run(task, config, steps, step, accelerator, global_batch))
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
        where = f"after step {position.step:,} of {config.steps:,}; its checkpoint {checkpoint} stays"
        raise StoppedBySignalError(f"stopped by {Signals(stopped_by).name} {where}", stopped_by)
    return run.result(position, checkpoint, time.monotonic() - started, new_steps=position.step - first_step)


def _dry_run(
    task: TrainTask, config: TrainConfig, steps: Iterator[Any], step: TrainStep, accelerator: Accelerator, samples: int
) -> DryRun:
    device, seconds = accelerator.device, list[float]()
    for number in range(TIMED_STEPS + 1):  # the first one warms caches and kernels up
        began = time.monotonic()
        if stop := step.take(next(steps), number + 1).stop:
            raise StoppedBySignalError(f"stopped by {Signals(stop).name}; nothing is written", stop)
        seconds.append(time.monotonic() - began)
    parameters = sum(each.numel() for each in task.model.parameters())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    return DryRun(config.steps, samples, task.num_samples, parameters, str(device), memory, tuple(seconds[1:]))


def _is_done(run_dir: Path, newest: Path, config: TrainConfig, last_step: int) -> bool:
    """Whether no step is left after the checkpoint to resume from: the run was complete there, or ended early."""
    step = checkpoint_step(newest)
    lines = [line for line in read_evaluations(run_dir) if line["step"] <= step]
    is_last = newest == latest_checkpoint(run_dir)
    return is_last and (step >= last_step or is_out_of_patience(lines, config))


def _resolved(
    config: TrainConfig, description: Mapping[str, Any], recorded: Mapping[str, Any] | None, global_batch: int
) -> dict[str, Any]:
    """The configuration as it reads back from the file: tuples become lists."""
    resolved = {"train": dataclasses.asdict(config), "task": dict(description), "recorded": dict(recorded or {})}
    return json.loads(json.dumps(resolved | {"global_batch": global_batch}))


def _newest_checkpoint(run_dir: Path, *, resume: Resume) -> tuple[Path | None, Path | None]:
    """The checkpoint to resume from, and the folder with the run's configuration; None for what is missing."""
    newest = checkpoint_to_resume(run_dir, resume)
    if newest is not None:
        with waiting("checking the checkpoint"):
            check_sums(newest)
    earlier = run_dir if resume == "auto" and (run_dir / CONFIG_NAME).exists() else None
    return newest, newest or earlier


def _prepared(
    task: TrainTask, config: TrainConfig, accelerator: Accelerator
) -> tuple[nn.Module, AcceleratedOptimizer, TrainingState]:
    """Model and optimizer as the accelerator takes them, and the state that changes from step to step."""
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
    """Seeds this process; with a checkpoint, restores `state` and position."""
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
    """The log of the main process, which also writes the configuration; all wait for it. `resolved` is None if no step
    is left: the folder keeps the configuration that its steps were trained with."""
    log = None
    if accelerator.is_main_process:
        run_dir.mkdir(parents=True, exist_ok=True)
        log = TrainLog(run_dir, config, after_step=after_step)
        set_later_aside(run_dir, after_step)
        if resolved is not None:
            write_run_json(run_dir / CONFIG_NAME, resolved)
    accelerator.wait_for_everyone()
    return log


def _log_start(task: TrainTask, config: TrainConfig, accelerator: Accelerator, global_batch: int) -> None:
    device = accelerator.device
    name = "cpu" if device.type == "cpu" else str(device)  # "cpu:0" in a process of several
    logger.info("%s", choose_device(name).words if device.type in ("cpu", "cuda") else f"on {device}")
    shares, precision = "", config.precision.replace("fp", "float")
    if global_batch != task.batch_size:
        processes = plural(accelerator.num_processes, "process", "processes")
        shares = f" ({task.batch_size:,} at once x {config.accumulation:,} accumulated x {processes})"
    line = (
        f"{plural(config.steps, 'step')} of {plural(global_batch, 'sample')}{shares} in {precision}, "
        f"learning rate {config.learning_rate:g}, {plural(task.num_samples, 'sample')} in an epoch"
    )
    logger.info("%s", folded(line))
