"""Models opened for evaluation: the model, its tokenizer, its run and training images, and region features of photos.

A checkpoint with a region encoder of its own computes the features of an evaluation's batches from the records' photos.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining, SingleStreamForTasks
from roibeam.model.visualbert.model import VisualBertForGrounding, VisualBertForLabels, VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.pipelines.analysis.requests import AttentionRequest, EvaluateRequest
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    JointCheckpoint,
    load_model_or_joint,
    region_encoder_of,
)
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.provenance import check_tokenizer, trained_with
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.run_folder.training_data import trained_among


def run_of(found: ModelCheckpoint) -> Path:
    """Returns the folder of the run: the model lies in RUN/checkpoints/step-00000100/model."""
    return found.source.parents[2]


def trained_images_among(found: ModelCheckpoint, image_ids: Sequence[str]) -> list[str] | None:
    """Returns the ids that the checkpoint's run was trained on; None where that is not recorded."""
    return None if trained_with(found).step is None else trained_among(run_of(found), image_ids)


# Models that predict masked words, masked regions and matches, as far as their configuration gives them the heads.
PRETRAINING_MODELS: tuple[type[PreTrainedModel], ...] = (
    VLBertForPreTraining,
    ViLbertForPreTraining,
    SingleStreamForPreTraining,
    VisualBertForPreTraining,
    ImageBertForPreTraining,
    InterBertForPreTraining,
)
# Tasks of fine-tuned models. Some of them are a pre-training class too and keep its heads, but training on a task
# leaves those behind: their predictions look right and are not.
TASK_MODELS: Mapping[type[PreTrainedModel], str] = MappingProxyType(
    {
        VLBertForVqa: "VQA",
        VLBertForVcr: "VCR",
        VLBertForReferring: "RefCOCO+",
        ViLbertForTasks: "VQA, VCR, RefCOCO+ or retrieval",
        ViLbertForMultiTask: "twelve tasks at once",
        SingleStreamForTasks: "VQA, VCR or RefCOCO+",
        VisualBertForLabels: "VQA, VCR or NLVR2",
        VisualBertForGrounding: "Flickr30k Entities",
        InterBertForTasks: "VCR, retrieval or other tasks",
    }
)
NO_MATCH_HEAD = (
    "this model has no match head; models of roibeam pretrain have one with --system visualbert, imagebert, vilbert, "
    "vilbert-single-stream or interbert, and with --system vlbert --model paper-small"
)


def pretraining_model(found: ModelCheckpoint, *, named: str, verb: str) -> Any:
    """Returns the checkpoint's model, which predicts masked words, masked regions and matches.

    Args:
        verb: for errors, such as "probe".
    Raises:
        ValueError: for a model with the heads of another task.
    """
    kind = type(found.model)
    if kind not in PRETRAINING_MODELS:
        tasks = TASK_MODELS.get(kind, "tasks that are not known here")
        raise ValueError(
            f"{named}: {kind.__name__} is fine-tuned for {tasks}; it no longer predicts masked words, masked regions "
            f"and matches; {verb} the pre-trained model that it began from"
        )
    if classes := getattr(found.model.config, "num_region_classes", 0):
        raise ValueError(
            f"{named}: this VisualBERT reads the class of each region (num_region_classes {classes}), which is not "
            f"known here; fine-tune it on VCR, whose files give the classes, and evaluate it there"
        )
    return found.model


def load_requested(request: EvaluateRequest | AttentionRequest, verb: str) -> tuple[ModelCheckpoint, CaptionTokenizer]:
    """The checkpoint and the tokenizer of a request, on its number of threads.

    Args:
        verb: of `pretraining_model`.
    """
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    with waiting("loading the model"):
        found = load_model_or_joint(request.checkpoint, options=request.config)
    pretraining_model(found, named=request.checkpoint, verb=verb)  # before a tokenizer is needed
    return found, tokenizer_of(found, request.tokenizer)


def feature_assumptions(found: ModelCheckpoint, record: RegionRecord) -> list[str]:
    """Notes on assumptions about how the model reads a store's record; a line each."""
    if trained_with(found).box_numbers is not None or found.as_read(record) is record:
        return []
    return [
        f"{found.source} does not record its input: it is six numbers wider than the store's features, so the six "
        "numbers of each region's box are appended, as in VisualBERT's release for Flickr30k"
    ]


def tokenizer_of(found: ModelCheckpoint, given: str | None = None) -> CaptionTokenizer:
    """The tokenizer that is given, else that beside the checkpoint. Raises ValueError when there is none, or it is not
    the one that the model was trained with."""
    if not given and found.tokenizer is None:
        raise ValueError(f"--tokenizer is missing: {found.source} has none beside it")
    tokenizer = load_tokenizer(given or str(found.tokenizer))
    check_tokenizer(found, tokenizer)
    return tokenizer


