"""What extraction costs beside another checkout: `python bench/extraction_before.py CHECKOUT PHOTOS [--pairs 7]`.

`roibeam extract` of a folder of photos by the toy detector, from CHECKOUT and from here: two processes of one thread
that stay, so that imports and the detector's first call are not in it, take turns on the same photos. Figures are CPU
seconds of the process and its children, which other processes of the machine change less than they change the clock;
turns are short, so what they do change changes both. Where its memory lies makes a process a few per cent faster or
slower for as long as it lives, so there are several pairs. The ratio is that of a pair's medians, with 95 % of the
medians of resampled pairs. The content of both stores must be the same.

With `--read` PHOTOS is a store, and each turn reads all of its records as views, without checksums, as a program of a
user does.
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
from roibeam.features.store import FeatureStore
from roibeam.pipelines.cli import main as cli
def seconds():
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
for line in sys.stdin:
    words = json.loads(line)
    sys.argv = ["roibeam", *words]
    start = seconds()
    if words[0] == "read":
        with FeatureStore(words[1]) as store:
            assert sum(store.get(each, copy=False).num_regions for each in list(store.ids()))
    else:
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code, end.code
    print(seconds() - start, file=answers, flush=True)
"""


class Turns:
    """A process that does the same again and again with the code of a checkout.

    Attributes:
        store: that it makes anew in each turn; None for none.
    """

    def __init__(self, checkout: Path, words: list[str], store: Path | None) -> None:
        self.store, self._words = store, words
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", TURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def cpu_seconds(self) -> float:
        if self.store is not None:
            shutil.rmtree(self.store, ignore_errors=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._words) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def digest(self) -> object:
        return self.store and json.loads((self.store / "manifest.json").read_text())["content_digest"]

    def end(self) -> None:
        self._process.communicate()


def turns_of(arguments: argparse.Namespace, checkout: Path, folder: Path, name: str) -> Turns:
    if arguments.read:
        return Turns(checkout, ["read", str(arguments.photos)], None)
    words = ["extract", str(folder / "photos"), str(folder / name), "--detector", "toy", "--workers", "1"]
    return Turns(checkout, words, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout of roibeam")
    parser.add_argument("photos", type=Path, help="a folder of photos, or a store")
    parser.add_argument("--read", action="store_true", help="read the store PHOTOS, extract nothing")
    parser.add_argument("--num-photos", type=int, default=24, help="of a turn, the first ones by name [24]")
    parser.add_argument("--pairs", type=int, default=7, help=f"of processes, at least {MIN_ROUNDS} [7]")
    parser.add_argument("--turns", type=int, default=5, help="of each process [5]")
    arguments = parser.parse_args()
    if arguments.pairs < MIN_ROUNDS:
        parser.error(f"--pairs: at least {MIN_ROUNDS}")
    checkouts = {"before": arguments.checkout.resolve(), "now": HERE}
    found: dict[str, list[float]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.read:
            (folder / "photos").mkdir()
            for path in sorted(arguments.photos.iterdir())[: arguments.num_photos]:
                shutil.copyfile(path, folder / "photos" / path.name)
        for _ in range(arguments.pairs):
            made = {each: turns_of(arguments, checkout, folder, each) for each, checkout in checkouts.items()}
            arms: dict[str, Callable[[], float]] = {each: one.cpu_seconds for each, one in made.items()}
            for each, seconds in take_turns(arms, arguments.turns).items():
                found[each].append(median(seconds))
            assert len({one.digest() for one in made.values()}) == 1, "the two stores differ"
            for one in made.values():
                one.end()
    rows: list[tuple[str, ...]] = [
        (
            name, f"{median(seconds):.2f}", f"{min(seconds):.2f}..{max(seconds):.2f}",
            f"{(ratio := Ratio(seconds, found['before'])).median:.3f} [{ratio.low:.3f}..{ratio.high:.3f}]",
        )
        for name, seconds in found.items()
    ]  # fmt: skip
    print(table(("checkout", "CPU seconds of a turn, median", "of the pairs", "over before"), rows))


if __name__ == "__main__":
    main()
