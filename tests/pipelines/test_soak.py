"""Long runs. `make test-soak` runs them whole; ROIBEAM_SOAK=0.1 a tenth of them, as CI does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from extraction_memory import NETWORK, peak_of_run
from soak_share import SHARE

from roibeam.pipelines.toyworld.rendering import draw_samples


@pytest.mark.soak
def test_peak_memory_of_the_local_run_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    # The first images, of ever new sizes, fill caches and the allocator's pools, and some hundreds of them wait for
    # Python's collector of what refers to itself: 530 MB after 200, 548 after 800, 552 after 1,600.
    shard, shards = max(200, round(500 * SHARE)), 4 if SHARE >= 1 else 2
    counts, peaks = (shards * shard, 2 * shards * shard), []
    for count in counts:
        draw_samples(tmp_path / str(count), count=count)
        options = [*NETWORK.split(), "--shard-size", str(shard)]
        peaks.append(peak_of_run(tmp_path / str(count) / "images", tmp_path / f"store{count}", options)["peak_mb"])
    print(f"{counts[0]} and {counts[1]} images: {peaks} MB of anonymous memory at most")
    # One run differs from its repetition by about 1 %.
    assert peaks[1] < 1.03 * peaks[0], peaks


@pytest.mark.soak
def test_memory_of_the_engine_does_not_grow_along_a_run() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    script = str(Path(__file__).parents[2] / "bench" / "engine.py")
    command = [sys.executable, script, "--memory", str(max(500, round(5000 * SHARE))), "--shard-size", "250"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    megabytes = [float(line.split("|")[2]) for line in done.stdout.splitlines()[2:]]
    print(f"MB after each tenth of {command[3]} images: {megabytes}")
    assert len(megabytes) == 10
    # The first tenth fills queues and the allocator's pools.
    assert max(megabytes[5:]) < 1.05 * max(megabytes[1:5]), megabytes
