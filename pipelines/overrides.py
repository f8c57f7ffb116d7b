"""`--set section.field=value`: changes to frozen configs from the command line, checked against their fields."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any


def apply_overrides(sections: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Returns the sections with each "section.field=value" applied.

    Args:
        sections: name -> frozen dataclass instance.
        settings: values are read as json where they are json ("3", "0.5", "true", "[1, 2]"), else taken as text.
    Raises:
        ValueError: on an unknown section or field (naming the near ones), a malformed setting, or a value that the
            dataclass refuses.
    """
    changed = dict(sections)
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise ValueError(f"--set {setting!r}: expected section.field=value, such as {_example(sections)}")
        if section not in changed:
            raise ValueError(f"--set {setting!r}: no section {section!r}; sections are {', '.join(changed)}")
        config = changed[section]
        assert is_dataclass(config) and not isinstance(config, type)
        names = [field.name for field in fields(config)]
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3) or names
            raise ValueError(f"--set {setting!r}: {section} has no field {name!r}; near: {', '.join(near)}")
        try:
            changed[section] = replace(config, **{name: _value(text.strip(), getattr(config, name))})
        except (ValueError, TypeError) as error:
            raise ValueError(f"--set {setting!r}: {error}") from None
    return changed


def parse_value(text: str) -> Any:
    """What the text is as json ("3", "0.5", "true", "[1, 2]"); the text itself where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _value(text: str, current: Any) -> Any:
    """Text -> value of the kind that the field holds now."""
    value = parse_value(text)
    if isinstance(current, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if current is not None and type(value) is not type(current):
        raise ValueError(f"expected {type(current).__name__}, got {text!r}")
    return value


def _example(sections: Mapping[str, Any]) -> str:
    section, config = next(iter(sections.items()))
    field = fields(config)[0]
    return f"{section}.{field.name}={getattr(config, field.name)}"
