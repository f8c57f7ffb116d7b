"""Logs of a training run: log.jsonl, evaluation.jsonl, TensorBoard; and its progress.

Both files hold each step once: lines after the checkpoint that a run resumes from are dropped.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import plural
from roibeam.pipelines.common.console.progress import STEPS, Progress, folded
from roibeam.pipelines.common.statistics.measure_names import measure_name
from roibeam.pipelines.common.statistics.verdict import BESIDE, Figure, Judged, judged_line
from roibeam.pipelines.training.run_folder.files import RESTORE, check_run_file, list_grown_file, write_run_file
from roibeam.pipelines.training.train_config import TrainConfig

logger = logging.getLogger(__name__)

LOG_NAME, EVALUATION_NAME, TENSORBOARD_NAME = "log.jsonl", "evaluation.jsonl", "tensorboard"
_NO_VALUES = ("step", "samples", "epoch", "seconds", "learning_rate")  # of a line, for people


class TrainLog:
    """The log of a run, open from `__enter__` to `__exit__`; only the main process has one.

    Args:
        after_step: step that the run resumes after; lines of later steps are removed.

    Attributes:
        last_line: of log.jsonl; empty when there is none.
        evaluations: all lines of evaluation.jsonl.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, *, after_step: int) -> None:
        self._run_dir, self._config = run_dir, config
        self._tensorboard = _tensorboard(run_dir, after_step) if config.tensorboard else None
        self._started = time.monotonic()
        self._progress = Progress("training", config.steps, STEPS, done=after_step)
        read_evaluations(run_dir)  # damage is found before lines go away
        for name in (LOG_NAME, EVALUATION_NAME):
            _truncate(run_dir / name, after_step)
        self._files: dict[str, IO[str]] = {}
        lines = read_lines(run_dir / LOG_NAME)
        _warn_of_lost_steps(run_dir / LOG_NAME, lines, after_step)
        self.last_line = (lines or [{}])[-1]
        self.evaluations = read_evaluations(run_dir)

    def __enter__(self) -> TrainLog:
        names = [LOG_NAME, *([EVALUATION_NAME] if self._config.evaluate_every else [])]
        self._files = {name: (self._run_dir / name).open("a", encoding="utf-8") for name in names}
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        for file in self._files.values():
            file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def step(self, position: Mapping[str, float], values: Mapping[str, float | None]) -> None:
        """Writes a line of log.jsonl."""
        self.last_line = self._write(LOG_NAME, position, values)
        loss = self.last_line.get("loss")
        self._progress.to(self.last_line["step"])
        self._progress.note("" if loss is None else f"loss {loss:.4g}")

    def evaluation(self, position: Mapping[str, float], values: Judged) -> None:
        """Writes a line of evaluation.jsonl, with the levels beside its numbers, and one for people. Numbers that are
        not finite are written as null."""
        wrong = [name for name, value in values.items() if value is not None and not math.isfinite(value)]
        if wrong:
            logger.warning("evaluation after step %d: %s not finite", position["step"], ", ".join(wrong))
        numbers: dict[str, Any] = {name: None if name in wrong else value for name, value in values.items()}
        beside = values.beside()
        line = self._write(EVALUATION_NAME, position, {**numbers, BESIDE: beside} if beside else numbers)
        list_grown_file(self._run_dir / EVALUATION_NAME)
        self.evaluations.append(line)
        names = [name for name, value in line.items() if isinstance(value, float) and name not in _NO_VALUES]
        words = ", ".join(_written(figure) for figure in judged_line(line, names).figures)
        logger.info("%s", folded(f"evaluation after step {line['step']:,}: {words}"))

    def sync(self) -> None:
        """Waits until all lines are on the disk: a checkpoint must not be ahead of them."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def _write(self, name: str, position: Mapping[str, float], values: Mapping[str, Any]) -> dict[str, Any]:
        line = {**position, **values, "seconds": round(time.monotonic() - self._started, 3)}
        self._files[name].write(json.dumps(line) + "\n")
        self._files[name].flush()
        if self._tensorboard is not None:
            kind = "train" if name == LOG_NAME else "evaluation"
            for key, value in line.items():
                if value is not None and key not in ("step", "samples", "seconds", BESIDE):
                    self._tensorboard.add_scalar(f"{kind}/{key}", value, line["step"])
        return line


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, empty without a file; a line cut by a crash is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if _step_of(line) < math.inf]


def read_evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of evaluation.jsonl, which decide the best checkpoint."""
    path = run_dir / EVALUATION_NAME
    check_run_file(path, f"{RESTORE}, or remove it: no checkpoint is the best then", grows=True)
    return read_lines(path)


def _warn_of_lost_steps(path: Path, lines: list[dict[str, Any]], after_step: int) -> None:
    """Warns if the log does not hold each step up to a checkpoint: a run syncs it before it writes one."""
    there = {line["step"] for line in lines}
    lost = [step for step in range(1, after_step + 1) if step not in there]
    if lost:
        logger.warning(
            "%s lacks %s up to the checkpoint (the first: %d): it was changed from outside; the weights are not "
            "touched, pages and sums of the run go without these steps",
            path, plural(len(lost), "step"), lost[0],
        )  # fmt: skip


def _truncate(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    # A run that starts again at its first step is evaluated before it again.
    last = last_step if last_step else -1
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _step_of(line) <= last]
    if kept == lines:
        return
    whole = b"".join(kept)
    if path.name == EVALUATION_NAME:
        write_run_file(path, lambda aside: aside.write_bytes(whole))
    else:
        write_bytes_atomically(path, whole)


def _step_of(line: bytes) -> float:
    """The step of a line; infinity for an incomplete one."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf


def _tensorboard(run_dir: Path, after_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "tensorboard=true needs TensorBoard: pip install 'roibeam[tensorboard]', or train without it"
        ) from None
    # Steps that are repeated after a resume replace their earlier values.
    return SummaryWriter(str(run_dir / TENSORBOARD_NAME), purge_step=after_step + 1 if after_step else None)


def _written(figure: Figure) -> str:
    called = measure_name(figure.name)
    level = "" if figure.chance is None else f" (chance {called.formatted(figure.chance)})"
    return f"{called.lower_title} {called.formatted(figure.value)}{level}"
