"""Cases of tests/goldens through the harness of tests/conformance: as they are, or with other arrays."""

from pathlib import Path

import numpy as np
import torch
from harness.runner import CaseResult, run_conformance

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
Arrays = dict[str, np.ndarray]


def read(name: str) -> Arrays:
    """The arrays of <family>/<case>."""
    with np.load(GOLDENS / f"{name}.npz") as file:
        return dict(file)


def run(name: str, folder: Path = GOLDENS) -> CaseResult:
    torch.set_num_threads(1)
    (result,) = run_conformance(folder / name.partition("/")[0], only=name)
    return result


def missed(result: CaseResult) -> dict[str, str]:
    """Array -> why it does not fit."""
    return {check.array: check.note for check in result.checks if not check.passed}


def run_changed(name: str, arrays: Arrays, folder: Path) -> dict[str, str]:
    """What misses of a case with these arrays, which is written below `folder`."""
    path = folder / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return missed(run(name, folder))
