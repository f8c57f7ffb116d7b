"""Runs the chain on photos with captions, row by row, and writes the tables of docs/real-photos.md.

    make evidence-real PHOTOS=Flicker8k_Dataset CAPTIONS=Flickr8k_text              # what is missing, for an hour
    make evidence-real PHOTOS=... CAPTIONS=... ARGS="--only tuned/vilbert-0"        # and what it needs
    make evidence-real PHOTOS=... CAPTIONS=... ARGS="--list"

A row is a few commands of roibeam. What came out lies in bench/real_photos/results; such a row is made again only if a
missing one needs its files. What an hour does not end goes on with the next call.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from real_photos.page import write_page
from real_photos.rows import ROWS
from real_photos.work import ROOT, OutOfTime, Row, Work

LATER = 75  # exit code of a row that goes on with the next call


def main() -> None:
    options = _parsed()
    folder = options.work.resolve()
    work = Work(
        photos=options.photos.resolve(),
        captions=options.captions.resolve(),
        folder=folder,
        results=options.results.resolve(),
        ends=time.monotonic() + 60 * options.minutes,
        share=options.share,
    )
    rows = _wanted(options.only)
    if options.list:
        for row in rows:
            print(f"{row.name:32} {'there' if work.is_there(row.name) else 'missing'}")
        return
    if options.one:
        try:
            work.done(ROWS[options.one])
        except OutOfTime:
            sys.exit(LATER)
        return
    failed = [] if options.page else _make(work, _missing(work, rows), options.jobs)
    write_page(work, options.docs)
    print(f"{sum(work.is_there(row.name) for row in rows)} of {len(rows)} rows are there")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _wanted(only: Sequence[str] | None) -> list[Row]:
    """Rows in order, with what they need."""
    names = set(only or ROWS)
    while more := {need for name in names for need in ROWS[name].needs} - names:
        names |= more
    return [row for name, row in ROWS.items() if name in names]


def _missing(work: Work, rows: Sequence[Row]) -> dict[str, Row]:
    """Rows without a result, in order, and those whose files they need and this folder lacks."""
    names = {row.name for row in rows if not work.is_there(row.name)}
    while more := {need for name in names for need in ROWS[name].needs if not work.made(need).exists()} - names:
        names |= more
    return {name: row for name, row in ROWS.items() if name in names}


def _make(work: Work, missing: dict[str, Row], jobs: int) -> list[str]:
    """Makes these rows, so many at once, each in a process of its own and after those that it needs. Returns those that
    failed."""
    going: dict[Future[int], str] = {}
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        while missing or going:
            there = [name for name, row in missing.items() if all(work.made(need).exists() for need in row.needs)]
            for name in there[: jobs - len(going)] if time.monotonic() < work.ends else []:
                going[pool.submit(_one, work, missing.pop(name).name)] = name
            if not going:
                break
            ended, _ = wait(going, return_when=FIRST_COMPLETED)
            for each in ended:
                name, code = going.pop(each), each.result()
                if code == LATER:
                    outcome = "goes on with the next call"
                elif code:
                    failed.append(name)
                    outcome = f"failed, see {work.log(name)}"
                else:
                    outcome = f"{work.read(name)['minutes']} min"
                    outcome += "; other figures than before, which stay" if work.differs(name) else ""
                print(f"{name}: {outcome}", flush=True)
    return failed


def _one(work: Work, row: str) -> int:
    minutes = max(0.0, work.ends - time.monotonic()) / 60
    places = ("--work", work.folder, "--results", work.results, "--minutes", str(minutes), "--share", str(work.share))
    command = (sys.executable, "-m", "real_photos", work.photos, work.captions, *places, "--one", row)
    work.log(row).parent.mkdir(parents=True, exist_ok=True)
    with work.log(row).open("a") as log:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m real_photos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, help="folder of the .jpg files")
    parser.add_argument("captions", type=Path, help="Flickr8k_text, or a json of Karpathy")
    parser.add_argument("--minutes", type=float, default=60, help="of this part [60]")
    parser.add_argument("--jobs", type=int, default=2, help="rows at once, of one thread each [2]")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, help="these rows, and those that they need")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "evidence-real", help="[build/evidence-real]")
    results = Path(__file__).parent / "results"
    parser.add_argument("--results", type=Path, default=results, help="[bench/real_photos/results]")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "real-photos.md", help="[docs/real-photos.md]")
    parser.add_argument("--share", type=float, default=1.0, help="of all steps: less, to see that all works [1]")
    parser.add_argument("--list", action="store_true", help="rows, and which are missing; nothing is run")
    parser.add_argument("--one", metavar="ROW", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="the page alone; nothing is run")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"real_photos: {error}")
