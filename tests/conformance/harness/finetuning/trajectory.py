"""Fine-tuning runs of the official codes, done again by our training loop in float64 (the READMEs beside the cases).

A case has weights, micro-batches in the order in which they were taken, and what every one of them gave. Which model,
which losses and which settings a case asks for is its system's (two_stream_trajectories.py and others).
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from harness.case_files import ArrayError
from harness.checks import Check, apart, equal, failed, near, within
from harness.model_case import ModelArrays
from harness.tolerances import FINETUNING
from roibeam.model.common.losses import SumCount
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.task import AlternatingTask, TrainTask
from roibeam.pipelines.training.train_config import TrainConfig

LOSSES, ORDER, RATES = "out/loss_per_micro_step", "out/batch_of_micro_step", "out/lr_per_update"
MAX_MICRO_STEPS = 4096
SUBSAMPLED = 4096  # numbers that the file keeps of a larger weight
_SCORE = "score"


@dataclass(frozen=True)
class Terms:
    """What one micro-batch gave."""

    losses: Mapping[str, SumCount]  # by name; they add up to the loss
    # By the names that the file has for parts of the loss and scores
    others: Mapping[str, Tensor | float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What a system makes of a case."""

    model: nn.Module  # with the weights of the case, in float64
    config: TrainConfig  # of the run
    batch: Callable[[int], Any]  # micro-batch i of the file
    terms: Callable[[nn.Module, Any], Terms]  # what the model gives for one
    # Of an official parameter; None for one that the official model has and never reads
    our_name: Callable[[str], str | None]
    losses: Sequence[str] = ("loss",)  # names of those that `terms` has
    groups: Sequence[ParameterGroup] = ()  # parameter groups of the case's own, where no named rule has them
    scores: Sequence[float] = ()  # what the official evaluation said after each epoch, for a schedule that goes by it
    inputs: Callable[[], Iterable[Check]] = tuple  # what else there is to compare, of the micro-batches themselves
    joint: Sequence[float] = ()  # of tasks that alternate: what the loss of each is multiplied by; () for a single one


