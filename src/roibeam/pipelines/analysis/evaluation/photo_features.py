"""Features of this moment in the batches of an evaluation: a checkpoint's own region encoder on the records' photos."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from roibeam.features.counted import counted
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, region_encoder_of
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint


@dataclass(frozen=True, eq=False)
class _PhotoRow:
    """What one photo gave.

    Attributes:
        boxes: (R, 4) float32, clipped to the photo.
        features: (R, D) float32, or (1 + R, D) with that of the whole image first.
    """

    boxes: Tensor
    features: Tensor


class PhotoFeatures:
    """Puts the encoder's features into batches, with masked regions hidden as in the model's training.

    Each photo runs by itself, so that padding and neighbours change nothing. Of whole photos the features are kept in a
    temporary file, since a search asks for them again and again.

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
        """Of the features of whole photos; gone when nobody holds it."""
        return tempfile.TemporaryFile(dir=self._scratch)

    @torch.inference_mode()
    def __call__(self, batch: VLBatch) -> VLBatch:
        """
        Args:
            batch: on the CPU, with boxes and features of the store; every row has an image.
        Returns:
            the same rows: features are the encoder's; stored ones are what a model that regresses features is asked.
        Raises:
            PhotoError: for a photo that cannot be used.
        """
        rows = [self._row(batch, row) for row in range(batch.batch_size)]
        first = int(self._with_whole_image)
        features = torch.zeros(*batch.region_mask.shape, self._encoder.feature_dim)
        boxes = torch.zeros_like(batch.region_boxes)
        for number, row in enumerate(rows):
            features[number, : len(row.boxes)] = row.features[first:]
            boxes[number, : len(row.boxes)] = row.boxes
        whole = torch.stack([row.features[0] for row in rows]) if self._with_whole_image else None
        targets = batch.region_features if self._joint.regresses_features else batch.region_feature_targets
        return replace(
            batch,
            region_features=features,
            region_boxes=boxes,
            whole_image_features=whole,
            region_feature_targets=targets,
        )

    def _row(self, batch: VLBatch, row: int) -> _PhotoRow:
        image_id, count = batch.sample_ids[row], int(batch.region_mask[row].sum())
        hides = bool(batch.masked_regions[row].any()) and self._joint.choices.masked_pixels == "blank"
        if not hides and image_id in self._kept:
            return self._read(image_id)
        made = self._made(batch, row, count)
        if not hides:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(made.features.numpy().tobytes())
            self._kept[image_id] = (place, made.boxes)
        return made

    def _read(self, image_id: str) -> _PhotoRow:
        place, boxes = self._kept[image_id]
        width = self._encoder.feature_dim
        self._file.seek(place)
        raw = self._file.read((len(boxes) + self._with_whole_image) * width * 4)
        return _PhotoRow(boxes, torch.from_numpy(np.frombuffer(raw, np.float32).reshape(-1, width).copy()))

    def _made(self, batch: VLBatch, row: int, count: int) -> _PhotoRow:
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
        return _PhotoRow(made.regions["region_boxes"][0], features.float().cpu())


def features_for(
    found: ModelCheckpoint,
    store: FeatureStore,
    image_ids: Iterable[str],
    images: str | None,
    *,
    scratch: Path,
    device: torch.device,
) -> PhotoFeatures | None:
    """Those of the photos, of a model that was read with its region encoder; None leaves the store's.

    Args:
        images, scratch, device: as of `RecordPhotos` and `PhotoFeatures`.
    Raises:
        ValueError: for photos that are missing, or that this model does not read.
    """
    if isinstance(found, JointCheckpoint):
        photos = open_photos(store, image_ids, images)
        return PhotoFeatures(found.joint, photos, scratch=scratch, device=device)
    if images is not None:
        raise ValueError(f"{found.source} reads stored features; leave --photos out")
    return None


def open_photos(store: FeatureStore, image_ids: Iterable[str], folder: str | None) -> RecordPhotos:
    """The photos of all these images.

    Args:
        folder: as of `RecordPhotos`.
    Raises:
        ValueError: when one is missing: with fewer images a search is easier.
    """
    ids = list(image_ids)
    photos = RecordPhotos(store, ids, folder)
    if missing := photos.missing():
        image_id, why = next(iter(missing.items()))
        raise ValueError(
            f"{counted(len(missing), 'image')} of {len(ids):,} without a photo, such as {image_id!r}: {why}; this "
            f"model reads photos: name their folder with --photos"
        )
    return photos
