"""Settings of a fine-tuning run as its request changes them, and their checks before torch is imported.

Names, numbers, files and the features of the store are checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.common.compute import check_device, is_main_process, num_processes
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
from roibeam.pipelines.common.console.overrides import apply_overrides, refuse_two_values
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.finetuning.held_out_images import check_held_out
from roibeam.pipelines.finetuning.recipes.published import task_recipe_named
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.finetuning.run.finetune_request import (
    NEW,
    SECTIONS,
    PhotoRequest,
    check_photo_places,
    encoder_sections,
    joint_start,
    need_encoder,
    refuse_encoder,
    resolve_encoder,
)
from roibeam.pipelines.finetuning.run.predict_request import STORE_MISSING, refuse_images
from roibeam.pipelines.finetuning.scored_tasks import task_name
from roibeam.pipelines.finetuning.systems.options import HeadOptions, LayoutOptions
from roibeam.pipelines.finetuning.task import NamedTask
from roibeam.pipelines.finetuning.tasks.named_tasks import check_data_folder, task_named
from roibeam.pipelines.training.model_files.encoder_settings import TOY_ENCODER, EncoderOptions
from roibeam.pipelines.training.model_files.model_folder import (
    bert_files,
    check_model_files,
    check_tokenizer_file,
    found_model,
)
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.run_folder.folder import (
    CONFIG_NAME,
    check_run_folder,
    recorded_steps,
    saved_config,
    with_saved,
)
from roibeam.pipelines.training.step_policies import CORRECT, STEP_RULES, schedule_fields
from roibeam.pipelines.training.train_config import BY_NAME, OPTIONS, TrainConfig, with_settings

MODEL_WHOLE_IMAGE = "model"
BATCH_SIZE, STEPS, RATE, WARMUP = 32, 1000, 5e-5, 0.1
# Evaluations where `train.evaluate_every` is not set: at POINTS points, which all together evaluate at most a share of
# the number of trained groups; or ALWAYS_EVALUATED groups, which cost a short run little.
POINTS, EVALUATED_SHARE, ALWAYS_EVALUATED = 10, 0.1, 20_000
# The toy of a recipe: a minute on 2 cores, at a rate that small models need.
TOY_STEPS, TOY_STEPS_END_TO_END, TOY_RATE = 60, 10, 1e-3
_NOT_COUNTED = 10**9  # steps of epochs whose groups are not counted yet: settings that count steps fit in


@dataclass(frozen=True)
class StepOptions:
    """
    Attributes:
        rule: of a published run: the "correct" one; what its "release" does to its steps, with `TaskRecipe.accidents`;
            or what another release or option does, one of `STEP_RULES` (training/step_policies.py).
    """

    rule: str = CORRECT

    def __post_init__(self) -> None:
        check_choices(self, rule=tuple(STEP_RULES))


@dataclass(frozen=True)
class ModelOptions:
    """
    Attributes:
        dropout: of model and head in training, wherever they have any, 0 to below 1; None keeps the model's, from
            pre-training, and the default of the kind of head.
    """

    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"ModelOptions: dropout must be from 0 to below 1, got {self.dropout}")

    def described(self) -> dict[str, Any]:
        """Settings that must match on resume. Empty for defaults, so that older runs still match."""
        return {} if self.dropout is None else {"dropout": self.dropout}


@dataclass(frozen=True)
class FinetuneData:
    """Options of batches of groups.

    Attributes:
        batch_size: groups (questions, statements, expressions) for each micro-batch and process.
        workers: processes that make batches ahead; 0 makes them in the one that trains. Changes nothing but the time.
        validation_groups: how many groups each evaluation predicts, the first ones of the split; 0 = all.
        shared_images: train although images of the validation split are trained on too; its measures then are not held
            out.
    """

    batch_size: int = 32
    workers: int = 0
    validation_groups: int = 0
    shared_images: bool = False

    def __post_init__(self) -> None:
        check_least(self, batch_size=1, workers=0, validation_groups=0)


@dataclass(frozen=True)
class EncoderSections:
    """Settings of a run through the region encoder, by the sections of `--set`."""

    detector: DetectorConfig
    encoder: EncoderOptions
    photos: PhotoRequest
    end_to_end: EndToEndChoices


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of a run, by the sections of `--set`.

    Attributes:
        task: options of the task, whose section has its name.
        from_photos: None for a run on stored features.
    """

    data: FinetuneData
    model: ModelOptions
    layout: LayoutOptions
    head: HeadOptions
    task: Any
    train: TrainConfig
    from_photos: EncoderSections | None = None

    @property
    def step_groups(self) -> int:
        """Number of groups of a step, of each of several problems that make one update together."""
        return self.data.batch_size * self.train.accumulation * num_processes()


