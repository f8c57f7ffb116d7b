"""Which preset some settings are, a word for people where the settings themselves fill ten lines; and what of the
settings of two runs differs, in these words. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roibeam.extraction.choice.detector_choice import ChosenDetector
from roibeam.extraction.choice.presets import PRESETS
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.extraction.network.selection_policy import SELECTIONS, SelectionPolicy

OTHER_SETTINGS = "was made with other settings"


def conventions_name(conventions: Mapping[str, Any]) -> str:
    """The preset that these are, or the nearest one and what differs: "hf" or "hf, but exif_orientation ignored".

    Args:
        conventions: fields of `Conventions`, as a dict or as read from JSON; some may be missing (given boxes).
    """
    return _name(conventions, {name: asdict(preset) for name, preset in CONVENTIONS.items()})


def selection_name(selection: Mapping[str, Any]) -> str:
    """As `conventions_name`, for the fields of a `SelectionPolicy`: "butd-36" or "butd-36, but max_regions 12"."""
    return _name(selection, {name: asdict(preset) for name, preset in SELECTIONS.items()})


def parts_words(config: DetectorConfig, conventions: Conventions, selection: SelectionPolicy | None) -> str:
    """These settings in a few words: the preset that they are, or its three parts.

    Args:
        selection: None where the boxes are given.
    """
    for known in PRESETS.values():
        parts = (CONFIGS[known.detector], CONVENTIONS[known.conventions], SELECTIONS[known.selection])
        if (config, conventions, selection) == parts:
            return f"preset {known.name} ({_parts(config, known.conventions, selection)})"
    regions = "" if selection is None else f", selection {selection_name(asdict(selection))}"
    return f"conventions {conventions_name(asdict(conventions))}, photos at {_edges(config)}{regions}"


def choice_words(chosen: ChosenDetector, detector: str | None, settings: Sequence[str], *, with_boxes: bool) -> str:
    """Which detector was chosen, and what of its preset was changed, in a line for the user.

    Args:
        detector: as the user named it.
        settings: "section.field=value" each, as the user gave them.
        with_boxes: whether the boxes are given, so that no region is selected.
    """
    used = chosen.preset
    if used is None:
        own = "of its own" if chosen.is_folder else conventions_name(asdict(chosen.conventions))
        regions = "given boxes" if with_boxes else f"selection {selection_name(asdict(chosen.selection))}"
        line = f"detector {detector} (conventions {own}, photos at {_edges(chosen.config)}), {regions}"
    else:
        selection = None if with_boxes else SELECTIONS[used.selection]
        line = f"preset {used.name} ({_parts(CONFIGS[used.detector], used.conventions, selection)})"
    for part, name in chosen.overrides:
        if not (with_boxes and part == "selection"):
            line += f"; --{part} {name} overrides its {part}"
    changed = [setting.partition("=")[0].strip() for setting in settings]
    return f"{line}; --set changes {', '.join(changed)}" if changed else line


def _parts(config: DetectorConfig, conventions: str, selection: SelectionPolicy | None) -> str:
    if selection is None:
        regions = "given boxes"
    elif selection.min_regions == selection.max_regions:
        regions = f"{selection.max_regions} regions"
    else:
        regions = f"{selection.min_regions} to {selection.max_regions} regions"
    return f"conventions {conventions}, photos at {_edges(config)}, {regions}"


def _edges(config: DetectorConfig) -> str:
    return f"{config.short_edge}/{config.long_edge}"


def _name(settings: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    plain = json.loads(json.dumps(settings))  # tuples are lists in files
    changes = {}
    for name, preset in presets.items():
        known = json.loads(json.dumps(preset))
        changes[name] = [field for field, value in plain.items() if field not in known or known[field] != value]
    nearest = min(changes, key=lambda name: len(changes[name]))
    different = ", ".join(f"{field} {settings[field]}" for field in changes[nearest])
    return f"{nearest}, but {different}" if different else nearest


def setting_changes(had: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two flat settings, one text each; those that an option sets as a preset come first."""
    different = [key for key in sorted(had.keys() | now.keys()) if had.get(key) != now.get(key)]
    presets = []
    for option, prefix, name in (
        ("conventions", "feature_space.detector.conventions.", conventions_name),
        ("selection", "feature_space.regions.", selection_name),
    ):
        sides = [{key.removeprefix(prefix): each[key] for key in each if key.startswith(prefix)} for each in (had, now)]
        # Sides with other fields (given boxes have fewer) are told field by field.
        if sides[0] != sides[1] and sides[0].keys() == sides[1].keys():
            presets.append(f"{option} was {name(sides[0])}, is now {name(sides[1])}")
            different = [key for key in different if not key.startswith(prefix)]
    if "mode" in different:
        different.remove("mode")
        presets.append(f"precision was {_precision(had)}, is now {_precision(now)}")
    return presets + [f"{key} was {had.get(key)}, is now {now.get(key)}" for key in different]


def _precision(settings: Mapping[str, Any]) -> str:
    """A mode as the options of `extract` name it."""
    mode = settings.get("mode")
    return {"exact": "float32", "batched": "float32 --batched"}.get(str(mode), str(mode))


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def other_run(store: object, what: str, changes: Sequence[str]) -> str:
    """What is said of a store that this run cannot go on with.

    Args:
        what: how the store is another run's, such as `OTHER_SETTINGS`.
    """
    return f"{store} {what}: {', '.join(changes[:3])}; repeat the earlier command, or choose a new folder"
