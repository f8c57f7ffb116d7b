"""Training and asking: one run after the other, each in a process of its own, so that all can be stopped and taken up.

RESULTS                             what runs answered, see `run_answers`; a run that is there is not made again
WORK/runs/<store>/<arm>-<seed>      the run itself: kept, so that a question can be asked later without training
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.arms import ARMS, SEEDS, Arm
from evidence.pretraining_runs import PretrainingRuns
from evidence.run_answers import pack, read_runs
from evidence.tasks.head_runs import HeadRuns
from evidence.tasks.own_arms import HEAD_ARMS, OWN_ARMS, HeadArm
from evidence.tasks.task_arms import TASK_ARMS, TaskArm
from evidence.tasks.task_runs import TaskRuns

SECONDS_A_STEP, SECONDS_A_STEP_OF_PHOTOS = 0.09, 0.7  # of one core, until a run was measured
AnyArm = Arm | TaskArm | HeadArm
ALL_ARMS: Mapping[str, AnyArm] = {**ARMS, **TASK_ARMS, **HEAD_ARMS, **OWN_ARMS}


@dataclass(frozen=True)
class Run:
    arm: AnyArm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.id}-{self.seed}"


class Runs:
    """Those of some arms and seeds.

    Args:
        pretraining, tasks, heads: what trains and asks each kind of arm.
        results: folder of the answers.
        seeds: of these, each arm takes its own.
        with_weights: whether a run is missing, too, whose weights are to be kept and are gone.
    """

    def __init__(
        self,
        pretraining: PretrainingRuns,
        tasks: TaskRuns,
        heads: HeadRuns,
        results: Path,
        *,
        arms: Sequence[str],
        seeds: Sequence[int] | None,
        with_weights: bool = False,
    ) -> None:
        self.pretraining, self.tasks, self.heads, self.results = pretraining, tasks, heads, results
        self.all = [Run(ALL_ARMS[arm], seed) for arm in arms for seed in ALL_ARMS[arm].seeds]
        self.all = [run for run in self.all if seeds is None or run.seed in seeds]
        self._with_weights, self._kept = with_weights, read_runs(results)

    def result(self, run: Run) -> Path:
        return self.results / f"{run.name}.json"

    def missing(self) -> list[Run]:
        """Without answers, or with those of another command."""
        return [run for run in self.all if not self._answered(run) or (self._with_weights and self._lacks_weights(run))]

    def to_make(self) -> list[Run]:
        """The missing ones, after those that they start from and that are gone."""
        missing = self.missing()
        names = {run.name for run in missing}
        starts = {start.name: start for run in missing for start in self._gone_starts(run)}
        return [*(start for name, start in starts.items() if name not in names), *missing]

    def _gone_starts(self, run: Run) -> list[Run]:
        """The run that one starts from: of pre-training the run itself is needed, of tasks and heads its weights."""
        if not isinstance(run.arm, Arm):
            start = Run(ARMS[run.arm.shape], 0)
            return [start] if self._lacks_weights(start) else []
        starts = [Run(ARMS[run.arm.needs], run.seed)] if run.arm.needs else []
        return [start for start in starts if not self.pretraining.is_trained(start.arm, start.seed)]

    def _lacks_weights(self, run: Run) -> bool:
        keeps = isinstance(run.arm, Arm) and run.arm.kept and run.seed == 0
        return keeps and not (self.pretraining.weights / run.arm.id).exists()

    def stores(self, wanted: Callable[[AnyArm], bool]) -> list[str]:
        """Names of the stores that the runs to make of these arms need."""
        return list(dict.fromkeys(run.arm.store for run in self.to_make() if wanted(run.arm)))

    def tasks_of_stores(self) -> dict[str, list[str]]:
        """Names of the stores of the tasks' own world that missing runs need, each with its tasks."""
        found: dict[str, list[str]] = {}
        for run in self.missing():
            if isinstance(run.arm, TaskArm) and not run.arm.rules.is_own:
                found.setdefault(run.arm.store, []).append(run.arm.rules.name)
        return found

    def command(self, arm: AnyArm) -> str:
        return str(self._maker(arm).command(arm))

    def _maker(self, arm: AnyArm) -> Any:
        return {Arm: self.pretraining, TaskArm: self.tasks, HeadArm: self.heads}[type(arm)]

    def seconds(self) -> float:
        """What those to make take of one core, about: an arm as its other runs, or by its steps."""
        return sum(self._seconds_of(run) for run in self.to_make())

    def _seconds_of(self, run: Run) -> float:
        known = [self._read(Run(run.arm, seed)) for seed in SEEDS]
        found = [answers["seconds"] for answers in known if answers is not None and answers["seconds"] is not None]
        if found:
            return float(np.mean(found))
        of_photos = isinstance(run.arm, Arm) and "--end-to-end" in run.arm.options
        return (SECONDS_A_STEP_OF_PHOTOS if of_photos else SECONDS_A_STEP) * self._steps(run.arm)

    def go(self, jobs: int, say: Callable[[str], None], *, words: Sequence[str]) -> None:
        """Makes what is missing, in the order of the arms, so many at once, and packs the answers. An arm that others
        go on from comes first. Tasks and heads come last: they start from kept weights of seed 0.

        Args:
            words: of the command line, for the processes that make one run each.
        """
        made = self.to_make()
        pretrained = [run for run in made if isinstance(run.arm, Arm)]
        self._side_by_side([run for run in pretrained if not run.arm.needs], jobs, say, words)
        self._side_by_side([run for run in pretrained if run.arm.needs], jobs, say, words)
        self._side_by_side([run for run in made if not isinstance(run.arm, Arm)], jobs, say, words)
        pack(self.results)
        self._kept = read_runs(self.results)

    def _side_by_side(self, runs: Sequence[Run], jobs: int, say: Callable[[str], None], words: Sequence[str]) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda run: self._do(run, say, words), runs))

    def _do(self, run: Run, say: Callable[[str], None], words: Sequence[str]) -> None:
        """Trains and asks, in a process of its own; says how it went."""
        start = time.monotonic()
        command = [sys.executable, "-m", "evidence", "--one", run.arm.id, str(run.seed), *words]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        say(f"{run.name}: {time.monotonic() - start:.0f} s")

    def one(self, run: Run) -> None:
        """Trains what is not trained, asks, and writes the answers."""
        found = self._maker(run.arm).answers(run.arm, run.seed)
        before, on_cpu = self._read(run), self.pretraining.device == "cpu"
        seconds = round(sum(os.times()[:4]), 1) if on_cpu else None
        store, name = run.arm.id.split("/")
        answers = {
            "store": store,
            "arm": name,
            "seed": run.seed,
            "command": self.command(run.arm),
            "steps": self._steps(run.arm),
            # Of processors, its own and of its training; of a run on a GPU they would tell nothing.
            "seconds": seconds if before is None else before["seconds"],
            **({} if on_cpu else {"device": torch.cuda.get_device_name()}),
            **found,
        }
        aside = self.result(run).with_suffix(".part")
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(answers, separators=(",", ":")) + "\n", encoding="utf-8")
        aside.rename(self.result(run))

    def _steps(self, arm: AnyArm) -> int:
        return 0 if isinstance(arm, HeadArm) else int(self._maker(arm).steps(arm))

    def _answered(self, run: Run) -> bool:
        answers = self._read(run)
        return answers is not None and answers["command"] == self.command(run.arm)

    def _read(self, run: Run) -> dict[str, Any] | None:
        path = self.result(run)
        return json.loads(path.read_text("utf-8")) if path.exists() else self._kept.get(run.name)
