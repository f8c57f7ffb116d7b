"""A request's photos and encoder as one `EndToEnd`, and as sections of `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roibeam.extraction.network.conventions import Conventions
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.pipelines.data.photos import look_once, open_labelled_photos
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.pretraining.end_to_end.detector_change import JudgedPhotos
from roibeam.pipelines.pretraining.end_to_end.detector_part import DetectorPart
from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.encoder_sections import requested_choice, sections_of_encoder
from roibeam.pipelines.pretraining.requests.request import RequestedEncoder
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, region_encoder_of
from roibeam.pipelines.training.model_files.joint_detector import JointDetector
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint


def encoder_sections(
    asked: RequestedEncoder, whole_image: str, start: ModelCheckpoint | None, recipe: Recipe | None = None
) -> dict[str, Any]:
    """The sections of `--set` with their defaults: those of the run that this one goes on from, if any.

    Args:
        whole_image: see `System`.
        recipe: a published run, whose encoder and photos are others than the usual ones.
    Raises:
        ValueError: when options are missing or contradict each other.
    """
    if isinstance(start, JointCheckpoint):
        _check_brings_encoder(asked, start)
        encoder = region_encoder_of(start.joint)
        sizes, options = (
            encoder.config,
            EncoderOptions(frozen_stages=encoder.frozen_stages, mask_channels=encoder.mask_channels),
        )
        choices = start.joint.choices
    else:
        sizes = requested_choice(asked).config
        options, choices = EncoderOptions(), EndToEndChoices(whole_image=whole_image)
    return sections_of_encoder(asked, sizes, options, choices, recipe)


def requested_encoder(asked: RequestedEncoder, sections: Mapping[str, Any], start: ModelCheckpoint | None) -> EndToEnd:
    """
    Args:
        sections: of `encoder_sections`, as the user changed them.
    Raises:
        ValueError: when labels cannot be read, or a photo is to be trained on and judged.
        OSError: when labels cannot be read.
    """
    chosen = {"choices": sections["end_to_end"], "photos": sections["photos"], "encoder": sections["encoder"]}
    config = sections["detector"]
    if not isinstance(start, JointCheckpoint):
        encoder = requested_choice(asked)
        part = _detector_part(
            asked, sections, Vocabulary(encoder.class_names, encoder.attribute_names), encoder.conventions
        )
        return EndToEnd(config, encoder.conventions, encoder.weights, asked.images, detector=part, **chosen)
    own, names = region_encoder_of(start.joint), Vocabulary()
    if isinstance(start.joint, JointDetector):
        names = Vocabulary(start.joint.class_names, start.joint.attribute_names or None)
    part = _detector_part(asked, sections, names, own.conventions)
    if part is not None and isinstance(start.joint, JointDetector):
        part = replace(part, start=start.joint.detection)
    if part is not None and part.start is None and part.rules.heads == "weights":
        raise ValueError(
            f"{start.source} has no detector's heads: it was trained without --labels; "
            f"--set labelled.heads=new draws heads for the labels"
        )
    return EndToEnd(config, own.conventions, str(start.source), asked.images, start=own, detector=part, **chosen)


def _check_brings_encoder(asked: RequestedEncoder, start: JointCheckpoint) -> None:
    named = [name for name in ("detector", "weights", "conventions") if getattr(asked, name) is not None]
    if named:
        raise ValueError(
            f"--{named[0]}: {start.source} brings its region encoder; leave it out, or start from a model alone"
        )


def _detector_part(
    asked: RequestedEncoder, sections: Mapping[str, Any], vocabulary: Vocabulary, conventions: Conventions
) -> DetectorPart | None:
    judged = labelled = None
    exif = conventions.exif_orientation
    if asked.judge_labels is not None:
        photos = open_labelled_photos(asked.judge_labels, image_root=asked.judge_images, vocab=asked.labels_vocab)
        most = asked.judge_photos
        photos = look_once(photos.once(), exif, is_trained_on=False, option="--judge-photos", most=most)
        judged = JudgedPhotos(photos, most)
    if asked.labels is not None:
        labelled = open_labelled_photos(asked.labels, image_root=asked.labels_images, vocab=asked.labels_vocab)
        labelled = look_once(labelled, exif, is_trained_on=True, option="--labels-photos")
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
