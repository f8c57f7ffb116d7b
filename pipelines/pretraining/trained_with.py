"""What the run that a checkpoint is of was trained with, and whether a store goes with it."""

from __future__ import annotations

from dataclasses import dataclass

from features.store import FeatureStore
from pipelines.model_checkpoint import ModelCheckpoint, read_json_object


@dataclass(frozen=True)
class TrainedWith:
    """What the run that a checkpoint is of says of its data, in config.json beside the model's folder."""

    feature_space: str | None = None
    tokenizer: str | None = None
    captions: str | None = None
    step: int | None = None


def trained_with(found: ModelCheckpoint) -> TrainedWith:
    """Nothing of a checkpoint that is no run's."""
    config, state = (found.source.parent / name for name in ("config.json", "state.json"))
    if not (config.is_file() and state.is_file()):
        return TrainedWith()
    task = read_json_object(config).get("task", {})
    step = read_json_object(state).get("step")
    return TrainedWith(task.get("feature_space"), task.get("tokenizer"), task.get("captions"), step)


def check_feature_space(found: ModelCheckpoint, store: FeatureStore) -> None:
    """Whether the model was trained on features such as the store has; a checkpoint that is no run's does not tell.

    Raises:
        ValueError: when they are of another space: other numbers under the same name.
    """
    trained, space = trained_with(found).feature_space, store.fingerprint.feature_space
    if trained is not None and trained != space:
        raise ValueError(
            f"store {store.path} has features of the space {space[:24]}, {found.source} was trained on "
            f"{trained[:24]}; extract these images with the detector and options of its training store"
        )
