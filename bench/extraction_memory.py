"""Peak memory of the local run against the number of images: `python bench/extraction_memory.py [--images 500 2000]`.

For each size: draws that many small pictures, runs `roibeam extract` on them in a process of its own with the reduced
network and prints the peak resident memory (the kernel's count for that process), seconds and images/s. Memory is flat
when the peaks differ by less than what one run differs from itself; the first size runs twice to show that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipelines.toyworld.draw import draw_samples

NETWORK = ["--detector", "small", "--weights", "random:1", "--set", "detector.base_channels=4", "--threads", "1"]


def peak_of_run(images: Path, out: Path, options: list[str]) -> dict[str, float]:
    """Peak resident memory (MB), seconds and images/s of one extraction."""
    command = [
        str(Path(sys.executable).parent / "roibeam"),
        "extract",
        str(images),
        str(out),
        *NETWORK,
        *options,
        "--json",
    ]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    done = json.loads(process.stdout.read().splitlines()[-1])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    seconds = time.monotonic() - start
    return {
        "peak_mb": usage.ru_maxrss / 1024,
        "seconds": seconds,
        "images_per_second": done["images"] / done["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[500, 2000], help="numbers of images to run with")
    parser.add_argument("--shard-size", type=int, default=500, help="images per shard")
    arguments = parser.parse_args()
    print("| images | shards of | peak MB | seconds | images/s |\n|---|---|---|---|---|")
    for count in [arguments.images[0], *arguments.images]:
        with tempfile.TemporaryDirectory() as folder:
            draw_samples(Path(folder), count=count)
            options = ["--shard-size", str(arguments.shard_size)]
            row = peak_of_run(Path(folder) / "images", Path(folder) / "store", options)
        print(
            f"| {count} | {arguments.shard_size} | {row['peak_mb']:.0f} | {row['seconds']:.0f} | "
            f"{row['images_per_second']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
