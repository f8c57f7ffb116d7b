"""The loader's benchmark of fine-tuning runs at a tiny size: it prints its bars. No figure is judged here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bench_module import BENCH

from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS


@pytest.mark.slow
def test_rates_of_every_system_are_printed() -> None:
    # A script's own folder must be on the import path, for the modules that benchmarks share.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(BENCH / "finetuning.py"), "loader", "--images", "64", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if line.count("|") > 3]
    rows = {(cells[1], cells[2]): cells[3:] for cells in lines[2:]}
    assert rows.keys() == {(task, system) for task in ("vqa", "vcr") for system in SYSTEMS}
    for (task, _), cells in rows.items():
        assert float(cells[0].replace(",", "")) > 0 and cells[2].startswith("2,000: " if task == "vqa" else "500: ")
