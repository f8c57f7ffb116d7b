"""Fingerprint of a store: what its features mean, which boxes have one, and how they were computed.

Three answers, because they are compared differently. `imported_fingerprint` and `named_fingerprint` are those of
records that were not extracted here, with what is not known of them; `space_difference` says in a few words what
differs between two feature spaces, from the fields that their fingerprints are hashes of.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roibeam.messages import short_repr

IMPORTED_PREFIX = "imported:"

# Settings that only decide which boxes are proposed, and not the feature of a box: PROPOSAL_SIZES and
# PROPOSAL_FIELDS of the detector.
PROPOSAL_PARTS = {
    "config": ("proposals_before_nms", "proposals_after_nms", "proposal_nms_iou"),
    "conventions": (
        "anchor_sides", "anchor_offset", "proposal_delta_weights", "proposal_filter", "min_proposal_side",
        "nms_comparison", "nms_sides",
    ),
}  # fmt: skip
# Choice of boxes, and precision of the stored features. "boxes" is what found and named the boxes where a backbone of
# its own makes the vectors.
CHOICE_PARTS = ("regions", "region_filters", "feature_dtype", "rounded_to", "boxes")


@dataclass(frozen=True)
class Fingerprint:
    """Attributes:
        feature_space: 64 hex digits from `feature_space_of`, or "imported:<format>" for a store that another code base
            extracted. Parts of one store have one. Stores of two may still go together: see `meaning`.
        numerics: torch version, device kind, threads, mode ...: recorded and warned about, since these move features by
            about 1e-5 of their maximum only.
        details: what `feature_space` is the hash of (conventions, selection, weights hash, dtype, width, vocabulary),
            so that a mismatch can be named field by field; may be empty.

    Raises:
        ValueError: when `feature_space` has neither form, or is not the hash of non-empty `details`.
    """

    feature_space: str
    numerics: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def meaning(self) -> str:
        """Digest that a model must match: 64 hex digits over `meaning_details`, or "imported:<format>".

        Features of one box are equal numbers in two stores of one meaning, up to their dtype and numerics. It is
        computed from `details` and stored nowhere, so that old stores have it too.
        """
        imported = self.feature_space.startswith(IMPORTED_PREFIX)
        return self.feature_space if imported else feature_space_of(self.meaning_details)

    @property
    def meaning_details(self) -> dict[str, Any]:
        """`details` without what decides which boxes there are, and in which dtype: network, weights, conventions,
        whole-photo feature, vocabulary, and whatever else stands there. Without details the space stands for them."""
        if not self.details:
            return {"feature_space": self.feature_space}
        found = {name: value for name, value in self.details.items() if name not in CHOICE_PARTS}
        if isinstance(detector := found.get("detector"), dict):
            detector = {name: value for name, value in detector.items() if name != "cell_anchors"}
            for part, fields in PROPOSAL_PARTS.items():
                if isinstance(settings := detector.get(part), dict):
                    detector[part] = {name: value for name, value in settings.items() if name not in fields}
            found["detector"] = detector
        return found

    @property
    def choice(self) -> dict[str, Any]:
        """Choice of boxes ("regions", "region_filters", "proposals") and dtype, as far as known: recorded, displayed
        and logged, never refused."""
        found = {name: self.details[name] for name in CHOICE_PARTS if name in self.details}
        detector = self.details.get("detector")
        proposals: dict[str, Any] = {}
        # Proposals have no part in given boxes.
        if isinstance(detector, dict) and isinstance(found.get("regions"), dict):
            for part, fields in PROPOSAL_PARTS.items():
                if isinstance(settings := detector.get(part), dict):
                    proposals |= {f"{part}.{name}": settings[name] for name in fields if name in settings}
            if "cell_anchors" in detector:
                proposals["cell_anchors"] = detector["cell_anchors"]
        return found | ({"proposals": proposals} if proposals else {})

    def to_json(self) -> dict[str, Any]:
        """JSON for the folder of a run; `Fingerprint(**value)` makes it again."""
        return {"feature_space": self.feature_space, "numerics": self.numerics, "details": self.details}

    def __post_init__(self) -> None:
        # Tuples become lists, as they will be when read back: a fingerprint equals its own copy from a file.
        object.__setattr__(self, "numerics", json.loads(_canonical_json(self.numerics)))
        object.__setattr__(self, "details", json.loads(_canonical_json(self.details)))
        if re.fullmatch(IMPORTED_PREFIX + r"[a-z0-9][a-z0-9_.-]*", self.feature_space):
            return
        if not re.fullmatch(r"[0-9a-f]{64}", self.feature_space):
            raise ValueError(
                f"feature space {self.feature_space!r} is neither 64 hex digits nor {IMPORTED_PREFIX}<format>; "
                f"make it with feature_space_of"
            )
        if self.details and feature_space_of(self.details) != self.feature_space:
            raise ValueError(
                f"feature space {self.feature_space} is not the hash of its details; one of them was edited"
            )


def feature_space_of(details: dict[str, Any]) -> str:
    """SHA-256 (hex) of `details` as canonical JSON: sorted keys, no spaces, ASCII escapes, shortest float form;
    ValueError when `details` holds something JSON has no exact form for (NaN, bytes, keys that are not strings)."""
    return hashlib.sha256(_canonical_json(details).encode("ascii")).hexdigest()


def merged_numerics(all_numerics: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Numerics of all parts of a store: a field's value, or a list of the different ones."""
    seen: dict[str, list[Any]] = {}
    for numerics in all_numerics:
        for key, value in numerics.items():
            values = seen.setdefault(key, [])
            values += [each for each in (value if isinstance(value, list) else [value]) if each not in values]
    return {key: values[0] if len(values) == 1 else values for key, values in seen.items()}


