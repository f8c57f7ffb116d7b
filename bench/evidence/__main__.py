"""Trains small models on the toy world, asks them what they learned, and writes docs/evidence.md.

    make evidence                        # what is missing of all runs, one after the other; `make evidence`
    make evidence-quick                  # a few of them, smaller, in a folder of its own; `make evidence-quick`

A run is training (`roibeam pretrain`) and questions (`evidence.questions`). Its answers are kept in RESULTS/<arm>-<seed>
.json; what is there is not done again, and a run that was interrupted goes on. The cost is printed first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from evidence.page import write_page
from evidence.mask_patterns import patterns_tally
from evidence.arms import ARMS, MATCHING, QUICK_ARMS, QUICK_STEPS, SEEDS, STEPS, Arm
from evidence.intervals import read_answers
from evidence.worlds import FULL, QUICK, ROIBEAM, World

ROOT = Path(__file__).resolve().parents[1]
SECONDS_A_RUN = 330.0  # of one process, until one was measured


@dataclass(frozen=True)
class Run:
    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"


class Evidence:
    """All runs over one world.

    Args:
        results: folder of the answers.
    """

    def __init__(self, world: World, results: Path, *, arms: Sequence[str], seeds: Sequence[int], quick: bool) -> None:
        self.world, self.results, self.quick = world, results, quick
        self.runs = [Run(arm, seed) for seed in seeds for arm in arms]

    def result(self, run: Run) -> Path:
        return self.results / f"{run.name}.json"

    def folder(self, run: Run) -> Path:
        return self.world.work / "runs" / run.name

    def missing(self) -> list[Run]:
        """Without answers, or with those of another command."""
        return [run for run in self.runs if self._command_of(run) != self._command(ARMS[run.arm])]

    def commands(self) -> dict[str, str]:
        """By arm."""
        return {name: self._command(arm) for name, arm in ARMS.items()}

    def _command_of(self, run: Run) -> str | None:
        path = self.result(run)
        return str(json.loads(path.read_text("utf-8"))["command"]) if path.exists() else None

    def _command(self, arm: Arm) -> str:
        return " ".join(["roibeam pretrain", *self._arguments(arm)])

    def seconds(self) -> float:
        """What a run takes, by those that are there."""
        read = (json.loads(path.read_text("utf-8"))["seconds"] for path in self.results.glob("*.json"))
        found = [seconds for seconds in read if seconds is not None]
        return float(np.mean(found)) if found else SECONDS_A_RUN

    def say_cost(self, jobs: int) -> None:
        missing = len(self.missing())
        minutes = (missing * self.seconds() / jobs + self.world.seconds()) / 60
        there = f"{len(self.runs) - missing} of {len(self.runs)} runs are there"
        say(f"{there}; the others: about {minutes:.0f} min on {jobs} cores")

    def go(self, jobs: int) -> None:
        """Runs that others go on from come before them; one whose answers are there but whose weights are not is made
        again."""
        self.results.mkdir(parents=True, exist_ok=True)
        later = [run for run in self.missing() if ARMS[run.arm].after]
        starts = {Run(ARMS[run.arm].after, run.seed) for run in later}
        first = [run for run in self.missing() if run not in later]
        first += sorted((run for run in starts - set(first) if not self.folder(run).exists()), key=lambda run: run.name)
        for stage in (first, later):
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(self._do, stage))

    def _do(self, run: Run) -> None:
        """Trains and asks, in a process of its own; says how it went."""
        start = time.monotonic()
        command = [sys.executable, __file__, "--one", run.arm, str(run.seed), *self._where()]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        say(f"{run.name}: {time.monotonic() - start:.0f} s")

    def _where(self) -> list[str]:
        return ["--work", str(self.world.work), "--results", str(self.results), *(["--quick"] if self.quick else [])]

    def one(self, run: Run) -> None:
        from evidence.questions import Asked

        from roibeam.features.store import FeatureStore

        arm = ARMS[run.arm]
        self._train(run)
        with FeatureStore(self.world.store) as store:
            asked = Asked(self.folder(run), store, self.world.captions("test"), self.world.work)
            tallies = asked.measured(arm.measures)
            if MATCHING in arm.measures and not arm.captions.endswith("permuted"):
                captions = self.world.captions(arm.captions)
                tallies["patterns"] = patterns_tally(self.folder(run), store, captions, arm.system, arm.sampling)
        answers = {
            "arm": run.arm,
            "seed": run.seed,
            "command": self._command(arm),
            "seconds": round(sum(os.times()[:4]), 1),  # of processors, its own and of its training
            "tallies": {
                name: {"right": tally.right.astype(int).tolist(), "asked": tally.asked.astype(int).tolist()}
                for name, tally in tallies.items()
            },
        }
        aside = self.result(run).with_suffix(".part")
        aside.write_text(json.dumps(answers, separators=(",", ":")) + "\n", encoding="utf-8")
        aside.rename(self.result(run))
        if not any(other.after == run.arm for other in ARMS.values()):
            shutil.rmtree(self.folder(run))

    def _arguments(self, arm: Arm) -> list[str]:
        return arm.arguments(steps=QUICK_STEPS if self.quick else arm.steps)

    def _train(self, run: Run) -> None:
        arm, folder = ARMS[run.arm], self.folder(run)
        start = ["--tokenizer", str(self.world.tokenizer)]
        if arm.after:
            start = ["--from-run", str(self.folder(Run(arm.after, run.seed)))]
        command = [
            *(*ROIBEAM, "pretrain", str(folder), "--store", str(self.world.store)),
            *("--captions", str(self.world.captions(arm.captions)), "--min-match", "0"),
            *("--seed", str(run.seed), "--device", "cpu", "--threads", "1", *start, *self._arguments(arm)),
        ]
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as out:
            done = subprocess.run(command, check=False, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f"{run.name}: training ended with {done.returncode}; see {log}")


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and small runs, to see that all of it works")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, of one thread each")
    parser.add_argument("--only", nargs="+", metavar="ARM", choices=ARMS, help="these arms alone")
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--work", type=Path, help="pictures, store, runs [default: build/evidence]")
    parser.add_argument("--results", type=Path, help="answers [default: bench/evidence_results; quick: in WORK]")
    parser.add_argument("--list", action="store_true", help="arms, and which runs are missing; nothing is run")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work or ROOT / "build" / ("evidence-quick" if options.quick else "evidence")
    results = options.results or (work / "results" if options.quick else ROOT / "bench" / "evidence_results")
    world = World(work.resolve(), QUICK if options.quick else FULL)
    evidence = Evidence(
        world,
        results.resolve(),
        arms=options.only or (QUICK_ARMS if options.quick else list(ARMS)),
        seeds=options.seeds or (SEEDS[:1] if options.quick else SEEDS),
        quick=options.quick,
    )
    if options.one:
        evidence.one(Run(options.one[0], int(options.one[1])))
        return
    if options.list:
        for run in evidence.runs:
            print(f"{run.name:28} {'missing' if run in evidence.missing() else 'there':8} {ARMS[run.arm].what}")
        return
    evidence.say_cost(options.jobs)
    world.make(say)
    evidence.go(options.jobs)
    page = work / "evidence.md" if options.quick else ROOT / "docs" / "evidence.md"
    steps = QUICK_STEPS if options.quick else STEPS
    say(f"{write_page(results, page, sizes=world.sizes, steps=steps, commands=evidence.commands())}")
    if telling := telling_masks(results, evidence.commands()):
        sys.exit(f"evidence: masks alone tell whether a caption belongs: {', '.join(telling)}")


def telling_masks(results: Path, commands: Mapping[str, str]) -> list[str]:
    """The arms whose masks alone tell more than chance could: four standard errors from one half.

    Args:
        commands: of the runs that count, by arm.
    """
    answers, _ = read_answers(results, commands=commands)
    found = []
    for arm, questions in answers.items():
        if "patterns" in questions:
            right, asked = (int(part.sum()) for part in (questions["patterns"].right, questions["patterns"].asked))
            if abs(right / asked - 0.5) > 4 * 0.5 / asked**0.5:
                found.append(f"{arm} {100 * right / asked:.1f} %")
    return found


if __name__ == "__main__":
    main()
