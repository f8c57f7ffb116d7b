"""Fine-tuning on several processes is that on one; a run that was killed goes on to the bits of one that was not."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rank_deviations import InTurn, Log, largest_difference, log_in
from ranks import run_ranks, said
from small_finetuning import SmallEvaluation, SmallFinetuning
from small_pretraining import settings
from toy_training import assert_equal_checkpoints, log_of
from training_fail_points import BACKWARD, LOG_LINE, REMOVE, TENSORS, Killed

from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS

Case = tuple[str, str]
BOUNDS = {"float64": 1e-12, "float32": 1e-6}
FORMS = (LABEL, CHOICE, REGION, "pair")
STEPS = settings(steps=4, checkpoint_every=0)


def logs_of(cases: Sequence[Case], ranks: int, folder: Path, *, double: bool) -> dict[Case, Log]:
    """Groups with two to four choices, texts and regions of other lengths fall to the processes; a batch has four."""
    runs = {case: SmallFinetuning(folder / "-".join(case), STEPS, 4 // ranks, *case, double=double) for case in cases}
    told = folder / "said"
    assert run_ranks(InTurn(list(runs.values())), ranks, told, seconds=900) == [0] * ranks, said(told)[-3000:]
    return {case: log_in(run.folder) for case, run in runs.items()}


def assert_trained_alike(cases: Sequence[Case], all_ranks: Sequence[int], kind: str, folder: Path) -> None:
    """In float32 the norm of a gradient may be a sum that nearly cancels: it is not compared."""
    logs = [logs_of(cases, ranks, folder / str(ranks), double=kind == "float64") for ranks in all_ranks]
    for case in cases:
        first, *others = (log[case] for log in logs)
        assert first[0]["loss"] != first[-1]["loss"], case
        for other in others:
            left, right = first, other
            if kind == "float32":
                left, right = ([{**line, "gradient_norm": None} for line in log] for log in (first, other))
            assert largest_difference(left, right) < BOUNDS[kind], case


@pytest.mark.slow  # the evaluation below shows that processes share out a task by default
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    assert_trained_alike([("vlbert", CHOICE)], (1, 2), "float64", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDS)
def test_four_and_two_processes_train_as_one(kind: str, tmp_path: Path) -> None:
    """Every system with every form; in float32, which can only round otherwise, every system with one of them."""
    cases = [(system, form) for system in SYSTEMS for form in FORMS]
    if kind == "float32":
        cases = list(zip(SYSTEMS, itertools.cycle(FORMS)))
    assert_trained_alike(cases, (1, 2, 4), kind, tmp_path)


def test_two_processes_share_an_evaluation_and_say_what_one_says(tmp_path: Path) -> None:
    """To the bit, in the same batches; each process asked about the whole split. An error in one is told by both."""
    told = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        assert run_ranks(SmallEvaluation(folder), ranks, folder) == [0] * ranks, said(folder)[-3000:]
        told[ranks] = [json.loads(path.read_text()) for path in sorted(folder.glob("told-*.json"))]
    (alone,) = told[1]
    assert told[2] == [alone, alone] and len(set(alone["values"].values())) == len(alone["values"]) == 4
    assert alone["order"] == [0, 1, 2, 3, 4] and alone["broken"] == "item 2 is broken"


KILLED = settings(steps=6, accumulation=2, checkpoint_every=2, keep=1, evaluate_every=3)


def disturbed(folder: Path, ranks: int, workers: int = 0) -> SmallFinetuning:
    return SmallFinetuning(folder, KILLED, 2 // ranks, "vlbert", CHOICE, dropout=0.1, workers=workers)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_goes_on_to_the_bits_of_one_that_was_not(ranks: int, tmp_path: Path) -> None:
    """In the middle of an accumulation, of a checkpoint, of a line, of a removal, and with batches made ahead."""
    whole = tmp_path / "whole"
    assert run_ranks(disturbed(whole, ranks), ranks, tmp_path / "said") == [0] * ranks, said(tmp_path / "said")
    places: list[tuple[str, int, int, int]] = [(BACKWARD, 7, 0, 0), (TENSORS, 5, 0, 0), (LOG_LINE, 4, 0, 0)]
    places += [(REMOVE, 1, 0, 2)] if ranks == 1 else [(BACKWARD, 8, 1, 2)]
    for number, (place, count, rank, workers) in enumerate(places):
        folder, told = tmp_path / f"run-{number}", tmp_path / f"said-{number}"
        codes = run_ranks(Killed(disturbed(folder, ranks, workers), place, count, rank), ranks, told)
        assert codes[rank] == -9 and f"fail point: {place}, number {count}" in said(told), said(told)
        again = tmp_path / f"said-again-{number}"
        assert run_ranks(disturbed(folder, ranks, workers), ranks, again) == [0] * ranks, said(again)
        assert_same_run(whole, folder)


def assert_same_run(whole: Path, folder: Path) -> None:
    """Checkpoints and logs, and no file beside those of the run that nothing happened to."""
    assert files_below(folder) == files_below(whole)
    for name in ("log.jsonl", "evaluation.jsonl"):
        assert log_of(folder, name) == log_of(whole, name)
    for checkpoint in (whole / "checkpoints").iterdir():
        assert_equal_checkpoints(checkpoint, folder / "checkpoints" / checkpoint.name)


def files_below(folder: Path) -> list[Any]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))
