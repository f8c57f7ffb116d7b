"""The engine's benchmark runs at a tiny size: that it prints its bars and stages. No figure is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "engine.py"


@pytest.mark.slow
def test_arms_and_stages_are_printed() -> None:
    # A script's own folder must be on the import path, for the modules that benchmarks share.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, str(SCRIPT), "--images", "12", "--shard-size", "7", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {cells[1].strip(): cells[2:] for line in done.stdout.splitlines() if len(cells := line.split("|")) > 3}
    for arm, bar in (("plain", 150), ("plain +classes", 150), ("beam", 135), ("beam +classes", 135)):
        assert rows[arm][2].strip().startswith(f"{bar}: ")
    assert all(float(rows[stage][1]) > 0 for stage in ("decode", "digest it (SHA-256)", "commit"))
