"""What a store's features mean, and how they were computed: two answers, because they are compared differently."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roibeam.short_repr import short_repr

IMPORTED_PREFIX = "imported:"


@dataclass(frozen=True)
class Fingerprint:
    """Attributes:
        feature_space: 64 hex digits from `feature_space_of`, or "imported:<format>" for a store that another code base
            extracted. A model must match it: features of another space are other numbers under the same name.
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
