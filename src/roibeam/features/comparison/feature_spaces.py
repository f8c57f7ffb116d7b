"""What differs between two feature spaces, in a few words: from what their fingerprints say they are the hashes of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint

# Conventions that the head weights are kept in the order and scale of, so that one file has a digest for each of them:
# the fields of extraction/weights/head_layout.py::HeadLayout.
LAYOUT_CONVENTIONS = (
    "background", "no_attribute", "region_delta_weights", "region_deltas", "objectness", "anchor_order",
)  # fmt: skip
_SHOWN_FIELDS = 3
_LONGEST_VALUE = 24  # letters; longer ones, such as digests, are not shown


def space_difference(left: Fingerprint, right: Fingerprint, names: Mapping[str, tuple[str, str]]) -> str:
    """Such as "conventions caffe / hf, weights, selection (max_regions 100 / 36)"; left before right.

    Args:
        names: part -> how the two sides call it as a whole, such as {"conventions": ("caffe", "hf")}; parts without
            such names are told by their fields.
    Returns:
        "" when a side has no details, is imported (nobody knows what it was made with), or nothing differs.
    """
    if any(not one.details or one.feature_space.startswith(IMPORTED_PREFIX) for one in (left, right)):
        return ""
    first, second = _parts(left.details), _parts(right.details)
    found = []
    for part in sorted(first.keys() | second.keys()):
        mine, yours = first.get(part), second.get(part)
        if mine == yours:
            continue
        called = names.get(part)
        if called is not None and called[0] != called[1]:
            found.append(f"{part} {called[0]} / {called[1]}")
        elif isinstance(mine, dict) and isinstance(yours, dict):
            found.append(f"{part} ({_fields(mine, yours)})")
        else:
            found.append(f"{part}{_values(mine, yours)}")
            if part == "weights" and _may_be_one_network(first, second):
                found[-1] += " (perhaps only in the order of their rows, which these conventions set)"
    return ", ".join(found)


def meaning_difference(left: Fingerprint, right: Fingerprint) -> str:
    """As `space_difference`, of what a model must match alone: not the choice of boxes, nor the dtype."""
    if left.meaning == right.meaning:
        return ""
    one, other = (
        one
        if one.feature_space.startswith(IMPORTED_PREFIX)
        else Fingerprint(one.meaning, {}, one.meaning_details if one.details else {})
        for one in (left, right)
    )
    return space_difference(one, other, {})


def _parts(details: Mapping[str, Any]) -> dict[str, Any]:
    """The details with those of the detector beside them, under the words that the command line has for them."""
    detector = details.get("detector")
    parts = {key: value for key, value in details.items() if key != "detector"}
    parts |= detector if isinstance(detector, dict) else {"detector": detector}
    if isinstance(config := parts.get("config"), dict):
        parts = {key: value for key, value in parts.items() if key not in config}  # counts of classes stand in both
    words = {"config": "network", "regions": "selection", "cell_anchors": "anchors"}
    return {words.get(key, key).replace("_", " "): value for key, value in parts.items()}


def _may_be_one_network(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether weights of another digest may be those of one file, brought into the layout of other conventions."""
    layouts = [
        [conventions.get(name) for name in LAYOUT_CONVENTIONS] if isinstance(conventions, dict) else []
        for conventions in (left.get("conventions"), right.get("conventions"))
    ]
    sizes = ("network", "num classes", "num attributes", "feature dim")
    return layouts[0] != layouts[1] and all(left.get(part) == right.get(part) for part in sizes)


def _fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    keys = [key for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
    shown = [f"{key}{_values(left.get(key), right.get(key))}" for key in keys[:_SHOWN_FIELDS]]
    return ", ".join([*shown, f"{len(keys) - _SHOWN_FIELDS} more"] if len(keys) > _SHOWN_FIELDS else shown)


def _values(left: Any, right: Any) -> str:
    """ " 20 / 1600"; "" where one is long or a table of its own."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (left, right)]
    plain = all(not isinstance(value, dict) for value in (left, right))
    return f" {texts[0]} / {texts[1]}" if plain and max(map(len, texts)) <= _LONGEST_VALUE else ""
