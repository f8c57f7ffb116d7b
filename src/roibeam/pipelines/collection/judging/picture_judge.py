"""Is a picture a natural photo? A `PictureJudge` of statistics of the file and, if trained so, of its regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roibeam.pipelines.collection.judging.boosted_model import BoostedModel, read_boosted_model
from roibeam.pipelines.collection.judging.picture_features import NAMES, NAMES_WITH_REGIONS, picture_features
from roibeam.pipelines.collection.judging.regions import Regions
from roibeam.pipelines.collection.pair import Picture

KIND = "pictures"


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
