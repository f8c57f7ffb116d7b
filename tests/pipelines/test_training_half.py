"""Half precision with a scaled loss: on a GPU, and on the CPU, which the loop refuses, by torch's own scaler for it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from toy_training import ToyTask, assert_equal_checkpoints, config, log_of, run

from roibeam.pipelines.training import loop as training
from roibeam.pipelines.training.train_config import TrainConfig


@pytest.fixture(autouse=True, params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "cpu":
        make = training.make_accelerator

        def make_half(settings: TrainConfig) -> Accelerator:
            if settings.precision != "fp16":
                return make(settings)
            accelerator = make(config())
            accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
            accelerator.scaler = torch.amp.GradScaler("cpu")
            return accelerator

        monkeypatch.setattr(training, "make_accelerator", make_half)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    elif not torch.cuda.is_available():
        pytest.skip("needs a GPU")


def half(**changes: Any) -> TrainConfig:
    return config(**({"precision": "fp16", "device": "auto", "average_rate": 0.5} | changes))


def test_fp16_starts_with_overflows_that_only_lower_the_scale(tmp_path: Path) -> None:
    """Inputs of 9 make gradients that 2^16 times the loss takes beyond fp16's 65,504."""
    task = ToyTask(poisoned=dict.fromkeys(range(48), 9.0))
    before = {name: weight.clone() for name, weight in task.model.state_dict().items()}
    run(tmp_path / "run", task, half(), stop_at_step=1)
    first = log_of(tmp_path / "run")[0]
    assert first["gradient_norm"] is None and first["loss_scale"] == 2**16 and math.isfinite(first["loss"])
    for name, weight in task.model.state_dict().items():
        assert torch.equal(weight.cpu(), before[name])
    run(tmp_path / "run", ToyTask(poisoned=dict.fromkeys(range(48), 9.0)), half(), resume=True)
    lines = log_of(tmp_path / "run")
    assert lines[1]["loss_scale"] == 2**15 and lines[-1]["gradient_norm"] is not None
    assert [line["step"] for line in lines] == list(range(1, 13))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_resumed_runs_end_in_the_same_bits(tmp_path: Path, precision: str) -> None:
    settings = half(precision=precision, evaluate_every=5)
    whole = run(tmp_path / "whole", settings=settings)
    for stop in (1, 7):
        run(tmp_path / "parts", settings=settings, resume=True, stop_at_step=stop)
        torch.manual_seed(1234)
    parts = run(tmp_path / "parts", settings=settings, resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "parts")
    assert ("loss_scale" in log_of(tmp_path / "whole")[0]) == (precision == "fp16")


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"step 3: loss nan.*not finite by itself: sample-9 \(of 4"):
        run(tmp_path / "run", ToyTask(poisoned={9: math.nan}), half())


def test_each_tensor_is_clipped_after_the_scale_is_taken_off(tmp_path: Path) -> None:
    """The same steps in fp16, with a scale of thousands, as in fp32."""
    logs = []
    for precision in ("fp32", "fp16"):
        settings = half(precision=precision, clip_scope="each", clip_norm=0.01, optimizer="sgd")
        run(tmp_path / precision, settings=settings)
        logs.append(log_of(tmp_path / precision))
    for exact, rounded in zip(*logs, strict=True):
        assert rounded["loss"] == pytest.approx(exact["loss"], rel=1e-2)
