"""How each release trains its model: the fields of `TrainConfig` that its code sets, by name.

    TrainConfig(steps=..., learning_rate=1e-4, warmup_steps=..., **release_settings("vilbert-release"))

Steps, peak rate and length of the rise belong to an experiment, so they are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_BERT_ADAM: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer": "bert-adam",
        "betas": (0.9, 0.999),
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "clip_scope": "each",
        "starts_at_zero": True,
    }
)
_VL_BERT: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer": "adamw-transformers",
        "betas": (0.9, 0.999),
        "epsilon": 1e-6,
        "weight_decay": 1e-4,
        "parameter_groups": "vl-bert",
    }
)
# Of fine-tuning: the mean of micro-batches' means.
_MICRO_BATCHES: Mapping[str, Any] = MappingProxyType({"loss_mean": "micro_batch"})
RELEASE_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # jackroos/VL-BERT cfgs/pretrain/base_prec_4x16G_fp32.yaml.
        "vl-bert": {**_VL_BERT, "clip_norm": 10.0},
        # cfgs/vqa and cfgs/refcoco; cfgs/vcr has "sgd", the schedule "steps" and a clip_norm of 10.
        "vl-bert-tasks": {**_VL_BERT, **_MICRO_BATCHES, "clip_norm": 1.0},
        "vilbert-release": {**_BERT_ADAM, "parameter_groups": "vilbert-release"},
        # Its rate is constant after the rise and falls tenfold after epochs 12 and 16: set decay_steps.
        "vilbert-release-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "vilbert-release-tasks",
            "schedule": "steps",
        },
        "vilbert-release-mt": {
            "optimizer": "adamw-transformers",
            "betas": (0.9, 0.98),
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "clip_norm": 0.0,
            "parameter_groups": "vilbert-release-mt",
        },
        "vilbert-release-mt-tasks": {
            "optimizer": "adamw-transformers-uncorrected",
            "betas": (0.9, 0.999),
            "epsilon": 1e-6,
            "weight_decay": 0.01,
            "clip_norm": 0.0,
            "starts_at_zero": True,
            "parameter_groups": "vilbert-release-mt-tasks",
            **_MICRO_BATCHES,
        },
        "visualbert-ucla": {**_BERT_ADAM, "parameter_groups": "visualbert-ucla"},
        "visualbert-ucla-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "visualbert-ucla",
            "step_gradients": "last",
        },
        "interbert-release": {**_BERT_ADAM, "parameter_groups": "interbert-release"},
        # As ViLBERT's; the falls come after epochs 12, 16, 20, 22 and 26.
        "interbert-release-tasks": {
            **_BERT_ADAM,
            **_MICRO_BATCHES,
            "parameter_groups": "interbert-release-tasks",
            "schedule": "steps",
            "average_start": "initial",
        },
    }
)


# Fields by which a release does what nobody meant: means of micro-batches, gradients lost but for the last one, decay
# on the wrong parameters or some not trained, a schedule that lags one step, an average that the initial weights have a
# share in. Everything else is a choice.
ACCIDENTS = ("loss_mean", "step_gradients", "parameter_groups", "starts_at_zero", "average_start")


def parted_settings(
    name: str, *, meant: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a release without its accidents, and these.

    Args:
        name: as of `release_settings`.
        meant: fields that count in the first of them in place of an accident, or of a field that is none.
    """
    every = release_settings(name)
    accidents = {field: value for field, value in every.items() if field in ACCIDENTS and meant.get(field) != value}
    return {**{field: value for field, value in every.items() if field not in ACCIDENTS}, **meant}, accidents


def release_settings(name: str) -> dict[str, Any]:
    """Fields of `TrainConfig`, for one of `RELEASE_SETTINGS`.

    Raises:
        ValueError: for another name.
    """
    if name not in RELEASE_SETTINGS:
        raise ValueError(f"no release settings {name!r}; there are {', '.join(RELEASE_SETTINGS)}")
    return dict(RELEASE_SETTINGS[name])
