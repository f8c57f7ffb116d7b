"""The numbers of a request: those of its recipe or of the defaults, as its own numbers and its settings change them.

No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from roibeam.pipelines.foundation.overrides import apply_overrides, parse_value
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedTraining
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.training.processes.launched import num_processes
from roibeam.pipelines.training.run_folder.folder import begun_steps
from roibeam.pipelines.training.train_config import TrainConfig, with_settings

OF_MODEL, OF_TRAIN = "model.", "train."  # sections of settings that are read by themselves


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
