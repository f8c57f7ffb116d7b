"""What extraction costs beside another checkout: `python bench/extraction_before.py CHECKOUT PHOTOS [--rounds 7]`.

`roibeam extract` of a folder of photos by the toy detector, from CHECKOUT and from here, in turns: whole processes of
one thread, on the same photos. Figures are CPU seconds of the process and its children, which other processes of the
machine change less than they change the clock; the ratio is that of the same round, with 95 % of the medians of
resampled rounds. The content of both stores must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

HERE = Path(__file__).parents[1]


def cpu_seconds(checkout: Path, photos: Path, store: Path) -> float:
    """Of one extraction, from the start of Python to its end."""
    shutil.rmtree(store, ignore_errors=True)
    command = [sys.executable, "-P", "-c", "from roibeam.pipelines.cli.main import main; main()", "extract", photos]
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*command, store, "--detector", "toy", "--workers", "1"],
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def digest(store: Path) -> str:
    return str(json.loads((store / "manifest.json").read_text())["content_digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout of roibeam")
    parser.add_argument("photos", type=Path, help="a folder of photos")
    parser.add_argument("--num-photos", type=int, default=200, help="the first ones by name [200]")
    parser.add_argument("--rounds", type=int, default=7, help=f"at least {MIN_ROUNDS} [7]")
    arguments = parser.parse_args()
    if arguments.rounds < MIN_ROUNDS:
        parser.error(f"--rounds: at least {MIN_ROUNDS}")
    checkouts = {"before": arguments.checkout.resolve(), "now": HERE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for path in sorted(arguments.photos.iterdir())[: arguments.num_photos]:
            shutil.copyfile(path, folder / "photos" / path.name)
        arms: dict[str, Callable[[], float]] = {
            each: partial(cpu_seconds, checkout, folder / "photos", folder / each)
            for each, checkout in checkouts.items()
        }
        found = take_turns(arms, arguments.rounds)
        assert digest(folder / "before") == digest(folder / "now"), "the two stores differ"
    rows = [
        (
            name,
            f"{median(seconds):.2f}",
            f"{min(seconds):.2f}..{max(seconds):.2f}",
            str(Ratio(seconds, found["before"])),
        )
        for name, seconds in found.items()
    ]
    print(table(("checkout", "CPU seconds, median", "of the rounds", "over before"), rows))


if __name__ == "__main__":
    main()
