"""`roibeam collect train-images`: labelled pictures -> a judge of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.answer_place import check_new
from roibeam.pipelines.collection.judging.boosted_model import BoostedModel
from roibeam.pipelines.collection.judging.boosting import (
    BoostingSettings,
    LabelledRows,
    check_extra,
    is_held_out,
    train_boosted,
)
from roibeam.pipelines.collection.judging.labelled_rows import LabelledImage, read_labelled_images
from roibeam.pipelines.collection.judging.picture_features import (
    NAMES,
    NAMES_WITH_REGIONS,
    picture_features,
    pooled_feature,
)
from roibeam.pipelines.collection.judging.picture_judge import KIND
from roibeam.pipelines.collection.judging.regions import StoredRegions
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.console.progress_text import Unit

_PICTURES = Unit("picture", "pictures")
_FOLDS = 5
_NO_FILE, _BROKEN, _NOT_STORED = "no such file", "cannot be decoded", "not in the store"  # why a picture is left out


@dataclass(frozen=True)
class TrainImagesRequest:
    """
    Attributes:
        labels: CSV with the columns image and label.
        out: file to write.
        store: regions of these pictures; None trains on statistics of the files alone.
        precision: wanted of the pictures that pass.
        seed: of the training.
    """

    labels: Path
    out: Path
    store: str | None = None
    precision: float = 0.99
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """The model that was written, and rows that could not be used, by reason."""

    model: BoostedModel
    left_out: dict[str, int]


def train_images(request: TrainImagesRequest) -> TrainedJudge:
    """
    Raises:
        ValueError: if something cannot be read, or too little is labelled.
    """
    check_new(request.out)
    check_extra()
    rows = read_labelled_images(request.labels)
    if request.store is None:
        return _train(request, rows, None)
    with FeatureStore(request.store) as store:
        return _train(request, rows, StoredRegions(store, named=request.store), store.feature_dim)


def _train(
    request: TrainImagesRequest, rows: list[LabelledImage], regions: StoredRegions | None, width: int = 0
) -> TrainedJudge:
    found, pooled_NF, left_out = [], [], dict.fromkeys((_NO_FILE, _BROKEN, _NOT_STORED), 0)
    kept: list[LabelledImage] = []
    nothing = None if regions is None else np.zeros(width + 1)
    with Progress("reading pictures", len(rows), _PICTURES) as progress:
        for row in progress.counting(rows):
            record = None if regions is None else regions.records([str(row.path)])[0]
            if regions is not None and record is None:
                left_out[_NOT_STORED] += 1
                continue
            try:
                found.append(picture_features(row.path.read_bytes(), record, nothing))
            except (ValueError, OSError) as error:
                left_out[_NO_FILE if isinstance(error, FileNotFoundError) else _BROKEN] += 1
                continue
            kept.append(row)
            pooled_NF.append(pooled_feature(record, width))
    if not kept:
        told = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
        raise ValueError(f"{request.labels}: none of its pictures can be used: {told}; the first is {rows[0].path}")
    features, labels = np.array(found), np.array([row.label for row in kept])
    groups = [str(row.path) for row in kept]
    held = np.array([is_held_out(group) for group in groups])
    pooled = None
    if regions is not None:
        pooled, features[:, -1] = _pooled_direction(np.array(pooled_NF), labels, held)
    whole = LabelledRows(features, labels, groups, ["labelled"] * len(kept), np.ones(len(kept), bool))
    model = train_boosted(
        KIND, NAMES if regions is None else NAMES_WITH_REGIONS, whole, precision=request.precision,
        settings=BoostingSettings(trees=100, depth=3, seed=request.seed),
        needs={} if regions is None else {"names": regions.names.digest}, pooled=pooled,
    )  # fmt: skip
    model.write(request.out)
    return TrainedJudge(model, left_out)


def _pooled_direction(pooled_NF: np.ndarray, labels: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D + 1,) weights and offset of a logistic regression on the mean feature, and its (N,) log-odds.

    Rows that are trained on get those of a regression that did not see them: else the trees would believe them too
    much.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    mean, spread = pooled_NF[~held].mean(axis=0), pooled_NF[~held].std(axis=0) + 1e-6
    scaled = (pooled_NF - mean) / spread
    regression = LogisticRegression(C=0.01, max_iter=500)
    least = int(np.bincount(labels[~held].astype(int), minlength=2).min())
    if least < _FOLDS:
        raise ValueError(f"{least} pictures of one answer to train on, expected {_FOLDS} or more; label more pictures")
    values = np.empty(len(labels))
    values[~held] = cross_val_predict(regression, scaled[~held], labels[~held], cv=_FOLDS, method="decision_function")
    fitted = regression.fit(scaled[~held], labels[~held])
    weights = fitted.coef_[0] / spread
    direction = np.append(weights, fitted.intercept_[0] - mean @ weights)
    values[held] = pooled_NF[held] @ direction[:-1] + direction[-1]
    return direction, values
