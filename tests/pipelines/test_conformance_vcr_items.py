"""`roibeam conformance` on VCR: items of four releases and the result files made of given scores.

The reference arrays themselves, and that each of them is compared.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.case_files import Arrays
from harness.checks import Check
from harness.finetuning import vcr_items

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
PREDICTIONS: dict[str, str] = {
    "finetune_vlbert/predictions_vcr": "out/",
    "finetune_interbert/predictions": "out/vcr_",
    "finetune_vilbert/predictions_first": "out/vcr_",
    "finetune_vilbert/predictions_multitask": "out/vcr_",
}
ITEMS = (
    "finetune_vlbert/data_vcr",
    "finetune_vilbert/data_vcr_first",
    "finetune_vilbert/data_vcr_multitask",
    "finetune_visualbert/data_vcr",
)
SLOW = {"finetune_vilbert/data_vcr_multitask", "finetune_vilbert/predictions_first"}
CASES = {**dict.fromkeys(ITEMS, "out/"), **PREDICTIONS}


def marked(slow: Collection[str]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] * (case in slow)) for case in CASES]


def checks(case: str, path: Path | None = None) -> list[Check]:
    run = vcr_items.prediction_checks if case in PREDICTIONS else vcr_items.checks
    return list(run(Arrays(path or GOLDENS / f"{case}.npz")))


@pytest.mark.parametrize("case", marked(SLOW))
def test_the_reference_arrays(case: str) -> None:
    made = checks(case)
    assert [check for check in made if not check.passed] == []
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        assert {name for name in arrays.files if name.startswith(CASES[case])} <= {check.array for check in made}


@pytest.mark.parametrize("case", marked({*SLOW, *ITEMS[1:]}))
def test_every_tampered_array_is_missed(case: str, tmp_path: Path) -> None:
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    # Names that were drawn are what our texts are made of: others are told by the texts, in the next test.
    names = {name for name in content if name.startswith(CASES[case]) and not name.endswith("names_drawn")}
    for name in names:
        own = content[name]
        content[name] = np.array(json.dumps(["other"])) if own.dtype.kind == "U" else own + np.ones((), own.dtype) * 2
    if case in ITEMS:
        content["out/other"] = np.zeros(1)  # unknown
        names |= {"out/other"}
    path = tmp_path / Path(f"{case}.npz").name
    np.savez(path, **content)
    assert {check.array for check in checks(case, path) if not check.passed} == names


@pytest.mark.slow
def test_names_that_were_drawn_stand_in_the_texts_and_are_all_used(tmp_path: Path) -> None:
    case = "finetune_vilbert/data_vcr_first"
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    drawn = json.loads(str(content["out/QA.names_drawn"]))
    path = tmp_path / "data_vcr_first.npz"
    for names, missed in ((["blake", *drawn[1:]], "out/QA.0.text"), ([*drawn, "casey"], "out/QA.names_drawn")):
        np.savez(path, **{**content, "out/QA.names_drawn": np.array(json.dumps(names))})
        assert {check.array for check in checks(case, path) if not check.passed} == {missed}
    np.savez(path, **{**content, "out/QA.names_drawn": np.array(json.dumps(drawn[:-1]))})
    assert any("ours need more" in check.note for check in checks(case, path) if not check.passed)


@pytest.mark.slow
def test_another_length_and_other_names_are_read_from_the_case(tmp_path: Path) -> None:
    """So that nothing of our copy is built in: each then differs from what the release made."""
    case = "finetune_vlbert/data_vcr"
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    config = json.loads(str(content["config"]))
    path = tmp_path / "data_vcr.npz"
    for name, other, missed in (
        ("seq_len", 63, "out/Q2A.1.question"),
        ("names_cycle", ["Riley", *config["names_cycle"][1:]], "out/Q2A.0.question"),
    ):
        np.savez(path, **{**content, "config": np.array(json.dumps({**config, name: other}))})
        found = {check.array for check in checks(case, path) if not check.passed}
        assert missed in found and "out/Q2A.0.masks" not in found
