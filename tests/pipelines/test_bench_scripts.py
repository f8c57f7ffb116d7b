"""Scripts of bench/ keep up with what they measure: each imports, and some run at a tiny size. No figure is judged."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py"))


def printed(script: str, *arguments: str) -> str:
    # A script's own folder must be on the import path, for the modules that benchmarks share.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(BENCH / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def cells_of(table: str) -> list[list[str]]:
    """Of each line of the tables in what a script printed."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.count("|") > 3]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    assert cv2.imwrite(str(tmp_path / "noise.jpg"), noise)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_imports(script: str) -> None:
    """Official checkouts are read later, by options."""
    importlib.import_module(script)


@pytest.mark.slow
def test_the_engine_prints_its_bars_and_stages() -> None:
    table = cells_of(printed("engine.py", "--images=12", "--shard-size=7", "--rounds=1"))
    rows = {cells[0]: cells[1:] for cells in table}
    for arm, bar in (("plain", 150), ("plain +classes", 150), ("beam", 135), ("beam +classes", 135)):
        assert rows[arm][2].startswith(f"{bar}: ")
    assert all(float(rows[stage][1]) > 0 for stage in ("decode", "digest it (SHA-256)", "commit"))


@pytest.mark.slow
def test_every_mode_is_compared_with_exact(photos: Path) -> None:
    small = ("--true-size", "0", "--toy", "1", "--threads", "1")
    rows = cells_of(printed("mode_errors.py", "--images", str(photos), *small))[2:]
    expected = [(mode, network) for network in ("small", "toy") for mode in ("batched", "bf16")]
    assert [(row[0], row[1].split(",")[0]) for row in rows] == expected
    for row in rows:
        assert 0.99 < float(row[3]) <= float(row[4]) <= 1.0000001


@pytest.mark.slow
def test_the_port_is_handed_in(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"modeling_frcnn\.py, processing_image\.py, utils\.py missing"):
        printed("extraction_speed.py", str(tmp_path), "--images", str(photos), "--detector", "small")


@pytest.mark.slow
def test_planning_is_timed_for_a_new_and_a_grown_list() -> None:
    rows = cells_of(printed("planning.py", "--rows", "9000"))
    assert [row[:2] for row in rows[-2:]] == [["9,000 rows", "9,000"], ["9,900 rows", "900"]]


@pytest.mark.slow
def test_rates_of_fine_tuning_batches_are_printed_for_every_system() -> None:
    rows = cells_of(printed("finetuning_loader.py", "--images", "64", "--rounds", "1"))[2:]
    assert {(task, system) for task, system, *_ in rows} == {(task, of) for task in ("vqa", "vcr") for of in SYSTEMS}
    for task, _, rate, _, bar in rows:
        assert float(rate.replace(",", "")) > 0 and bar.startswith("2,000: " if task == "vqa" else "500: ")
