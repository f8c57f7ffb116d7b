"""Which boxes a store's features are of, and how exactly they are stored, in words; and what differs between two.

What features mean (`Fingerprint.meaning`) must match and is compared elsewhere. What is told here is never a reason to
refuse: every published protocol trains on other boxes than it is judged on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.pipelines.data.preset_names import selection_name

# How far a mode moves the feature of one box from that of exact, as BENCHMARKS.md has it.
_MODE_ERRORS = {
    "bf16": "in bf16 a feature has a cosine of 0.9989 or more to that of exact, 0.99997 on average",
    "tf32": "in tf32 a feature differs from that of exact by at most 2e-4 of the maximum",
}


def boxes_words(fingerprint: Fingerprint) -> str | None:
    """Such as "10 to 100 regions (butd-10-100)" or "given boxes"; None where nobody told."""
    choice = fingerprint.choice
    regions, filters = choice.get("regions"), choice.get("region_filters")
    words = None if regions is None else "given boxes" if regions == "given" else _selection_words(regions)
    if filters:
        told = "; ".join(_filter_words(each) for each in (filters if isinstance(filters, list) else [filters]))
        words = f"{words or 'regions'}, of them {told}"
    return words


def dtype_words(fingerprint: Fingerprint) -> str | None:
    """Such as "float16", or "float32 (rounded to float16 before)"; None where nobody told."""
    choice = fingerprint.choice
    dtype, rounded = choice.get("feature_dtype"), choice.get("rounded_to")
    if dtype is None:
        return None
    before = rounded if isinstance(rounded, list) else [rounded]
    return f"{dtype} (rounded to {', '.join(map(str, before))} before)" if rounded else str(dtype)


def choice_note(told_of: str, known: Sequence[Fingerprint], other: str, fingerprint: Fingerprint) -> str | None:
    """One line that says what differs in boxes, dtype and mode of two sides whose features mean the same; None where
    nothing does, or one side does not tell.

    Args:
        told_of: the one side, such as "the model was trained on".
        known: its features: where there are several, one of them is enough to agree with.
        other: the other side, such as "store b has".
        fingerprint: its features.
    """
    pairs, tails = [], ["region features mean the same"]
    for words in (boxes_words, dtype_words, _mode_words):
        mine = list(dict.fromkeys(told for each in known if (told := words(each)) is not None))
        yours = words(fingerprint)
        if mine and yours is not None and yours not in mine:
            pairs.append((" and ".join(mine), yours))
            if words is _mode_words:
                tails += [error for mode, error in _MODE_ERRORS.items() if mode in _modes(*known, fingerprint)]
    proposals = _different_proposals(known, fingerprint)
    if proposals is not None:
        pairs.append(proposals)
    if not pairs:
        return None
    left, right = (", ".join(side) for side in zip(*pairs, strict=True))
    return f"{told_of} {left}, {other} {right}: {'; '.join(tails)}"


def _selection_words(regions: Any) -> str:
    try:
        few, many = regions["min_regions"], regions["max_regions"]
        moved = ", boxes moved by their class" if regions["kept_box"] == "regressed" else ""
        return f"{many if few == many else f'{few} to {many}'} regions ({selection_name(regions)}){moved}"
    except (KeyError, TypeError):  # another code base's idea of a selection
        return f"regions {json.dumps(regions)}"


def _filter_words(chosen: Any) -> str:
    if not isinstance(chosen, dict):
        return json.dumps(chosen)
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value not in (None, 0))


def _modes(*fingerprints: Fingerprint) -> list[str]:
    found = (each.numerics.get("mode") for each in fingerprints)
    return [str(mode) for modes in found if modes for mode in (modes if isinstance(modes, list) else [modes])]


def _mode_words(fingerprint: Fingerprint) -> str | None:
    modes = _modes(fingerprint)
    return f"mode {' and '.join(modes)}" if modes else None


def _different_proposals(known: Sequence[Fingerprint], fingerprint: Fingerprint) -> tuple[str, str] | None:
    """The fields that differ, where both sides chose among proposals."""
    yours: dict[str, Any] = fingerprint.choice.get("proposals", {})
    mine: list[dict[str, Any]] = [found for each in known if (found := each.choice.get("proposals"))]
    if not yours or not mine or yours in mine:
        return None
    names = [name for name in sorted(yours.keys() | mine[0].keys()) if yours.get(name) != mine[0].get(name)]
    left, right = (
        " ".join(f"{name.rpartition('.')[2]} {json.dumps(side.get(name))}" for name in names if name != "cell_anchors")
        for side in (mine[0], yours)
    )
    own = ("anchors of its own", "other anchors")
    return (f"proposals by {left}", f"proposals by {right}") if left else own
