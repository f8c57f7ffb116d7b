"""What extraction costs beside another checkout: `python bench/extraction_before.py CHECKOUT PHOTOS [--rounds 40]`.

`roibeam extract` of a folder of photos by the toy detector, from CHECKOUT and from here: two processes of one thread
that stay, so that imports and the detector's first call are not in it, take turns on the same photos. Figures are CPU
seconds of the process and its children, which other processes of the machine change less than they change the clock;
turns are short, so what they do change changes both. The ratio is that of the same round, with 95 % of the medians of
resampled rounds. The content of both stores must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

HERE = Path(__file__).parents[1]
# Of both checkouts: the words of a command line in, the CPU seconds that it took out.
TURNS = """
import json, os, resource, sys
from roibeam.pipelines.cli import main as cli
def seconds():
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
for line in sys.stdin:
    sys.argv = ["roibeam", *json.loads(line)]
    start = seconds()
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, end.code
    print(seconds() - start, file=answers, flush=True)
"""


class Extractions:
    """A process that extracts the same photos again and again with the code of a checkout."""

    def __init__(self, checkout: Path, photos: Path, store: Path) -> None:
        self._store = store
        self._words = ["extract", str(photos), str(store), "--detector", "toy", "--workers", "1"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", TURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def cpu_seconds(self) -> float:
        """Of one extraction into a new store."""
        shutil.rmtree(self._store, ignore_errors=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._words) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def digest(self) -> str:
        return str(json.loads((self._store / "manifest.json").read_text())["content_digest"])

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout of roibeam")
    parser.add_argument("photos", type=Path, help="a folder of photos")
    parser.add_argument("--num-photos", type=int, default=24, help="of a turn, the first ones by name [24]")
    parser.add_argument("--rounds", type=int, default=40, help=f"at least {MIN_ROUNDS} [40]")
    arguments = parser.parse_args()
    if arguments.rounds < MIN_ROUNDS:
        parser.error(f"--rounds: at least {MIN_ROUNDS}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for path in sorted(arguments.photos.iterdir())[: arguments.num_photos]:
            shutil.copyfile(path, folder / "photos" / path.name)
        checkouts = {"before": arguments.checkout.resolve(), "now": HERE}
        made = {each: Extractions(checkout, folder / "photos", folder / each) for each, checkout in checkouts.items()}
        arms: dict[str, Callable[[], float]] = {each: one.cpu_seconds for each, one in made.items()}
        found = take_turns(arms, arguments.rounds)
        assert len({one.digest() for one in made.values()}) == 1, "the two stores differ"
        for one in made.values():
            one.end()
    rows = [
        (
            name, f"{median(seconds):.2f}", f"{min(seconds):.2f}..{max(seconds):.2f}",
            f"{(ratio := Ratio(seconds, found['before'])).median:.3f} [{ratio.low:.3f}..{ratio.high:.3f}]",
        )
        for name, seconds in found.items()
    ]  # fmt: skip
    print(table(("checkout", "CPU seconds, median", "of the rounds", "over before"), rows))


if __name__ == "__main__":
    main()
