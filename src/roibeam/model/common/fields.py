"""Fields of a model's configuration, their defaults and what they may hold. No torch, so that a command can look at
settings before it loads any. `config.py` beside this makes Hugging Face configs of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

ACTIVATION_NAMES = ("gelu", "relu", "swish")  # transformer.py computes them
FUSIONS = ("product", "sum")
MASKED_APPEARANCES = ("zero", "pixels")
# name of `end_to_end.masking` -> masked_appearance; "paper" is the published zero vector, on blank pixels too
MASKING = MappingProxyType({"paper": "zero", "release": "pixels", "feature": "zero"})
MASKED_LOSS_PAIRS = ("all", "matched")  # in which pairs masked words and regions are predicted
WHOLE_IMAGE_COUNTS = ("all", "visible")
WIDTH_REDUCTIONS = ("mean", "sum")

# By annotation; a whole number is a number, but True is none.
_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
)


class ConfigFields:
    """The base of all fields; subclasses are dataclasses of keywords.

    Attributes:
        choices: field -> the words that it may hold. A subclass names those of its own fields.

    Raises:
        ValueError: for a value of another type or another word, and whatever `check` refuses.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __post_init__(self) -> None:
        self.check_values({name: getattr(self, name) for name in self.own_fields()})
        self.check()

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names that a user may set."""
        return [field.name for field in cls._fields()]

    @classmethod
    def check_values(cls, given: Mapping[str, Any]) -> None:
        """Raises ValueError for a value that its field cannot hold, whatever the others hold.

        Args:
            given: by names of `own_fields`.
        """
        kinds = {field.name: _kind(field) for field in cls._fields()}
        words = {name: found for each in cls.__mro__ for name, found in vars(each).get("choices", {}).items()}
        for name, value in given.items():
            if not _is_a(kinds[name], value):
                got = reprlib.repr(value)
                raise ValueError(f"{cls._config_name()}: {name} must be of type {kinds[name]}, got {got}")
            if name in words and value not in words[name]:
                got, allowed = reprlib.repr(value), ", ".join(map(repr, words[name]))
                raise ValueError(f"{cls._config_name()}: {name} is {got}; it must be one of {allowed}")

    def check(self) -> None:
        """Raises ValueError where fields do not fit each other; subclasses add to it."""

    def check_multiple(self, size: str, heads: str) -> None:
        """The field `size` must be a multiple of the field `heads`."""
        if getattr(self, heads) < 1:
            raise ValueError(f"{self._config_name()}: {heads} must be at least 1, got {getattr(self, heads)}")
        if getattr(self, size) % getattr(self, heads):
            raise ValueError(
                f"{self._config_name()}: {size} {getattr(self, size)} is not a multiple of {heads} "
                f"{getattr(self, heads)}"
            )

    @classmethod
    def _fields(cls) -> list[dataclasses.Field[Any]]:
        return list(dataclasses.fields(cls))  # type: ignore[arg-type]  # of a subclass, which is a dataclass

    @classmethod
    def _config_name(cls) -> str:
        """Of the configuration with these fields, which is what users know."""
        return cls.__name__.replace("Fields", "Config")


@dataclass(kw_only=True, repr=False, eq=False)
class BertFields(ConfigFields):
    """What every model has of BERT; defaults are those of BERT-base.

    Fields:
        vocab_size: word pieces of the tokenizer.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_activation: of the encoder.
        max_position_embeddings: rows of the position table.
        num_segments: rows of the segment table.
        hidden_dropout, attention_dropout: rates, on states and on attention weights.
        initializer_range: standard deviation of new weights.
    """

    choices = MappingProxyType({"hidden_activation": ACTIVATION_NAMES})

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 512
    num_segments: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02

    def check_batch_size(self, rows: int) -> None:
        """Raises ValueError when a loss of this model does not work on batches of so many rows."""

    def check(self) -> None:
        super().check()
        self.check_multiple("hidden_size", "num_attention_heads")


def _kind(field: dataclasses.Field[Any]) -> str:
    """The annotation as it is written."""
    return field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)


def _is_a(kind: str, value: Any) -> bool:
    if kind.startswith("tuple"):
        return isinstance(value, (tuple, list)) and all(_is_a("int", each) for each in value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
