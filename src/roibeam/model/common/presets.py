"""Sizes that models share, and how the fields of a preset are looked up. No torch, as in every presets.py: a published
run can be shown without building its model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Of the models that train on a laptop; published by nobody.
SMALL_SIZES: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
)


def named_fields(what: str, name: str, table: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The fields that a table has under a name; `what` says of what, such as "VL-BERT preset".

    Raises:
        ValueError: for another name, with those that there are.
    """
    if name not in table:
        raise ValueError(f"no {what} {name!r}; there are {', '.join(table)}")
    return table[name]
