"""What a plan of many photos and the facts of a store of many shards cost beside listing the same files:
`python bench/listing.py [--photos 1000000] [--shards 2000] [--rounds 5]`.

Makes a folder of empty files, 10,000 in each sub-folder, and a store of one small record a shard. Then, in processes of
their own that take turns (bench/store_rounds.py): the files listed by name (`os.walk`), listed with their sizes (as
`ls -lR` reads them), and planned as `roibeam extract` does before the first photo is read; the store's folder listed
likewise, and what `roibeam store info` prints. CPU seconds, imports left out. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns
from store_scale import build

HERE = Path(__file__).parents[1]
FILES_A_FOLDER = 10_000
LIST = """
import os, sys, time
def listed(folder):
    with os.scandir(folder) as entries:
        return sum(listed(e.path) if e.is_dir(follow_symlinks=False) else e.stat().st_size >= 0 for e in entries)
start = time.process_time()
count = listed(sys.argv[1]) if SIZES else sum(len(files) for _, _, files in os.walk(sys.argv[1]))
assert count >= int(sys.argv[2]), count
print(time.process_time() - start)
"""
PLAN = """
import sys, tempfile, time
from pathlib import Path
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.pipelines.data.shard_plan import extend_plan
from roibeam.pipelines.data.source_kinds import open_source
with tempfile.TemporaryDirectory() as store:
    start = time.process_time()
    images = open_source(sys.argv[1]).images
    plan = extend_plan(LocalFolder(Path(store)), None, source={}, settings={}, images=images, shard_size=4000)
    assert plan.num_images == int(sys.argv[2]), plan.num_images
    print(time.process_time() - start)
"""
INFO = """
import sys, time
from roibeam.pipelines.extract.stores.store_facts import read_manifest, store_facts
start = time.process_time()
facts = store_facts(read_manifest(sys.argv[1]))
assert facts["shards"].startswith(f"{int(sys.argv[2]):,},"), facts["shards"]
print(time.process_time() - start)
"""


def make_photos(folder: Path, count: int) -> None:
    for first in range(0, count, FILES_A_FOLDER):
        part = folder / f"{first // FILES_A_FOLDER:05d}"
        part.mkdir(parents=True)
        for number in range(first, min(first + FILES_A_FOLDER, count)):
            os.close(os.open(part / f"{number:08d}.jpg", os.O_CREAT | os.O_WRONLY))


def arm(code: str, folder: Path, count: int) -> Callable[[], float]:
    """CPU seconds that the code prints, in a process of its own."""
    command = [sys.executable, "-c", code, str(folder), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "src")}

    def run() -> float:
        return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--work", type=Path, help="folder for the files, on a local disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        photos, store = Path(scratch) / "photos", Path(scratch) / "store"
        make_photos(photos, arguments.photos)
        build(store, arguments.shards, 1)
        for what, folder, code, count, files in (
            ("planned", photos, PLAN, arguments.photos, arguments.photos),
            ("store info", store, INFO, arguments.shards, 2 * arguments.shards),
        ):
            arms = {f"names of {files:,} files": arm("SIZES = False" + LIST, folder, files)}
            arms["names and sizes"] = arm("SIZES = True" + LIST, folder, files)
            arms[what] = arm(code, folder, count)
            figures = take_turns(arms, arguments.rounds)
            names, sizes = (figures[name] for name in list(arms)[:2])
            rows = [
                (name, f"{1e3 * float(np.median(found)):,.1f}", str(Ratio(found, names)), str(Ratio(found, sizes)))
                for name, found in figures.items()
            ]
            print(table((what, "CPU ms", "over names", "over names and sizes"), rows), "\n", flush=True)


if __name__ == "__main__":
    main()
