"""Long runs. `make test-soak` runs them whole; ROIBEAM_SOAK=0.1 a tenth of them, as CI does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pipelines.toyworld.draw import draw_samples

SHARE = float(os.environ.get("ROIBEAM_SOAK", "1"))


def benchmark(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.soak
def test_peak_memory_of_the_local_run_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    measure = benchmark("extraction_memory").peak_of_run
    shard = max(20, round(500 * SHARE))
    peaks = []
    for count in (shard, 4 * shard):
        draw_samples(tmp_path / str(count), count=count)
        options = ["--shard-size", str(shard)]
        peaks.append(measure(tmp_path / str(count) / "images", tmp_path / f"store{count}", options)["peak_mb"])
    print(f"{shard} and {4 * shard} images: {peaks} MB at most")
    # One run differs from its repetition by about 1 %.
    assert peaks[1] < 1.03 * peaks[0], peaks


@pytest.mark.soak
def test_memory_of_the_engine_does_not_grow_along_a_run() -> None:
    script = Path(__file__).parents[2] / "bench" / "engine.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(script), "--memory", str(max(500, round(5000 * SHARE))), "--shard-size", "250"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    megabytes = [float(line.split("|")[2]) for line in done.stdout.splitlines()[2:]]
    print(f"MB after each tenth of {command[3]} images: {megabytes}")
    assert len(megabytes) == 10
    # The first tenth fills queues and the allocator's pools.
    assert max(megabytes[5:]) < 1.05 * max(megabytes[1:5]), megabytes
