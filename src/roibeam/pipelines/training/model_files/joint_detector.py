"""A model, its region encoder and the rest of the detector that the encoder is of, trained together.

rows, photos ----> region encoder -> model ---------------> the system's losses
labelled photos -> the same backbone -> RPN, res5, heads -> the detector's losses, weighted
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.training.batch import DetectionBatch
from roibeam.extraction.training.batch_losses import LOSSES, DetectorTraining
from roibeam.extraction.training.heads import DetectorHeads
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.training.detector.task import summed
from roibeam.pipelines.training.model_files.loss_weights import LossWeights

PREFIX = "detection_"  # of the detector's losses and metrics among those of the model


class JointDetector(EndToEndModel):
    """An `EndToEndModel` that also learns from labelled photos, through the same backbone and last stage.

    Args:
        model, region_encoder, choices: as of `EndToEndModel`. Its frozen stages are frozen for the detector too.
        heads: of the detector.
        class_names, attribute_names: of the detector, in id order.
        sampling, loss_rules, weights: None means the defaults.
    """

    def __init__(
        self,
        model: Any,
        region_encoder: RegionEncoder,
        choices: EndToEndChoices,
        heads: DetectorHeads,
        *,
        class_names: Sequence[str],
        attribute_names: Sequence[str],
        sampling: SamplingRules | None = None,
        loss_rules: LossRules | None = None,
        weights: LossWeights | None = None,
    ) -> None:
        super().__init__(model, region_encoder, choices)
        self.detection = heads
        self.class_names, self.attribute_names = tuple(class_names), tuple(attribute_names)
        self.weights = weights or LossWeights()
        training = DetectorTraining(
            heads.detector(region_encoder),
            sampling=sampling,
            loss_rules=loss_rules,
            frozen_stages=region_encoder.frozen_stages,
        )
        # In a tuple, so that it is no part of the state: all that it trains is a part of this module already.
        self._training = (training,)

    def forward(
        self, batch: VLBatch, images: ImageBatch, *arguments: Any, labelled: DetectionBatch | None = None
    ) -> Any:
        """As of `EndToEndModel`.

        Args:
            labelled: adds the detector's losses and metrics on these photos. In one call with the others: data-parallel
                training looks for gradients once.
        """
        output = super().forward(batch, images, *arguments)
        if labelled is None:
            return output
        found = self.detect(labelled)
        return PreTrainingOutput({**output.losses, **found.losses}, {**output.metrics, **found.metrics})

    def detect(self, labelled: DetectionBatch) -> PreTrainingOutput:
        """The detector's losses on labelled photos, times their weights, and its metrics."""
        (training,) = self._training
        found = summed(training(labelled))
        losses = {
            PREFIX + name: SumCount(getattr(self.weights, name) * term.total, term.count)
            for name, term in found.losses.items()
        }
        return PreTrainingOutput(losses, {PREFIX + name: term for name, term in found.metrics.items()})

    @staticmethod
    def loss_counts(labelled: DetectionBatch) -> dict[str, int]:
        """What each of the detector's losses is averaged over."""
        return dict.fromkeys((PREFIX + name for name in LOSSES), len(labelled))
