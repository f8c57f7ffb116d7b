"""Memory of the local run against the number of images: `python bench/extraction_memory.py [--images 500 2000]`.

For each size: draws that many small pictures, runs `roibeam extract` on them in a process of its own with the reduced
network and prints the most anonymous memory it had, seconds and images/s. Memory is flat when the peaks differ by less
than what one run differs from itself; the first size runs twice to show that.

Anonymous memory is what the kernel cannot drop. Resident memory counts mapped files too, of which a process touches the
most when it ends: the CUDA libraries, as they unload, read 0.1 GB of themselves.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.rendering import draw_samples

NETWORK = "--detector small --set detector.base_channels=4"
SAMPLE_SECONDS = 0.05


def peak_of_run(images: Path, out: Path, options: list[str]) -> dict[str, float]:
    """The most anonymous memory (MB), seconds and images/s of one extraction."""
    command = [
        str(Path(sys.executable).parent / "roibeam"),
        "extract",
        str(images),
        str(out),
        *("--weights", "random:1", "--device", "cpu", "--threads", "1"),
        *options,
        "--json",
    ]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        peak = peak_until_end(process)
        seconds = time.monotonic() - start
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
        output.seek(0)
        done = json.loads(output.read().splitlines()[-1])
    return {
        "peak_mb": peak,
        "seconds": seconds,
        "images_per_second": done["images"] / done["seconds"],
    }


def peak_until_end(process: subprocess.Popen[Any]) -> float:
    """The most anonymous memory (MB) of a process, looked at every 50 ms until it ends.

    The kernel's own count of a child's peak, `ru_maxrss`, begins at what its parent had needed when it started it.
    """
    peak = 0.0
    while process.poll() is None:
        for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):  # one that has just ended has none
                peak = max(peak, int(line.split()[1]) / 1024)
        time.sleep(SAMPLE_SECONDS)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[500, 2000], help="numbers of images to run with")
    parser.add_argument("--shard-size", type=int, default=500, help="images per shard")
    parser.add_argument("--network", default=NETWORK, help="options of another network, such as '--preset vinvl'")
    arguments = parser.parse_args()
    print("| images | shards of | peak anonymous MB | seconds | images/s |\n|---|---|---|---|---|")
    for count in [arguments.images[0], *arguments.images]:
        with tempfile.TemporaryDirectory() as folder:
            draw_samples(Path(folder), count=count)
            options = [*shlex.split(arguments.network), "--shard-size", str(arguments.shard_size)]
            row = peak_of_run(Path(folder) / "images", Path(folder) / "store", options)
        print(
            f"| {count} | {arguments.shard_size} | {row['peak_mb']:.0f} | {row['seconds']:.0f} | "
            f"{row['images_per_second']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
