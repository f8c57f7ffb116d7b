"""The first steps of our loop against those of the official codes, which bench/trajectories.py --record wrote.

The file holds numbers of official runs (docs/fidelity.md): losses, norms, rates, and of each parameter its
sum, norm, first and last number. Samples and start weights are drawn anew by the modules that drew them there.
"""

from pathlib import Path

import numpy as np
import pytest
import trajectory_cases
import trajectory_runs

RECORDED = Path(__file__).parent / "data" / "trajectories.npz"
CASES = (
    *("vl-bert", "vl-bert-accumulated", "vl-bert-rows", "vilbert", "vilbert-regression-accumulated"),
    *("interbert", "interbert-regression", "visualbert"),
)
# Runs on one machine agree to 1e-13; sums over thousands of numbers, on other machines, are given more.
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDED) as file:
        return dict(file)


def test_every_case_is_recorded(recorded):
    assert set(trajectory_cases.CASES) == set(CASES)
    assert {name.split("/")[0] for name in recorded} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_first_steps_are_the_official_ones(name, one_thread, recorded, tmp_path):
    wanted = {key.removeprefix(f"{name}/"): array for key, array in recorded.items() if key.startswith(f"{name}/")}
    case, steps = trajectory_cases.CASES[name], len(wanted["loss"])
    got = trajectory_runs.sketch(trajectory_runs.run_ours(case, tmp_path / "run", steps=steps))
    assert got.keys() == wanted.keys() and got["names"].tolist() == wanted["names"].tolist()
    for key in ("loss", "gradient_norm", "rates"):
        np.testing.assert_allclose(got[key], wanted[key], rtol=0, atol=TOLERANCE, err_msg=key)
    for step, (ours, theirs) in enumerate(zip(got["parameters"], wanted["parameters"], strict=True), 1):
        for parameter, difference in zip(wanted["names"], np.abs(ours - theirs).max(axis=1), strict=True):
            assert difference <= TOLERANCE, f"step {step}: {parameter} is {difference:.1e} off"
    # Without these the comparison would be of runs that stand still.
    assert (np.abs(np.diff(got["parameters"], axis=0)).max(axis=(0, 2)) > 1e-6).sum() > 40
