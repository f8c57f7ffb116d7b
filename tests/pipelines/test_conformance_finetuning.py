"""`roibeam conformance` on runs of the official fine-tuning codes: our training loop, heads and losses take the same
steps, with the accidents of each release; and what VL-BERT's tasks start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conformance_cases import missed
from grounding_release import read_arrays, run_as_released
from harness.runner import plan_cases, run_conformance

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


def cut_phrases(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With some phrases where the release looks for a word that `max_seq_length` cuts: at [SEP], at a region of the
    row, at padding behind its regions; every row is as long as its batch then, as rows that are cut are."""
    made = dict(arrays)
    for number in range(6):
        ids, positions = arrays[f"in/{number}.bert_input_ids"], arrays[f"in/{number}.flickr_position"].copy()
        width = ids.shape[1]
        for row in range(len(ids)):
            asked = int((positions[row] >= 0).sum())
            positions[row, :asked] = [
                (width - 1, width + number % 2, width + 4)[p % 3] for p in range(number, number + asked)
            ]
        made[f"in/{number}.flickr_position"] = positions
        made[f"in/{number}.bert_input_mask"] = np.ones_like(ids)
        made[f"in/{number}.bert_input_ids"] = np.where(ids == 0, 7, ids)
    return made


def test_a_run_whose_phrases_lie_behind_a_cut_text_is_the_release_s(tmp_path: Path) -> None:
    """No reference file has such phrases: one is derived by hand, by what reproduces the file that there is."""
    known = read_arrays(GOLDENS / "finetune_visualbert" / "flickr.npz")
    again = run_as_released(known)
    for name in known:
        if name.startswith(("out/", "final/")):
            np.testing.assert_allclose(again[name], known[name], rtol=1e-9, atol=1e-12, err_msg=name)
    folder = tmp_path / "finetune_visualbert"
    folder.mkdir()
    derived = run_as_released(cut_phrases(known))
    assert not np.allclose(derived["out/loss_per_micro_step"], known["out/loss_per_micro_step"], rtol=1e-3)
    np.savez(folder / "flickr.npz", **derived)
    (result,) = run_conformance(folder)
    assert result.passed, missed(result)
