"""A detector's training as settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.pipelines.data.compatibility import check_least
from roibeam.pipelines.training.train_config import TrainConfig

BEST_BY = "average_precision"  # of an evaluation while training: mAP@0.5, as Visual Genome is judged


@dataclass(frozen=True)
class DetectorPhotoRules:
    """Batch settings of photos.

    Attributes:
        batch_size: photos per micro-batch and process.
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance (multi-scale training). () means the
            detector's own short edge. The detector's limit of the long edge holds for all.
        read_ahead: threads that read and resize the next batch's photos while one is trained on.
    """

    batch_size: int = 2
    flip: bool = True
    short_edges: tuple[int, ...] = ()
    read_ahead: int = 2

    def __post_init__(self) -> None:
        check_least(self, batch_size=1, read_ahead=1)
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"short_edges must be pixels, 16 or more, got {list(self.short_edges)}")


@dataclass(frozen=True)
class Start:
    """A detector's weights before its training.

    Attributes:
        weights: a whole detector's file; or its folder, from which a detector of other classes takes all but the
            class layers; or None.
        resnet: a file whose ResNet is taken (of ImageNet, of a detector of other classes), or None: the heads start
            from scratch.
        frozen_stages: stages without gradients, see `DetectorTraining`. Bottom-up attention and detectron2 freeze
            1 and 2 when they start from weights.

    With either file the norms are frozen; with neither everything is trained, norms too.
    """

    weights: str | None = None
    resnet: str | None = None
    frozen_stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.weights is not None and self.resnet is not None:
            raise ValueError("give the weights of a whole detector or of a ResNet, not both")
        if self.weights is None and self.resnet is None and self.frozen_stages:
            raise ValueError(
                f"frozen_stages {list(self.frozen_stages)}: stages that start from scratch must be trained"
            )


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of a detector's training; `config` has the numbers of classes and attributes of the photos."""

    config: DetectorConfig
    conventions: Conventions
    train: TrainConfig
    start: Start = Start()
    photos: DetectorPhotoRules = field(default_factory=DetectorPhotoRules)
    sampling: SamplingRules = field(default_factory=SamplingRules)
    losses: LossRules = field(default_factory=LossRules)
