"""ViLBERT of both releases and InterBERT: what a micro-batch of theirs is, and the loss of each kind of task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from roibeam.model.common.losses import SumCount, cross_entropy
from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.checkpoint import config_from_official as interbert_config
from roibeam.model.interbert.checkpoint import key_table
from roibeam.model.interbert.checkpoint import state_from_official as interbert_state
from roibeam.model.interbert.tasks import InterBertForTasks
from roibeam.model.task_losses import answer_bce, class_bce, region_bce
from roibeam.model.vilbert.checkpoint import TABLES, config_from_official, release_of, state_from_official
from roibeam.model.vilbert.tasks import ViLbertForMultiTask, ViLbertForTasks
from roibeam.pipelines.conformance.case_files import ArrayError
from roibeam.pipelines.conformance.finetuning.trajectory import MicroBatch, Release, in_float64
from roibeam.pipelines.conformance.model_case import ModelArrays, check_sizes
from roibeam.pipelines.model_files.model_checkpoint import build_model
from roibeam.pipelines.training.optimizer.build import learning_rate_at
from roibeam.pipelines.training.release_settings import release_settings
from roibeam.pipelines.training.release_steps import plateau_rates
from roibeam.pipelines.training.train_config import TrainConfig

Losses = tuple[dict[str, SumCount], dict[str, Tensor]]


def vilbert_release(arrays: ModelArrays) -> Release:
    """One task of either release."""
    official, options = arrays.parameters(), arrays.options
    model_options = options["model"]
    check_sizes(model_options, len(official))
    state = state_from_official(official, with_co_attention=bool(model_options.get("with_coattention", True)))
    release = "release-mt" if "multi-task" in options["official"] else release_of(official)
    rows = {name: len(tensor) for name, tensor in state.items() if name.endswith("head.decoder.bias")}
    config = config_from_official(
        model_options,
        num_answers=rows.get("answer_head.decoder.bias", 0),
        num_gqa_answers=rows.get("gqa_answer_head.decoder.bias", 0),
        num_task_tokens=0,
        # The multi-task release makes this head of 1,601 classes whatever its options say, and never trains it here.
        region_target_size=rows["masked_region_head.decoder.bias"],
    )
    make = ViLbertForMultiTask if release == "release-mt" else ViLbertForTasks
    model = build_model(lambda: make(config), state).double()
    train = _settings(options, f"vilbert-{release}-tasks")
    rates = _rates(arrays, train)
    tasks = len(options.get("joint_tasks", "1"))
    batches = _batches(arrays, options)
    return Release(model, batches, _losses(options["task"]), train, TABLES[release].official, rates, tasks)


def interbert_release(arrays: ModelArrays) -> Release:
    official, options = arrays.parameters(), arrays.options
    check_sizes(options["model"], len(official))
    config = interbert_config(options["model"], num_answers=len(official.get("vil_prediction.bias", ())))
    state = interbert_state(official, config.num_hidden_layers)
    model = build_model(lambda: InterBertForTasks(config), state).double()
    table = key_table(config.num_hidden_layers, config.text_num_hidden_layers)
    train = _settings(options, "interbert-release-tasks")
    return Release(model, _batches(arrays, options), _losses(options["task"]), train, table.official)


def _settings(options: Mapping[str, Any], release: str) -> TrainConfig:
    """What the command line and the defaults of train_tasks.py say."""
    given = _arguments(options["argv"])
    micro_steps, epochs = int(options["micro_batches_per_epoch"]), int(given.get("num_train_epochs", 20))
    accumulation = int(given.get("gradient_accumulation_steps", 1))
    per_epoch = micro_steps // accumulation
    steps = per_epoch * epochs
    rate = float(given.get("learning_rate", options["task"]["lr"]))
    fields: dict[str, Any] = release_settings(release)
    fields |= {
        "steps": steps,
        "learning_rate": rate,
        "warmup_share": float(given.get("warmup_proportion", 0.1)),
        "accumulation": accumulation,
        "loss_mean": "micro_batch",
        "device": "cpu",
    }
    if "vision_scratch" in given:
        fields["parameter_groups"] = "vilbert-release-mt-scratch"
    if "use_ema" in given:
        fields["average_rate"] = float(given.get("ema_decay_ratio", 0.9999))
    falls = (12, 16) if release != "interbert-release-tasks" else (12, 16, 20, 22, 26)
    scheduler = str(given.get("lr_scheduler", "mannul"))
    if release == "vilbert-release-mt-tasks":
        fields["learning_rate"] = float(options["task"]["lr"])
        if scheduler == "mannul":
            falls = (5, 7)
            fields |= {"schedule": "epochs-over-warmup", "epoch_steps": per_epoch, "decay_factor": 0.2}
            fields["starts_at_zero"] = False
            fields["decay_steps"] = tuple(epoch * per_epoch for epoch in falls if epoch * per_epoch < steps)
        else:
            fields["schedule"] = "linear"
    elif scheduler == "mannul":
        fields["decay_steps"] = tuple(epoch * per_epoch - 1 for epoch in falls if epoch * per_epoch < steps)
    return TrainConfig(**fields)


def _rates(arrays: ModelArrays, config: TrainConfig) -> list[float]:
    """Of each update, where the schedule follows validation scores, or several tasks update in one iteration."""
    options = arrays.options
    updates = int(options["updates"])
    if "validation_score_per_epoch" in options:
        scores = [float(score) for score in options["validation_score_per_epoch"]]
        of_epochs = plateau_rates(config.learning_rate, scores)
        per_epoch = config.steps // (len(scores) or 1)
        factors = [of_epochs[(update - 1) // per_epoch] / config.learning_rate for update in range(1, updates + 1)]
        return [learning_rate_at(update, config) * factor for update, factor in enumerate(factors, 1)]
    tasks = len(options.get("joint_tasks", "1"))
    if tasks > 1:
        if config.optimizer == "bert-adam":  # which counts updates
            return [learning_rate_at(update, config) for update in range(1, updates + 1)]
        # The other release moves its schedule once an iteration, after the first task's update.
        places = (divmod(update, tasks) for update in range(updates))
        return [learning_rate_at(iteration + 1 + bool(task), config) for iteration, task in places]
    return []


def _arguments(argv: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            following = argv[index + 1] if index + 1 < len(argv) else ""
            found[word[2:]] = "" if following.startswith("--") else following
    return found


def _batches(arrays: ModelArrays, options: Mapping[str, Any]) -> dict[int, MicroBatch]:
    numbers = sorted({int(name.partition(".")[0]) for name in arrays.names("in/")})
    found = {number: _batch(arrays, f"in/{number}.", options) for number in numbers}
    joint = options.get("joint_tasks", {}).values()
    scales = {number: task["lr"] / min(each["lr"] for each in joint) for task in joint for number in task["batches"]}
    return {number: replace(batch, scale=scales.get(number, 1.0)) for number, batch in found.items()}


def _batch(arrays: ModelArrays, prefix: str, options: Mapping[str, Any]) -> MicroBatch:
    """The rows of a micro-batch: choices of a question share its image; two images of a statement are two rows."""
    model, kind = options["model"], options["task"]["type"]
    text = arrays.whole(f"{prefix}text", 0, model["vocab_size"])
    shape = tuple(text.shape)
    flat = text.reshape(-1, shape[-1])
    features = arrays.floats(f"{prefix}features")
    mask = arrays.mask(f"{prefix}image_mask", *features.shape[:-1])
    spatials = arrays.floats(f"{prefix}spatials", *features.shape[:-1], 5)
    if kind == "VL-binary-classifier":
        if mask.shape[1] % 2:
            raise ArrayError(f"{prefix}image_mask", "must hold the elements of two images")
        half = mask.shape[1] // 2
        features, spatials, mask = (
            each.reshape(2 * len(mask), half, *each.shape[2:]) for each in (features, spatials, mask)
        )
    features, spatials = features.reshape(-1, *features.shape[-2:]), spatials.reshape(-1, *spatials.shape[-2:])
    mask = mask.reshape(-1, mask.shape[-1])
    text_mask = arrays.mask(f"{prefix}input_mask", *shape).reshape(-1, shape[-1])
    segments = arrays.whole(f"{prefix}segment_ids", 0, model["type_vocab_size"], *shape).reshape(-1, shape[-1])
    images, texts = len(mask), len(flat)
    shared: dict[str, Tensor] = {}
    if kind == "VL-binary-classifier":
        shared["row_texts"] = torch.arange(texts).repeat_interleave(2)
    elif images != texts:
        shared["row_images"] = torch.arange(images).repeat_interleave(texts // images)
    inputs = in_float64(
        VLBatch(
            text_ids=flat,
            text_mask=text_mask,
            text_segments=segments,
            region_features=features[:, 1:],
            region_boxes=spatials[:, 1:, :4],
            region_mask=mask[:, 1:],
            image_hw=torch.ones(images, 2),
            masked_regions=torch.zeros_like(mask[:, 1:]),
            whole_image_features=features[:, 0],
            row_texts=shared.get("row_texts"),
            row_images=shared.get("row_images"),
        )
    )
    target = torch.from_numpy(arrays.arrays.take_finite(f"{prefix}target").copy())
    target = target.double() if target.is_floating_point() else target
    rows = math.prod(target.shape) if options["task"]["name"].startswith("Retrieval") else len(target)
    if kind == "VL-logit" and not _is_matched(target):
        rows = len(target)
    counts = {"task": 2 * len(target) if kind == "VL-binary-classifier" else rows}
    return MicroBatch(inputs, (target, spatials[mask].double()), counts)


@contextmanager
def _given_locations(model: Any, locations: Tensor) -> Iterator[None]:
    """The cases' locations are rounded to bfloat16, the fifth number apart from the corners, so that it is no longer
    their area; the layer that reads them is given them as they are."""
    encoder = model.vilbert if hasattr(model, "vilbert") else model.interbert
    layer: nn.Linear = encoder.region_embeddings.locations
    handle = layer.register_forward_pre_hook(lambda _, given: (locations.to(given[0].dtype),))
    try:
        yield
    finally:
        handle.remove()


def _is_matched(target: Tensor) -> bool:
    """InterBERT's retrieval: a class for each candidate, in place of the number of the right one."""
    return target.ndim == 2


