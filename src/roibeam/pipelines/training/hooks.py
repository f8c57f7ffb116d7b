"""Hooks of a run beside its steps: rates, logs, evaluations, checkpoints, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from roibeam.messages import plural
from roibeam.pipelines.common.console.progress import duration, folded, waiting
from roibeam.pipelines.common.statistics.verdict import Figure, Judged
from roibeam.pipelines.training.checkpoint import Position, TrainingState, remove_old_checkpoints, save_checkpoint
from roibeam.pipelines.training.optimizer import learning_rate_at, plateau_falls
from roibeam.pipelines.training.run_folder.files import checkpoint_folder, checkpoint_step
from roibeam.pipelines.training.run_folder.folder import beats, best_evaluation, is_out_of_patience
from roibeam.pipelines.training.run_folder.report_page import write_training_page
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary, training_seconds, write_summary
from roibeam.pipelines.training.run_folder.train_log import LOG_NAME, TrainLog, read_lines
from roibeam.pipelines.training.task import EvaluatedTask, TrainTask
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import StepOutcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """Attributes:
    step: last step that ran.
    checkpoint: folder of the newest checkpoint.
    last: the last line of log.jsonl.
    seconds: time of the steps in log.jsonl, with those of earlier calls; of this call, if this process has no log.
    new_steps: number of steps in this call.
    ended_early: by `TrainConfig.patience`, so that the run is finished although steps are left.
    best: folder of the best checkpoint by `TrainConfig.best_by`, or None.
    best_evaluation: evaluation of this checkpoint, as in evaluation.jsonl; both are only known in the main process.
    evaluation: after the last step, each number beside chance if its task knows it; None if this call made none there.
    device: of the main process, as torch names it.
    """

    step: int
    checkpoint: Path
    last: dict[str, Any]
    seconds: float
    new_steps: int
    ended_early: bool = False
    best: Path | None = None
    best_evaluation: Mapping[str, Any] | None = None
    evaluation: Judged | None = None
    device: str = "cpu"

    def done(self) -> str:
        """Number of steps and their time, for people."""
        if self.ended_early and not self.new_steps:
            return f"the run has ended after {plural(self.step, 'step')}, by train.patience; nothing to do"
        if not self.new_steps:
            return f"all {plural(self.step, 'step')} are there already; nothing to do"
        earlier = "" if self.new_steps == self.step else f", {self.new_steps:,} of them now"
        early = ", ended by train.patience" if self.ended_early else ""
        return f"{plural(self.step, 'step')} in {duration(self.seconds)}{earlier}{early}"


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a pre-training or fine-tuning run.

    Attributes:
        run_dir: the run folder: config.json, log.jsonl, tokenizer/, trained_images.npy, checkpoints/.
        training: final state of the loop.
        figures: of the evaluation on the final weights, or on the best ones, each beside chance; empty where nothing
            was judged.
        notes: for people; kept in config.json.
        encoder: end to end, what is masked and how far each stage of the region encoder moved, see encoder_change.py;
            None on stored features, and outside the main process.
    """

    run_dir: Path
    training: TrainResult
    figures: tuple[Figure, ...]
    notes: Sequence[str]
    encoder: Mapping[str, Any] | None = None

    @property
    def evaluation(self) -> dict[str, float | None]:
        """The value of each figure, by name; None where there was nothing to measure."""
        return {figure.name: figure.value for figure in self.figures}

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run_dir),
            "checkpoint": str(self.training.checkpoint),
            "step": self.training.step,
            "seconds": round(self.training.seconds, 1),
            "notes": list(self.notes),
            "last": self.training.last,
            "evaluation": self.evaluation,
            "figures": [figure.to_json() for figure in self.figures],
            "encoder": self.encoder,
        }


def write_results(run_dir: Path, training: TrainResult, summary: TrainingSummary | None) -> None:
    """Writes the run's page with the results of its last evaluation; None for a run without one."""
    if summary is not None:
        write_summary(run_dir, summary)
    best = None if training.best is None else checkpoint_step(training.best)
    write_training_page(run_dir, best_step=best, ended_early=training.ended_early)


