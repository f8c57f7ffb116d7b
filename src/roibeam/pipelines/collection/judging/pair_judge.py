"""Does a text describe a picture? A `PairJudge` of text, regions and, if trained so, a match score."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.collection.judging.boosted_model import BoostedModel, read_boosted_model
from roibeam.pipelines.collection.judging.pair_features import NAMES, pair_features
from roibeam.pipelines.collection.judging.pair_words import NameReader
from roibeam.pipelines.collection.judging.picture_judge import check_names
from roibeam.pipelines.collection.judging.regions import Regions
from roibeam.pipelines.collection.pair import Pair

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.match_scores import MatchScores

KIND = "pairs"


class TrainedPairJudge:
    """Holds what `judges.PairJudge` asks.

    Args:
        model: of `roibeam collect train-pairs`.
        regions: finds the regions of a picture.
        match: scores of the pre-trained model that it was trained with; None where it was trained without.
    Raises:
        ValueError: if the detector or the pre-trained model is another one than in training.
    """

    def __init__(self, model: BoostedModel, regions: Regions, match: MatchScores | None = None) -> None:
        check_names(model, regions)
        wanted, given = model.needs.get("match"), None if match is None else match.fingerprint()
        if wanted != given:
            what = "without a match model, here is one" if wanted is None else "with another match model than here"
            raise ValueError(f"this model of pairs was trained {what}; name the one it was trained with, or none")
        self._model, self._regions, self._match = model, regions, match
        self._reader = NameReader(regions.names.classes or (), regions.names.attributes or ())
        self.threshold, self.fingerprint = model.threshold, model.fingerprint

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """One score 0..1 for each pair; pairs of one picture and page, one after another, are each other's context."""
        runs = [list(run) for _, run in groupby(pairs, key=lambda pair: (pair.picture.path, pair.page_url))]
        paths = list(dict.fromkeys(run[0].picture.path for run in runs))
        records = dict(zip(paths, self._regions.records(paths), strict=True))
        rows = []
        for run in runs:
            record = records[run[0].picture.path]
            for number, pair in enumerate(run):
                others = [other.text.text for place, other in enumerate(run) if place != number]
                rows.append(features_of(pair.text.text, others, record, self._reader, self._match))
        return self._model.score(np.array(rows)).tolist() if rows else []


def open_pair_judge(path: Path, regions: Regions, match: MatchScores | None = None) -> TrainedPairJudge:
    """
    Args:
        path: a file of `roibeam collect train-pairs`.
    Raises:
        ValueError: if it is none, or does not go with the regions or the match model.
    """
    model = read_boosted_model(path, kind=KIND, features=(NAMES,))
    try:
        return TrainedPairJudge(model, regions, match)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def features_of(
    text: str, others: Sequence[str], record: RegionRecord | None, reader: NameReader, match: MatchScores | None
) -> np.ndarray:
    """(42,) float64, see `pair_features`."""
    asked = match is not None and record is not None and record.num_regions > 0
    log_odds = match.log_odds(record, text) if asked and match is not None and record is not None else None
    return pair_features(text, others, record, reader, log_odds)
