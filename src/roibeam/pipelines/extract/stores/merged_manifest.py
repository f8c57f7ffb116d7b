"""What several stores have in common, and so what the store made of them says of itself beside its records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roibeam.features.comparison.feature_spaces import space_difference
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, merged_numerics
from roibeam.features.record.imported import has_classes
from roibeam.features.record.region_record import TopKDistribution
from roibeam.features.shard.record_change import RecordChange
from roibeam.features.store import FeatureStore


@dataclass(frozen=True)
class MergedText:
    """What the new store's manifest states beside its shards."""

    config: dict[str, Any]
    classes: tuple[str, ...] | None
    attributes: tuple[str, ...] | None


def merged_fingerprint(stores: Sequence[FeatureStore], change: RecordChange) -> Fingerprint:
    """The fingerprint of the copy; ValueError when the sources' records do not belong into one store."""
    first = change.fingerprint(stores[0].fingerprint, stores[0].feature_dtype)
    for store in stores:
        other = change.fingerprint(store.fingerprint, store.feature_dtype)
        if (other.feature_space, other.details) != (first.feature_space, first.details):
            how = space_difference(first, other, {}) or _different_details(first, other)
            # A store states one choice of boxes and one dtype for all of its records; a mixture of two would state
            # neither. Training takes both side by side instead, and says what differs.
            why = "features of two detectors, conventions or dtypes do not mix (--dtype makes dtypes equal)"
            if other.meaning == first.meaning and not first.feature_space.startswith(IMPORTED_PREFIX):
                why = (
                    "they mean the same, but a store has boxes of one choice and one dtype (--dtype makes dtypes "
                    "equal); train on both with --store given for each"
                )
            raise ValueError(
                f"{stores[0].folder} and {store.folder} have different feature spaces{f' ({how})' if how else ''}; "
                f"{why}"
            )
        if change.regions is not None and not has_classes(store.fingerprint):
            raise ValueError(
                f"{store.folder} has no class scores (its source had none), so its regions cannot be chosen by them; "
                f"leave out --min-score, --min-regions and --max-regions"
            )
    widths = {store.feature_dim: store for store in stores if len(store)}
    if len(widths) > 1:
        found = ", ".join(f"{store.folder}: {width}" for width, store in widths.items())
        raise ValueError(f"the sources have features of different widths ({found}); one store holds one width")
    _check_distributions(stores, change)
    numerics = merged_numerics(store.fingerprint.numerics for store in stores)
    return Fingerprint(first.feature_space, numerics, first.details)


def _different_details(left: Fingerprint, right: Fingerprint) -> str:
    """Of imported stores: which details differ."""
    keys = left.details.keys() | right.details.keys()
    return ", ".join(sorted(key for key in keys if left.details.get(key) != right.details.get(key)))


def _check_distributions(stores: Sequence[FeatureStore], change: RecordChange) -> None:
    """Readers expect one kind of class distribution in a store; the first record of each source tells its kind."""
    if change.distribution != "keep" or len(stores) == 1:
        return
    kinds: dict[str, FeatureStore] = {}
    for store in stores:
        image_id = next(store.ids(), None)
        if image_id is not None:
            kept = store.get(image_id, copy=False).class_distribution
            kind = "none" if kept is None else "full"
            if isinstance(kept, TopKDistribution):
                kind = f"top-{kept.class_ids.shape[1]}"
            kinds.setdefault(kind, store)
    if len(kinds) > 1:
        found = ", ".join(f"{store.folder}: {kind}" for kind, store in kinds.items())
        raise ValueError(f"the sources hold different class distributions ({found}); --distribution makes them equal")


def merged_text(stores: Sequence[FeatureStore], change: RecordChange) -> MergedText:
    """What all sources say stays in its place in the configuration; what one says goes beside its name, under "copy".

    Raises:
        ValueError: when two name classes or attributes differently.
    """
    configs = [store.manifest.config for store in stores]
    common = {
        key: value
        for key, value in configs[0].items()
        if key != "copy" and all(other.get(key) == value for other in configs)
    }
    origins = [
        {
            "location": str(store.folder) if store.folder.local_path is None else os.path.abspath(store.path),
            "content_digest": store.manifest.content_digest,
            "feature_space": store.fingerprint.feature_space,
            "records": len(store),
            "config": {key: value for key, value in config.items() if key not in common},
        }
        for store, config in zip(stores, configs, strict=True)
    ]
    if isinstance(common.get("options"), dict):  # what a run wrote; the copy's records are otherwise now
        changed = {"feature_dtype": change.dtype, "distribution": change.distribution}
        changed = {key: value for key, value in changed.items() if value not in (None, "keep")}
        common["options"] = {**common["options"], **changed}
    config = {**common, "copy": {"sources": origins}}
    return MergedText(config, _names(stores, "classes"), _names(stores, "attributes"))


def _names(stores: Sequence[FeatureStore], which: str) -> tuple[str, ...] | None:
    known = {getattr(store.manifest, which): store for store in stores if getattr(store.manifest, which) is not None}
    if len(known) > 1:
        paths = " and ".join(str(store.folder) for store in known.values())
        raise ValueError(f"{paths} name their {which} differently; their ids do not mean the same")
    return next(iter(known), None)
