"""Detector training as a task of the one loop: labelled photos -> batches -> the losses of `DetectorTraining`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from roibeam.extraction.choice.detector_folder import describe_detector
from roibeam.extraction.detector import Detector
from roibeam.extraction.training.batch_losses import LOSSES, DetectionLosses, DetectorTraining
from roibeam.model.common.losses import SumCount
from roibeam.pipelines.common.statistics.verdict import Judged
from roibeam.pipelines.data.photos import LabelledPhotos
from roibeam.pipelines.training.detector.evaluation import evaluate_detector
from roibeam.pipelines.training.detector.labelled_batches import ComingPhoto, LabelledBatches, NamedBatch
from roibeam.pipelines.training.detector.settings import BEST_BY, PhotoRules
from roibeam.pipelines.training.parameter_groups import ParameterGroup


@dataclass(frozen=True, eq=False)
class DetectionOutput:
    """A `LossOutput`: sums over the photos of a batch, and what was hit."""

    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount]


def summed(found: DetectionLosses) -> DetectionOutput:
    """What a batch gave as sums and counts: each loss is averaged over the photos."""
    return DetectionOutput(
        {name: SumCount(row.sum(), torch.tensor(len(row), device=row.device)) for name, row in found.losses.items()},
        {name: SumCount(*pair) for name, pair in found.metrics.items()},
    )


class DetectorTask:
    """A `TrainTask` on `LabelledBatches`.

    Args:
        training: what is trained; its detector has as many classes and attributes as `photos` has names.
        seed: of everything random.
    Raises:
        ValueError: when detector and photos do not fit each other.
    """

    def __init__(self, training: DetectorTraining, photos: LabelledPhotos, rules: PhotoRules, *, seed: int) -> None:
        self._training, self._rules = training, rules
        self._description = describe_detector(
            training.config, training.conventions, photos.class_names, photos.attribute_names
        )
        self._photos = LabelledBatches(
            photos, training.config, training.conventions, flip=rules.flip, short_edges=rules.short_edges, seed=seed
        )

    @property
    def model(self) -> DetectorTraining:
        return self._training

    @property
    def batch_size(self) -> int:
        return self._rules.batch_size

    @property
    def num_samples(self) -> int:
        return self._photos.num_photos

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[NamedBatch]:
        places = self._photos.places(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)
        waiting: deque[list[ComingPhoto]] = deque()
        with ThreadPoolExecutor(self._rules.read_ahead, thread_name_prefix="photos") as pool:
            while True:
                while len(waiting) < 2:
                    waiting.append([self._photos.coming(pool, epoch, place) for epoch, place in next(places)])
                yield self._photos.collate(waiting.popleft())

    def counts(self, batch: NamedBatch) -> dict[str, int]:
        return dict.fromkeys(LOSSES, len(batch.photos))

    def losses(self, model: nn.Module, batch: NamedBatch) -> DetectionOutput:
        return summed(model(batch.photos))

    def parameter_groups(self) -> list[ParameterGroup]:
        return detector_groups(self._training)

    def sample_ids(self, batch: NamedBatch) -> Sequence[str]:
        return batch.image_ids

    def one_by_one(self, batch: NamedBatch) -> Iterator[NamedBatch]:
        return batch.one_by_one()

    def model_config(self) -> dict[str, Any]:
        """Makes the folder of the weights a detector's folder, see `extraction/choice/detector_folder.py`."""
        return self._description


class JudgedDetectorTask(DetectorTask):
    """A `DetectorTask` whose detector is judged on other photos at each evaluation.

    Args:
        judged: have the classes and attributes of `photos`.
        training, photos, rules, seed: as of `DetectorTask`.
    """

    def __init__(
        self,
        training: DetectorTraining,
        photos: LabelledPhotos,
        rules: PhotoRules,
        judged: LabelledPhotos,
        *,
        seed: int,
    ) -> None:
        super().__init__(training, photos, rules, seed=seed)
        self._judged = judged

    def evaluate(self) -> Judged:
        """As `roibeam detector evaluate` measures: `BEST_BY`, COCO's AP, and what the kept regions show."""
        training, judged = self._training, self._judged
        detector = Detector(
            training.config,
            training.conventions,
            backbone=training.backbone,
            proposal_generator=training.proposal_generator,
            roi_heads=training.roi_heads,
        )
        report = evaluate_detector(
            detector.eval(),
            judged.images,
            judged.root,
            class_names=judged.class_names,
            attribute_names=judged.attribute_names,
        )
        # Of boxes that are to be found nobody guesses any: attributes alone stand beside chance.
        values = {
            BEST_BY: report.objects.mean,
            "coco_precision": report.coco.ap,
            "object_recall": report.region_recall.recall,
        }
        attributes = [report.attribute_accuracy.figure] if judged.attribute_names else []
        return Judged([*Judged.of(values).figures, *attributes])


def detector_groups(part: nn.Module) -> list[ParameterGroup]:
    """Weights decay; biases and norms do not (detectron2's WEIGHT_DECAY_NORM 0, and Caffe's decay_mult 0 of biases).

    Args:
        part: a detector, or what is trained of one.
    """
    trained = [each for each in part.parameters() if each.requires_grad]
    return [
        {"params": [each for each in trained if each.ndim > 1]},
        {"params": [each for each in trained if each.ndim == 1], "weight_decay": 0.0},
    ]
