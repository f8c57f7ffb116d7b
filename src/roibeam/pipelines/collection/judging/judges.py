"""Judges of pictures and pairs: the trained models by file and name, which workers open.

Without a judge its step is off, and the run reports that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from roibeam.pipelines.collection.judging.boosted_model import read_boosted_model
from roibeam.pipelines.collection.judging.pair_features import NAMES
from roibeam.pipelines.collection.judging.pair_judge import TrainedPairJudge, open_pair_judge
from roibeam.pipelines.collection.judging.picture_judge import FoundRegions, TrainedPictureJudge, open_picture_judge

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.match_scores import MatchScores


@dataclass(frozen=True)
class JudgeFiles:
    """Both judges of a run, plain and picklable.

    Attributes:
        pictures: file of `roibeam collect train-images`; None for no such judge.
        pairs: file of `roibeam collect train-pairs`; None for no such judge.
        detector: finds the regions that they look at: "toy", or a folder of `roibeam detector train`.
        match_model: that the judge of pairs was trained with; None for none.
        device: auto, cpu, cuda or cuda:<n>.
    """

    pictures: Path | None = None
    pairs: Path | None = None
    detector: str | None = None
    match_model: str | None = None
    device: str = "auto"

    def check(self) -> None:
        """Reads the files and opens the judges, so that a mismatch is an error before a page is read.

        Without a match model nothing heavy is imported.
        """
        if self.pairs is not None:
            model = read_boosted_model(self.pairs, kind="pairs", features=(NAMES,))
            if self.detector is None:
                raise ValueError(f"{self.pairs}: a judge of pairs reads regions: name the detector with --detector")
            if model.needs.get("match") is None and self.match_model is not None:  # which would take seconds to open
                raise ValueError(f"{self.pairs}: trained without a match model: leave --match-model out")
            if model.needs.get("match") is not None and self.match_model is None:
                raise ValueError(f"{self.pairs}: trained with a match model: name it with --match-model")
        elif self.match_model is not None:
            raise ValueError("--match-model is for a judge of pairs: name one too")
        elif self.pictures is None and self.detector is not None:
            raise ValueError("--detector is for the judges: name --picture-judge or --pair-judge too")
        self.picture_judge()
        self.pair_judge()

    def picture_judge(self) -> TrainedPictureJudge | None:
        """Opens the judge of pictures; ValueError if it does not go with the detector."""
        return None if self.pictures is None else open_picture_judge(self.pictures, self._regions())

    def pair_judge(self) -> TrainedPairJudge | None:
        """Opens the judge of pairs; ValueError if it does not go with the detector or the match model."""
        regions = self._regions()
        if self.pairs is None or regions is None:
            return None
        return open_pair_judge(self.pairs, regions, _match(self.match_model, self.device))

    def _regions(self) -> FoundRegions | None:
        return None if self.detector is None else _found(self.detector, self.device)


# One detector and one model a process.
@cache
def _found(detector: str, device: str) -> FoundRegions:
    return FoundRegions(detector, device=device)


@cache
def _match(model: str | None, device: str) -> MatchScores | None:
    from roibeam.pipelines.collection.judging.match_scores import MatchScores
    from roibeam.pipelines.common.compute import choose_device

    return None if model is None else MatchScores(model, device=choose_device(device).name)