def config_of(
    request: FinetuneRequest,
    options: type,
    recipe: TaskRecipe | None,
    *,
    steps: int | None = None,
    evaluate_every: int | None = None,
    whole_image: str = MODEL_WHOLE_IMAGE,
) -> FinetuneConfig:
    """The settings as changed by the request.

    Args:
        options: dataclass of the task's settings.
        steps: of a recipe or a request that counts in epochs, once the groups are counted.
        evaluate_every: result of `evaluation_interval`, then; a recipe or a setting may overrule it.
        whole_image: see `TaskSystem`, where the system is known.
    """
    _check_epochs(request)
    batch_size = request.batch_size or (recipe.at_once(num_processes()) if recipe else BATCH_SIZE)
    task = task_name(request.task)
    sections: dict[str, Any] = {
        "data": FinetuneData(batch_size=batch_size),
        "model": ModelOptions(),
        "layout": LayoutOptions() if recipe is None else recipe.layout,
        "head": HeadOptions() if recipe is None else HeadOptions(recipe.head, recipe.head_start),
        "steps": StepOptions(),
        task: options() if recipe is None else recipe.options_for(request.end_to_end),
    }
    if recipe is not None and request.toy and hasattr(sections[task], "min_occurrence"):
        # A toy world has too few questions to repeat an answer often.
        sections[task] = replace(sections[task], min_occurrence=1)
    if request.end_to_end:
        encoder = resolve_encoder(request, request.from_, published_encoder(request, recipe))
        sections |= encoder_sections(encoder, request.from_, whole_image)
        if recipe is not None:
            sections["encoder"] = replace(sections["encoder"], **recipe.encoder)
            sections["photos"] = replace(sections["photos"], **recipe.photos)
            edges = {} if request.toy else dict(zip(("short_edge", "long_edge"), recipe.edges, strict=False))
            sections["detector"] = replace(sections["detector"], **edges)
    sections |= _recorded_sections(sections, request)
    refuse_two_values(request, {**OPTIONS, "data.batch_size": "batch_size"}, request.settings)
    train = [each for each in request.settings if each.startswith("train.")]
    others = [each for each in request.settings if each not in train]
    changed = _by_step_rule(sections, others, recipe, task)
    config = with_settings(_train_config(request, recipe, changed, steps, evaluate_every), train)
    from_photos = None
    if request.end_to_end:
        changed["encoder"].check_rates(config.parameter_groups)
        from_photos = EncoderSections(**{name: changed[name] for name in SECTIONS})
    named = {name: changed[name] for name in ("data", "model", "layout", "head")}
    return FinetuneConfig(**named, task=changed[task], train=config, from_photos=from_photos)


def published_encoder(request: FinetuneRequest, recipe: TaskRecipe | None) -> str:
    """Default detector whose encoder a run of the recipe has; "" for the usual one."""
    if recipe is None:
        return ""
    return TOY_ENCODER if request.toy else recipe.detector


def _recorded_sections(sections: Mapping[str, Any], request: FinetuneRequest) -> dict[str, Any]:
    """Sections of the run that is resumed in OUT, whose recipe may have been another; settings win over them."""
    if request.recipe is None or request.resume is False or not (request.out / CONFIG_NAME).is_file():
        return {}
    saved, name = saved_config(request.out), task_name(request.task)
    recorded = saved["task"]
    if (recorded.get("task"), saved["recorded"].get("recipe")) != (name, request.recipe):
        return {}
    places = {name: "task_options", "layout": "layout", "photos": "photos"}
    found = {
        each: with_saved(sections[each], recorded[where])
        for each, where in places.items()
        if each in sections and where in recorded
    }
    encoder = recorded.get("model", {}).get("region_encoder")
    if encoder is not None and "detector" in sections:
        edges = {each: encoder["detector"][each] for each in ("short_edge", "long_edge")}
        found["detector"] = replace(sections["detector"], **edges)
    return found


