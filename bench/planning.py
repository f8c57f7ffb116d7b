"""Time and memory of planning many images: `python bench/planning.py [--rows 3300000]`.

Writes a caption TSV as Conceptual Captions has it (ten words, a path; rows in no order of their ids), then plans it in
a process of its own as `roibeam extract LIST OUT --shard-size 4000` does before the first image is read: the list
opened, sorted and checked, plan.json and its members written. A second process plans again with a tenth more rows,
which looks up what is planned already. No image is there and no detector is built: to time one decides the size of
shards only.

Memory is the kernel's peak for the process, less that of a process that only imports. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = (
    "a the of in on with and dog cat person street red blue large small building view woman man sitting standing front "
    "actor attends premiere background vector illustration beach car players team city night water snow tree flower"
).split()
IMPORTS = """
import json, sys
from pathlib import Path
from roibeam.pipelines.data.shard_plan import extend_plan, read_plan
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.pipelines.extract.planning import PlannedImages
from roibeam.pipelines.data.source_kinds import open_source
"""
PLAN = """
captions, store = sys.argv[1], LocalFolder(Path(sys.argv[2]))
source = open_source(captions, image_root=str(store.path.parent))
plan = read_plan(store)
new = source.images if plan is None else PlannedImages(source, store, plan).new
grown = extend_plan(store, plan, source={}, settings={}, images=new, shard_size=4000)
print(json.dumps({"images": grown.num_images, "new": len(new), "shards": len(grown.shards)}))
"""


def write_captions(path: Path, num_rows: int, seed: int) -> None:
    draw = random.Random(seed)
    order = list(range(num_rows))
    draw.shuffle(order)
    with path.open("w", encoding="utf-8") as file:
        for row in order:
            file.write(f"{' '.join(draw.choices(WORDS, k=10))}\timages/{row // 10000:05d}/{row:08d}.jpg\n")


def run(code: str, *arguments: Path) -> tuple[float, float, float, str]:
    """Wall seconds, CPU seconds and peak resident memory (MB) of a process that does this, and what it printed."""
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS + code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status:
        raise RuntimeError(f"planning ended with status {status}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_300_000, help="of the caption list")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        captions, store = Path(folder) / "captions.tsv", Path(folder) / "store"
        store.mkdir()
        base_seconds, base_cpu, base_mb, _ = run("")
        print(f"imports: {base_seconds:.1f} s, {base_mb:.0f} MB\n")
        print("| plan of | new images | seconds | CPU seconds | MB beyond the imports |\n|---|---|---|---|---|")
        for count in (arguments.rows, arguments.rows + arguments.rows // 10):
            write_captions(captions, count, seed=count)
            seconds, cpu, peak_mb, printed = run(PLAN, captions, store)
            found = json.loads(printed)
            assert found["images"] == count
            print(
                f"| {count:,} rows | {found['new']:,} | {seconds - base_seconds:.0f} | {cpu - base_cpu:.0f} | "
                f"{peak_mb - base_mb:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
