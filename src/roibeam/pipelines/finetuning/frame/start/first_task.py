"""A start that was fine-tuned before: the task that it learned first, and what of it goes on.

The encoder goes on as it is. The head goes on where both tasks ask the same of it; else a new one was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from roibeam.extraction.weights.files import read_tensors
from roibeam.model.task_heads import MatchModel, TaskModel
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.finetuning.frame.network import TaskNetwork
from roibeam.pipelines.finetuning.frame.predict_request import FINETUNING
from roibeam.pipelines.finetuning.systems.named_systems import system_of
from roibeam.pipelines.finetuning.systems.task_system import AskedForm, TaskSystem
from roibeam.pipelines.training.model_files.model_checkpoint import WEIGHTS, ModelCheckpoint, config_class_of
from roibeam.pipelines.training.model_files.model_folder import CONFIG, TASK_MODEL

_MODEL = "model."
_UNLIKE = ("transformers_version", "dropout", "initializer_range")  # of heads that give the same scores


@dataclass(frozen=True, eq=False)
class FirstTask:
    """
    Attributes:
        name: of the task.
        asked: its form and number of images; the rest says the head.
        labels: digest of them.
        described: what config.json says of the model with its head.
        state: all of its parameters, without those of a region encoder.
        tells_images: whether it is known what the run behind it had been trained on.
    """

    name: str
    asked: tuple[str, int]
    labels: str
    described: Mapping[str, Any]
    state: Mapping[str, Tensor]
    tells_images: bool

    @classmethod
    def of(cls, found: ModelCheckpoint) -> FirstTask | None:
        """None for a model of no fine-tuning run."""
        config = found.source.parent / CONFIG
        saved = read_json_object(config) if config.is_file() else {}
        task = saved.get("task")
        if not isinstance(task, dict) or task.get("kind") != FINETUNING:
            return None
        described, joined = read_json_object(found.source / CONFIG), ""
        if "end_to_end" in described:
            described, joined = described["model"], _MODEL
        state = {
            name.removeprefix(joined): tensor
            for name, tensor in read_tensors(found.source / WEIGHTS).items()
            if isinstance(tensor, Tensor) and name.startswith(joined)
        }
        told = bool(saved.get("recorded", {}).get("start_tells_images"))
        return cls(task["task"], (task["form"], task["num_images"]), task["labels"], described, state, told)

    def go_on(self, network: TaskNetwork, system: TaskSystem, asked: AskedForm, labels: str, *, keeps: bool) -> str:
        """Gives a new network what this model learned.

        Args:
            labels: digest of those of the new task.
            keeps: whether the head may go on.
        Returns:
            For people, whether it does.
        """
        module, own = network.module, network.module.state_dict()
        inside = _MODEL if isinstance(module, TaskModel | MatchModel) else ""
        first = _MODEL if self.described.get("model_type") == TASK_MODEL else ""
        learned = self.state
        if first != inside:  # a head of ours and one of a release
            learned = {inside + name.removeprefix(first): tensor for name, tensor in self.state.items()}
        # What the new task makes of another shape, such as a segment for a second image, stays as it made it.
        fitting = {name: each for name, each in learned.items() if name in own and each.shape == own[name].shape}
        encoder = tuple(inside + part for part in system.trained)
        heads = {
            name for name, each in module.named_parameters() if each.requires_grad and not name.startswith(encoder)
        }
        why = "head.start says how a new one starts" if not keeps else self._differs(network, asked, labels)
        if not why and not heads <= fitting.keys():
            why = "it has other parameters"
        kept = {name: each for name, each in fitting.items() if name.startswith(encoder) or (name in heads and not why)}
        module.load_state_dict(kept, strict=False)
        before = f"the model learned {self.name} before"
        return (
            f"{before}: its encoder goes on, the head is a new one ({why})"
            if why
            else f"{before}: its head goes on too"
        )

    def _differs(self, network: TaskNetwork, asked: AskedForm, labels: str) -> str:
        """In what the tasks differ; "" for nothing."""
        if self.asked != (asked.form, asked.num_images):
            return "this task asks something else"
        if self.labels != labels:
            return "this task has other labels"
        return "" if _kind(self.described) == _kind(network.described) else "it is of another kind"


def _kind(described: Mapping[str, Any]) -> Any:
    """What two heads that are read alike have in common; of a model from photos what is inside."""
    if "end_to_end" in described:
        return _kind(described["model"])
    if described.get("model_type") != TASK_MODEL:
        return described["architectures"]
    return {name: value for name, value in described["head"].items() if name not in _UNLIKE}


def without_heads(found: ModelCheckpoint) -> ModelCheckpoint:
    """The checkpoint; of a model with the heads of a release's task as a pre-trained one.

    Its pre-training heads, where the release's files have none, are as drawn; a task does not read them.
    """
    model, model_class = found.model, system_of(found.model).model_class
    if type(model) is model_class:
        return found
    config: Any = config_class_of(model_class)
    fields = {name: value for name, value in model.config.to_diff_dict().items() if name in config.own_fields()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = model_class(config(**fields))
    state, wanted = model.state_dict(), made.state_dict()
    made.load_state_dict({name: tensor for name, tensor in state.items() if name in wanted}, strict=False)
    note = f"the heads of a {type(model).__name__} are left out"
    return replace(found, model=made.eval(), changes=(*found.changes, note))
