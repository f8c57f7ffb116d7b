"""Threads of a training sleep while they wait where other programs compute, and spin where cores are free."""

import os
import subprocess
import sys

import pytest

from roibeam.pipelines.common import compute
from roibeam.pipelines.common.compute import POLICY, CoreTimes, busy_elsewhere

_ASK = """
from roibeam.pipelines.common import compute
compute.busy_elsewhere = lambda before, after: 1.0
compute.sleep_beside_others()
import torch
"""


def test_what_others_compute_is_counted() -> None:
    for after, busy in (
        (CoreTimes(all_cores=3.0, own=1.0, passed=2.0), 1.0),  # 3 core seconds in 2, one of them ours
        (CoreTimes(all_cores=1.0, own=1.0, passed=2.0), 0.0),
        (CoreTimes(all_cores=0.5, own=1.0, passed=2.0), 0.0),  # clocks tick coarsely
        (CoreTimes(all_cores=9.0, own=0.0, passed=0.01), 0.0),  # too short to tell
    ):
        assert busy_elsewhere(CoreTimes(0.0, 0.0, 0.0), after) == busy
    before, after = CoreTimes.now(), CoreTimes.now()
    assert before is not None and after is not None
    assert all(later >= earlier for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("busy", "given", "torch", "shown"),
    [
        (1.0, {}, False, "PASSIVE"),
        (0.1, {}, False, None),
        (1.0, {POLICY: "ACTIVE"}, False, "ACTIVE"),
        (1.0, {"OMP_NUM_THREADS": "1"}, False, None),
        (1.0, {}, True, None),  # too late
    ],
)
def test_what_the_user_has_set_and_free_cores_stay(
    busy: float, given: dict[str, str], torch: bool, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    monkeypatch.setattr(os, "environ", {**kept, **given})
    monkeypatch.setattr(sys, "modules", {"torch": sys} if torch else {})
    monkeypatch.setattr(compute, "busy_elsewhere", lambda before, after: busy)
    compute.sleep_beside_others()
    assert os.environ.get(POLICY) == shown


def test_openmp_is_told_before_torch_is_loaded() -> None:
    """It prints itself what it read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env={**kept, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    (spins,) = (line.partition("=")[2] for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line)
    assert spins.strip(" '") == "0"
