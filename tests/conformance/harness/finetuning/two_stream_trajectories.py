"""Trajectories of ViLBERT (both releases) and InterBERT: the official `train_tasks.py` (goldens/finetune_vilbert).

The command line of a case says schedule, rate and accumulation; the type of its task says head and loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.case_files import ArrayError
from harness.finetuning.trajectory import Terms, Trajectory, as_double, without_dropout
from harness.interbert_family import build_interbert
from harness.model_case import ModelArrays, batch_of, check_sizes
from harness.vilbert_family import build_vilbert
from roibeam.model.common.losses import SumCount, binary_cross_entropy
from roibeam.model.inputs import VLBatch
from roibeam.model.task_losses import answer_bce, binary_loss, multi_class_loss, region_bce
from roibeam.model.vilbert import checkpoint as vilbert
from roibeam.pipelines.training.step_policies import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

# Epochs behind which the rate falls, as the codes have them.
FALLS: Mapping[str, tuple[int, ...]] = {
    "vilbert-release": (12, 16),
    "vilbert-release-mt": (5, 7),
    "interbert-release": (12, 16, 20, 22, 26),
}
MULTI_TASK_FACTOR = 0.2
PLATEAU_FACTOR = 0.2
RIGHT_REGION = 0.5


@dataclass(frozen=True, eq=False)
class _Rows:
    """One micro-batch as rows of our batch."""

    batch: VLBatch
    locations: Tensor  # (rows, E, 5) as the file has them
    target: Tensor
    questions: int


def two_stream_trajectory(arrays: ModelArrays) -> Trajectory:
    """The run of a case of `train_tasks.py`."""
    options = arrays.options
    official = arrays.parameters()
    check_sizes(options["model"], len(official))
    model, our_name, release = _model(options, official)
    areas = _GivenAreas(model)
    kind = options["task"]["type"]

    def terms(running: nn.Module, rows: _Rows) -> Terms:
        areas.rows = rows
        return _terms(running, rows, kind)

    return Trajectory(
        model=model,
        config=_train_config(options, release),
        batch=lambda number: _rows(arrays, number, model, kind),
        terms=terms,
        our_name=our_name,
        scores=[float(score) for score in options.get("validation_score_per_epoch", ())],
        joint=_joint_scales(options),
    )


def _model(options: Mapping[str, Any], official: dict[str, Tensor]) -> tuple[Any, Callable[[str], str | None], str]:
    """Model, our names of its parameters, and which release it is of."""
    if "InterBERT" in options["official"]:
        model, named = build_interbert(options["model"], official, as_double)
        release = "interbert-release"
    else:
        state = as_double(vilbert.state_from_official(official))
        # The 12-in-1 code has a number of its own.
        rows = {"region_target_size": "masked_region_head.decoder.bias"}
        model, kind = build_vilbert(options["model"], official, state, **rows)
        release, named = f"vilbert-{kind}", vilbert.TABLES[kind].internal
    without_dropout(model)
    # None for those that nothing reads.
    return model, lambda name: None if any(part in name for part in vilbert.INERT) else named(name), release


class _GivenAreas:
    """Puts the areas of the file where the model has those of its boxes: the file's are rounded to bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: _Rows | None = None
        (embedding,) = (m for name, m in model.named_modules() if name.endswith("region_embeddings.locations"))
        embedding.register_forward_pre_hook(self._replace)

    def _replace(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        assert self.rows is not None
        packed, given, regions = inputs[0], self.rows.locations, self.rows.batch.region_mask
        if packed.ndim == 2:  # without padding
            given = given[torch.cat([regions.new_ones(len(regions), 1), regions], dim=1)]
        return (torch.cat([packed[..., :4], given[..., 4:]], dim=-1),)


# --- settings ---


def _train_config(options: Mapping[str, Any], release: str) -> TrainConfig:
    argv = _arguments(options["argv"])
    accumulation = int(argv.get("gradient_accumulation_steps", 1))
    tasks = _tasks(options)
    updates = int(options["updates"])
    per_epoch = int(options["micro_batches_per_epoch"]) // accumulation
    once = updates // len(tasks)  # what the schedule takes for all: it knows no second task
    settings = release_settings(f"{release}-tasks") | {
        "steps": updates,
        "learning_rate": float(argv.get("learning_rate", min(task["lr"] for task in tasks))),
        "warmup_steps": float(argv["warmup_proportion"]) * once,
        "accumulation": accumulation,
    }
    if argv.get("vision_scratch") is not None:
        settings["parameter_groups"] = "vilbert-release-mt-vision-scratch"
    if argv.get("use_ema") is not None:
        settings["average_rate"] = float(argv["ema_decay_ratio"])
    schedule = argv.get("lr_scheduler", "mannul")
    if schedule == "warmup_linear":
        settings |= {"updates_per_schedule_step": len(tasks)}
    elif schedule == "automatic":
        settings |= {"schedule": "plateau", "decay_factor": PLATEAU_FACTOR}
        settings |= {"evaluate_every": per_epoch, "best_by": "score"}
    elif schedule == "mannul":
        falls = [epoch * per_epoch - 1 for epoch in FALLS[release]]
        settings |= {"schedule": "steps"}
        settings["decay_steps"] = tuple(last for last in falls if settings["warmup_steps"] <= last < updates)
        if release == "vilbert-release-mt":
            settings |= {"decay_factor": MULTI_TASK_FACTOR, "warmup_overwritten_every": per_epoch}
    else:
        raise ValueError(f"config: --lr_scheduler {schedule!r} is not one of the releases'")
    return TrainConfig(**settings)


def _arguments(argv: list[str]) -> dict[str, str]:
    """Options of a command line by name; a flag holds ""."""
    found: dict[str, str] = {}
    for place, word in enumerate(argv):
        if word.startswith("--"):
            after = argv[place + 1] if place + 1 < len(argv) else "--"
            found[word[2:]] = "" if after.startswith("--") else after
    return found


def _tasks(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(options["joint_tasks"].values()) if "joint_tasks" in options else [options["task"]]


def _joint_scales(options: Mapping[str, Any]) -> list[float]:
    tasks = _tasks(options)
    if len(tasks) == 1:
        return []
    least = min(float(task["lr"]) for task in tasks)
    return [float(task["lr"]) / least for task in tasks]


# --- one micro-batch ---


def _rows(arrays: ModelArrays, number: int, model: Any, kind: str) -> _Rows:
    config, folder = model.config, f"in/{number}."
    text = arrays.whole(f"{folder}text", 0, config.vocab_size)
    features = arrays.floats(f"{folder}features").double()
    locations = arrays.floats(f"{folder}spatials", *features.shape[:-1], 5).double()
    mask = arrays.mask(f"{folder}image_mask", *features.shape[:-1])
    parts = [
        arrays.mask(f"{folder}input_mask", *text.shape),
        arrays.whole(f"{folder}segment_ids", 0, config.num_segments, *text.shape),
    ]
    image = [features, locations, mask]
    questions = len(text)
    if text.ndim == 3:  # candidates: each with its image, or all with one
        if features.ndim == 3:
            image = [part.repeat_interleave(text.shape[1], dim=0) for part in image]
        else:
            image = [part.flatten(0, 1) for part in image]
        text, *parts = (part.flatten(0, 1) for part in (text, *parts))
    elif kind == "VL-binary-classifier":  # two images stand side by side
        image = [part.unflatten(1, (2, -1)).flatten(0, 1) for part in image]
        text, *parts = (part.repeat_interleave(2, dim=0) for part in (text, *parts))
    features, locations, mask = image
    if len(text) != len(features) or not bool(mask[:, 0].all()):
        raise ArrayError(f"{folder}image_mask", "must have as many rows as the text, and IMG in each")
    tasks = None
    if getattr(config, "num_task_tokens", 0):
        tasks = torch.full((len(text),), int(arrays.options["task"]["number"].removeprefix("TASK")))
    hw = torch.ones(len(text), 2, dtype=torch.float64)
    batch = batch_of((text, *parts), (features, locations, mask), hw, task_ids=tasks)
    return _Rows(batch, locations, arrays.target(f"{folder}target"), questions)


def _terms(model: Any, rows: _Rows, kind: str) -> Terms:
    output = model.encode(rows.batch)
    target, score = rows.target, 0.0
    if kind == "VL-classifier":
        logits = model.answers(output)
        loss = answer_bce(logits, target)
        score = float(target.gather(1, logits.argmax(dim=1, keepdim=True)).mean())
    elif kind == "V-logit":
        scores = model.score_regions(rows.batch, output)
        real = torch.cat([rows.batch.region_mask.new_ones(len(scores), 1), rows.batch.region_mask], dim=1)
        loss = region_bce(scores, target.squeeze(-1), real, per="rows")
        chosen = target.squeeze(-1).gather(1, scores.argmax(dim=1, keepdim=True))
        score = float((chosen > RIGHT_REGION).double().mean())
    elif kind == "VL-binary-classifier":
        logits = model.image_pairs(output)
        loss = binary_cross_entropy(logits, target, torch.ones_like(logits, dtype=torch.bool))
        score = float(target.gather(1, logits.argmax(dim=1, keepdim=True)).mean())
    elif kind == "VL-logit":
        loss, score = _candidates(model, output, rows)
    else:
        raise ValueError(f"config: a task of type {kind!r} is not one of the releases'")
    return Terms({"loss": loss}, {"score": score})


def _candidates(model: Any, output: Any, rows: _Rows) -> tuple[SumCount, float]:
    """VCR and retrieval; InterBERT's retrieval says of every candidate whether it fits, 0 = it does."""
    if rows.target.ndim == 2:
        right = rows.target.argmin(dim=1)
        loss = binary_loss(model.match_log_odds(output).view(rows.questions, -1), right)
        scores = model.match_head(output.pooled)[:, 0].view(rows.questions, -1)  # by one logit, whatever the other says
    else:
        scores = model.score_pairs(output).view(rows.questions, -1)
        right = rows.target
        loss = multi_class_loss(scores, right)
    return loss, float((scores.argmax(dim=1) == right).double().mean())
