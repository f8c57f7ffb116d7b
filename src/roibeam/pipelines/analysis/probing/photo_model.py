"""A model with its region encoder on one photo, to be asked like any other model: what it is not to see is blanked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of


class PhotoModel:
    """What a probe asks of a `PreTrainingModel`, for batches of one row with the boxes of this photo.

    Args:
        joint: in evaluation mode, with pre-training heads.
        photo: (height, width, 3) uint8, channel order B, G, R.
    """

    def __init__(self, joint: EndToEndModel, photo: np.ndarray) -> None:
        self._joint, self._photo = joint, photo
        self._model = cast(PreTrainingModel, joint.model)

    @property
    def device(self) -> torch.device:
        """Where the model is: batches belong there too."""
        return next(self._joint.parameters()).device

    @property
    def config(self) -> Any:
        return self._model.config

    def encode(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """As `PreTrainingModel.encode`; features are made of the photo, with the batch's masked regions hidden."""
        made = photo_inputs(
            [self._photo],
            [batch.region_boxes[0].cpu().numpy()],
            [batch.masked_regions[0].cpu().numpy()],
            region_encoder_of(self._joint),
            self._joint.choices,
        )
        regions: dict[str, Any] = dict(made.regions)
        whole = replace(batch, **regions).to(self.device)
        images = made.images.to(self.device)
        return self._joint.encode(whole, images, with_attention=with_attention, with_states=with_states)

    def word_logits(self, states: Tensor) -> Tensor:
        return self._model.word_logits(states)

    def region_logits(self, states: Tensor) -> Tensor | None:
        return self._model.region_logits(states)

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        return self._model.match_log_odds(output)
