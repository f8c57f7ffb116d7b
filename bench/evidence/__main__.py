"""Trains small models on the toy world, asks them what they learned, and writes docs/evidence.md.

    make evidence                                             # what is missing of all runs
    make evidence ARGS="--only perfect/vilbert --seeds 0"     # a part of them
    make evidence ARGS=--list                                 # arms, and which runs are missing
    make evidence ARGS=--page                                 # only the page, from the answers that are there
    make evidence-quick                                       # a few of them, smaller, in a folder of its own

A run is training (`roibeam pretrain`) and questions (`evidence.questions`). Its answers are kept in bench/evidence/
results; what is there is not done again, and a run that was interrupted goes on. The cost is printed first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from evidence.arms import ARMS, QUICK_ARMS, SEEDS
from evidence.readers.bounds import bounds
from evidence.report.intervals import read_answers
from evidence.report.page import write_page
from evidence.runs import Run, Runs
from evidence.worlds import FULL, QUICK, World

ROOT = Path(__file__).resolve().parents[2]


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few and small runs, to see that all of it works")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, of one thread each")
    parser.add_argument(
        "--only", nargs="+", metavar="ARM", choices=ARMS, help="these arms alone, such as perfect/vilbert"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--work", type=Path, help="pictures, stores, runs [default: build/evidence]")
    parser.add_argument("--results", type=Path, help="answers [default: bench/evidence/results; quick: in WORK]")
    parser.add_argument("--list", action="store_true", help="arms, and which runs are missing; nothing is run")
    parser.add_argument("--page", action="store_true", help="the page alone; nothing is run")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work or ROOT / "build" / ("evidence-quick" if options.quick else "evidence")
    results = options.results or (work / "results" if options.quick else ROOT / "bench" / "evidence" / "results")
    runs = Runs(
        World(work.resolve(), QUICK if options.quick else FULL),
        results.resolve(),
        arms=options.only or (QUICK_ARMS if options.quick else list(ARMS)),
        seeds=options.seeds or (SEEDS[:1] if options.quick else SEEDS),
        weights=None if options.quick else ROOT / "bench" / "evidence" / "weights",
        quick=options.quick,
    )
    if options.one:
        runs.one(Run(ARMS[options.one[0]], int(options.one[1])))
    elif options.list:
        missing = runs.missing()
        for run in runs.all:
            print(f"{run.name:34} {'missing' if run in missing else 'there':8} {run.arm.what}")
    else:
        if not options.page:
            make(runs, options.jobs)
        page = work / "evidence.md" if options.quick else ROOT / "docs" / "evidence.md"
        say(f"{write(runs, page)}")


def make(runs: Runs, jobs: int) -> None:
    """All that is missing; what it costs is said first."""
    missing, stores = runs.missing(), runs.stores()
    minutes = (runs.seconds(missing) / jobs + runs.world.seconds(stores)) / 60
    there = f"{len(runs.all) - len(missing)} of {len(runs.all)} runs are there"
    say(f"{there}; the others: about {minutes:.0f} min on {jobs} cores")
    runs.world.make(stores, say)
    runs.go(jobs, say)


def write(runs: Runs, page: Path) -> Path:
    """The page; ends with an error where masks alone tell whether a caption belongs."""
    commands = {name: runs.command(arm) for name, arm in ARMS.items()}
    written = write_page(
        runs.results,
        page,
        commands=commands,
        bounds=bounds(runs.world.sizes, runs.results / "bounds.json"),
        sizes=runs.world.sizes,
        quick=runs.quick,
    )
    if telling := telling_masks(runs.results, commands):
        sys.exit(f"evidence: masks alone tell whether a caption belongs: {', '.join(telling)}")
    return written


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