class PhotoFeatures:
    """Puts the encoder's features into batches, with masked regions hidden as in the model's training.

    Each photo runs by itself, so that padding and neighbours change nothing. Features of unmasked photos are kept in a
    temporary file, since a search reads them again and again.

    Args:
        joint: in evaluation mode.
        photos: of all images that batches will name.
        scratch: folder with room for the features of whole photos, 4 bytes a number.
        device: where the encoder runs, and stays.
    """

    def __init__(self, joint: EndToEndModel, photos: RecordPhotos, *, scratch: Path, device: torch.device) -> None:
        self._joint, self._photos, self._device = joint, photos, device
        self._encoder = region_encoder_of(joint).to(device)
        self._scratch = scratch
        self._kept: dict[str, tuple[int, Tensor]] = {}  # by image: where its features begin, bytes, and its boxes
        self._with_whole_image = joint.choices.whole_image == "box"

    @cached_property
    def _file(self) -> IO[bytes]:
        """Temporary file for whole-photo features; deleted when closed."""
        return tempfile.TemporaryFile(dir=self._scratch)

    @torch.inference_mode()
    def __call__(self, batch: VLBatch) -> VLBatch:
        """
        Args:
            batch: on the CPU, with boxes and features of the store; every row has an image.
        Returns:
            the same rows: features are the encoder's; stored ones are the targets of a model that regresses features.
        """
        rows = [self._row(batch, row) for row in range(batch.batch_size)]
        first = int(self._with_whole_image)
        features = torch.zeros(*batch.region_mask.shape, self._encoder.feature_dim)
        boxes = torch.zeros_like(batch.region_boxes)
        for number, (boxes_of_row, features_of_row) in enumerate(rows):
            features[number, : len(boxes_of_row)] = features_of_row[first:]
            boxes[number, : len(boxes_of_row)] = boxes_of_row
        whole = torch.stack([features_of_row[0] for _, features_of_row in rows]) if self._with_whole_image else None
        targets = batch.region_features if self._joint.regresses_features else batch.region_feature_targets
        return replace(
            batch,
            region_features=features,
            region_boxes=boxes,
            whole_image_features=whole,
            region_feature_targets=targets,
        )

    def _row(self, batch: VLBatch, row: int) -> tuple[Tensor, Tensor]:
        """(R, 4) float32 boxes of a photo, clipped to it, and its (R, D) float32 features, or (1 + R, D) with that of
        the whole image first."""
        image_id, count = batch.sample_ids[row], int(batch.region_mask[row].sum())
        hides = bool(batch.masked_regions[row].any()) and self._joint.choices.masked_pixels == "blank"
        if not hides and image_id in self._kept:
            place, boxes = self._kept[image_id]
            width = self._encoder.feature_dim
            self._file.seek(place)
            raw = self._file.read((len(boxes) + self._with_whole_image) * width * 4)
            return boxes, torch.from_numpy(np.frombuffer(raw, np.float32).reshape(-1, width).copy())
        boxes, features = self._made(batch, row, count)
        if not hides:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(features.numpy().tobytes())
            self._kept[image_id] = (place, boxes)
        return boxes, features

    def _made(self, batch: VLBatch, row: int, count: int) -> tuple[Tensor, Tensor]:
        height, width = batch.image_hw[row].int().tolist()
        pixels = self._photos.read(self._photos.place(batch.sample_ids[row], (height, width)))
        made = photo_inputs(
            [pixels],
            [batch.region_boxes[row, :count].numpy()],
            [batch.masked_regions[row, :count].numpy()],
            self._encoder,
            self._joint.choices,
        )
        regions: dict[str, Any] = dict(made.regions)
        alone = replace(
            batch.row(row),
            **regions,
            region_features=batch.region_features[row : row + 1, :count],
            region_targets=None,
            region_target_mask=None,
        )
        found = self._joint.with_features(alone.to(self._device), made.images.to(self._device))
        features = found.region_features[0]
        if self._with_whole_image:
            features = torch.cat([cast(Tensor, found.whole_image_features), features])
        return made.regions["region_boxes"][0], features.float().cpu()


def features_for(
    found: ModelCheckpoint,
    store: FeatureStore,
    image_ids: Iterable[str],
    images: str | None,
    *,
    scratch: Path,
    device: torch.device,
) -> PhotoFeatures | None:
    """Returns features of photos, for a model that was read with its region encoder; None leaves the store's.

    Args:
        images, scratch, device: as of `RecordPhotos` and `PhotoFeatures`.
    """
    if isinstance(found, JointCheckpoint):
        photos = RecordPhotos.of_all(store, image_ids, images)
        return PhotoFeatures(found.joint, photos, scratch=scratch, device=device)
    if images is not None:
        raise ValueError(f"{found.source} reads stored features; leave --photos out")
    return None
