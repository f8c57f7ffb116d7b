"""The base of every model's configuration: a Hugging Face config that refuses names it does not know."""

from __future__ import annotations

import dataclasses
from typing import Any, dataclass_transform

from transformers import PretrainedConfig

from roibeam.model.common.fields import ConfigFields
from roibeam.near_names import name_hint

# What Hugging Face itself hands to a config when it reads one from a file or a checkpoint. Its other common names
# (id2label, output_attentions, ...) would be ignored by our models, so they are refused like any unknown name.
_LOADING_NAMES = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "dtype",
        "model_type",
        "name_or_path",
        "torch_dtype",
        "transformers_version",
    }
)
_INHERITED = {field.name: field for field in dataclasses.fields(PretrainedConfig)}


@dataclass_transform(kw_only_default=True)
class StrictConfig(ConfigFields, PretrainedConfig):
    """Subclasses name their fields as a dataclass does, all keywords; Hugging Face makes them one.

    Raises:
        ValueError: naming every unknown field and the known ones that look like it, or a field of another type; and
            whatever `check` refuses.
    """

    def __post_init__(self, **unknown: Any) -> None:
        ignored = [
            name
            for name, field in _INHERITED.items()
            if name not in _LOADING_NAMES and getattr(self, name) != field.default
        ]
        refused = sorted([*(set(unknown) - _LOADING_NAMES), *ignored])
        known = self.own_fields()
        if "end_to_end" in unknown:
            raise ValueError(
                f"{type(self).__name__}: this config.json is of a model with its region encoder, which "
                f"roibeam.load_joint reads"
            )
        if refused:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(_describe(name, known) for name in refused))
        values = {name: getattr(self, name) for name in known}
        self.check_values(values)
        for name, value in values.items():
            if isinstance(value, list):
                setattr(self, name, tuple(value))  # JSON gives lists
        # model_type is a constant of the class; files carry it, and setting it again would shadow the constant.
        unknown.pop("model_type", None)
        PretrainedConfig.__post_init__(self, **unknown)
        self.check()

    @classmethod
    def _fields(cls) -> list[dataclasses.Field[Any]]:
        """But for those that Hugging Face's base class has."""
        return [field for field in dataclasses.fields(cls) if field.name not in _INHERITED]


def _describe(name: str, known: list[str]) -> str:
    return f"unknown field {name!r}; {name_hint(name, sorted(known))}"
