"""A run of a release's own training code, micro-step by micro-step, against our model, losses, optimizer and schedule.

What a system adds is a `Release`: its model, what a micro-batch is, the loss of a task, and the settings of training.
All of it is computed in float64. The steps are those of the loop (training/train_step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from roibeam.model.common.exponential_average import ExponentialAverage
from roibeam.model.common.losses import SumCount
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.conformance.checks import Check, failed, within
from roibeam.pipelines.conformance.model_case import ModelArrays
from roibeam.pipelines.conformance.tolerances import FINETUNING
from roibeam.pipelines.training.loop import make_accelerator
from roibeam.pipelines.training.optimizer.build import build_optimizer, chosen_groups, learning_rate_at
from roibeam.pipelines.training.parameter_groups import ParameterGroup, groups_by_words
from roibeam.pipelines.training.release_steps import joint_steps
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import TrainStep

LOSS_STEPS, BATCH_STEPS = "out/loss_per_micro_step", "out/batch_of_micro_step"
RATES, NORMS = "out/lr_per_update", "out/grad_norm_per_update"
_KEPT = 4096  # values of a tensor that a case keeps whole


@dataclass(frozen=True)
class CaseLosses:
    """What a micro-batch gave; a `LossOutput`."""

    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount] = field(default_factory=dict)


@dataclass(frozen=True)
class MicroBatch:
    """Attributes:
    inputs: in float64.
    targets: whatever the loss reads.
    counts: elements of each loss.
    scale: of the loss, beside other tasks.
    """

    inputs: Any
    targets: Any
    counts: Mapping[str, int]
    scale: float = 1.0

    def to(self, device: torch.device | str) -> MicroBatch:
        return self


@dataclass(frozen=True)
class Release:
    """Attributes:
    model: in float64.
    batches: by number.
    losses: of a batch: the losses by name, and what the case may hold beside, by its name below "out/".
    config: how the release trains.
    official: our name -> the release's.
    rates: the rate of each update, where no formula of `config` says it; () for that formula.
    num_tasks: that take turns.
    scales: of the rate, for parameters whose official name holds these words; the first that fits.
    """

    model: nn.Module
    batches: Mapping[int, MicroBatch]
    losses: Callable[[nn.Module, MicroBatch], tuple[dict[str, SumCount], dict[str, Tensor]]]
    config: TrainConfig
    official: Callable[[str], str]
    rates: Sequence[float] = ()
    num_tasks: int = 1
    scales: Sequence[tuple[str, float]] = ()


class _CaseTask:
    """A `TrainTask` as far as a step asks."""

    def __init__(self, release: Release) -> None:
        self.release, self.model = release, release.model
        self.seen: list[float] = []
        self.beside: list[dict[str, Tensor]] = []

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        return batch.counts

    def losses(self, model: nn.Module, batch: MicroBatch) -> CaseLosses:
        losses, beside = self.release.losses(model, batch)
        self.seen.append(sum(float(term.detach().mean) for term in losses.values()))
        self.beside.append({name: value.detach() for name, value in beside.items()})
        return CaseLosses({name: SumCount(term.total * batch.scale, term.count) for name, term in losses.items()})

    def sample_ids(self, batch: MicroBatch) -> Sequence[str]:
        return ()

    def parameter_groups(self) -> Sequence[ParameterGroup]:
        named = {self.release.official(name): each for name, each in self.model.named_parameters()}
        return groups_by_words(named, self.release.scales)


class Trained(NamedTuple):
    """What our steps gave, and the average of weights where the release keeps one."""

    task: _CaseTask
    rates: list[dict[str, float]]
    norms: list[float]
    average: ExponentialAverage | None


def in_float64(batch: VLBatch) -> VLBatch:
    found = {each.name: getattr(batch, each.name) for each in fields(batch)}
    wide: dict[str, Any] = {
        name: value.double() for name, value in found.items() if isinstance(value, Tensor) and value.is_floating_point()
    }
    return replace(batch, **wide)


def trajectory_checks(arrays: ModelArrays, release: Release) -> Iterator[Check]:
    """Losses, rates and norms of all steps, the groups, and the weights in the end."""
    numbers = arrays.whole(BATCH_STEPS, 0, max(release.batches) + 1, None).tolist()
    names = _names(arrays, release)
    yield from _group_checks(arrays, release, names)
    trained = _train(release, numbers, names)
    losses = arrays.arrays.take_finite(LOSS_STEPS, len(numbers))
    yield _relative(LOSS_STEPS, trained.task.seen, losses)
    for name in sorted(set(trained.task.beside[0])):
        if f"out/{name}" in arrays:
            ours = [float(values[name]) for values in trained.task.beside]
            yield _relative(f"out/{name}", ours, arrays.arrays.take_finite(f"out/{name}", len(numbers)))
    groups = arrays.options["groups"]
    firsts = [next((name for name in group["params"] if name in trained.rates[0]), "") for group in groups]
    rates = [[update.get(name, float("nan")) for name in firsts] for update in trained.rates]
    yield _relative(RATES, rates, arrays.arrays.take_finite(RATES, len(rates), len(groups)))
    yield _relative(NORMS, trained.norms, arrays.arrays.take_finite(NORMS, len(trained.norms)))
    yield from _weight_checks(arrays, release.model.state_dict(), names, "final")
    if trained.average is not None:
        yield from _weight_checks(arrays, trained.average.state_dict(), names, "ema")
    yield from _beside_checks(arrays)


def _names(arrays: ModelArrays, release: Release) -> dict[str, str]:
    """The release's name -> ours, of everything that the case names."""
    ours = {release.official(name): name for name in release.model.state_dict()}
    tied = arrays.options.get("tied", {})
    return ours | {copy: ours[of] for copy, of in tied.items() if of in ours}