class RunHooks:
    """Actions of a run beside its steps."""

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
        self._evaluated: dict[int, Judged] = {}  # by step, of this call
        self.ended_early = False  # by `patience`

    def _where(self, position: Position) -> dict[str, float]:
        """First fields of every line of a log."""
        samples = position.next_sample
        return {"step": position.step, "samples": samples, "epoch": round(samples / self._task.num_samples, 4)}

    def evaluate_the_start(self, position: Position, last_step: int) -> None:
        """Evaluates the start of a run, the first step or the checkpoint that it resumes from, for later comparison."""
        if last_step and self._is_due(self._config.evaluate_every, position):
            # Not logged yet in a new run, or in one that ended after its checkpoint.
            lacks = self._log is not None and all(line["step"] != position.step for line in self._log.evaluations)
            if self._any_process(lacks):
                self._evaluate(position)
                self._tidy()
        self._look_whether_it_ends(position)

    def _look_whether_it_ends(self, position: Position) -> None:
        """Ends the run by `patience`; all processes get the answer of the main one, which logs it."""
        config = self._config
        if not config.patience or position.step == config.steps:
            return
        is_out = self._log is not None and is_out_of_patience(self._log.evaluations, config)
        self.ended_early = self._any_process(is_out)
        if is_out:
            evaluations = plural(config.patience, "evaluation")
            words = f"no better {config.best_by} in {evaluations} (train.patience): the run ends"
            logger.info("%s", folded(f"{words} after step {position.step:,} of {config.steps:,}"))

    def set_learning_rate(self, position: Position) -> float:
        """The learning rate of the step that ends at `position`."""
        config = self._config
        rate = learning_rate_at(position.step, config, falls=self._plateau_falls(position))
        for group in self._state.optimizer.param_groups:
            group["lr"] = rate * group["learning_rate_scale"]
        return rate

    def _plateau_falls(self, position: Position) -> int:
        """Number of falls by the evaluations before this step; all processes get that of the main one."""
        if self._config.schedule != "plateau":
            return 0
        lines = [] if self._log is None else self._log.evaluations
        scores = [line[self._config.best_by] for line in lines if 0 < line["step"] < position.step]
        falls = plateau_falls([score for score in scores if score is not None], self._config)
        own = torch.tensor(float(falls if self._log is not None else 0), device=self._accelerator.device)
        return int(self._accelerator.reduce(own, "sum"))

    def add_to_average(self, outcome: StepOutcome) -> None:
        if self._state.average is not None and outcome.moved:
            self._state.average.update(self._task.model)

    def log_step(self, position: Position, rate: float, outcome: StepOutcome) -> None:
        if self._log is not None:
            self._log.step(self._where(position), {"learning_rate": rate, **outcome.values})

    def save_and_evaluate(self, position: Position, *, ends: bool, stopped: int) -> Path | None:
        """Saves and evaluates if due after a step, `ends` being the last one of this call; returns a new checkpoint."""
        config, checkpoint = self._config, None
        if self._is_due(config.checkpoint_every, position) or ends or stopped:
            checkpoint = self._save(position)
        # It may take long: after a signal or a crash in it, the run resumes from this checkpoint.
        if self._is_due(config.evaluate_every, position) and (ends or not stopped):
            is_best = self._evaluate(position)
            self._look_whether_it_ends(position)
            if checkpoint is None and (is_best or self.ended_early):
                return self._save(position)
            if is_best:
                self._tidy()
        return checkpoint

    def finish(self) -> None:
        """The model becomes the average, if there is one, and the page is written."""
        if self._state.average is not None:
            self._task.model.load_state_dict(self._state.average.state_dict())
        if self._log is not None and self._log.last_line:
            write_training_page(self._run_dir, best_step=self._best_step(), ended_early=self.ended_early)

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
            best,
            self._evaluated.get(position.step),
            str(self._accelerator.device),
        )

    def _is_due(self, every: int, position: Position) -> bool:
        """Whether this is one of the steps `every` so many, or the last of the schedule; 0 is never."""
        return every > 0 and (position.step % every == 0 or position.step == self._config.steps)

    def _evaluate(self, position: Position) -> bool:
        """Evaluates and logs; returns whether it is the best so far, by `best_by`."""
        config, task, device = self._config, self._task, self._accelerator.device
        assert isinstance(task, EvaluatedTask)
        # Random draws of the evaluation must not change the training after it.
        devices = [device] if device.type == "cuda" else []
        with waiting("evaluating"), torch.random.fork_rng(devices=devices), self._state.model_to_use():
            values = Judged.of(task.evaluate())
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
        """The best evaluation so far; None outside the main process."""
        return None if self._log is None else best_evaluation(self._run_dir, self._log.evaluations, self._config)

    def _best_step(self) -> int | None:
        best = self._best()
        return None if best is None else int(best["step"])

    def _save(self, position: Position) -> Path:
        """Writes a checkpoint, and removes old ones."""
        if self._log is not None:
            self._log.sync()
        with waiting("writing a checkpoint"):
            checkpoint = save_checkpoint(
                self._run_dir, self._state, self._task.model_config(), position, self._resolved, self._accelerator
            )
        self._tidy()
        return checkpoint

    def _tidy(self) -> None:
        if self._log is not None:
            remove_old_checkpoints(self._run_dir, self._config.keep, self._best_step())

    def _any_process(self, own: bool) -> bool:
        """Whether `own` is true in any process: all get one answer."""
        total = self._accelerator.reduce(torch.tensor(float(own), device=self._accelerator.device), "sum")
        return bool(total > 0)