def as_double(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a case as its run had them."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def without_dropout(model: nn.Module) -> None:
    """The official runs had every probability at 0, also those that no option of theirs sets."""
    module: Any
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0


@dataclass(frozen=True, eq=False)
class _MicroBatch:
    number: int
    content: Any

    def to(self, device: torch.device | str) -> _MicroBatch:
        return self


@dataclass
class _Task:
    """One task over the given micro-batches: each is a sample."""

    run: Trajectory
    order: Sequence[int]
    epoch: int
    log: list[Terms]
    read: dict[int, _MicroBatch]
    scores: Iterator[float]
    batch_size: int = 1

    @property
    def model(self) -> nn.Module:
        return self.run.model

    @property
    def num_samples(self) -> int:
        return self.epoch

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[_MicroBatch]:
        for number in itertools.cycle(self.order[start_sample:] if start_sample < len(self.order) else self.order):
            if number not in self.read:
                self.read[number] = _MicroBatch(number, self.run.batch(number))
            yield self.read[number]

    def counts(self, batch: _MicroBatch) -> dict[str, int]:
        return dict.fromkeys(self.run.losses, 1)  # the releases divide by no count of a whole step

    def losses(self, model: nn.Module, batch: _MicroBatch) -> Any:
        terms = self.run.terms(model, batch.content)
        self.log.append(Terms({name: term.detach() for name, term in terms.losses.items()}, terms.others))
        return SimpleNamespace(losses=terms.losses, metrics={})

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        return self.run.groups

    def sample_ids(self, batch: _MicroBatch) -> Sequence[str]:
        return (f"micro-batch {batch.number}",)

    def model_config(self) -> Mapping[str, Any]:
        return {}

    def evaluate(self) -> dict[str, float | None]:
        return {_SCORE: next(self.scores)}


class _Watched:
    """What a run does to the parameters of a model, seen at its optimizer's steps."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = dict(model.named_parameters())
        self._norms: dict[str, float] = {}
        self._before: dict[str, Tensor] = {}
        # For each update, by our name: the rate used, the norm of the gradient before any clipping, that of the change.
        self.rates: list[dict[str, float]] = []
        self.gradients: list[dict[str, float]] = []
        self.changes: list[dict[str, float]] = []

    def __enter__(self) -> _Watched:
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *(
                parameter.register_post_accumulate_grad_hook(self._gradient)
                for parameter in self._parameters.values()
                if parameter.requires_grad
            ),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._norms[self._names[id(parameter)]] = float(parameter.grad.norm())

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.rates.append(
            {self._names[id(each)]: group["lr"] for group in optimizer.param_groups for each in group["params"]}
        )
        self.gradients.append(self._norms)
        self._norms = {}
        self._before = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def _after_step(self, *_: object) -> None:
        self.changes.append(
            {name: float((after.detach() - self._before[name]).norm()) for name, after in self._parameters.items()}
        )


def trajectory_checks(arrays: ModelArrays, run: Trajectory) -> Iterator[Check]:
    """The whole run, and everything the file says of it."""
    order = arrays.whole(ORDER, 0, 1 << 20, None).tolist()
    if not 1 <= len(order) <= MAX_MICRO_STEPS:
        raise ArrayError(ORDER, f"has {len(order)} micro-steps; 1 to {MAX_MICRO_STEPS} are run")
    start = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
    tied, of_table = arrays.options.get("tied", {}), run.our_name
    run = dataclasses.replace(run, our_name=lambda name: of_table(tied.get(name, name)))
    log, watched, weights = _run(run, order, int(arrays.options["micro_batches_per_epoch"]))
    yield from run.inputs()
    yield from _micro_step_checks(arrays, log)
    yield from _update_checks(arrays, run, watched)
    for kind, state in weights.items():
        yield from _weight_checks(arrays, run, state, kind, start)


def _run(
    run: Trajectory, order: Sequence[int], epoch: int
) -> tuple[list[Terms], _Watched, dict[str, Mapping[str, Tensor]]]:
    """What its micro-batches gave and its updates did; the weights at the end ("final"), and their average ("ema")
    where there is one."""
    log: list[Terms] = []
    read: dict[int, _MicroBatch] = {}
    scores = iter((0.0, *run.scores))  # the loop evaluates the start too, which no schedule counts
    count = len(run.joint) or 1
    parts = [_Task(run, order[place::count], epoch, log, read, scores) for place in range(count)]
    task: TrainTask = parts[0]
    if run.joint:
        scales = {str(place): scale for place, scale in enumerate(run.joint)}
        task = AlternatingTask(dict(zip(scales, parts, strict=True)), loss_scales=scales, updates="task")
    config = dataclasses.replace(run.config, device="cpu", checkpoint_every=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, _Watched(run.model) as watched:
            result = train(task, config, Path(folder) / "run", description={})
            trained = result.checkpoint / "trained.safetensors"
            weights: dict[str, Mapping[str, Tensor]] = {}
            weights["final"] = load_file(trained) if trained.exists() else dict(run.model.state_dict())
            if run.config.average_rate:
                weights["ema"] = dict(run.model.state_dict())
    finally:
        torch.set_num_threads(threads)
    return log, watched, weights


def _micro_step_checks(arrays: ModelArrays, log: Sequence[Terms]) -> Iterator[Check]:
    got = np.array([sum(float(term.mean) for term in terms.losses.values()) for terms in log])
    yield near(LOSSES, got, arrays.take(LOSSES), FINETUNING.relative)
    names = {name for terms in log for name in terms.others}
    for name in sorted(names):
        if f"out/{name}" in arrays:
            values = np.array([float(terms.others[name]) for terms in log])
            yield near(f"out/{name}", values, arrays.take(f"out/{name}"), FINETUNING.relative)


def _update_checks(arrays: ModelArrays, run: Trajectory, watched: _Watched) -> Iterator[Check]:
    options = arrays.options
    trainable = [run.our_name(name) for name in options["trainable"]]
    grouped = set(watched.rates[0])
    # What the releases leave out of the optimizer has gradients too, which they do not count.
    applied = [{name: norm for name, norm in each.items() if name in grouped} for each in watched.gradients]
    total = np.array([np.sqrt(sum(norm**2 for norm in each.values())) for each in applied])
    want = arrays.take("out/grad_norm_per_update")
    yield near("out/grad_norm_per_update", total, want, FINETUNING.relative)
    want = arrays.take(RATES, None, len(options["groups"]))
    rates = np.zeros((len(watched.rates), want.shape[1]))
    asking = {name for name, parameter in run.model.named_parameters() if parameter.requires_grad}
    for column, group in enumerate(options["groups"]):
        # What asks for no gradient is in an official group too, and stays as it is.
        of_group = {name for name in map(run.our_name, group["params"]) if name in asking}
        for update, given in enumerate(watched.rates):
            found = {given.get(name) for name in of_group}
            rates[update, column] = found.pop() if len(found) == 1 and None not in found else np.nan
    yield near(RATES, rates, want, FINETUNING.relative)
    for name, by_update in (("param_grad_norm", applied), ("param_change_norm", watched.changes)):
        norms = np.array([[each.get(parameter or "", 0.0) for each in by_update] for parameter in trainable])
        yield near(f"out/{name}", norms, arrays.take(f"out/{name}"), FINETUNING.parameters)
    official = {name for group in options["groups"] for name in group["params"]}
    strangers = grouped - {run.our_name(name) for name in official}
    note = f"{', '.join(sorted(strangers)[:3])} are trained here only" if strangers else ""
    yield within("config", len(strangers), 0, "parameters trained here only", note)


def _weight_checks(
    arrays: ModelArrays, run: Trajectory, weights: Mapping[str, Tensor], kind: str, start: Mapping[str, Tensor]
) -> Iterator[Check]:
    for part in ("", "_sub", "_sum"):
        for name in arrays.below(f"{kind}{part}/"):
            yield _weight(arrays, weights, run.our_name(name), f"{kind}{part}/{name}", part)
    for name in arrays.options.get(f"{kind}_unchanged", ()):
        ours = run.our_name(name)
        if ours is not None and ours in weights:  # counters of batch norms have no place here
            yield equal(f"{kind}/{name}", weights[ours], start[ours].numpy())


def _weight(arrays: ModelArrays, weights: Mapping[str, Tensor], ours: str | None, array: str, part: str) -> Check:
    want = arrays.take(array)
    if ours is None or ours not in weights:
        return failed(array, f"our model has no {ours}")
    flat = weights[ours].detach().double()
    if not part:
        return apart(array, flat.reshape(want.shape) if flat.numel() == want.size else flat, want, FINETUNING.weights)
    flat = flat.flatten()
    if part == "_sub":
        return apart(array, flat[:: -(-flat.numel() // SUBSAMPLED)], want, FINETUNING.weights)
    return near(array, torch.stack([flat.sum(), flat.square().sum()]), want, FINETUNING.relative)
