"""What it takes to run the official pre-training scripts on a CPU of today, and to watch them (official_training_*.py).

From their checkouts, none of which is changed; nothing of theirs is copied here. Model, losses, optimizer, schedule,
clipping and the order of these are theirs, run by their own entry points. Stand-ins there are for data sets (samples
are given), for packages that a step never calls (TensorBoard, apex, tensorpack, AllenNLP but for its batches, compiled
RoI pooling), and for CUDA. Three things are set: models are double and without dropout; where a loader rounds to
float32 it does not; `zero_grad` fills with zeros, as torch did when these codes were written, so that a tensor without
a gradient in some step goes on by its running means.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import logging
import os
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from trajectory_cases import Case
from trajectory_runs import Moment
from trajectory_samples import LONGEST_TEXT, MOST_REGIONS, draw_parameter

from roibeam.model.inputs import IGNORE_INDEX

PADDED_TEXT, PADDED_REGIONS = LONGEST_TEXT + 2, MOST_REGIONS + 1  # longer than any: padding must not matter


class Options(dict[str, Any]):
    """A dict whose values are attributes too, all the way down: easydict, attrdict."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _with_attributes(value))

    __setattr__ = __setitem__

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _with_attributes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_attributes(each) for each in value]
    return Options(value) if type(value) is dict else value


class Recorder:
    """Watches a run: what every micro-batch and every step of the optimizer did."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.losses: list[float] = []  # of micro-batches, as they were back-propagated
        self.steps: list[Moment] = []
        self.norm_before_clipping: float | None = None
        self._model: nn.Module
        self._norm = 0.0

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model in float64, without dropout, with the start weights."""
        model.double()
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        for name, tensor in self.case.state_from_official(model.state_dict()).items():
            tensor.copy_(draw_parameter(name, tensor.shape))
        self._model = model
        return model

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        hooks = (
            torch_optimizer.register_optimizer_step_pre_hook(self._before_step),
            torch_optimizer.register_optimizer_step_post_hook(self._after_step),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def moments(self) -> list[Moment]:
        each = self.case.train.accumulation
        losses = [sum(self.losses[start : start + each]) for start in range(0, len(self.losses), each)]
        return [step._replace(loss=loss) for step, loss in zip(self.steps, losses, strict=True)]

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        trained = (each for group in optimizer.param_groups for each in group["params"])
        self._norm = float(torch.stack([each.grad.norm() for each in trained if each.grad is not None]).norm())

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        state = self.case.state_from_official(self._model.state_dict())
        names = {tensor.data_ptr(): name for name, tensor in state.items()}
        rates = {
            names[each.data_ptr()]: rate
            for group in optimizer.param_groups
            for each in group["params"]
            if each.data_ptr() in names and (rate := _rate_of(optimizer, group, each)) is not None
        }
        norm = self._norm if self.norm_before_clipping is None else self.norm_before_clipping
        parameters = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.steps.append(Moment(0.0, norm, rates, parameters))


def _rate_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor) -> float | None:
    """Of the step that was just taken; None for a parameter that has never had a gradient."""
    if "schedule" not in group:
        return float(group["lr"])
    taken = optimizer.state[parameter].get("step")
    return None if taken is None else float(group["lr"] * group["schedule"].get_lr(taken - 1))


@contextlib.contextmanager
def as_then() -> Iterator[None]:
    """A process in which old scripts for GPUs run on a CPU; as it was again afterwards."""
    place, limits, root = os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    itself = lambda self, *_, **__: self  # noqa: E731
    zero_grad = torch.optim.Optimizer.zero_grad
    with contextlib.ExitStack() as stack:
        for patch in (
            mock.patch.dict(sys.modules),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(sys, "argv", list(sys.argv)),
            mock.patch.object(sys, "dont_write_bytecode", True),
            mock.patch.object(Tensor, "cuda", itself),
            mock.patch.object(nn.Module, "cuda", itself),
            mock.patch.object(torch.cuda, "set_device", lambda *_: None),
            # Two, so that the scripts wrap their model: some look parameters up behind the prefix "module.".
            mock.patch.object(torch.cuda, "device_count", lambda: 2),
            mock.patch.object(torch.cuda, "manual_seed_all", lambda *_: None),
            mock.patch.object(
                torch.optim.Optimizer, "zero_grad", functools.partialmethod(zero_grad, set_to_none=False)
            ),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            stack.enter_context(patch)
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            os.chdir(place)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            torch.set_grad_enabled(True)
            logging.disable(logging.NOTSET)
            root.handlers[:], root.level = handlers, level


class Anything(ModuleType):
    """A module that has whatever is imported from it; none of it is ever called in a step."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(name: str, **contents: Any) -> ModuleType:
    """A module of that name, below packages of anything."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        full = ".".join(parts[:end])
        if full not in sys.modules or end == len(parts):
            sys.modules[full] = Anything(full)
        if end > 1:
            setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[full])
    vars(sys.modules[name]).update(contents)
    return sys.modules[name]


def import_from(checkout: Path, name: str) -> Any:
    """A module of a checkout.

    Raises:
        FileNotFoundError: when the checkout has no such file.
    """
    if not (checkout / Path(*name.split("."))).with_suffix(".py").is_file():
        raise FileNotFoundError(f"{checkout}: no {name.replace('.', '/')}.py there; is it a checkout of that code?")
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(checkout))


def load_script(path: Path, name: str) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class DoubleNumpy:
    """numpy, whose single precision is double."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def labels_of(labels: np.ndarray) -> np.ndarray:
    return np.where(labels == IGNORE_INDEX, -1, labels)


def padded(arrays: Iterable[Any], *shape: int, fill: float = 0) -> np.ndarray:
    """(rows, *shape), each row's array at the start of it."""
    rows = [np.asarray(array) for array in arrays]
    kind = np.int64 if rows[0].dtype.kind in "biu" else np.float64
    padded = np.full((len(rows), *shape), fill, kind)
    for place, row in zip(padded, rows, strict=True):
        place[tuple(slice(size) for size in row.shape)] = row
    return padded
