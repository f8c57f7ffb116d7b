"""Is a picture a natural photo? A `PictureJudge` of statistics of the file and, if trained so, of its regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.collection.judging.boosted_model import BoostedModel, read_boosted_model
from roibeam.pipelines.collection.judging.picture_statistics import NAMES, picture_statistics
from roibeam.pipelines.collection.judging.regions import Regions
from roibeam.pipelines.collection.pair import Picture

KIND = "pictures"
REGION_NAMES = ("regions", "sure regions", "best score", "mean of five scores", "pooled feature")
NAMES_WITH_REGIONS = (*NAMES, *REGION_NAMES)


class TrainedPictureJudge:
    """Reads its pictures' files; holds what `judges.PictureJudge` asks.

    Args:
        model: of `roibeam collect train-images`.
        regions: finds the regions of a picture, for a model that was trained with a store.
    Raises:
        ValueError: if the model needs regions and has none, or those of another detector.
    """

    def __init__(self, model: BoostedModel, regions: Regions | None = None) -> None:
        self._model = model
        self._regions = regions if model.pooled is not None else None
        self.threshold, self.fingerprint = model.threshold, model.fingerprint
        if model.pooled is not None:
            if regions is None:
                raise ValueError("this model of pictures was trained with regions: name the detector with --detector")
            check_names(model, regions)

    def score(self, pictures: Sequence[Picture]) -> list[float]:
        """One score 0..1 for each picture. A picture that cannot be decoded, or has no regions, gets 0."""
        paths = [picture.path for picture in pictures]
        records = [None] * len(paths) if self._regions is None else self._regions.records(paths)
        scores = []
        for path, record in zip(paths, records, strict=True):
            try:
                features = picture_features(Path(path).read_bytes(), record, self._model.pooled)
            except ValueError:  # whoever asked has decoded it; a file that no longer can be is no photo to keep
                scores.append(0.0)
                continue
            scores.append(float(self._model.score(features[None])[0]))
        return scores


def open_picture_judge(path: Path, regions: Regions | None = None) -> TrainedPictureJudge:
    """
    Args:
        path: a file of `roibeam collect train-images`.
    Raises:
        ValueError: if it is none, or does not go with the regions.
    """
    model = read_boosted_model(path, kind=KIND, features=(NAMES, NAMES_WITH_REGIONS))
    try:
        return TrainedPictureJudge(model, regions)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_names(model: BoostedModel, regions: Regions) -> None:
    """
    Raises:
        ValueError: where the regions' classes are others than in training.
    """
    if model.needs.get("names") != regions.names.digest:
        raise ValueError("this model was trained on regions of another detector; name the same one, or train it anew")


def picture_features(data: bytes, record: RegionRecord | None, pooled: np.ndarray | None) -> np.ndarray:
    """(21,) or (26,) float64: statistics of the file, and with `pooled` of its regions.

    Raises:
        ValueError: for a file that cannot be decoded, or regions whose features have another width.
    """
    statistics = picture_statistics(data)
    if pooled is None:
        return statistics
    value = float(pooled_feature(record, len(pooled) - 1) @ pooled[:-1] + pooled[-1])
    return np.append(statistics, [*region_facts(record), value])


def region_facts(record: RegionRecord | None) -> tuple[float, float, float, float]:
    """Regions, sure ones, best score, mean of the five best."""
    if record is None or not record.num_regions:
        return 0.0, 0.0, 0.0, 0.0
    best = np.sort(record.class_scores)[::-1]
    return float(len(best)), float((best >= 0.5).sum()), float(best[0]), float(best[:5].mean())


def pooled_feature(record: RegionRecord | None, width: int) -> np.ndarray:
    """(width,) float64: the mean of all regions; zeros without any.

    Raises:
        ValueError: if the features have another width.
    """
    if record is None or not record.num_regions:
        return np.zeros(width)
    if record.features.shape[1] != width:
        raise ValueError(f"features of width {record.features.shape[1]}, the model was trained on {width}")
    return record.features.astype(np.float64).mean(axis=0)
