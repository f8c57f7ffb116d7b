"""Seconds and memory until a command answers: `python bench/startup.py [--rounds 5] [--before CHECKOUT]`.

Commands that need no torch, wrong arguments of commands that do, and one command that does for comparison, each in a
process of its own on a store of eight drawn pictures. Wall seconds, CPU seconds (of the process and its threads) and
the kernel's peak of resident memory: medians over the rounds, the spread of the CPU seconds behind them. With
`--before` the same commands also run from another checkout, in turns. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

# Nothing of ours is imported here: the kernel's peak of a process is at least what its parent has when it starts it.
HERE = Path(__file__).parents[1]
GOAL_SECONDS = 1.0  # of CPU time, for all but those that need torch
# STORE, PHOTOS and OUT stand for the store, its pictures and a new folder; GONE is not there.
COMMANDS = {
    "import roibeam": ("-c", "import roibeam"),
    "--version": ("--version",),
    "extract --help": ("extract", "--help"),
    "progress": ("progress", "STORE"),
    "store info": ("store", "info", "STORE"),
    "store show": ("store", "show", "STORE"),
    "store verify --deep": ("store", "verify", "STORE", "--deep"),
    "store copy": ("store", "copy", "STORE", "OUT"),
    "store repair, whole": ("store", "repair", "STORE", "--photos", "PHOTOS"),
    "store diff --html": ("store", "diff", "STORE", "STORE", "--html", "OUT.html", "--photos", "PHOTOS"),
    "store export": ("store", "export", "STORE", "OUT.tsv", "--format", "butd-tsv"),
    "leaks": ("leaks", "PHOTOS", "--held-out", "list=HELD"),
    "recipes": ("recipes",),
    "recipes vlbert-base --json": ("recipes", "vlbert-base", "--json"),
    "extract, no photos": ("extract", "GONE", "OUT", "--weights", "GONE"),
    "extract, unknown preset": ("extract", "PHOTOS", "OUT", "--weights", "random:1", "--selection", "nobody"),
    "pretrain, no store": ("pretrain", "OUT", "--store", "GONE"),
    "evaluate, no checkpoint": ("evaluate", "GONE", "--store", "STORE"),
    "probe, no photo": ("probe", "GONE", "GONE", "text"),
    "detector train, no labels": ("detector", "train", "OUT", "--labels", "GONE"),
    "convert, no file": ("convert", "GONE", "OUT.bin"),
    "pretrain, unknown --set": ("pretrain", "OUT", "--store", "STORE", "--set", "model.hidden_sise=8"),
    "pretrain, text unread": ("pretrain", "OUT", "--text-corpus", "HELD", "--system", "visualbert"),
    "demo, other files there": ("demo", "PHOTOS"),
    "import torch, for comparison": ("-c", "import torch"),
}


class Cost(NamedTuple):
    seconds: float
    cpu: float
    peak_mb: float


def run(checkout: Path, words: tuple[str, ...], folder: Path) -> Cost:
    """One process; what it prints is dropped, its exit code too: half of them fail, as they should."""
    new = folder / f"new-{time.monotonic_ns()}"
    places = {"STORE": folder / "store", "PHOTOS": folder / "samples" / "images", "GONE": folder / "gone", "OUT": new,
              "OUT.html": f"{new}.html", "OUT.tsv": f"{new}.tsv", "OUT.bin": f"{new}.bin",
              "list=HELD": f"list={folder / 'held.txt'}",
              "HELD": folder / "held.txt"}  # fmt: skip
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *(() if words[0] == "-c" else ("-m", "roibeam")), *(str(places.get(w, w)) for w in words)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
    ) as process:  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def prepare(folder: Path) -> None:
    draw = "import pathlib, sys; from roibeam.pipelines.toyworld.rendering import draw_samples; "
    draw += "draw_samples(pathlib.Path(sys.argv[1]), count=8)"
    subprocess.run([sys.executable, "-c", draw, folder / "samples"], check=True)
    (folder / "held.txt").write_text("no-such-image\n")
    subprocess.run(
        [sys.executable, "-m", "roibeam", "extract", folder / "samples" / "images", folder / "store", "--detector",
         "small", "--weights", "random:1", "--set", "detector.short_edge=48", "--set", "detector.long_edge=80"],
        check=True, capture_output=True,
    )  # fmt: skip


def shown(costs: list[Cost]) -> str:
    seconds, cpu, peak = (statistics.median(each) for each in zip(*costs, strict=True))
    low, high = min(cost.cpu for cost in costs), max(cost.cpu for cost in costs)
    return f"{seconds:.2f} | {cpu:.2f} ({low:.2f}..{high:.2f}) | {peak:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, which takes turns with this one")
    arguments = parser.parse_args()
    checkouts = [HERE] if arguments.before is None else [arguments.before.resolve(), HERE]
    columns = "seconds | CPU seconds | peak MB"
    before = "" if arguments.before is None else " | ".join(f"before: {each}" for each in columns.split(" | ")) + " | "
    print(f"| command | {before}{columns} |\n|---{'|---' * (3 * len(checkouts))}|")
    over = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for command, words in COMMANDS.items():
            for checkout in checkouts:  # not counted: files come from the disk, modules are compiled
                run(checkout, words, folder)
            costs: dict[Path, list[Cost]] = {checkout: [] for checkout in checkouts}
            for _ in range(arguments.rounds):
                for checkout in checkouts:
                    costs[checkout].append(run(checkout, words, folder))
            print(f"| {command} | {' | '.join(shown(costs[each]) for each in checkouts)} |", flush=True)
            if "torch" not in command and statistics.median(cost.cpu for cost in costs[HERE]) > GOAL_SECONDS:
                over.append(command)
    print(f"\nOver {GOAL_SECONDS:g} s of CPU time: {', '.join(over) or 'none'}")


if __name__ == "__main__":
    main()
