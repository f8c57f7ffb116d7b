"""The region encoder that a fine-tuning run begins with."""

from __future__ import annotations

from roibeam.extraction.choice.detector_choice import ChosenDetector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.region_encoder import RegionEncoder, started_encoder
from roibeam.pipelines.finetuning.end_to_end.encoder_request import EncoderRequest
from roibeam.pipelines.training.model_files.encoder_settings import DEFAULT_ENCODER, EncoderOptions, choose_encoder


def task_encoder(
    asked: EncoderRequest, config: DetectorConfig, options: EncoderOptions, own: RegionEncoder | None
) -> RegionEncoder:
    """
    Args:
        own: of the run that this one starts from; None for what is asked.
    Raises:
        ValueError: when weights or options do not fit; OSError: when weights cannot be fetched.
    """
    if own is not None:
        return started_encoder(config, own.conventions, own, **options.of_network())
    chosen = chosen_encoder(asked)
    return started_encoder(config, chosen.conventions, chosen.weights, **options.of_network())


def chosen_encoder(asked: EncoderRequest) -> ChosenDetector:
    """The detector whose ResNet it is, where no run brings one.

    Raises:
        ValueError: as `choose_encoder`.
    """
    return choose_encoder(asked.detector or DEFAULT_ENCODER, asked.weights, asked.conventions)
