"""The store benchmarks run at a tiny size: that they start, compare like with like, and print their bars. No figure is
judged here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
HARNESS = Path(__file__).parents[3] / "shared" / "bench" / "bench_store.py"

needs_harness = pytest.mark.skipif(not HARNESS.is_file(), reason="needs the harness, ../shared/bench/bench_store.py")


def run(script: str, *arguments: str) -> str:
    # A script's own folder must be on the import path, for the modules that benchmarks share.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(BENCH / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_opening_a_large_store_is_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    options = ("--shards", "3", "--records", "20", "--lookups", "30", "--repetitions", "2", "--keep", str(tmp_path))
    printed = run("store_scale.py", *options)
    assert "60 ids in 3 shards" in printed
    assert "| shards reached, ulimit -n 1024 | 3 | 3 | met |" in printed


@needs_harness
@pytest.mark.parametrize(
    "script, options, expected",
    [
        ("store_formats.py", ["--loader-rounds", "0"],
         ["| random over the flat limit | >= 0.95 |", "| roibeam-checked | fp16 |"]),
        ("store_assembly.py", ["--batch", "4"], ["| ragged, best peer given buffers that live on (mmf_npy_per_image"]),
    ],
)  # fmt: skip
def test_formats_give_equal_records_before_they_are_timed(
    script: str, options: list[str], expected: list[str], tmp_path: Path
) -> None:
    small = ["--records", "6", "--rounds", "1", "--peers", "mmf_npy_per_image", "--work", str(tmp_path)]
    printed = run(script, str(HARNESS), *small, *options)
    assert all(line in printed for line in expected)


@needs_harness
def test_the_page_cache_is_dropped_before_a_cold_read(tmp_path: Path) -> None:
    small = ["--records", "6", "--reads", "4", "--batch", "2", "--rounds", "1", "--peers", "--work", str(tmp_path)]
    if subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True).stdout == "tmpfs\n":
        pytest.skip("the temporary folder is in memory: nothing there is ever cold")
    printed = run("store_cold.py", str(HARNESS), *small)
    assert "random batches, cold" in printed
