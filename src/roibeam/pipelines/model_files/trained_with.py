"""What the run that a checkpoint is of was trained with, and whether a store or a tokenizer goes with it. No torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from roibeam.features.store import FeatureStore
from roibeam.pipelines.foundation.files.json_files import read_json_object

if TYPE_CHECKING:
    from roibeam.pipelines.model_files.tokenizer import CaptionTokenizer


class HasSource(Protocol):
    """A checkpoint, read or only looked at; `source` is the folder or file of its weights."""

    @property
    def source(self) -> Path: ...


@dataclass(frozen=True)
class TrainedWith:
    """What the run that a checkpoint is of says of its data, in config.json beside the model's folder."""

    feature_space: str | None = None
    tokenizer: str | None = None
    captions: str | None = None
    step: int | None = None
    classes: str | None = None


def trained_with(found: HasSource) -> TrainedWith:
    """Nothing of a checkpoint that is no run's."""
    config, state = (found.source.parent / name for name in ("config.json", "state.json"))
    if not (config.is_file() and state.is_file()):
        return TrainedWith()
    found_config = read_json_object(config)
    task, recorded = found_config.get("task", {}), found_config.get("recorded", {})
    step = read_json_object(state).get("step")
    return TrainedWith(
        task.get("feature_space"), task.get("tokenizer"), task.get("captions"), step, recorded.get("classes")
    )


def digest_of_classes(store: FeatureStore) -> str | None:
    """SHA-256 (hex) of the names of a store's classes, None where it has none."""
    names = store.vocabulary["classes"]
    return None if not names else hashlib.sha256("\n".join(names).encode()).hexdigest()


def check_feature_space(found: HasSource, store: FeatureStore) -> None:
    """Whether the model was trained on features such as the store has; a checkpoint that is no run's does not tell.

    Of imported features only the format and the names of their classes are known.

    Raises:
        ValueError: when they are of another space, other numbers under the same name; or classes have other names.
    """
    run = trained_with(found)
    trained, space = run.feature_space, store.fingerprint.feature_space
    if trained is not None and trained != space:
        raise ValueError(
            f"store {store.path} has features of the space {space[:24]}, {found.source} was trained on "
            f"{trained[:24]}; extract these images with the detector and options of its training store"
        )
    classes = digest_of_classes(store)
    if None not in (run.classes, classes) and run.classes != classes:
        raise ValueError(
            f"store {store.path} has other class names than that which {found.source} was trained on: class 7 of one "
            f"may be another thing in the other; extract or import these images with the same detector's vocabulary"
        )


def check_tokenizer(found: HasSource, tokenizer: CaptionTokenizer) -> None:
    """Whether the model was trained with these pieces; a checkpoint that is no run's does not tell.

    Raises:
        ValueError: when it was trained with others.
    """
    learned = trained_with(found).tokenizer
    if learned not in (None, tokenizer.digest):
        raise ValueError(
            f"the tokenizer ({tokenizer.description}) is not the one that {found.source} was trained with; leave "
            f"--tokenizer out, and its run's own is taken"
        )
