"""The one training loop. What is trained is a `TrainTask`; the detector is one, pre-training another.

    micro-batches -> losses as sums and counts -> one mean -> backward -> clip -> optimizer -> log -> checkpoint

A run folder holds:

    config.json                    the resolved configuration
    log.jsonl                      one JSON line for each step, each step once
    checkpoints/step-00000100/     config.json, state.json, optimizer.safetensors, rng-0.safetensors (one per process),
                                   model/config.json, model/model.safetensors

N steps give the same bits as k steps, a resume and N - k steps (same software, device kind and number of threads).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from model.losses import SumCount
from pipelines.checkpoint import (
    Position,
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
    sync_to_disk,
    write_json,
)
from pipelines.optimizer import TrainConfig, build_optimizer, chosen_groups, clip_each, learning_rate_at
from pipelines.parameter_groups import ParameterGroup

logger = logging.getLogger(__name__)

# Settings that only change what is written down, so a resumed run may change them.
_FREE_ON_RESUME = frozenset({"train.log_every", "train.checkpoint_every", "train.keep"})
# How long a run lasts and when its rate falls is often known only when it is on its way.
_SCHEDULE = frozenset({"train.steps", "train.decay_steps"})


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


@dataclass(frozen=True)
class TrainResult:
    """Attributes:
    step: last step that ran.
    checkpoint: folder of the newest checkpoint.
    last: the last line of log.jsonl.
    seconds: time in the loop, by the clock.
    """

    step: int
    checkpoint: Path
    last: dict[str, Any]
    seconds: float


def train(
    task: TrainTask,
    config: TrainConfig,
    run_dir: Path,
    *,
    description: Mapping[str, Any],
    recorded: Mapping[str, Any] | None = None,
    resume: bool = False,
    stop_at_step: int | None = None,
) -> TrainResult:
    """Trains `task` and writes the run folder.

    Args:
        description: the task's resolved configuration; a resumed run must have the same one.
        recorded: facts worth keeping that may differ on resume (paths, versions, store numerics).
        resume: goes on from the newest checkpoint in `run_dir`; from the start when there is none yet.
        stop_at_step: stops (with a checkpoint) before `config.steps`; the schedule is not changed by it.
    Raises:
        ValueError: when `run_dir` holds a run and `resume` is False, when its configuration differs, or when a loss or
            gradient is not finite (naming the samples; the last checkpoint is kept).
    """
    run_dir = Path(run_dir)
    last_step = config.steps if stop_at_step is None else min(stop_at_step, config.steps)
    check_run_folder(run_dir, resume=resume)
    newest = latest_checkpoint(run_dir)
    resolved = {"train": dataclasses.asdict(config), "task": dict(description), "recorded": dict(recorded or {})}
    resolved = json.loads(json.dumps(resolved))  # tuples become lists, as they will be when read back
    if newest is not None:
        _check_same_run(json.loads((newest / "config.json").read_text("utf-8")), resolved, newest)

    accelerator = _make_accelerator(config)
    optimizer = build_optimizer(chosen_groups(task.model, task.parameter_groups, config), config)
    model, prepared_optimizer = accelerator.prepare(task.model, optimizer)
    torch.manual_seed(np.random.SeedSequence([config.seed, accelerator.process_index]).generate_state(1)[0].item())
    position = Position()
    if newest is not None:
        position = load_checkpoint(newest, task.model, optimizer, rank=accelerator.process_index)
        logger.info("resuming %s at step %d", newest, position.step)
    elif resume:
        logger.warning("%s holds no checkpoint yet: starting at step 1", run_dir)
    if accelerator.is_main_process:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / "config.json", resolved)
        _truncate_log(run_dir / "log.jsonl", position.step)
    accelerator.wait_for_everyone()
    global_batch = task.batch_size * config.accumulation * accelerator.num_processes
    logger.info(
        "%d steps of %d samples (%d per micro-batch x %d accumulated x %d processes) on %s in %s, "
        "learning rate %g, %d samples in an epoch",
        config.steps, global_batch, task.batch_size, config.accumulation, accelerator.num_processes,
        accelerator.device, config.precision, config.learning_rate, task.num_samples,
    )  # fmt: skip

    stream = task.batches(position.next_sample, rank=accelerator.process_index, num_ranks=accelerator.num_processes)
    started, first_step, last_line = time.monotonic(), position.step, _last_line(run_dir / "log.jsonl")
    checkpoint = newest
    model.train()
    with (run_dir / "log.jsonl").open("a", encoding="utf-8") if accelerator.is_main_process else nullcontext() as log:
        while position.step < last_step:
            micro_batches = [next(stream) for _ in range(config.accumulation)]
            position = Position(position.step + 1, position.next_sample + global_batch)
            rate = learning_rate_at(position.step, config)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["learning_rate_scale"]
            values = _take_step(task, model, prepared_optimizer, accelerator, micro_batches, config, position.step)
            if log is not None:
                last_line = {
                    "step": position.step,
                    "samples": position.next_sample,
                    "epoch": round(position.next_sample / task.num_samples, 4),
                    "learning_rate": rate,
                    **values,
                    "seconds": round(time.monotonic() - started, 3),
                }
                log.write(json.dumps(last_line) + "\n")
                log.flush()
                if position.step % config.log_every == 0 or position.step == last_step:
                    _report(last_line, config.steps, position.step - first_step, time.monotonic() - started)
            due = config.checkpoint_every and position.step % config.checkpoint_every == 0
            if due or position.step == last_step:
                if log is not None:
                    os.fsync(log.fileno())
                checkpoint = save_checkpoint(
                    run_dir, task.model, task.model_config(), optimizer, position, resolved, accelerator
                )
                if accelerator.is_main_process:
                    remove_old_checkpoints(run_dir, config.keep)
    if checkpoint is None:
        raise ValueError(f"nothing to do: stop_at_step {stop_at_step} lets no step run")
    return TrainResult(position.step, checkpoint, last_line, time.monotonic() - started)


_WRITTEN_FIRST = frozenset({"tokenizer", "trained_images.npy"})  # what a run that failed early may have left


def check_run_folder(run_dir: Path, *, resume: bool) -> None:
    """Raises ValueError when `run_dir` is a file, holds other things, or a run that is not to be resumed."""
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"{run_dir} is a file; give a folder for the run")
    if run_dir.is_dir() and not (run_dir / "config.json").exists():
        others = sorted(path.name for path in run_dir.iterdir() if path.name not in _WRITTEN_FIRST)
        if others:
            raise ValueError(f"{run_dir} is not empty and no run of ours ({others[0]!r} is in it); choose a new folder")
    if (run_dir / "manifest.json").exists():
        raise ValueError(f"{run_dir} is a feature store; choose another folder for the run")
    if not resume and ((run_dir / "log.jsonl").exists() or latest_checkpoint(run_dir) is not None):
        raise ValueError(f"{run_dir} already holds a run; resume it, or choose another folder")


def is_main_process() -> bool:
    """Whether this process speaks for all of a run, before and after `train`."""
    return int(os.environ.get("RANK", "0")) == 0  # torchrun's


def _make_accelerator(config: TrainConfig) -> Accelerator:
    # accelerate keeps device and precision in a process-wide state and refuses a second, different one; a process may
    # train twice (tests, a notebook).
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=config.device == "cpu", mixed_precision={"fp32": "no", "bf16": "bf16"}[config.precision])


def _take_step(
    task: TrainTask,
    model: nn.Module,
    optimizer: Any,
    accelerator: Accelerator,
    micro_batches: list[Any],
    config: TrainConfig,
    step: int,
) -> dict[str, float | None]:
    """One optimizer step over all micro-batches; returns loss, gradient norm, and the mean of every loss and metric."""
    counts: dict[str, Tensor] = {}
    for batch in micro_batches:
        for name, count in task.counts(batch).items():
            counts[name] = counts.get(name, torch.zeros((), dtype=torch.long)) + count
    counts = {name: accelerator.reduce(count.to(accelerator.device), "sum") for name, count in counts.items()}

    sums: dict[str, SumCount] = {}
    for index, batch in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        with nullcontext() if last else accelerator.no_sync(model), accelerator.autocast():
            output = task.losses(model, batch.to(accelerator.device))
            if set(output.losses) != set(counts):
                raise ValueError(f"task gave losses {sorted(output.losses)} but counts for {sorted(counts)}")
            # Gradients are averaged over processes, so each contributes its share times their number.
            loss = sum(
                (term.total / counts[name].clamp(min=1) for name, term in output.losses.items()),
                start=torch.zeros((), device=accelerator.device),
            )
        accelerator.backward(loss * accelerator.num_processes)
        for name, term in {**output.losses, **output.metrics}.items():
            sums[name] = sums[name] + term.detach() if name in sums else term.detach()
    all_together = config.clip_scope == "all" and config.clip_norm
    norm = accelerator.clip_grad_norm_(model.parameters(), config.clip_norm if all_together else math.inf)

    means = {name: _global_mean(term, accelerator) for name, term in sums.items()}
    loss_value = sum(value for name, value in means.items() if name in counts and value is not None)
    norm_value = float(norm)
    if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
        names = [name for batch in micro_batches for name in task.sample_ids(batch)]
        raise ValueError(
            f"step {step}: loss {loss_value} ({means}), gradient norm {norm_value} are not finite; samples: "
            f"{', '.join(names)}; look at their features, or lower the learning rate and start again"
        )
    if config.clip_scope == "each" and config.clip_norm:
        clip_each(model.parameters(), config.clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss_value, "gradient_norm": norm_value, **means}


def _global_mean(term: SumCount, accelerator: Accelerator) -> float | None:
    """None (null in the log) when nothing was counted: 0 would read as a perfect loss or as no hit at all."""
    pair = torch.stack([term.total.double(), term.count.double()])
    total, count = accelerator.reduce(pair, "sum").tolist()
    return total / count if count else None


# --- resuming ---


def _check_same_run(saved: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    before, after = _flatten(saved), _flatten(now)
    changed = [
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and name not in _FREE_ON_RESUME and not name.startswith("recorded.")
    ]
    if changed and all(change.partition(":")[0] in _SCHEDULE for change in changed):
        logger.warning("resuming with another schedule (%s): the learning rate bends here", "; ".join(changed))
    elif changed:
        raise ValueError(f"{folder} belongs to another configuration ({'; '.join(changed)}); start a new run folder")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


# --- log and files ---


def _truncate_log(path: Path, last_step: int) -> None:
    """Drops what was logged after the checkpoint, and a line cut by a crash, so that each step stands once."""
    if not path.exists():
        return
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if _logged_step(line) <= last_step]
    aside = path.with_name(".log.jsonl.writing")
    aside.write_bytes(b"".join(kept))
    sync_to_disk(aside)
    aside.rename(path)


def _logged_step(line: bytes) -> float:
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else math.inf
    except ValueError:
        return math.inf


def _last_line(path: Path) -> dict[str, Any]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {}


def _report(line: Mapping[str, Any], steps: int, steps_here: int, seconds: float) -> None:
    rate = steps_here / max(seconds, 1e-9)
    values = ", ".join(
        f"{name} {value:.4g}"
        for name, value in line.items()
        if isinstance(value, float) and name not in ("seconds", "epoch", "learning_rate")
    )
    left = (steps - line["step"]) / rate
    logger.info("step %d/%d: %s (%.2f steps/s, %.0f s left)", line["step"], steps, values, rate, left)
