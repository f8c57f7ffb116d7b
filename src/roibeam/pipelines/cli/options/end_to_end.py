"""What `roibeam pretrain --end-to-end` is told on the command line beside captions and store, as one `EndToEnd`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint
    from roibeam.pipelines.pretraining.end_to_end.detector_part import DetectorPart
    from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd
    from roibeam.pipelines.sources.vocabulary import Vocabulary

DEFAULT_ENCODER = "vg-r101-c4-600"  # VL-BERT's sizes

LABELS = typer.Option(
    help="End to end: photos with labelled objects, as in `roibeam detector train`. The detector that the encoder is "
    "of learns from them in the same steps; its losses are added to the model's, see --set detection.",
    show_default=False,
)
LABELS_IMAGES = typer.Option(help="Folder of the photos of --labels [default: that of the labels].", show_default=False)
JUDGE_LABELS = typer.Option(
    help="End to end: held-out photos with labelled objects, on which the detector's mAP is measured before and after.",
    show_default=False,
)
JUDGE_IMAGES = typer.Option(
    help="Folder of the photos of --judge-labels [default: that of the labels].", show_default=False
)
JUDGE_PHOTOS = typer.Option(min=1, help="Judge the first so many photos only [default: all].", show_default=False)
LABELS_VOCAB = typer.Option(
    help="Folder of objects_vocab.txt and attributes_vocab.txt, for labels of Visual Genome [default: that of the "
    "labels].",
    show_default=False,
)


@dataclass(frozen=True)
class EndToEndOptions:
    """As the user gave them; None and False for what was left out."""

    images: str | None = None
    detector: str | None = None
    weights: str | None = None
    conventions: str | None = None
    skip_missing_photos: bool = False
    labels: str | None = None
    labels_images: str | None = None
    labels_vocab: str | None = None
    judge_labels: str | None = None
    judge_images: str | None = None
    judge_photos: int | None = None

    def refuse(self) -> None:
        """Raises ValueError, of a run on stored features, when any was given."""
        given = [field.name for field in fields(self) if getattr(self, field.name)]
        if given:
            raise ValueError(
                f"--{given[0].replace('_', '-')} is for --end-to-end; stored features need no photos and no encoder"
            )

    def sections(self, whole_image: str, start: ModelCheckpoint | None) -> dict[str, Any]:
        """The sections of `--set` with their defaults: those of the run that this one goes on from, if any.

        Raises:
            ValueError: when options are missing or contradict each other.
        """
        from roibeam.extraction.training.losses import LossRules
        from roibeam.extraction.training.targets import SamplingRules
        from roibeam.model.end_to_end import EndToEndChoices
        from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, region_encoder_of
        from roibeam.pipelines.model_files.joint_detector import LossWeights
        from roibeam.pipelines.pretraining.data.labelled_photos import LabelledRules
        from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EncoderOptions, choose_encoder
        from roibeam.pipelines.pretraining.end_to_end.end_to_end_task import PhotoRules

        if isinstance(start, JointCheckpoint):
            named = [name for name in ("detector", "weights", "conventions") if getattr(self, name) is not None]
            if named:
                raise ValueError(
                    f"--{named[0]}: {start.source} brings its region encoder; leave it out, or start from a model alone"
                )
            encoder = region_encoder_of(start.joint)
            sizes, options = encoder.config, EncoderOptions(frozen_stages=encoder.frozen_stages)
            choices = start.joint.choices
        else:
            sizes = choose_encoder(self.detector or DEFAULT_ENCODER, self.weights, self.conventions).config
            options, choices = EncoderOptions(), EndToEndChoices(whole_image=whole_image)
        found: dict[str, Any] = {
            "detector": sizes,
            "encoder": options,
            "photos": PhotoRules(skip_broken=self.skip_missing_photos),
            "end_to_end": choices,
        }
        self._check_labels()
        if self.labels is not None:
            found |= {
                "labelled": LabelledRules(),
                "detection": LossWeights(),
                "detection_sampling": SamplingRules(),
                "detection_losses": LossRules(),
            }
        return found

    def _check_labels(self) -> None:
        for option, needed in (
            ("labels_images", self.labels),
            ("judge_images", self.judge_labels),
            ("judge_photos", self.judge_labels),
            ("labels_vocab", self.labels or self.judge_labels),
        ):
            if getattr(self, option) is not None and needed is None:
                name = "--labels" if option.startswith("labels") else "--judge-labels"
                raise ValueError(f"--{option.replace('_', '-')} is for {name}; name the labels, or leave it out")

    def end_to_end(self, sections: Mapping[str, Any], start: ModelCheckpoint | None) -> EndToEnd:
        """
        Args:
            sections: of `sections`, as the user changed them.
        Raises:
            ValueError: when labels cannot be read, or a photo is to be trained on and judged.
            OSError: when labels cannot be read.
        """
        from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, region_encoder_of
        from roibeam.pipelines.model_files.joint_detector import JointDetector
        from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd, choose_encoder
        from roibeam.pipelines.sources.vocabulary import Vocabulary

        chosen = {"choices": sections["end_to_end"], "photos": sections["photos"], "encoder": sections["encoder"]}
        config = sections["detector"]
        if not isinstance(start, JointCheckpoint):
            encoder = choose_encoder(self.detector or DEFAULT_ENCODER, self.weights, self.conventions)
            part = self._detector(sections, encoder.vocabulary)
            return EndToEnd(config, encoder.conventions, encoder.weights, self.images, detector=part, **chosen)
        own, names = region_encoder_of(start.joint), Vocabulary()
        if isinstance(start.joint, JointDetector):
            names = Vocabulary(start.joint.class_names, start.joint.attribute_names or None)
        part = self._detector(sections, names)
        if part is not None and isinstance(start.joint, JointDetector):
            part = replace(part, start=start.joint.detection)
        if part is not None and part.start is None and part.rules.heads == "weights":
            raise ValueError(
                f"{start.source} has no detector's heads: it was trained without --labels; "
                f"--set labelled.heads=new draws heads for the labels"
            )
        return EndToEnd(config, own.conventions, str(start.source), self.images, start=own, detector=part, **chosen)

    def _detector(self, sections: Mapping[str, Any], vocabulary: Vocabulary) -> DetectorPart | None:
        from roibeam.pipelines.detector.photos import open_labelled_photos
        from roibeam.pipelines.pretraining.end_to_end.detector_change import JudgedPhotos
        from roibeam.pipelines.pretraining.end_to_end.detector_part import DetectorPart

        judged = labelled = None
        if self.judge_labels is not None:
            photos = open_labelled_photos(self.judge_labels, image_root=self.judge_images, vocab=self.labels_vocab)
            judged = JudgedPhotos(photos, self.judge_photos)
        if self.labels is not None:
            labelled = open_labelled_photos(self.labels, image_root=self.labels_images, vocab=self.labels_vocab)
        if labelled is None:
            return None if judged is None else DetectorPart(None, judged, vocabulary=vocabulary)
        return DetectorPart(
            labelled,
            judged,
            sections["labelled"],
            sections["detection"],
            sections["detection_sampling"],
            sections["detection_losses"],
            vocabulary,
        )
