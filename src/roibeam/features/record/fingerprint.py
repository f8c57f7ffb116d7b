"""What a store's features mean, which boxes have one, and how they were computed: three answers, because they are
compared differently."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roibeam.short_repr import short_repr

IMPORTED_PREFIX = "imported:"

# What only decides which boxes are proposed, and so has no part in the feature of a box: PROPOSAL_SIZES and
# PROPOSAL_FIELDS of the detector.
PROPOSAL_PARTS = {
    "config": ("proposals_before_nms", "proposals_after_nms", "proposal_nms_iou"),
    "conventions": (
        "anchor_sides", "anchor_offset", "proposal_delta_weights", "proposal_filter", "min_proposal_side",
        "nms_comparison",
    ),
}  # fmt: skip
# Which boxes have a record, and how exactly their features are stored.
CHOICE_PARTS = ("regions", "region_filters", "feature_dtype", "rounded_to")


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
        """What a model must match: 64 hex digits over `meaning_details`, or "imported:<format>".

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
        """Which boxes were chosen ("regions", "region_filters", "proposals") and the dtype, as far as it is known:
        recorded, shown and told, never refused."""
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
        """For the folder of a run, from which `Fingerprint(**value)` makes it again."""
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
    """SHA-256 (hex) of `details` as canonical JSON: sorted keys, no spaces, ASCII escapes, shortest float form.

    Raises:
        ValueError: when `details` holds something JSON has no exact form for (NaN, bytes, keys that are not strings).
    """
    return hashlib.sha256(_canonical_json(details).encode("ascii")).hexdigest()


def merged_numerics(all_numerics: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """How the parts of a store were computed: a field's value, or a list of the different ones."""
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