def _losses(task: Mapping[str, Any]) -> Any:
    kind = task["type"]

    def losses(model: nn.Module, batch: MicroBatch) -> Losses:
        made: Any = model
        target, locations = batch.targets
        with _given_locations(made, locations):
            output = made.encode(batch.inputs)
        if kind in ("VL-classifier", "VL-classifier-GQA"):
            logits = made.answers(output)
            best = target.gather(1, logits.argmax(dim=1, keepdim=True))
            return {"task": answer_bce(logits, target)}, {"score": best.mean()}
        if kind == "V-logit":
            scores, target = made.score_regions(batch.inputs, output), target.reshape(len(target), -1)
            mask = batch.inputs.region_mask
            real = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
            best = target.gather(1, scores.argmax(dim=1, keepdim=True)) > 0.5
            return {"task": region_bce(scores, target, real, per="rows")}, {"score": best.double().mean()}
        if kind == "VL-binary-classifier":
            logits = made.image_pairs(output)
            right = (logits.argmax(dim=1) == target.argmax(dim=1)).double().mean()
            return {"task": class_bce(logits, target.argmax(dim=1))}, {"score": right}
        if _is_matched(target):
            logits = made.match_head(output.pooled)
            chosen = logits.reshape(*target.shape, 2)[..., 0].argmax(dim=1)
            term = cross_entropy(logits, target.flatten())
            return {"task": term}, {"score": (chosen == 0).double().mean()}
        scores = made.score_pairs(output).reshape(len(target), -1)
        right = (scores.argmax(dim=1) == target).double().mean()
        return {"task": cross_entropy(scores, target)}, {"score": right}

    return losses
