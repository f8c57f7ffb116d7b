"""`train.activation_checkpointing`: less memory, the same run."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from small_pretraining import make_task, settings
from soak_share import some
from toy_training import assert_equal_checkpoints, log_of

from roibeam.model.common.transformer import Attention
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.loop import train

PLAIN = settings(steps=4, accumulation=2)
AGAIN = dataclasses.replace(PLAIN, activation_checkpointing=True)


def run_of(system: str, folder: Path, config: Any, **options: Any) -> tuple[TrainResult, int]:
    """A run of four steps with dropout, and how often an attention was computed in it."""
    task, runs = make_task(system, batch_size=4, dropout=0.3), []
    for module in task.model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(lambda *_: runs.append(1))
    return train(task, config, folder, description={}, **options), len(runs)


@pytest.mark.parametrize("system", some(sorted(SYSTEMS), ("vilbert", "vlbert", "visualbert")))
def test_computing_again_changes_no_bit_of_a_run(system: str, tmp_path: Path) -> None:
    plain, once = run_of(system, tmp_path / "plain", PLAIN)
    again, more = run_of(system, tmp_path / "again", AGAIN)
    assert more == 2 * once > 0
    assert log_of(tmp_path / "again") == log_of(tmp_path / "plain")  # losses, gradient norms
    assert_equal_checkpoints(again.checkpoint, plain.checkpoint)  # what gradients made of weights and moments
    resolved = [json.loads((tmp_path / name / "config.json").read_text())["train"] for name in ("plain", "again")]
    assert [each.pop("activation_checkpointing") for each in resolved] == [False, True]
    assert resolved[0] == resolved[1]


@pytest.mark.parametrize(("before", "after"), [(PLAIN, AGAIN), (AGAIN, PLAIN)])
def test_a_run_goes_on_with_or_without(before: Any, after: Any, tmp_path: Path) -> None:
    whole, _ = run_of("vilbert", tmp_path / "whole", PLAIN)
    run_of("vilbert", tmp_path / "run", before, stop_at_step=2)
    gone_on, _ = run_of("vilbert", tmp_path / "run", after, resume=True)
    assert_equal_checkpoints(gone_on.checkpoint, whole.checkpoint)
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
