"""Predictions made by several processes. A process of `run_ranks` finds what it is to do in a file like this alone: the
name of a test's own module can be imported only where the folder of the repository is on the path."""

from dataclasses import dataclass

from roibeam.pipelines.finetuning.requests import PredictRequest
from roibeam.pipelines.finetuning.run import predict_run


@dataclass(frozen=True)
class Predicting:
    """A run of prediction in parts of one group, to be called in a process of its own."""

    request: PredictRequest

    def __call__(self) -> None:
        predict_run.PART_GROUPS = 1
        predict_run.run_prediction(self.request)
