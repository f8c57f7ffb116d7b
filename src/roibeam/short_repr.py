"""One line for an object that holds arrays or tensors, in place of all their numbers."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

_MOST_CHARACTERS, _MOST_ITEMS = 60, 4


def short_repr(self: Any) -> str:
    """For `__repr__` of a dataclass: the fields that say something, arrays by dtype and shape.

    A field that is None, or that has its default, is left out.
    """
    named = ((field, getattr(self, field.name)) for field in fields(self) if field.repr)
    told = [f"{field.name}={_short(value)}" for field, value in named if not _says_nothing(field, value)]
    return f"{type(self).__name__}({', '.join(told)})"


def _says_nothing(field: Field[Any], value: object) -> bool:
    if value is None:
        return True
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return type(value) is type(default) and not hasattr(value, "shape") and bool(value == default)


def _short(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list | tuple) and len(value) > _MOST_ITEMS:
        return f"{len(value):,} x {type(value[0]).__name__}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_short, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"dict of {len(value):,}" if value else "{}"
    if is_dataclass(value) and type(value).__repr__ is not short_repr:
        return f"{type(value).__name__}(...)"
    told = repr(value)
    return told if len(told) <= _MOST_CHARACTERS else f"{told[: _MOST_CHARACTERS - 4]}...{told[-1]}"
