"""The numbers of a request: those of its recipe or of the defaults, as its own numbers and its settings change them.

No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from roibeam.model.end_to_end_choices import MASKINGS
from roibeam.near_names import name_hint
from roibeam.pipelines.common.launched import num_processes
from roibeam.pipelines.common.overrides import apply_overrides, parse_value
from roibeam.pipelines.pretraining.recipes.named_systems import NamedSystem
from roibeam.pipelines.pretraining.recipes.published import recipe_named
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedTraining
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME, begun_steps, saved_config, with_saved
from roibeam.pipelines.training.train_config import TrainConfig, with_settings

OF_MODEL, OF_TRAIN = "model.", "train."  # sections of settings that are read by themselves
MASKING, APPEARANCE, PIXELS = "end_to_end.masking", "model.masked_appearance", "end_to_end.masked_pixels"


def recipe_of(request: PretrainRequest) -> Recipe | None:
    """The recipe that a request names. Of a run that goes on, its rules of samples are those that the run began with,
    where the recipe was another then; what the user sets wins over both.

    Raises:
        ValueError: for a name of none.
    """
    name = request.model.recipe
    recipe = None if name is None else recipe_named(name)
    if recipe is None or request.training.resume is False or not (request.out / CONFIG_NAME).is_file():
        return recipe
    saved = saved_config(request.out)
    sampling, known = saved["task"].get("sampling"), {field.name for field in fields(recipe.sampling)}
    if not isinstance(sampling, dict) or not known.issuperset(sampling):
        return recipe
    # Runs did not record their recipe at first; of these, one that lacks a rule is older than that.
    if saved["recorded"].get("recipe", name if known - sampling.keys() else "") != name:
        return recipe
    return replace(recipe, sampling=with_saved(recipe.sampling, sampling))


def notes_of_begun(request: PretrainRequest) -> list[str]:
    """In what a run goes on as it began, and its recipe is another by now."""
    kept, fresh = recipe_of(request), recipe_of(replace(request, training=replace(request.training, resume=False)))
    if kept is None or fresh is None:
        return []
    named = {each.partition("=")[0].strip() for each in request.training.settings}
    return [
        f"sampling.{each.name} stays {began!r}, as this run began; {request.model.recipe} has {now!r} now"
        for each in fields(kept.sampling)
        if (began := getattr(kept.sampling, each.name)) != (now := getattr(fresh.sampling, each.name))
        and f"sampling.{each.name}" not in named
    ]


def batch_size_of(request: PretrainRequest, recipe: Recipe | None) -> int:
    """Captions that each process takes at once."""
    if request.training.batch_size is not None:
        return request.training.batch_size
    return recipe.at_once(num_processes()) if recipe is not None and not request.model.toy else 32


def train_config_of(request: PretrainRequest, recipe: Recipe | None) -> Callable[[int], TrainConfig]:
    """What makes the training settings from the number of captions; ValueError there for a setting that is none."""
    asked, batch_size = request.training, batch_size_of(request, recipe)
    options = {"steps": asked.steps, "learning_rate": asked.learning_rate, "warmup_steps": asked.warmup_steps}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if asked.steps is None and (begun := begun_steps(request.out)) is not None:
        given["steps"] = begun
    of_train = [setting for setting in asked.settings if setting.startswith(OF_TRAIN)]

    def train_config(num_captions: int) -> TrainConfig:
        if recipe is None:
            config = TrainConfig(**{"steps": 1000, **given})
        elif request.model.toy:
            config = recipe.toy_config(micro_batch=batch_size, **given)
        else:
            config = recipe.train_config(num_captions, micro_batch=batch_size, processes=num_processes(), **given)
        paced = _paced(config, asked, evaluates=bool(request.data.validation))
        return with_settings(paced, of_train)

    return train_config


def with_masking(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem) -> PretrainRequest:
    """The request of a run end to end with the two settings that `end_to_end.masking` stands for in its place; the
    same of a recipe, where the user names none, and of the run that the folder holds, which goes on as it began. What
    the user sets by itself wins.

    Raises:
        ValueError: for a masking that is none, or of a system that masks no regions.
    """
    if not request.end_to_end:
        return request
    given = dict(each.partition("=")[::2] for each in request.training.settings)
    named = {name.strip(): value.strip() for name, value in given.items()}
    masking = named.get(MASKING)
    if masking is not None:
        if not system.masking:
            raise ValueError(f"--set {MASKING}={masking}: {system.title} masks no regions; leave it out")
        if masking not in MASKINGS:
            raise ValueError(f"--set {MASKING}={masking}: {name_hint(masking, MASKINGS)}")
    elif recipe is not None and request.model.from_run is None:
        masking = recipe.masking
    pair = {APPEARANCE: system.masking[masking], PIXELS: MASKINGS[masking]} if masking else {}
    if MASKING not in named:
        pair |= begun_masking(request.out)
    others = [each for each in request.training.settings if each.partition("=")[0].strip() != MASKING]
    settings = [*others, *(f"{name}={value}" for name, value in pair.items() if name not in named)]
    return replace(request, training=replace(request.training, settings=settings))


def begun_masking(run: Path) -> dict[str, str]:
    """Of the run that the folder holds: one that began when the mode decided alone, say. None of any other."""
    if not (run / CONFIG_NAME).is_file():
        return {}
    described = saved_config(run)["task"].get("model")
    if not isinstance(described, dict) or not isinstance(described.get("end_to_end"), dict):
        return {}
    found = {PIXELS: described["end_to_end"].get("masked_pixels")}
    found[APPEARANCE] = described.get("model", {}).get("masked_appearance")
    return {name: value for name, value in found.items() if isinstance(value, str)}


def default_sections(request: PretrainRequest, recipe: Recipe | None, sampling: type) -> dict[str, Any]:
    """The sections of settings that every run has, with their defaults.

    Args:
        sampling: dataclass of the settings of the system's rules.
    """
    return {
        "train": TrainConfig(steps=1),
        "sampling": recipe.sampling if recipe else sampling(),
        "data": DataConfig(batch_size=batch_size_of(request, recipe), share=recipe.share if recipe else 1.0),
    }


def changed_sections(defaults: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The sections but for train, whose defaults are known later, as the settings change them.

    Raises:
        ValueError: as `apply_overrides`.
    """
    return apply_overrides(defaults, [each for each in settings if not each.startswith((OF_MODEL, OF_TRAIN))])


def model_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Fields of the model's configuration that the settings change.

    Raises:
        ValueError: for a setting without a value.
    """
    overrides: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.removeprefix(OF_MODEL).partition("=")
        if setting.startswith(OF_MODEL):
            if not equals:
                raise ValueError(f"--set {setting!r}: expected model.field=value")
            overrides[name.strip()] = parse_value(value.strip())
    return overrides


def _paced(config: TrainConfig, asked: RequestedTraining, *, evaluates: bool) -> TrainConfig:
    """How often a run of its length is kept and evaluated."""
    pause = max(1, min(1000, config.steps // 10))
    return replace(
        config,
        device=asked.device,
        seed=asked.seed,
        checkpoint_every=pause,
        evaluate_every=config.evaluate_every or (pause if evaluates else 0),
    )
