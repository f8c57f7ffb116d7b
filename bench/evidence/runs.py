"""Training and asking: one run after the other, each in a process of its own, so that all can be stopped and taken up.

RESULTS/<store>/<arm>-<seed>.json   what a run answered; a run whose file is there is not made again
WORK/runs/<store>/<arm>-<seed>      the run itself: kept, so that a question can be asked later without training
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evidence.arms import ARMS, BESIDE, MATCHING, QUICK_STEPS, Arm
from evidence.weights import keep_weights, write_bert
from evidence.worlds import ROIBEAM, World

SECONDS_A_STEP = 0.09  # of one core, until a run was measured
CURVES = ("masked_word_accuracy", "masked_region_accuracy", "matching_accuracy")


@dataclass(frozen=True)
class Run:
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.id}-{self.seed}"


class Runs:
    """Those of some arms and seeds, over one world.

    Args:
        results: folder of the answers.
        weights: folder of the weights that are kept; None keeps none.
        quick: small models of few steps, to see that all of it works.
    """

    def __init__(
        self,
        world: World,
        results: Path,
        *,
        arms: Sequence[str],
        seeds: Sequence[int],
        weights: Path | None = None,
        quick: bool = False,
    ) -> None:
        self.world, self.results, self.weights, self.quick = world, results, weights, quick
        self.all = [Run(ARMS[arm], seed) for arm in arms for seed in seeds]

    def result(self, run: Run) -> Path:
        return self.results / f"{run.name}.json"

    def folder(self, run: Run) -> Path:
        return self.world.work / "runs" / run.name

    def stores(self) -> list[str]:
        """Names of the stores that missing runs need."""
        return list(dict.fromkeys(run.arm.store for run in self.missing()))

    def missing(self) -> list[Run]:
        """Without answers, or with those of another command or of fewer questions."""
        return [run for run in self.all if not self._answered(run)]

    def command(self, arm: Arm) -> str:
        """As it is shown: files by their place in WORK, without run folder, seed and what watches the training."""
        files = [f"--store stores/{arm.store} --captions captions/{arm.captions}.json"]
        files += ["--text-corpus captions/corpus.txt"] if arm.text_corpus else []
        files += ["--labels captions/labels.json"] if arm.labels else []
        files += [f"--from-run runs/{arm.needs}"] if arm.after else []
        files += [f"--from-bert berts/{arm.needs}"] if arm.bert else []
        return " ".join(["roibeam pretrain", *files, *self._arguments(arm)])

    def seconds(self, runs: Sequence[Run]) -> float:
        """What these take of one core, about: an arm as its other runs, or by its steps."""
        return sum(self._seconds_of(run) for run in runs)

    def _seconds_of(self, run: Run) -> float:
        known = [self._read(Run(run.arm, seed)) for seed in range(10)]
        found = [answers["seconds"] for answers in known if answers is not None]
        return float(np.mean(found)) if found else SECONDS_A_STEP * self._steps(run.arm)

    def go(self, jobs: int, say: Callable[[str], None]) -> None:
        """Makes what is missing, in the order of the arms, so many at once. An arm that others go on from comes first;
        it is made again where its answers are there but its weights are not."""
        for stage in self._stages():
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(lambda run: self._do(run, say), stage))

    def _stages(self) -> list[list[Run]]:
        missing = self.missing()
        later = [run for run in missing if run.arm.needs]
        starts = [Run(ARMS[run.arm.needs], run.seed) for run in later]
        first = [run for run in missing if not run.arm.needs]
        first += [run for run in dict.fromkeys(starts) if run not in first and not self._is_trained(run)]
        return [first, later]

    def _do(self, run: Run, say: Callable[[str], None]) -> None:
        """Trains and asks, in a process of its own; says how it went."""
        start = time.monotonic()
        command = [sys.executable, "-m", "evidence", "--one", run.arm.id, str(run.seed), "--work", str(self.world.work)]
        command += ["--results", str(self.results), *(["--quick"] if self.quick else [])]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        say(f"{run.name}: {time.monotonic() - start:.0f} s")

    def one(self, run: Run) -> None:
        """Trains what is not trained, asks, and writes the answers."""
        self._train(run)
        before = self._read(run)
        answers = {
            "store": run.arm.store,
            "arm": run.arm.name,
            "seed": run.seed,
            "command": self.command(run.arm),
            "steps": self._steps(run.arm),
            # Of processors, its own and of its training.
            "seconds": round(sum(os.times()[:4]), 1) if before is None else before["seconds"],
            "curve": self._curve(run),
            "tallies": self._tallies(run),
        }
        aside = self.result(run).with_suffix(".part")
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(answers, separators=(",", ":")) + "\n", encoding="utf-8")
        aside.rename(self.result(run))
        if self.weights is not None and run.arm.kept and run.seed == 0:
            keep_weights(self.folder(run), self.weights / run.arm.id)

    def _tallies(self, run: Run) -> dict[str, Any]:
        from evidence.mask_patterns import patterns_tally
        from evidence.questions import Asked
        from roibeam.features.store import FeatureStore

        arm = run.arm
        with FeatureStore(self.world.store(arm.store)) as store:
            asked = Asked(self.folder(run), store, self.world)
            tallies: dict[str, Any] = dict(asked.measured(arm.measures))
            if (MATCHING in arm.measures or BESIDE in arm.measures) and arm.captions != "permuted":
                captions = self.world.captions(arm.captions)
                tallies["patterns"] = patterns_tally(self.folder(run), store, captions, arm.system, arm.sampling)
        return {
            name: {"right": rounded(tally.right), "asked": tally.asked.astype(int).tolist()}
            for name, tally in tallies.items()
        }

    def _curve(self, run: Run) -> dict[str, list[float]]:
        """What the run's own evaluations found, on the pictures for validation."""
        rows = [json.loads(line) for line in (self.folder(run) / "evaluation.jsonl").read_text("utf-8").splitlines()]
        names = [name for name in CURVES if all(row.get(name) is not None for row in rows)]
        return {
            "steps": [row["step"] for row in rows],
            **{name: [round(row[name], 4) for row in rows] for name in names},
        }

    def _answered(self, run: Run) -> bool:
        answers = self._read(run)
        return answers is not None and answers["command"] == self.command(run.arm)

    def _read(self, run: Run) -> dict[str, Any] | None:
        path = self.result(run)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def _is_trained(self, run: Run) -> bool:
        return (self.folder(run) / "trained").exists()

    def _steps(self, arm: Arm) -> int:
        return QUICK_STEPS if self.quick else arm.steps

    def _arguments(self, arm: Arm) -> list[str]:
        return arm.arguments(steps=self._steps(arm))

    def _train(self, run: Run) -> None:
        """A run that was stopped goes on at its newest checkpoint."""
        arm, folder, world = run.arm, self.folder(run), self.world
        if self._is_trained(run):
            return
        start = ["--tokenizer", str(world.tokenizer)]
        if arm.after:
            start = ["--from-run", str(self.folder(Run(ARMS[arm.needs], run.seed)))]
        if arm.bert:
            before = Run(ARMS[arm.needs], run.seed)
            start += ["--from-bert", str(write_bert(self.folder(before), world.work / "berts" / before.name))]
        command = [
            *(*ROIBEAM, "pretrain", str(folder), "--store", str(world.store(arm.store)), "--min-match", "0"),
            *("--captions", str(world.captions(arm.captions))),
            *("--validation-captions", str(world.captions("validation"))),
            *(["--text-corpus", str(world.corpus)] if arm.text_corpus else []),
            *(["--labels", str(world.labels), "--labels-photos", str(world.photos)] if arm.labels else []),
            *("--seed", str(run.seed), "--device", "cpu", "--threads", "1", *start, *self._arguments(arm)),
        ]
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as out:
            done = subprocess.run(command, check=False, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f"{run.name}: training ended with {done.returncode}; see {log}")
        (folder / "trained").touch()


def rounded(values: np.ndarray) -> list[float]:
    """Whole numbers as such, others with four digits."""
    return [int(value) if value == int(value) else round(float(value), 4) for value in values]
