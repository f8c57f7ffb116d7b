"""Trajectories of VL-BERT: `train_net` of its tasks, on stored features and from pixels (goldens/finetune_vlbert).

Which task a case is of is told from its micro-batches. Models, texts and image elements are made as in the family
"vlbert" (conformance/vlbert).
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from harness.checks import Check
from harness.finetuning.trajectory import Terms, Trajectory, as_double, without_dropout
from harness.model_case import ModelArrays
from harness.vlbert.case import VLBertCase, open_case
from harness.vlbert.pixels import PREFIX
from harness.vlbert.task_cases import TASKS, target_checks
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.losses import SumCount
from roibeam.model.vlbert.checkpoint import LAST_STAGE, LAST_STAGE_AGAIN, state_from_official
from roibeam.pipelines.training.model_files.model_checkpoint import build_model
from roibeam.pipelines.training.parameter_groups import ParameterGroup
from roibeam.pipelines.training.step_policies import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

_CASE_OPTIONS = ("NETWORK", "VLBERT", "token_ids", "ANSWER_VOCAB_SIZE")


class _MicroBatchArrays(ModelArrays):
    """The arrays of micro-batch i by the names of a case with one batch, in float64."""

    def __init__(self, whole: ModelArrays, number: int) -> None:
        vars(self).update(vars(whole))  # what is read here was read of the whole
        self.options = {name: whole.options[name] for name in _CASE_OPTIONS if name in whole.options}
        self._folder = f"in/{number}."

    def _name(self, name: str) -> str:
        return self._folder + name.removeprefix("in/") if name.startswith("in/") else name

    def __contains__(self, name: str) -> bool:
        return super().__contains__(self._name(name))

    @property
    def names(self) -> list[str]:
        return [each.replace(self._folder, "in/", 1) for each in super().names]

    def take(self, name: str, *shape: int | None) -> np.ndarray:
        return super().take(self._name(name), *shape)

    def floats(self, name: str, *shape: int | None) -> Tensor:
        return super().floats(name, *shape).double()


def vlbert_trajectory(arrays: ModelArrays) -> Trajectory:
    """The run of a case of `train_net`."""
    options = arrays.options
    first = _MicroBatchArrays(arrays, 0)
    kind = "vcr" if "in/answer_choices" in first else "refcoco" if "in/expression" in first else "vqa"
    case = open_case(first, kind)
    make, run_task = TASKS[kind]
    task: Any = build_model(lambda: make(case.config), as_double(state_from_official(case.official)))
    without_dropout(task)
    encoder = None if case.encoder is None else _pooling_in_float32(copy.deepcopy(case.encoder).double())
    whole = nn.ModuleDict({"task": task} | ({} if encoder is None else {"encoder": encoder}))

    def our_name(official: str) -> str | None:
        if official.startswith(LAST_STAGE_AGAIN):
            official = LAST_STAGE + official.removeprefix(LAST_STAGE_AGAIN)
        if official.endswith("num_batches_tracked"):
            return None  # read by nothing
        name = case.our_name(official)
        inside = official.startswith((f"{PREFIX}backbone.", LAST_STAGE))
        return f"encoder.{name}" if inside else f"task.{name}"

    def batch(number: int) -> VLBertCase:
        return replace(case, arrays=_MicroBatchArrays(arrays, number), encoder=encoder)

    def inputs() -> Iterator[Check]:
        boxes = [name.removesuffix(".gt_box") for name in arrays.below("in/") if name.endswith(".gt_box")]
        for number in map(int, boxes):
            one = batch(number)
            shown = one.elements()
            targets = one.arrays.floats("in/label", *shown.mask.shape)
            yield from target_checks(one.arrays, shown.boxes, shown.mask, targets)

    def terms(running: Any, one: VLBertCase) -> Terms:
        run = run_task(running["task"], one)
        weighted = {n: SumCount(term.total * run.weights.get(n, 1.0), term.count) for n, term in run.losses.items()}
        return Terms(weighted, {name: term.mean.detach() for name, term in run.losses.items()})

    losses = ["cls_loss" if kind == "refcoco" else "ans_loss"]
    if kind == "vcr" and task.object_head is not None:
        losses.append("cnn_regularization_loss")

    return Trajectory(
        model=whole,
        inputs=inputs,
        config=_train_config(options),
        batch=batch,
        terms=terms,
        our_name=our_name,
        losses=losses,
        groups=_groups(whole, options["trainable"], our_name, options["TRAIN"]),
    )


def _pooling_in_float32(encoder: RegionEncoder) -> RegionEncoder:
    """In float64 but for RoIAlign: the release's wrapper takes its map and gives its result in float32."""
    encoder.backbone.register_forward_hook(lambda _module, _inputs, feature_map: feature_map.float())
    encoder.roi_heads["res5"].register_forward_pre_hook(lambda _module, inputs: (inputs[0].double(),))
    return encoder


def _train_config(options: Mapping[str, Any]) -> TrainConfig:
    given = options["TRAIN"]
    accumulation = int(given["GRAD_ACCUMULATE_STEPS"])
    per_epoch = int(options["micro_batches_per_epoch"])
    if given["WARMUP"] and (given["WARMUP_METHOD"] != "linear" or given["WARMUP_FACTOR"]):
        raise ValueError("config: a rise that is not linear, or not from 0, is not computed here")
    settings = release_settings("vl-bert-tasks") | {
        "steps": int(given["END_EPOCH"] * per_epoch / accumulation),
        "learning_rate": float(given["LR"]) * int(given["BATCH_IMAGES"]) * accumulation,
        "warmup_steps": int(given["WARMUP_STEPS"]) if given["WARMUP"] else 0,
        "weight_decay": float(given["WD"]),
        "momentum": float(given["MOMENTUM"]),
        "clip_norm": max(float(given["CLIP_GRAD_NORM"]), 0.0),
        "accumulation": accumulation,
        "parameter_groups": "task",
    }
    if given["OPTIMIZER"] == "SGD":
        settings["optimizer"] = "sgd"
    elif given["OPTIMIZER"] != "AdamW":
        raise ValueError(f"config: OPTIMIZER {given['OPTIMIZER']!r} is not computed here; SGD and AdamW are")
    if given["LR_SCHEDULE"] == "step":
        # Update k already has the rate behind milestone k; epochs may be fractions.
        milestones = [int(epoch * per_epoch / accumulation) for epoch in given["LR_STEP"]]
        settings |= {"schedule": "steps", "decay_factor": float(given["LR_FACTOR"])}
        settings["decay_steps"] = tuple(milestone - 1 for milestone in milestones)
    elif given["LR_SCHEDULE"] != "triangle":
        raise ValueError(f"config: LR_SCHEDULE {given['LR_SCHEDULE']!r} is not computed here; triangle and step are")
    return TrainConfig(**settings)


def _groups(
    model: nn.Module, trainable: list[str], our_name: Callable[[str], str | None], given: Mapping[str, Any]
) -> list[ParameterGroup]:
    """By LR_MULT: a group for each part of a name, and the rest. A parameter in two of them is refused."""
    ours = {our_name(name): name for name in trainable}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        fitting = [float(scale) for part, scale in given["LR_MULT"] if part in ours.get(name, "")]
        if len(fitting) > 1:
            raise ValueError(f"config: LR_MULT names {ours[name]} twice")
        groups.setdefault(fitting[0] if fitting else 1.0, []).append(parameter)
    return [{"params": parameters, "learning_rate_scale": scale} for scale, parameters in groups.items()]
