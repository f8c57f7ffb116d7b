"""A store made of records that were not extracted here: its fingerprint, and what it does not know."""

from __future__ import annotations

from typing import Any

from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint

ABSENT = "absent"
GIVEN = "given"


def imported_fingerprint(source_format: str, details: dict[str, Any]) -> Fingerprint:
    """`imported:<format>`: nobody here knows which weights and conventions made the features.

    Args:
        details: what is known; under "classes" and "attributes" where they come from, `ABSENT` when the source has none
            (class ids and scores of the records are then 0 and mean nothing); under "num_classes" how many foreground
            classes the detector has, where the source or its user tells.
    """
    for name in ("classes", "attributes"):
        if not isinstance(details.get(name), str):
            raise ValueError(f"details of an imported store say where its {name} come from; got {details.get(name)!r}")
    return Fingerprint(IMPORTED_PREFIX + source_format, {}, {"format": source_format, **details})


def num_classes_of(fingerprint: Fingerprint) -> int | None:
    """Foreground classes of the detector that a store is of; None where nobody told."""
    detector = fingerprint.details.get("detector", fingerprint.details)  # of an imported store it is not known
    count = detector.get("num_classes") if isinstance(detector, dict) else None
    return count if type(count) is int else None


def has_classes(fingerprint: Fingerprint) -> bool:
    """False when the class ids and scores of a store only fill their place: its source, or its network, had none."""
    imported = fingerprint.feature_space.startswith(IMPORTED_PREFIX)
    return not (imported and fingerprint.details.get("classes") == ABSENT) and num_classes_of(fingerprint) != 0


def named_fingerprint(name: str, *, classes: bool, attributes: bool, feature_dtype: str | None) -> Fingerprint:
    """`imported:<name>`, of records that a user wrote: the name is his word for what made the features.

    Args:
        classes, attributes: whether the records have any.
        feature_dtype: as stored; None without records.
    """
    has = {"classes": GIVEN if classes else ABSENT, "attributes": GIVEN if attributes else ABSENT}
    return Fingerprint(IMPORTED_PREFIX + name, {}, {**has, "feature_dtype": feature_dtype})