def resume_notes(request: FinetuneRequest, options: type, recipe: TaskRecipe | None) -> list[str]:
    """Notes on settings that a resumed run keeps and its recipe has changed since; arguments as `config_of`."""
    kept, fresh = (config_of(each, options, recipe) for each in (request, replace(request, resume=False)))
    pairs = {task_name(request.task): (kept.task, fresh.task), "layout": (kept.layout, fresh.layout)}
    if kept.from_photos is not None and fresh.from_photos is not None:
        pairs["photos"] = kept.from_photos.photos, fresh.from_photos.photos
        pairs["detector"] = kept.from_photos.detector, fresh.from_photos.detector
    return [
        f"{section}.{field.name} stays {getattr(own, field.name)!r}, as this run began; "
        f"{request.recipe} has {getattr(new, field.name)!r} now"
        for section, (own, new) in pairs.items()
        for field in fields(own)
        if getattr(own, field.name) != getattr(new, field.name)
    ]


def _by_step_rule(
    sections: Mapping[str, Any], settings: Sequence[str], recipe: TaskRecipe | None, task: str
) -> dict[str, Any]:
    """The sections with the settings applied, which win over what a step rule changes of the task's options."""
    changed = apply_overrides(sections, settings)
    name = changed["steps"].rule
    if recipe is None:
        if name != CORRECT:
            raise ValueError(f"--set 'steps.rule={name}': no release is named; give --recipe, or set fields of train")
        return changed
    options = recipe.options_by(recipe.step_rule(name), sections[task], changed[task])
    return apply_overrides({**sections, task: options}, settings)


def _check_epochs(request: FinetuneRequest) -> None:
    """Raises ValueError for epochs that are not above 0, or beside a number of steps."""
    if request.epochs is None:
        return
    named = [setting for setting in request.settings if setting.partition("=")[0].strip() == "train.steps"]
    if request.steps is not None or named:
        steps = f"--set {named[0]}" if request.steps is None else f"--steps {request.steps}"
        raise ValueError(f"--epochs {request.epochs:g} and {steps} are two values for one thing; give one of them")
    if not 0 < request.epochs < math.inf:
        raise ValueError(f"--epochs must be above 0, got {request.epochs:g}")


def steps_for(recipe: TaskRecipe | None, request: FinetuneRequest, num_groups: int, step_groups: int = 0) -> int | None:
    """Steps of a request in epochs, or of a recipe; None if the request names steps, or without a recipe.

    Args:
        num_groups: of an epoch; where several problems make one update together, those of one of them.
        step_groups: of a step, by the settings; a recipe's own epochs go by its batch.
    """
    if request.epochs is not None:
        return max(1, round(request.epochs * num_groups / step_groups))
    if recipe is None or request.steps is not None or request.toy:
        return None
    return max(1, round(recipe.epochs * num_groups / recipe.batch_size))


