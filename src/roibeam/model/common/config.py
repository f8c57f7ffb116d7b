"""The base of every model's configuration: a Hugging Face config that refuses names it does not know."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, dataclass_transform

from transformers import PretrainedConfig

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
# By annotation; a whole number is a number, but True is none.
_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "tuple[int, ...]": (tuple, list)}
)


@dataclass_transform(kw_only_default=True)
class StrictConfig(PretrainedConfig):
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
        known = {field.name: _kind(field) for field in dataclasses.fields(self) if field.name not in _INHERITED}
        if refused:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(_describe(name, list(known)) for name in refused))
        for name, kind in known.items():
            value = getattr(self, name)
            if not isinstance(value, _TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
                raise ValueError(f"{type(self).__name__}: {name} must be of type {kind}, got {value!r}")
            if kind.startswith("tuple"):
                setattr(self, name, tuple(getattr(self, name)))  # JSON gives lists
        # model_type is a constant of the class; files carry it, and setting it again would shadow the constant.
        unknown.pop("model_type", None)
        super().__post_init__(**unknown)
        self.check()

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names that a user may set: all but those that Hugging Face's base class has."""
        return [field.name for field in dataclasses.fields(cls) if field.name not in _INHERITED]

    def check(self) -> None:
        """Raises ValueError where fields do not fit each other; subclasses add to it."""

    def check_multiple(self, size: str, heads: str) -> None:
        """The field `size` must be a multiple of the field `heads`."""
        if getattr(self, size) % getattr(self, heads):
            raise ValueError(
                f"{type(self).__name__}: {size} {getattr(self, size)} is not a multiple of {heads} "
                f"{getattr(self, heads)}"
            )

    def check_choice(self, name: str, allowed: Collection[str]) -> None:
        """The field `name` must be one of `allowed`."""
        if getattr(self, name) not in allowed:
            raise ValueError(
                f"{type(self).__name__}: {name} is {getattr(self, name)!r}; it must be one of "
                f"{', '.join(map(repr, allowed))}"
            )


def _kind(field: dataclasses.Field[Any]) -> str:
    """The annotation as it is written."""
    return field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)


def _describe(name: str, known: list[str]) -> str:
    return f"unknown field {name!r}; {name_hint(name, sorted(known))}"