def _canonical_json(value: dict[str, Any]) -> str:
    _check_keys(value)
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"fingerprint cannot be written as JSON: {error}") from None


def _check_keys(value: object) -> None:
    # json.dumps would turn the key 1 into "1" silently: two different configs, one hash.
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"fingerprint has the key {key!r}; keys are strings")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


ABSENT = "absent"
GIVEN = "given"


def imported_fingerprint(source_format: str, details: dict[str, Any]) -> Fingerprint:
    """`imported:<format>`: weights and conventions of the features are unknown.

    Args:
        details: what is known; under "classes" and "attributes" where they come from, `ABSENT` when the source has none
            (class ids and scores of the records are then 0 and mean nothing); under "num_classes" the number of
            foreground classes of the detector, where the source or its user gives it.
    """
    for name in ("classes", "attributes"):
        if not isinstance(details.get(name), str):
            raise ValueError(f"details of an imported store say where its {name} come from; got {details.get(name)!r}")
    return Fingerprint(IMPORTED_PREFIX + source_format, {}, {"format": source_format, **details})


def num_classes_of(fingerprint: Fingerprint) -> int | None:
    """Number of foreground classes of a store's detector; None if unknown."""
    count = detector_part(fingerprint).get("num_classes", fingerprint.details.get("num_classes"))
    return count if type(count) is int else None


def detector_part(fingerprint: Fingerprint) -> Mapping[str, Any]:
    """Record of the detector that found and named the boxes; empty for an imported store."""
    found = fingerprint.details.get("boxes", fingerprint.details.get("detector"))
    return found if isinstance(found, dict) else {}


def has_classes(fingerprint: Fingerprint) -> bool:
    """False when the class ids and scores of a store only fill their place: its source, or its network, had none."""
    imported = fingerprint.feature_space.startswith(IMPORTED_PREFIX)
    return not (imported and fingerprint.details.get("classes") == ABSENT) and num_classes_of(fingerprint) != 0


def has_grid(fingerprint: Fingerprint) -> bool:
    """Whether the regions of a store are the cells of a grid, all of them, row by row."""
    return fingerprint.details.get("regions") == "grid"


def named_fingerprint(name: str, *, classes: bool, attributes: bool, feature_dtype: str | None) -> Fingerprint:
    """`imported:<name>`, of records that a user wrote: the name is his word for what made the features.

    Args:
        classes, attributes: whether the records have any.
        feature_dtype: as stored; None without records.
    """
    has = {"classes": GIVEN if classes else ABSENT, "attributes": GIVEN if attributes else ABSENT}
    return Fingerprint(IMPORTED_PREFIX + name, {}, {**has, "feature_dtype": feature_dtype})


# Conventions that the head weights are kept in the order and scale of, so that one file has a digest for each of them:
# the fields of extraction/weights/families.py::HeadLayout.
LAYOUT_CONVENTIONS = (
    "background", "no_attribute", "region_delta_weights", "region_deltas", "objectness", "anchor_order",
)  # fmt: skip
_MAX_FIELDS = 3
_LONGEST_VALUE = 24  # letters; longer ones, such as digests, are left out


def space_difference(left: Fingerprint, right: Fingerprint, names: Mapping[str, tuple[str, str]]) -> str:
    """Difference such as "conventions caffe / hf, weights, selection (max_regions 100 / 36)"; left before right.

    Args:
        names: part -> how the two sides call it as a whole, such as {"conventions": ("caffe", "hf")}; parts without
            such names are described by their fields.
    Returns:
        "" when a side has no details, is imported (its origin is unknown), or nothing differs.
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
    """`space_difference` without the choice of boxes and the dtype, which a model need not match."""
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
    # Such as a field that came later and has its default, or one that does not matter for given boxes.
    parts = [f"{key}{_values(left.get(key, 'left out'), right.get(key, 'left out'))}" for key in keys[:_MAX_FIELDS]]
    return ", ".join([*parts, f"{len(keys) - _MAX_FIELDS} more"] if len(keys) > _MAX_FIELDS else parts)


def _values(left: Any, right: Any) -> str:
    """ " 20 / 1600"; "" where one is long or a table of its own."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (left, right)]
    plain = all(not isinstance(value, dict) for value in (left, right))
    return f" {texts[0]} / {texts[1]}" if plain and max(map(len, texts)) <= _LONGEST_VALUE else ""
