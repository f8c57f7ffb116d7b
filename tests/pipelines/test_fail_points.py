"""Runs killed at named stages of writing: no shard or a whole one, and a rerun that gives the same store."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from fail_points import KILLS, STAGES, STORE, TRANSACTION, disturb, run
from forks import run_script

from pipelines.store_import import import_features

SCRIPT = Path(__file__).with_name("fail_points.py")


@pytest.fixture(scope="module")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images in the six columns of bottom-up attention."""
    path = tmp_path_factory.mktemp("source") / "features.tsv"
    draw = np.random.default_rng(1)
    with path.open("wb") as file:
        for number in range(20):
            corners = draw.random((6, 2), np.float32) * 100
            boxes = np.concatenate([corners, corners + 50], axis=1)
            arrays = [base64.b64encode(array.tobytes()) for array in (boxes, draw.random((6, 16), np.float32))]
            file.write(b"\t".join([f"{number:03}".encode(), b"640", b"480", b"6", *arrays]) + b"\n")
    return path


@pytest.fixture(scope="module")
def imported(tsv: Path) -> Path:
    out = tsv.parent / "wanted"
    log = tsv.parent / "log"
    assert run(lambda: import_features(tsv, out, shard_size=4), log) == 0, log.read_text()
    return out


@pytest.mark.parametrize("stage", [*STAGES, STORE])
def test_killed_imports(tsv: Path, imported: Path, tmp_path: Path, stage: str) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    if stage == STORE:
        counts = [1]
    elif stage == TRANSACTION:  # in each of the five shards, after its first, second, ... record
        counts = [1, 6, 11, 16, 19]
    else:
        counts = list(range(1, KILLS + 1))
    for count in counts:
        assert disturb(lambda: import_features(tsv, out, shard_size=4), out, imported, log, stage, count) == []


@pytest.mark.slow
def test_killed_extractions(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok\n") == KILLS * len(STAGES)
