"""One row of a pre-training batch before padding, and rows to a `VLBatch`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from model.inputs import IGNORE_INDEX, VLBatch


@dataclass(frozen=True, eq=False, kw_only=True)
class PretrainSample:
    """One row of a batch, before padding. T text pieces, R regions, D feature width, C region targets' width.

    Attributes:
        sample_id: id of the image whose regions these are; of a row without an image, what to call it in an error
            message.
        text_ids, text_labels, text_segments: (T,) int64; labels are `IGNORE_INDEX` where nothing is predicted.
        features: (R, D) in the type of the store, also where the region is masked; boxes: (R, 4) float32, pixels.
        masked, predicted: (R,) bool, hidden from the model, and predicted by it.
        targets: (R, C) float32, what predicted regions are predicted to be, zeros elsewhere; None for a system that
            predicts no regions.
        whole_image: (D,) float32, the feature of the whole image with masked regions left out; None lets the model take
            the mean of its regions.
        global_feature: (G,) float32, the whole image as another network sees it, for a model that reads one.
        match: 1 = the caption belongs to the image, 0 = it does not, `IGNORE_INDEX` = not asked of this row; None for a
            run that does not ask.
        text_only: a row without an image: R is 0, `height` and `width` mean nothing. None for a run without such rows.
        height, width: of the image, pixels.
        region_images: (R,) int64, which of the row's images each region is from, for a row with several; `height` and
            `width` are those of the first.
        twin: one more row of the same caption and image, masked in another way; it comes right after this one.
        number: seed, epoch and row that it was drawn with.
    """

    sample_id: str
    text_ids: np.ndarray
    text_labels: np.ndarray
    text_segments: np.ndarray
    features: Tensor
    boxes: np.ndarray
    masked: np.ndarray
    predicted: np.ndarray
    targets: Tensor | None
    height: int
    width: int
    whole_image: Tensor | None = None
    global_feature: Tensor | None = None
    match: int | None = None
    text_only: bool | None = None
    region_images: np.ndarray | None = None
    twin: PretrainSample | None = None
    number: tuple[int, ...] = ()


def collate(samples: Sequence[PretrainSample], *, pad_id: int) -> VLBatch:
    """Pads samples of one system to one batch; optional fields are there when any row has them.

    A field that is there in one batch of a run must be there in all of them: losses are added up by name. So a run with
    rows of text alone says `text_only` and `match` of every row.
    """
    text = max(len(sample.text_ids) for sample in samples)
    regions = max(len(sample.boxes) for sample in samples)
    rows, width = len(samples), samples[0].features.shape[1]
    text_ids = torch.full((rows, text), pad_id, dtype=torch.long)
    text_labels = torch.full((rows, text), IGNORE_INDEX, dtype=torch.long)
    text_segments = torch.zeros(rows, text, dtype=torch.long)
    text_mask = torch.zeros(rows, text, dtype=torch.bool)
    features = _zeros(
        rows, regions, width, dtype=reduce(torch.promote_types, (each.features.dtype for each in samples))
    )
    boxes = torch.zeros(rows, regions, 4)
    region_mask, masked, predicted = (torch.zeros(rows, regions, dtype=torch.bool) for _ in range(3))
    labels = next((sample.targets.shape[1] for sample in samples if sample.targets is not None), None)
    targets = None if labels is None else _zeros(rows, regions, labels, dtype=torch.float32)
    with_whole_image = any(sample.whole_image is not None for sample in samples)
    whole_images = torch.zeros(rows, width) if with_whole_image else None
    several = any(sample.region_images is not None for sample in samples)
    region_images = torch.zeros(rows, regions, dtype=torch.long) if several else None
    global_features = [sample.global_feature for sample in samples if sample.global_feature is not None]
    for row, sample in enumerate(samples):
        pieces, count = len(sample.text_ids), len(sample.boxes)
        text_ids[row, :pieces] = torch.from_numpy(sample.text_ids)
        text_labels[row, :pieces] = torch.from_numpy(sample.text_labels)
        text_segments[row, :pieces] = torch.from_numpy(sample.text_segments)
        text_mask[row, :pieces] = True
        features[row, :count] = sample.features
        boxes[row, :count] = torch.from_numpy(sample.boxes)
        region_mask[row, :count] = True
        masked[row, :count] = torch.from_numpy(sample.masked)
        predicted[row, :count] = torch.from_numpy(sample.predicted)
        if targets is not None and sample.targets is not None:
            targets[row, :count] = sample.targets
        if whole_images is not None and sample.whole_image is not None:
            whole_images[row] = sample.whole_image
        if region_images is not None and sample.region_images is not None:
            region_images[row, :count] = torch.from_numpy(sample.region_images)
    matches = [IGNORE_INDEX if sample.match is None else sample.match for sample in samples]
    with_text_only = any(sample.text_only is not None for sample in samples)
    return VLBatch(
        text_ids=text_ids,
        text_mask=text_mask,
        text_segments=text_segments,
        region_features=features,
        region_boxes=boxes,
        region_mask=region_mask,
        image_hw=torch.tensor([[sample.height, sample.width] for sample in samples], dtype=torch.float32),
        masked_regions=masked,
        whole_image_features=whole_images,
        global_features=torch.stack(global_features) if global_features else None,
        text_labels=text_labels,
        region_targets=targets,
        region_target_mask=None if targets is None else predicted,
        match_labels=torch.tensor(matches) if any(sample.match is not None for sample in samples) else None,
        region_images=region_images,
        text_only=torch.tensor([bool(sample.text_only) for sample in samples]) if with_text_only else None,
        sample_ids=tuple(sample.sample_id for sample in samples),
    )


def _zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros in memory that the system hands out where it is written first: padding costs nothing. In a worker it is
    shared memory, as in torch's own `default_collate`, so that the batch is not copied on its way."""
    size = math.prod(shape) * dtype.itemsize
    if not size or get_worker_info() is None:
        words = np.zeros(shape, {2: np.int16, 4: np.int32, 8: np.int64}[dtype.itemsize])
        return torch.from_numpy(words).view(dtype)
    storage = torch.UntypedStorage._new_shared(size, device="cpu")
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def in_float32(batch: VLBatch) -> VLBatch:
    """The batch with features of half precision, as stores keep them, as models read them."""
    features = batch.region_features
    return replace(batch, region_features=features.float()) if features.itemsize == 2 else batch