def evaluation_interval(steps: int, step_groups: int, evaluated: int) -> int:
    """Default number of steps between evaluations.

    Args:
        steps: of the run; step_groups: groups of a step.
    """
    most = max(EVALUATED_SHARE * steps * step_groups, ALWAYS_EVALUATED)
    points = min(POINTS, max(1, int(most / max(evaluated, 1))))
    return max(1, steps // points)


def evaluation_words(config: TrainConfig, step_groups: int, evaluated: int, of: int) -> str:
    """Log line on the evaluations of a run, with a hint to evaluate less where they cost much.

    Args:
        evaluated, of: groups of an evaluation, of the whole split.
    """
    every, pause = config.evaluate_every, plural(config.evaluate_every, "step")
    count = 1 + -(-config.steps // every)
    share = f"{evaluated:,}" if evaluated == of else f"{evaluated:,} of {of:,}"
    words = f"{count:,} evaluations of {share} groups: before the first step, every {pause}, at the end"
    if count * evaluated <= max(EVALUATED_SHARE * config.steps * step_groups, ALWAYS_EVALUATED):
        return words
    return (
        f"{words}; {count * evaluated / (config.steps * step_groups):.0%} of the groups trained on: "
        f"--set data.validation_groups=N takes fewer, --set train.evaluate_every=N evaluates less often"
    )


def with_recorded_evaluation(config: TrainConfig, run: Path, settings: Sequence[str]) -> TrainConfig:
    """The evaluation settings that a resumed run recorded, unless a setting overrules them: evaluations at the same
    steps if the number of steps is the same, and no patience if it had none.

    Args:
        run: its folder, perhaps a new one.
    """
    if not config.evaluate_every or not (run / CONFIG_NAME).is_file():
        return config
    saved = saved_config(run)["train"]
    named = {setting.partition("=")[0].strip() for setting in settings}
    if not saved.get("best_by") and config.schedule != "plateau" and not named & {"train.best_by", "train.patience"}:
        config = replace(config, best_by="", best_is=BY_NAME, patience=0)
    if saved.get("steps") != config.steps or not saved.get("evaluate_every") or "train.evaluate_every" in named:
        return config
    return replace(config, evaluate_every=saved["evaluate_every"])


def _train_config(
    request: FinetuneRequest,
    recipe: TaskRecipe | None,
    sections: Mapping[str, Any],
    steps: int | None,
    evaluate_every: int | None,
) -> TrainConfig:
    usual = (TOY_STEPS_END_TO_END if request.end_to_end else TOY_STEPS) if request.toy else STEPS
    unnamed = _NOT_COUNTED if request.epochs is not None else recorded_steps(request.out) or usual
    given = request.steps or steps or unnamed
    pause = max(1, min(1000, given // 10))
    fields: dict[str, Any] = {"learning_rate": RATE, "weight_decay": 0.01, "clip_norm": 1.0}
    fields |= {"warmup_steps": round(WARMUP * given), "checkpoint_every": pause}
    fields["evaluate_every"] = evaluate_every or pause
    if recipe is not None:
        rule = recipe.step_rule(sections["steps"].rule)
        accidents = recipe.accidents if rule.as_released else {}
        fields |= {**recipe.settings, **accidents, **rule.settings, "learning_rate": recipe.learning_rate}
        if not request.toy:
            fields["accumulation"] = recipe.accumulation(sections["data"].batch_size, num_processes())
        lags = fields.get("starts_at_zero", False)
        problems = recipe.problems_apart(rule, sections[task_name(request.task)])
        if recipe.patience:
            fields |= {"evaluate_every": max(1, round(given / recipe.epochs))}
            fields |= {"best_by": recipe.judged_by, "patience": recipe.patience}
        fields |= schedule_fields(rule, recipe.schedule, steps=given, lags=lags, problems=problems)
    if request.toy:
        fields |= {"learning_rate": TOY_RATE, "warmup_steps": given // 10}
    named = {"learning_rate": request.learning_rate, "warmup_steps": request.warmup_steps}
    fields |= {name: value for name, value in named.items() if value is not None}
    return TrainConfig(**fields, steps=given, device=request.device, seed=request.seed)


def without_evaluations(config: TrainConfig) -> TrainConfig:
    """Settings of a run that has nothing to be judged on. Raises ValueError where its rate falls by evaluations."""
    if config.schedule == "plateau":
        raise ValueError(
            "the schedule plateau goes by evaluations, and the task leaves no validation data; choose another "
            "steps.rule, or train on the training split alone, such as --set vqa.train=train"
        )
    return replace(config, evaluate_every=0, best_by="", best_is=BY_NAME, patience=0)


def check_finetune(request: FinetuneRequest) -> None:
    """Raises ValueError with all faults of the request."""
    task, recipe = task_named(request.task), recipe_of(request)
    if request.toy and recipe is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    if request.resume_from is not None and request.seeds > 1:
        raise ValueError("--resume-from is for one run, and --seeds makes several")
    if request.toy and request.model is not None:
        raise ValueError("--toy chooses the model; leave --model out")
    named = NamedFiles()
    has_data = named.need("--data", request.data, FOLDER)
    has_store = request.store is not None and named.need("--store", request.store)
    need_encoder(request, named)
    has_annotated = request.annotated_store is not None and named.need("--annotated-store", request.annotated_store)
    has_start = request.from_ == NEW or named.need("--from", request.from_)
    named.need_output_folder(request.out)
    if has_start and request.from_ != NEW:
        named.look(lambda: check_model_files(request.from_))
    if has_store:
        named.look(lambda: FeatureStore(str(request.store)).close())
    named.look(lambda: _check_store(request, task))
    if has_annotated:
        named.look(lambda: FeatureStore(str(request.annotated_store)).close())
    named.look(lambda: check_device(request.device))
    named.look(lambda: _check_encoder(request))
    options = named.look(lambda: _check_settings(request, task, recipe))
    if has_data and options is not None:
        named.look(lambda: check_data_folder(request.task, Path(request.data), options))
    named.look(lambda: _check_start(request))
    named.look(lambda: check_tokenizer_file(request.tokenizer))
    named.look(lambda: check_held_out(request))
    named.look(lambda: HeldOut(request.held_out))
    named.check()
    if is_main_process() and request.seeds == 1:
        check_run_folder(request.out, resume=request.resume_choice)
    found = None if request.from_ == NEW else found_model(request.from_)
    if request.store is None:
        return
    with FeatureStore(request.store) as store:
        if request.end_to_end:
            check_photo_places(store, request.photos)
        elif found is not None:
            check_feature_space(found, store)


def _check_store(request: FinetuneRequest, task: NamedTask) -> None:
    """Raises ValueError for options of images with a task of texts alone, or another task without a store."""
    if task.reads_images and request.store is None:
        raise ValueError(STORE_MISSING)
    if not task.reads_images:
        given = {
            "--store": request.store,
            "--annotated-store": request.annotated_store,
            "--held-out": request.held_out,
            "--end-to-end": request.end_to_end,
        }
        refuse_images(given)


def recipe_of(request: FinetuneRequest) -> TaskRecipe | None:
    """The recipe of the request. Raises ValueError for an unknown one, or one of another task."""
    if request.recipe is None:
        return None
    recipe = task_recipe_named(request.recipe)
    if recipe.task != request.task:
        raise ValueError(f"--recipe {request.recipe} is for the task {recipe.task}, not {request.task}")
    return recipe


def _check_settings(request: FinetuneRequest, task: NamedTask, recipe: TaskRecipe | None) -> Any:
    """The task's settings. Raises ValueError for those that cannot be trained with."""
    options = config_of(request, task.options, recipe).task
    try:
        for check in filter(None, (task.check, None if request.end_to_end else task.check_stored)):
            check(options)
    except ValueError as error:
        start = "" if recipe is None else f"--recipe {request.recipe}: "
        raise ValueError(f"{start}{error}") from None
    return options


def _check_encoder(request: FinetuneRequest) -> None:
    """Raises ValueError for options that only a run end to end has, or a start that needs such a run."""
    if request.end_to_end and request.annotated_store is not None:
        raise ValueError(
            "--annotated-store: --end-to-end cuts the boxes of one store out of the photos; leave it out, and name the "
            "store of the task's own boxes with --store"
        )
    if request.end_to_end:
        return
    refuse_encoder(request)
    if request.from_ != NEW and joint_start(request.from_) is not None:
        raise ValueError(
            f"--from {request.from_} was trained end to end: its encoder goes on with it, --end-to-end; stored "
            f"features are not its encoder's"
        )


def _check_start(request: FinetuneRequest) -> None:
    if request.seeds < 1:
        raise ValueError(f"--seeds {request.seeds}: expected 1 or more")
    if request.from_ != NEW:
        given = [name for name, value in (("--model", request.model), ("--from-bert", request.from_bert)) if value]
        if given:
            raise ValueError(f"{' and '.join(given)}: only with --from {NEW}, for a model with new weights")
        return
    if request.system is None and request.recipe is None:
        raise ValueError(f"--from {NEW}: name the model with --system")
    if request.from_bert is not None and Path(request.from_bert).expanduser().exists():
        bert_files(request.from_bert)
