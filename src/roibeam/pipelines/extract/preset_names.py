"""Which preset some settings are: a word for people where the settings themselves fill ten lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.selection_policy import SELECTIONS


def conventions_name(conventions: Mapping[str, Any]) -> str:
    """The preset that these are, or the nearest one and what differs: "hf" or "hf, but exif_orientation ignored".

    Args:
        conventions: fields of `Conventions`, as a dict or as read from JSON; some may be missing (given boxes).
    """
    return _name(conventions, {name: asdict(preset) for name, preset in CONVENTIONS.items()})


def selection_name(selection: Mapping[str, Any]) -> str:
    """As `conventions_name`, for the fields of a `SelectionPolicy`: "butd-36" or "butd-36, but max_regions 12"."""
    return _name(selection, {name: asdict(preset) for name, preset in SELECTIONS.items()})


def _name(settings: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    plain = json.loads(json.dumps(settings))  # tuples are lists in files
    changes = {}
    for name, preset in presets.items():
        known = json.loads(json.dumps(preset))
        changes[name] = [field for field, value in plain.items() if field not in known or known[field] != value]
    nearest = min(changes, key=lambda name: len(changes[name]))
    different = ", ".join(f"{field} {settings[field]}" for field in changes[nearest])
    return f"{nearest}, but {different}" if different else nearest
