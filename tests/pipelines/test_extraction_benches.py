"""The extraction benchmarks run at a tiny size; no figure is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A script's own folder must be on the import path, for the modules that benchmarks share.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    assert cv2.imwrite(str(tmp_path / "noise.jpg"), noise)
    return tmp_path


@pytest.mark.slow
def test_every_mode_is_compared_with_exact(photos: Path) -> None:
    done = run("mode_errors.py", "--images", str(photos), "--true-size", "0", "--toy", "1", "--threads", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [(row[0].strip("| "), row[1].split(",")[0]) for row in rows] == [
        (mode, network) for network in ("small", "toy") for mode in ("batched", "bf16")
    ]
    for row in rows:
        assert 0.99 < float(row[3]) <= float(row[4]) <= 1.0000001


@pytest.mark.slow
def test_the_port_is_handed_in(photos: Path, tmp_path: Path) -> None:
    done = run("extraction_speed.py", str(tmp_path), "--images", str(photos), "--detector", "small")
    assert done.returncode != 0 and "modeling_frcnn.py, processing_image.py, utils.py missing" in done.stderr


@pytest.mark.slow
def test_planning_is_timed_for_a_new_and_a_grown_list() -> None:
    done = run("planning.py", "--rows", "9000")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in done.stdout.splitlines()[-2:]]
    assert rows == [["9,000 rows", "9,000"], ["9,900 rows", "900"]]
