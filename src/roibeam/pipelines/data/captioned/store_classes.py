"""What the stores of a run tell of the classes of their regions: how many there are, and whether there are any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from roibeam.features.record.imported import has_classes, num_classes_of
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.store import FeatureStore


def known_classes(store: FeatureStore, record: RegionRecord) -> int | None:
    """Foreground classes of the store's detector; None where neither its names, a record, nor its manifest tell."""
    names = store.vocabulary["classes"]
    if names:
        return len(names)
    count = store.manifest.config.get("num_classes")
    if type(count) is int:  # without names, as `StoreWriter` was told
        return count
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    return num_classes_of(store.fingerprint) if distribution is None else distribution.shape[1] - 1


@dataclass(frozen=True)
class StoreClasses:
    """
    Attributes:
        number: foreground classes, of one store and so of all; None where nobody tells, or a store has no class ids.
        has_ids: whether the class ids of all stores mean something.
        missing: what is not known and why, for people; "" where the number is.
        remedy: what would change that.
    """

    number: int | None
    has_ids: bool = True
    missing: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, stores: Iterable[tuple[FeatureStore, RegionRecord]], given: int | None) -> StoreClasses:
        """
        Args:
            stores: each with one of its records.
            given: what the user says; None for nothing.
        Raises:
            ValueError: when two of them differ, or the user counts classes of a store that has none.
        """
        number, told_by = given, f"--num-classes says {given}"
        for store, record in stores:
            if not has_classes(store.fingerprint):
                source = store.fingerprint.details.get("format")
                why = "its detector is a ResNet alone" if source is None else f"its {source} file had none"
                missing = f"store {store.path} has no class ids ({why})"
                if given is not None:
                    raise ValueError(f"--num-classes {given}: {missing}; leave the option out")
                return cls(None, False, missing, "a file with class ids or roibeam extract gives them")
            own = known_classes(store, record)
            if None not in (number, own) and number != own:
                remedy = "leave the option out" if given is not None else "train on stores of one detector"
                raise ValueError(f"store {store.path} is of a detector of {own} classes, {told_by}; {remedy}")
            if number is None and own is not None:
                number, told_by = own, f"{store.path} of one of {own}"
        if number is not None:
            return cls(number)
        missing = f"store {store.path} does not say how many classes its detector has"
        return cls(None, True, missing, "say it with --num-classes (1600 of Visual Genome, background not counted)")
