"""What an end-to-end run does with the rest of the detector that its encoder is of: trains it, judges it, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.training.heads import DetectorHeads, load_heads, new_heads
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.data.photos import LabelledPhotos, check_same_names
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.pretraining.end_to_end.detector_change import JudgedPhotos
from roibeam.pipelines.pretraining.end_to_end.labelled_photos import LabelledStream
from roibeam.pipelines.pretraining.end_to_end.settings import LabelledRules
from roibeam.pipelines.training.detector.labelled_batches import LabelledBatches
from roibeam.pipelines.training.model_files.loss_weights import LossWeights


@dataclass(frozen=True, eq=False)
class DetectorPart:
    """Attributes:
        labelled: photos to train the detector on; None trains no detector.
        judged: held-out photos that it is judged on, before and after; None judges nothing.
        rules, weights, sampling, loss_rules: how it is trained.
        vocabulary: names of its classes and attributes, where its folder has them.
        start: heads of the run that this one goes on from, in place of those of a weight file.

    Raises:
        ValueError: when a photo is in both sets, or new heads have no labels to learn from.
    """

    labelled: LabelledPhotos | None
    judged: JudgedPhotos | None = None
    rules: LabelledRules = field(default_factory=LabelledRules)
    weights: LossWeights = field(default_factory=LossWeights)
    sampling: SamplingRules = field(default_factory=SamplingRules)
    loss_rules: LossRules = field(default_factory=LossRules)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    start: DetectorHeads | None = None

    def __post_init__(self) -> None:
        if self.rules.heads == "new" and self.labelled is None:
            raise ValueError("labelled.heads is 'new': heads that are drawn need photos to learn from; name --labels")
        if self.labelled is None or self.judged is None:
            return
        # By its boxes too: photos of two data sets may have one id.
        trained = {(image.image_id, image.boxes.tobytes()) for image in self.labelled.images}
        judged = self.judged.photos.images
        both = [image.image_id for image in judged if (image.image_id, image.boxes.tobytes()) in trained]
        if both:
            raise ValueError(
                f"{counted(len(both), 'photo')} of --judge-labels are trained on, such as {printable(both[0], 80)}: "
                f"what is measured there is no held-out mAP; name another split"
            )

    def sized(self, config: DetectorConfig) -> DetectorConfig:
        """The config with as many classes and attributes as the detector has: with new heads those of the labels."""
        if self.rules.heads != "new":
            return config
        assert self.labelled is not None
        classes, attributes = self.labelled.class_names, self.labelled.attribute_names
        return replace(config, num_classes=len(classes), num_attributes=len(attributes))

    def names(self, config: DetectorConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of classes and attributes, in id order.

        Raises:
            ValueError: when labels and detector do not mean the same by them.
        """
        judged = None if self.judged is None else self.judged.photos
        sets = [photos for photos in (self.labelled, judged) if photos is not None]
        first = sets[0]
        classes, attributes = first.class_names, first.attribute_names
        if self.rules.heads != "new":
            # A weight file has no names: where nobody tells others they are those of the labels.
            numbers = tuple(f"attribute {number}" for number in range(config.num_attributes))
            classes = self.vocabulary.classes or classes
            attributes = self.vocabulary.attributes or attributes or numbers
        if (len(classes), len(attributes)) != (config.num_classes, config.num_attributes):
            raise ValueError(
                f"the labels have {len(classes)} classes and {len(attributes)} attributes, the detector "
                f"{config.num_classes} and {config.num_attributes}; --set labelled.heads=new draws heads for the labels"
            )
        for photos in sets:
            check_same_names(photos, classes, attributes, "that the encoder is of")
        return classes, attributes

    def heads(self, config: DetectorConfig, conventions: Conventions, weights: str, *, seed: int) -> DetectorHeads:
        """As the run begins with them.

        Args:
            config: of `sized`.
            weights: that the encoder starts from.
        Raises:
            ValueError: when the file has no heads, or they do not fit.
            OSError: when it cannot be fetched.
        """
        if self.rules.heads == "new":
            made = new_heads(config, conventions, seed=seed)
        elif self.start is not None:
            made = self.start
        else:
            try:
                made = load_heads(weights, config, conventions)
            except ValueError as error:
                raise ValueError(f"{error}; --set labelled.heads=new draws heads for the labels") from None
        return made.to(memory_format=torch.channels_last)  # a third less time on a CPU

    def stream(self, config: DetectorConfig, conventions: Conventions, *, seed: int) -> LabelledStream | None:
        """The photos to train on; None where there are none."""
        if self.labelled is None:
            return None
        photos = LabelledBatches(
            self.labelled, config, conventions, flip=self.rules.flip, short_edges=self.rules.short_edges, seed=seed
        )
        return LabelledStream(photos, self.rules.photos_per_caption)

    def trained_ids(self) -> Iterator[str]:
        """Of the photos that are trained on."""
        return (image.image_id for image in (() if self.labelled is None else self.labelled.images))

    def notes(self) -> list[str]:
        """What of the labels is not here, and why."""
        sets = {"--labels": self.labelled, "--judge-labels": None if self.judged is None else self.judged.photos}
        return [
            f"left out of {option}: {count:,} x {reason}"
            for option, photos in sets.items()
            if photos is not None
            for reason, count in photos.left_out.items()
        ]

    def described(self) -> dict[str, Any]:
        """What a resumed run must have alike; nothing where no detector is trained."""
        if self.labelled is None:
            return {}
        parts: dict[str, Any] = {
            "labelled": self.rules,
            "detection": self.weights,
            "detection_sampling": self.sampling,
            "detection_losses": self.loss_rules,
        }
        return {"labels": self.labelled.digest, **{name: asdict(part) for name, part in parts.items()}}
