"""`--set section.field=value` on frozen dataclasses, by hand: omegaconf and tyro know no other library's names.

Also presets by name.

`TRAIN_NAMES` are other libraries' names of training settings, Hugging Face's `TrainingArguments` above all.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from roibeam.messages import name_hint

_T = TypeVar("_T")
_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict: 'an object, as {"name": 1}',
}


def apply_overrides(
    sections: Mapping[str, Any],
    settings: Iterable[str],
    *,
    elsewhere: Collection[str] = (),
    called: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the sections with each "section.field=value" applied.

    Args:
        sections: name -> frozen dataclass instance.
        elsewhere: further sections, whose settings are ignored here.
        called: fields of other libraries -> their name here, for hints on unknown fields.
        settings: values are read as json where they are json ("3", "0.5", "true", "[1, 2]"), else taken as text.
    Raises:
        ValueError: on an unknown section or field (naming the near ones), a malformed setting, or a value that the
            dataclass refuses.
    """
    found: dict[str, dict[str, Any]] = {}
    named: dict[str, list[str]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            first, config = next(iter(sections.items()))
            field = fields(config)[0].name
            example = f"{first}.{field}={getattr(config, field)}"
            raise ValueError(f"--set {setting!r}: expected section.field=value, such as {example}")
        if section in elsewhere:
            continue
        if section not in sections:
            known = [*sections, *elsewhere]
            raise ValueError(f"--set {setting!r}: no section {section!r}; {name_hint(section, known)}")
        config = sections[section]
        assert is_dataclass(config) and not isinstance(config, type)
        by_name = {field.name: field for field in fields(config)}
        if name not in by_name:
            hint = f"here it is {called[name]}" if name in called else name_hint(name, by_name)
            raise ValueError(f"--set {setting!r}: {section} has no field {name!r}; {hint}")
        try:
            found.setdefault(section, {})[name] = _value(text.strip(), getattr(config, name), str(by_name[name].type))
        except ValueError as error:
            raise ValueError(f"--set {setting!r}: {error}") from None
        named.setdefault(section, []).append(setting)
    changed = dict(sections)
    for section, values in found.items():
        # All at once: fields that limit each other (least and most) would else depend on the order.
        try:
            changed[section] = replace(sections[section], **values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"--set {' '.join(map(repr, named[section]))}: {error}") from None
    return changed


def refuse_two_values(request: Any, options: Mapping[str, str], settings: Iterable[str]) -> None:
    """Raises ValueError where an option and a setting give different values for one thing.

    Args:
        request: dataclass of the options' values; a field that has its default may not have been given.
        options: "section.field" -> the field of `request` with the same meaning.
    """
    defaults = {each.name: each.default for each in fields(request)}
    for setting in settings:
        path, _, text = setting.partition("=")
        name, given = options.get(path.strip()), parse_value(text.strip())
        if name is None or getattr(request, name) == defaults[name]:
            continue
        value = getattr(request, name)
        if value != (tuple(given) if isinstance(given, list) else given):
            typed = ",".join(map(str, value)) if isinstance(value, tuple) else value
            option = f"--{name.replace('_', '-')} {typed}"
            raise ValueError(f"{option} and --set {setting} are two values for one thing; give one of them")


def preset(option: str, name: str, presets: Mapping[str, _T]) -> _T:
    if name not in presets:
        raise ValueError(f"--{option} {name!r}: {name_hint(name, presets)}")
    return presets[name]


def parse_value(text: str) -> Any:
    """Parses text as JSON ("3", "0.5", "true", "[1, 2]"); returns the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also a number of over 4,300 digits
        return text


def _value(text: str, current: Any, annotation: str) -> Any:
    """Parses text as a value of the field's kind; `annotation` is the field's type as written."""
    if "None" in annotation and text.lower() in ("none", "null"):
        return None
    value = parse_value(text)
    if isinstance(current, tuple):
        if not isinstance(value, list):
            example = json.dumps(list(current) or (["name"] if "str" in annotation else [1, 2]))
            raise ValueError(f"expected a list, such as {example}, got {text!r}")
        # 10 and 10.0 are one number, and must be one in a fingerprint too.
        return tuple(map(float, value)) if "float" in annotation and _are_numbers(value) else tuple(value)
    if "float" in annotation and _are_numbers([value]):
        return float(value)
    if current is not None and type(value) is not type(current):
        raise ValueError(f"expected {_KINDS.get(type(current), type(current).__name__)}, got {text!r}")
    return value


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


_STEPS = "--epochs of finetune, else --steps: epochs x captions / global batch"
_KEEPS_BEST = "train.best_by, whose best checkpoint stays"
_DROPOUT = "model.dropout of finetune, model.hidden_dropout and model.attention_dropout of pretrain"
_LOG = "nothing to set: log.jsonl has every step"
TRAIN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "max_steps": "--steps", "num_train_epochs": _STEPS, "epochs": _STEPS,
        "per_device_train_batch_size": "--batch-size", "train_batch_size": "--batch-size", "batch_size": "--batch-size",
        "gradient_accumulation_steps": "train.accumulation", "accumulate_grad_batches": "train.accumulation",
        "lr": "--learning-rate", "warmup_ratio": "--warmup-steps", "lr_scheduler_type": "train.schedule",
        "optim": "train.optimizer", "adam_beta1": "train.betas", "adam_beta2": "train.betas",
        "adam_epsilon": "train.epsilon", "max_grad_norm": "train.clip_norm", "gradient_clip_val": "train.clip_norm",
        "bf16": "--precision bf16", "fp16": "--precision fp16", "use_cpu": "--device cpu",
        "gradient_checkpointing": "train.activation_checkpointing", "save_steps": "train.checkpoint_every",
        "save_total_limit": "train.keep", "eval_steps": "train.evaluate_every",
        "metric_for_best_model": _KEEPS_BEST, "load_best_model_at_end": _KEEPS_BEST,
        "greater_is_better": "train.best_is", "early_stopping_patience": "train.patience",
        "report_to": "train.tensorboard", "logging_steps": _LOG, "log_every": _LOG, "ema_decay": "train.average_rate",
        "dataloader_num_workers": "data.workers", "num_workers": "data.workers",
        "resume_from_checkpoint": "--resume-from",
        "freeze": "train.frozen", "freeze_layers": "train.frozen", "freeze_encoder": "train.frozen",
        "freeze_backbone": "train.frozen", "frozen_layers": "train.frozen", "trainable": "train.frozen",
        "lr_mult": "train.rates", "layerwise_lr_decay": "train.rates", "head_lr": "train.rates",
        "head_learning_rate": "train.rates", "encoder_lr": "train.rates", "param_groups": "train.rates",
        "dropout": _DROPOUT, "hidden_dropout": _DROPOUT, "hidden_dropout_prob": _DROPOUT,
        "attention_dropout": _DROPOUT, "attention_probs_dropout_prob": _DROPOUT,
        "class_weights": "labels.weights, of the task labels", "class_weight": "labels.weights, of the task labels",
    }
)  # fmt: skip
