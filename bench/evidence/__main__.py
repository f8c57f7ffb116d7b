"""Trains small models on the toy world, asks them what they learned, and writes docs/evidence.md.

    make evidence                                             # what is missing of all runs
    make evidence ARGS="--only perfect/vilbert --seeds 0"     # a part of them
    make evidence ARGS=--list                                 # arms, and which runs are missing
    make evidence ARGS=--page                                 # only the page, from the answers that are there
    make evidence-quick                                       # a few of them, smaller, in a folder of its own

A run is training (`roibeam pretrain`) and questions (`evidence.questions`), or `roibeam finetune` and a score. Its
answers are kept in bench/evidence/results; what is there is not done again, and a run that was interrupted goes on. One
whose weights are gone is made again where a missing run starts from them, or `--only` names it. The cost is printed
first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence.arms import QUICK_ARMS, SEEDS
from evidence.pretraining_runs import PretrainingRuns
from evidence.readers.bounds import bounds
from evidence.report.intervals import read_answers
from evidence.report.page import write_page
from evidence.report.recipe_table import write_recipe_table
from evidence.runs import ALL_ARMS, AnyArm, Run, Runs
from evidence.tasks.head_runs import HeadRuns
from evidence.tasks.own_arms import QUICK_HEAD_ARMS, HeadArm
from evidence.tasks.own_pictures import QUICK_TEXT_PICTURES, TEXT_PICTURES, OwnPictures, read_text_bounds
from evidence.tasks.task_arms import QUICK_TASK_ARMS, TaskArm
from evidence.tasks.task_runs import TaskRuns
from evidence.tasks.task_world import PICTURES, QUICK_PICTURES, TaskWorld, read_bounds
from evidence.worlds import FULL, QUICK, World

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "evidence"
TASK_BOUNDS, TEXT_BOUNDS = "task_bounds.json", "text_bounds.json"


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    options = _parsed()
    work = (options.work or ROOT / "build" / ("evidence-quick" if options.quick else "evidence")).resolve()
    results = options.results or (work / "results" if options.quick else KEPT / "results")
    sizes, pictures = (QUICK, QUICK_PICTURES) if options.quick else (FULL, PICTURES)
    weights = work / "weights" if options.quick else KEPT / "weights"
    kept, how = {"weights": weights, "device": options.device}, {"quick": options.quick}
    world = World(work, sizes)
    own = OwnPictures(world, QUICK_TEXT_PICTURES if options.quick else TEXT_PICTURES)
    quick = [*QUICK_ARMS, *QUICK_TASK_ARMS, *QUICK_HEAD_ARMS]
    runs = Runs(
        PretrainingRuns(world, **kept, **how),
        TaskRuns(TaskWorld(work, pictures), own, **kept, **how),
        HeadRuns(own, **kept),
        results.resolve(),
        arms=options.only or (quick if options.quick else list(ALL_ARMS)),
        seeds=options.seeds or (SEEDS[:1] if options.quick else None),
        with_weights=options.only is not None,
    )
    if options.one:
        runs.one(Run(ALL_ARMS[options.one[0]], int(options.one[1])))
    elif options.list:
        missing = runs.missing()
        for run in runs.all:
            print(f"{run.name:40} {'missing' if run in missing else 'there':8} {run.arm.what}")
    else:
        if not options.page:
            words = ["--work", str(work), "--results", str(results), "--device", options.device]
            words += ["--quick"] if options.quick else []
            make(runs, options.jobs, words)
        page = work / "evidence.md" if options.quick else ROOT / "docs" / "evidence.md"
        if not options.quick:
            write_recipe_table(ROOT / "docs" / "finetuning.md")
        say(f"{write(runs, page, quick=options.quick)}")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few and small runs, to see that all of it works")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, of one thread each")
    parser.add_argument(
        "--only", nargs="+", metavar="ARM", choices=ALL_ARMS, help="these arms alone, such as perfect/vilbert"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: a GPU for all runs at once [cpu]")
    parser.add_argument("--work", type=Path, help="pictures, stores, runs [default: build/evidence]")
    parser.add_argument("--results", type=Path, help="answers [default: bench/evidence/results; quick: in WORK]")
    parser.add_argument("--list", action="store_true", help="arms, and which runs are missing; nothing is run")
    parser.add_argument("--page", action="store_true", help="the page alone; nothing is run")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def make(runs: Runs, jobs: int, words: Sequence[str]) -> None:
    """All that is missing; logs the cost first."""
    missing = runs.missing()
    stores = runs.stores(lambda arm: not _is_of_tasks(arm))
    minutes = (runs.seconds() / jobs + runs.pretraining.world.seconds(stores)) / 60
    there = f"{len(runs.all) - len(missing)} of {len(runs.all)} runs are there"
    say(f"{there}; the others: about {minutes:.0f} min on {jobs} cores")
    runs.pretraining.world.make(stores, say)
    runs.tasks.world.make(runs.tasks_of_stores(), runs.results / TASK_BOUNDS, say)
    if any(_is_own(run.arm) for run in missing):
        runs.tasks.own.make(runs.stores(_is_own), runs.results / TEXT_BOUNDS, say)
    runs.go(jobs, say, words=words)


def _is_of_tasks(arm: AnyArm) -> bool:
    """Whether it is about the pictures of the tasks' own world."""
    return isinstance(arm, TaskArm) and not arm.rules.is_own


def _is_own(arm: AnyArm) -> bool:
    return isinstance(arm, HeadArm) or (isinstance(arm, TaskArm) and arm.rules.is_own)


def write(runs: Runs, page: Path, *, quick: bool) -> Path:
    """The page; ends with an error where masks alone tell whether a caption belongs."""
    commands = {name: runs.command(arm) for name, arm in ALL_ARMS.items()}
    sizes = runs.pretraining.world.sizes
    written = write_page(
        runs.results,
        page,
        commands=commands,
        bounds={
            **bounds(sizes, runs.results / "bounds.json"),
            **read_bounds(runs.results / TASK_BOUNDS),
            **read_text_bounds(runs.results / TEXT_BOUNDS),
        },
        sizes=sizes,
        quick=quick,
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
