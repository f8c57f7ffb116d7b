"""Provenance of a model: training data of its run, and checks that a tokenizer or a store fits it. No torch.

The meaning of a store's features must match; other differences are noted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from roibeam.extraction.network.config import written_settings
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, feature_space_of, meaning_difference
from roibeam.features.record.region_record import FEATURE_DTYPES
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.data.feature_settings import choice_note

if TYPE_CHECKING:
    from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class HasSource(Protocol):
    """A checkpoint, read or not; `source` is the folder or file of its weights."""

    @property
    def source(self) -> Path: ...


@dataclass(frozen=True)
class TrainedWith:
    """Training data recorded by a checkpoint's run, in config.json beside the model's folder.

    Attributes:
        box_numbers: whether it put six numbers of each box behind the features; None without a run.
        object_classes: digest of the classes of objects that the model reads; None for none.
        features: the different fingerprints of its stores; empty if an earlier version recorded digests alone, and
            the stores have moved.
    """

    feature_space: str | None = None
    tokenizer: str | None = None
    captions: str | None = None
    step: int | None = None
    classes: str | None = None
    box_numbers: bool | None = None
    features: tuple[Fingerprint, ...] = ()
    object_classes: str | None = None


def trained_with(found: HasSource) -> TrainedWith:
    """Training data of a checkpoint; empty without a run."""
    config, state = (found.source.parent / name for name in ("config.json", "state.json"))
    if not (config.is_file() and state.is_file()):
        return TrainedWith()
    found_config = read_json_object(config)
    task, recorded = found_config.get("task", {}), found_config.get("recorded", {})
    if not isinstance(task, dict) or not isinstance(recorded, dict):
        raise ValueError(f"{config}: is damaged: task and recorded are not both objects")
    rules = [task.get(name, {}) for name in ("sampling", "layout")]
    step = read_json_object(state).get("step")
    return TrainedWith(
        task.get("feature_space"),
        task.get("tokenizer"),
        task.get("captions"),
        step,
        recorded.get("classes"),
        any(isinstance(each, dict) and each.get("box_numbers", False) for each in rules),
        _features(task, recorded, config),
        task.get("object_classes"),
    )


def check_object_classes(found: HasSource, names: Sequence[str]) -> None:
    """Raises ValueError if the model was trained with other classes of objects than `names`, for instance in another
    order; these lack that of the whole image, and are empty if the model reads none."""
    learned, digest = trained_with(found).object_classes, digest_of_names(names)
    if None not in (learned, digest) and learned != digest:
        raise ValueError(
            f"{found.source} was trained with other classes of objects: class 7 of one may differ in the other; "
            f"give the names of its run's, in their order (object_names)"
        )


def _features(task: Mapping[str, Any], recorded: Mapping[str, Any], config: Path) -> tuple[Fingerprint, ...]:
    if "features" not in recorded:
        return tuple(_features_of_stores(recorded))
    try:
        found = tuple(Fingerprint(**each) for each in recorded["features"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{config}: recorded.features was edited: {error}; put the file back") from None
    if not found and task.get("feature_space") is None:
        return ()  # of texts alone
    if not found or found[0].feature_space != task.get("feature_space"):
        raise ValueError(f"{config}: recorded.features is not of task.feature_space; put the file back")
    return found


def _features_of_stores(recorded: Mapping[str, Any]) -> Iterator[Fingerprint]:
    """Fingerprints for earlier versions, which recorded paths of stores and digests: the manifest with that digest."""
    for source in recorded.get("sources") or ():
        space, path = source.get("feature_space"), Path(source.get("store", "")) / STORE_MANIFEST_NAME
        try:
            fingerprint = StoreManifest.from_bytes(path.read_bytes(), str(path)).fingerprint
        except (OSError, ValueError):  # moved, or written anew
            continue
        if fingerprint.feature_space == space:
            yield Fingerprint(space, source.get("numerics", {}), fingerprint.details)


def digest_of_classes(store: FeatureStore) -> str | None:
    """SHA-256 (hex) of the names of a store's classes, None without classes."""
    return digest_of_names(store.vocabulary["classes"] or ())


def digest_of_names(names: Sequence[str]) -> str | None:
    """SHA-256 (hex) of names of classes in their order; None for none."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else None


def check_tokenizer(found: HasSource, tokenizer: CaptionTokenizer) -> None:
    """Checks that the model was trained with these pieces; a checkpoint without a run records none."""
    learned = trained_with(found).tokenizer
    if learned not in (None, tokenizer.digest):
        raise ValueError(
            f"the tokenizer ({tokenizer.description}) is not the one that {found.source} was trained with; leave "
            f"--tokenizer out, and its run's own is taken, or restore that from a copy of the run"
        )


def check_feature_space(found: HasSource, store: FeatureStore, *, reads_classes: bool = False) -> list[str]:
    """Checks that the model was trained on features such as the store has; a checkpoint without a run records none.

    Their meaning must match. The selection of boxes, the dtype and the mode may differ. Imported features record only
    the format and the names of their classes.

    Args:
        reads_classes: whether the classes of regions are predicted or read. Where a backbone makes the features, class
            names, which then are the detector's matter, are compared only if so.
    Returns:
        Allowed differences, in one line; empty without any.
    """
    run = trained_with(found)
    if run.feature_space is None:
        return []
    now = store.fingerprint
    known = run.features or _recomputed(run.feature_space, now)
    if not known or known[0].meaning != now.meaning:
        trained, space = run.feature_space[:24], now.feature_space[:24]
        what = meaning_difference(known[0], now) if known else ""
        raise ValueError(
            f"store {store.path} has features of the space {space}, {found.source} was trained on {trained}"
            f"{f' (different: {what})' if what else ''}; extract these images with the detector and options of its "
            f"training store{'' if known else _OLD_RUN_HINT}"
        )
    classes = digest_of_classes(store)
    is_read = reads_classes or "backbone" not in now.details
    if is_read and None not in (run.classes, classes) and run.classes != classes:
        raise ValueError(
            f"store {store.path} has other class names than that which {found.source} was trained on: class 7 of one "
            f"may be another thing in the other; extract or import these images with the same detector's vocabulary"
        )
    note = choice_note("the model was trained on", known, f"store {store.path} has", now)
    return [] if note is None else [note]


_OLD_RUN_HINT = "; if only the boxes differ, put that store back where it was"


def _recomputed(trained: str, now: Fingerprint) -> tuple[Fingerprint, ...]:
    """The fingerprint of a digest, if it is that of `now` in another dtype or with another published selection: the
    hash proves it. Empty for any other."""
    if trained == now.feature_space:
        return (Fingerprint(trained, {}, now.details),)
    if trained.startswith(IMPORTED_PREFIX):
        return (Fingerprint(trained),)
    if not now.details:
        return ()
    own = now.details.get("regions")
    presets = [json.loads(json.dumps(written_settings(preset))) for preset in SELECTIONS.values()]
    for regions, dtype in product([own, *presets], FEATURE_DTYPES):
        details = {**now.details, "regions": regions, "feature_dtype": dtype}
        if feature_space_of(details) == trained:
            return (Fingerprint(trained, {}, details),)
    return ()
