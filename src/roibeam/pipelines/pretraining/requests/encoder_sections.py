"""The sections of `--set` that a run through the region encoder has, with their defaults. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roibeam.extraction.choice.detector_choice import ChosenDetector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.pipelines.pretraining.end_to_end.settings import LabelledRules, PhotoRules
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedEncoder
from roibeam.pipelines.training.model_files.encoder_settings import (
    DEFAULT_ENCODER,
    TOY_ENCODER,
    EncoderOptions,
    choose_encoder,
)
from roibeam.pipelines.training.model_files.loss_weights import LossWeights


def requested_choice(asked: RequestedEncoder) -> ChosenDetector:
    """The detector whose encoder a run begins with that goes on from no other one.

    Raises:
        ValueError: as `choose_encoder`.
    """
    return choose_encoder(asked.detector or DEFAULT_ENCODER, asked.weights, asked.conventions)


def encoder_of(request: PretrainRequest, recipe: Recipe | None) -> RequestedEncoder:
    """What is asked for, with the detector of the recipe, or the toy's, where none is named."""
    published = TOY_ENCODER if request.model.toy else "" if recipe is None else recipe.detector
    return replace(request.encoder, detector=request.encoder.detector or published or None)


def sections_of_encoder(
    asked: RequestedEncoder,
    sizes: DetectorConfig,
    options: EncoderOptions,
    choices: EndToEndChoices,
    recipe: Recipe | None,
) -> dict[str, Any]:
    """
    Args:
        sizes, options, choices: those of the run that this one goes on from, if any.
        recipe: a published run; None for none.
    """
    photos = PhotoRules(skip_broken=asked.skip_missing_photos)
    if recipe is not None:
        options, photos = replace(options, **recipe.encoder), replace(photos, **recipe.photos)
    found = {"detector": sizes, "encoder": options, "photos": photos, "end_to_end": choices}
    if asked.labels is None:
        return found
    return found | {
        "labelled": LabelledRules(),
        "detection": LossWeights(),
        "detection_sampling": SamplingRules(),
        "detection_losses": LossRules(),
    }
