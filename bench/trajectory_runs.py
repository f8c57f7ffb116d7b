"""Our side of a trajectory: the steps of our training loop, as they are written to checkpoints and log."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from trajectory_cases import STEPS, Case
from trajectory_samples import draw_parameter, draw_samples

from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.parameter_groups import group_parameters


class Moment(NamedTuple):
    """A run after one step.

    Attributes:
        loss: that was back-propagated.
        gradient_norm: of all gradients together, before any clipping.
        rates: learning rate of each parameter that is trained, by our name.
        parameters: after the step, by our name.
    """

    loss: float
    gradient_norm: float
    rates: dict[str, float]
    parameters: dict[str, Tensor]


class _GivenSamples:
    """Rules that draw nothing."""

    def __init__(self, samples: Sequence[PretrainSample]) -> None:
        self.samples = samples
        self.by_row: dict[int, PretrainSample] = {}

    def check(self, record: object) -> None: ...

    def sample(self, corpus: object, row: int, random: object) -> PretrainSample:
        return self.by_row.get(row) or dataclasses.replace(self.samples[0], sample_id=str(row))


class _Rows:
    """As many rows as there are samples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @property
    def sizes(self) -> tuple[int]:
        return (self.count,)

    def first_rows(self, count: int) -> list[int]:
        return list(range(count))

    def record(self, row: int) -> None: ...


class _DoubleTask(PretrainTask):
    """`PretrainTask` with its batches in float64, and samples in the order in which they were drawn."""

    def __init__(self, case: Case, model: nn.Module) -> None:
        samples = [row for step in draw_samples(case) for batch in step for row in batch]
        rules: Any = _GivenSamples(samples)
        rows: Any = _Rows(len(samples))
        super().__init__(model, rows, rules, DataConfig(batch_size=case.rows), pad_id=0, seed=0)
        batches = itertools.islice(super().batches(0, rank=0, num_ranks=1), len(samples) // case.rows)
        order = [int(name) for batch in batches for name in batch.sample_ids]
        rules.by_row = dict(zip(order, samples, strict=True))

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        return map(_as_double, super().batches(start_sample, rank=rank, num_ranks=num_ranks))


def _as_double(batch: VLBatch) -> VLBatch:
    values = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return dataclasses.replace(
        batch, **{name: value.double() for name, value in values.items() if value.is_floating_point()}
    )


def run_ours(case: Case, folder: Path, *, steps: int = STEPS) -> list[Moment]:
    """The first `steps` steps by our training loop, from the checkpoints and the log that it leaves in `folder`."""
    model = case.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw_parameter(name, parameter.shape))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = group_parameters(model, case.train.parameter_groups, learning_rate=case.train.learning_rate)
    scales = {names[id(each)]: group["learning_rate_scale"] for group in groups for each in group["params"]}
    train(_DoubleTask(case, model), case.train, folder, description={"case": case.name}, stop_at_step=steps)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    return [
        Moment(
            line["loss"],
            line["gradient_norm"],
            {name: line["learning_rate"] * scale for name, scale in scales.items()},
            load_file(folder / "checkpoints" / f"step-{line['step']:08d}" / "model" / "model.safetensors"),
        )
        for line in lines
    ]


def sketch(moments: Sequence[Moment]) -> dict[str, np.ndarray]:
    """A run in little: S steps, P parameters in the order of their names.

    Returns:
        names (P,); loss, gradient_norm (S,); rates (S, P), -1 where a parameter is not trained; parameters (S, P, 4):
        sum, norm, first and last number.
    """
    names = sorted(moments[0].parameters)
    return {
        "names": np.array(names),
        "loss": np.array([moment.loss for moment in moments]),
        "gradient_norm": np.array([moment.gradient_norm for moment in moments]),
        "rates": np.array([[moment.rates.get(name, -1.0) for name in names] for moment in moments]),
        "parameters": np.array([[_little(moment.parameters[name]) for name in names] for moment in moments]),
    }


def _little(parameter: Tensor) -> list[float]:
    numbers = parameter.flatten()
    return [float(numbers.sum()), float(numbers.norm()), float(numbers[0]), float(numbers[-1])]