def _group_checks(arrays: ModelArrays, release: Release, names: Mapping[str, str]) -> Iterator[Check]:
    """Rate and decay of each parameter, beside what the case says of its groups."""
    task = _CaseTask(release)
    groups = chosen_groups(release.model, task.parameter_groups, release.config)
    of = {id(each): group for group in groups for each in group["params"]}
    parameters = dict(release.model.named_parameters())
    wrong = []
    for group in arrays.options["groups"]:
        for official in group["params"]:
            if names.get(official) not in parameters or not parameters[names[official]].requires_grad:
                continue  # read by nothing, or frozen, here and there
            ours = of.get(id(parameters[names[official]]))
            want: tuple[float, ...] = (group["lr"], group["weight_decay"])
            got: tuple[float, ...] | None = None
            if ours is not None:
                rate = release.config.learning_rate * ours.get("learning_rate_scale", 1.0)
                got = (rate, ours.get("weight_decay", release.config.weight_decay))
            if release.rates and got is not None:
                got, want = got[1:], want[1:]  # the case has the rates of the end
            if got is None or not np.allclose(got, want, rtol=1e-12, atol=0):
                wrong.append(f"{official}: {got}, there {want}")
    yield within("config.groups", len(wrong), 0, "parameters that differ", "; ".join(wrong[:2]))


def _train(release: Release, numbers: Sequence[int], names: Mapping[str, str]) -> Trained:
    config, task = release.config, _CaseTask(release)
    accelerator = make_accelerator(config)
    groups = chosen_groups(release.model, task.parameter_groups, config)
    optimizer = build_optimizer(groups, config, device=torch.device("cpu"))
    average = ExponentialAverage(release.model, rate=config.average_rate) if config.average_rate else None
    step = TrainStep(task, release.model, optimizer, accelerator, config, told_to_stop=lambda: 0)  # type: ignore[arg-type]
    official = {ours: name for name, ours in reversed(list(names.items()))}  # of tied ones that which stands first
    name_of = {id(each): official[name] for name, each in release.model.named_parameters() if name in official}
    rates: list[dict[str, float]] = []
    norms: list[float] = []
    release.model.eval()  # the cases were made without dropout
    plan = joint_steps(numbers, num_tasks=release.num_tasks, accumulation=config.accumulation)
    for update, used in enumerate(plan, 1):
        rate = release.rates[update - 1] if release.rates else learning_rate_at(update, config)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["learning_rate_scale"]
        rates.append({name_of[id(each)]: group["lr"] for group in optimizer.param_groups for each in group["params"]})
        micro_batches = [release.batches[number] for number in used]
        if config.used_micro_batches == "last":
            with torch.no_grad():  # the release computes the losses of the others too
                for batch in micro_batches[:-1]:
                    task.losses(release.model, batch)
        outcome = step.take(micro_batches, update)
        norms.append(float(outcome.values["gradient_norm"] or 0.0))
        if average is not None:
            average.update(release.model)
    return Trained(task, rates, norms, average)


def _weight_checks(
    arrays: ModelArrays, state: Mapping[str, Tensor], names: Mapping[str, str], folder: str
) -> Iterator[Check]:
    """`final/`, or `final_sub/` and `final_sum/` of large tensors; what did not move is bit-equal to `param/`."""
    allowed = FINETUNING.weights
    for official in arrays.names(f"{folder}/"):
        array = f"{folder}/{official}"
        want = arrays.arrays.take_finite(array)
        if official not in names:
            yield failed(array, "no parameter of ours has this name")
            continue
        yield absolute(array, state[names[official]].numpy(), want, allowed)
    for official in arrays.names(f"{folder}_sub/"):
        flat = state[names[official]].flatten().numpy()
        every = -(-len(flat) // _KEPT)
        yield absolute(
            f"{folder}_sub/{official}", flat[::every], arrays.arrays.take(f"{folder}_sub/{official}"), allowed
        )
        total = np.array([flat.sum(), (flat**2).sum()])
        yield _relative(f"{folder}_sum/{official}", total, arrays.arrays.take(f"{folder}_sum/{official}"))
    moved = []
    for official in arrays.options.get(f"{folder}_unchanged", ()):
        if official in names:
            start = arrays.floats(f"param/{official}").double()
            if not torch.equal(state[names[official]].double(), start):
                moved.append(official)
    yield within(f"config.{folder}_unchanged", len(moved), 0, "parameters that moved", ", ".join(moved[:3]))


def _beside_checks(arrays: ModelArrays) -> Iterator[Check]:
    """What the case keeps to find the first step that differs: losses, norms and final weights say the same."""
    for name in ("out/param_grad_norm", "out/param_change_norm"):
        if name in arrays:
            arrays.arrays.take(name)
    yield from ()


def absolute(array: str, got: np.ndarray, want: np.ndarray, allowed: float) -> Check:
    if got.shape != want.shape:
        return failed(array, f"ours has shape {got.shape}, the reference {want.shape}")
    error = float(np.abs(got - want).max()) if got.size else 0.0
    return within(array, error, allowed, "absolute")


def _relative(array: str, got: Any, want: np.ndarray) -> Check:
    ours = np.asarray(got, np.float64)
    if ours.shape != want.shape:
        return failed(array, f"ours has shape {ours.shape}, the reference {want.shape}")
    error = np.abs(ours - want) / np.maximum(np.abs(want), 1e-12)
    error = np.where(np.abs(ours - want) < 1e-18, 0.0, error)
    largest = float(error.max()) if error.size else 0.0
    note = ""
    if largest > FINETUNING.values:
        note = f"first at {int(np.argmax(error.flatten() > FINETUNING.values))}"
    return within(array, largest, FINETUNING.values, "relative", note)
