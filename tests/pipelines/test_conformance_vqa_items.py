"""`roibeam conformance` on VQA's items and result files: the reference arrays, and that each of them is compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from harness.case_files import Arrays
from harness.checks import Check
from harness.finetuning.vqa_items import checks, prediction_checks

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
Checks = Callable[[Arrays], Iterable[Check]]
CASES: dict[str, tuple[Checks, str]] = {
    "finetune_vlbert/data_vqa": (checks, "out/"),
    "finetune_vilbert/data_vqa_first": (checks, "out/"),
    "finetune_vilbert/data_vqa_multitask": (checks, "out/"),
    "finetune_visualbert/data_vqa": (checks, "out/"),
    "finetune_vilbert/predictions_first": (prediction_checks, "out/vqa_"),
    "finetune_vilbert/predictions_multitask": (prediction_checks, "out/vqa_"),
}
NOT_COMPARED = {"out/vqa_error"}  # what the first release raised


def compared(case: str) -> set[str]:
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        return {name for name in arrays.files if name.startswith(CASES[case][1])} - NOT_COMPARED


@pytest.mark.parametrize("case", CASES)
def test_the_reference_arrays(case: str) -> None:
    found = list(CASES[case][0](Arrays(GOLDENS / f"{case}.npz")))
    assert [check for check in found if not check.passed] == []
    assert {check.array for check in found} == compared(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_tampered_array_is_missed(case: str, tmp_path: Path) -> None:
    run, prefix = CASES[case]
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    for name in compared(case):
        own = content[name]
        content[name] = np.array(json.dumps(["other"])) if own.dtype.kind == "U" else own + np.ones((), own.dtype) * 2
    unknown = {"out/other.0.leaf"} if prefix == "out/" else set()
    content |= {name: np.zeros(1) for name in unknown}
    path = tmp_path / Path(f"{case}.npz").name
    np.savez(path, **content)
    assert {check.array for check in run(Arrays(path)) if not check.passed} == compared(case) | unknown
