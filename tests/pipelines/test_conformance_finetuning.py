"""`roibeam conformance` on runs of the official fine-tuning codes: our training loop, heads and losses take the same
steps, with the accidents of each release; and what VL-BERT's tasks start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conformance_cases import missed

from roibeam.pipelines.conformance.runner import plan_cases, run_conformance

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
FAMILIES = ("finetune_interbert", "finetune_vilbert", "finetune_visualbert", "finetune_vlbert")
OF_OTHERS = ("data_", "predictions")  # items and result files are not of this test
CASES = tuple(
    f"{family}/{path.stem}"
    for family in FAMILIES
    for path in sorted((GOLDENS / family).glob("*.npz"))
    if not path.stem.startswith(OF_OTHERS)
)
# VisualBERT's is among the tampered ones below. All together take a minute.
FAST = {
    "finetune_vilbert/multitask_vqa_warmup_linear",
    "finetune_vlbert/vqa_sgd",
    "finetune_vlbert/init_vcr_relation",
    "finetune_vlbert/init_vqa",
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in CASES])
def test_the_official_run_is_done_again(case: str) -> None:
    (result,) = run_conformance(GOLDENS / case.split("/")[0], only=case)
    assert result.passed, missed(result)
    with np.load(GOLDENS / f"{case}.npz") as file:
        wanted = {name for name in file.files if name.startswith(("out/", "final", "ema"))}
    assert wanted - {check.array for check in result.checks} <= {"out/batch_of_micro_step"}


def test_every_accident_has_a_case() -> None:
    assert FAST < set(CASES) and len(CASES) == 32
    assert all(case.case is not None for family in FAMILIES for case in plan_cases(GOLDENS / family))


def test_every_tampered_array_is_a_miss(tmp_path: Path) -> None:
    with np.load(GOLDENS / "finetune_visualbert" / "nlvr2.npz") as file:
        arrays = dict(file)
    tampered = {name for name in arrays if name.startswith(("out/", "final"))} - {"out/batch_of_micro_step"}
    for name in tampered:
        arrays[name] = arrays[name].copy()
        arrays[name].reshape(-1)[np.abs(arrays[name]).argmax()] *= 1 + 1e-6
    folder = tmp_path / "finetune_visualbert"
    folder.mkdir()
    np.savez(folder / "nlvr2.npz", **arrays)
    (result,) = run_conformance(folder)
    assert set(missed(result)) == tampered


def test_a_kind_of_case_that_nobody_compares_fails(tmp_path: Path) -> None:
    folder = tmp_path / "finetune_vlbert"
    folder.mkdir()
    np.savez(folder / "data_entailment.npz", config=np.array("{}"), **{"file/a": np.array("text")})
    (result,) = run_conformance(folder)
    assert "of a kind that is not known yet" in missed(result)["data_entailment.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_another_name_is_recognised(family: str, tmp_path: Path) -> None:
    other = Path(shutil.copytree(GOLDENS / family, tmp_path / "altered"))
    assert {case.family for case in plan_cases(other)} == {family}


def test_a_missing_option_is_one_line(tmp_path: Path) -> None:
    with np.load(GOLDENS / "finetune_visualbert" / "nlvr2.npz") as file:
        arrays = dict(file) | {"config": np.array('{"args": {"model": {"training_head_type": "nlvr"}}}')}
    folder = tmp_path / "finetune_visualbert"
    folder.mkdir()
    np.savez(folder / "nlvr2.npz", **arrays)
    (result,) = run_conformance(folder)
    assert missed(result) == {"nlvr2.npz": "config: an option is missing or of another kind: 'bert'"}
