"""One caption and one record to one row of a pre-training batch: order, targets, cut, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from features.record import RegionRecord, TopKDistribution
from model.inputs import IGNORE_INDEX, VLBatch
from model.vlbert_embeddings import average_visible_regions


@dataclass(frozen=True, eq=False)
class PretrainSample:
    """One row of a batch, before padding. T text pieces, R regions, C region labels.

    Attributes:
        text_ids, text_labels: (T,) int64.
        features: (R, D) float32; boxes: (R, 4) float32; masked, predicted: (R,) bool.
        targets: (R, C) float32, zeros where not predicted.
        whole_image: (D,) float32, mean of all visible regions, those included that were cut off.
    """

    text_ids: np.ndarray
    text_labels: np.ndarray
    features: Tensor
    boxes: np.ndarray
    masked: np.ndarray
    predicted: np.ndarray
    targets: Tensor
    whole_image: Tensor
    height: int
    width: int


def make_sample(
    record: RegionRecord,
    text_ids: np.ndarray,
    text_labels: np.ndarray,
    masked: np.ndarray,
    predicted: np.ndarray,
    *,
    num_classes: int,
    max_elements: int,
    max_text: int,
) -> PretrainSample:
    """Orders, masks and cuts one record (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py, __getitem__).

    Args:
        text_ids, text_labels: (T,) int64 after word masking.
        masked, predicted: (K,) bool, in the order of the regions by class score, highest first.
        num_classes: foreground classes.
        max_elements: as in `PretrainConfig`.
        max_text: most text pieces the model takes.
    Raises:
        ValueError: naming the record, when its classes do not fit `num_classes`.
    """
    order = np.argsort(-record.class_scores, kind="stable")
    features = _as_float32(record.features[order])
    whole_image = average_visible_regions(
        features, torch.ones(len(order), dtype=torch.bool), torch.from_numpy(masked.copy())
    )
    text_kept, regions_kept = len(text_ids), len(order)
    if max_elements:
        text_kept, elements_kept = _cut(text_kept, regions_kept + 1, max_elements)
        regions_kept = elements_kept - 1
    text_kept = min(text_kept, max_text)
    order, masked, predicted = order[:regions_kept], masked[:regions_kept], predicted[:regions_kept]
    targets = torch.zeros(len(order), num_classes + 1)
    if predicted.any():
        targets[torch.from_numpy(predicted.copy())] = _class_targets(record, order[predicted], num_classes)
    return PretrainSample(
        # The last piece is [SEP] and stays.
        text_ids=np.append(text_ids[: text_kept - 1], text_ids[-1]),
        text_labels=np.append(text_labels[: text_kept - 1], text_labels[-1]),
        features=features[:regions_kept],
        boxes=record.boxes[order],
        masked=masked,
        predicted=predicted,
        targets=targets,
        whole_image=whole_image,
        height=record.height,
        width=record.width,
    )


def _cut(text: int, elements: int, limit: int) -> tuple[int, int]:
    """Lengths after removing one by one from the longer side (from text when equal) until both fit in `limit`.

    At least [CLS], [SEP] and the whole image stay.
    """
    while text + elements > limit and text > 0 and elements > 0:
        if elements > text:
            elements -= 1
        else:
            text -= 1
    return max(text, 2), max(elements, 1)


def _as_float32(features: np.ndarray) -> Tensor:
    # torch converts half precision many times faster than numpy, and knows bfloat16.
    if features.dtype == np.float32:
        return torch.from_numpy(features)
    kind = torch.float16 if features.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(features.view(np.int16)).view(kind).float()


def _class_targets(record: RegionRecord, chosen: np.ndarray, num_classes: int) -> Tensor:
    """(n, num_classes + 1) float32 distributions of the `chosen` regions, background last."""
    distribution = record.class_distribution
    if distribution is None:
        if int(record.class_ids[chosen].max()) >= num_classes:
            raise ValueError(
                f"record {record.image_id!r}: has class {int(record.class_ids[chosen].max())}, the model was made for "
                f"classes 0..{num_classes - 1}; give the number of classes of this store's detector"
            )
        one_hot = torch.zeros(len(chosen), num_classes + 1)
        one_hot[torch.arange(len(chosen)), torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0
        return one_hot
    if isinstance(distribution, TopKDistribution):
        rows = torch.from_numpy(distribution.dense()[chosen])
    else:
        rows = _as_float32(distribution[chosen])
    if rows.shape[1] != num_classes + 1:
        raise ValueError(
            f"record {record.image_id!r}: class distribution has {rows.shape[1]} columns, the model was made for "
            f"{num_classes} classes and background; give the number of classes of this store's detector"
        )
    sums = rows.sum(dim=1)
    # The release silently drops a region whose distribution is further off than this.
    if bool((sums - 1).abs().max() >= 0.1):
        raise ValueError(
            f"record {record.image_id!r}: a class distribution sums to {float(sums[(sums - 1).abs().argmax()]):.3f}, "
            f"not 1; was the background removed?"
        )
    return rows


def collate(samples: Sequence[PretrainSample], sample_ids: Sequence[str], *, pad_id: int) -> VLBatch:
    """Pads samples to one batch."""
    text = max(len(sample.text_ids) for sample in samples)
    regions = max(len(sample.boxes) for sample in samples)
    rows, width, labels = len(samples), samples[0].features.shape[1], samples[0].targets.shape[1]
    text_ids = torch.full((rows, text), pad_id, dtype=torch.long)
    text_labels = torch.full((rows, text), IGNORE_INDEX, dtype=torch.long)
    text_mask = torch.zeros(rows, text, dtype=torch.bool)
    features, boxes = torch.zeros(rows, regions, width), torch.zeros(rows, regions, 4)
    targets = torch.zeros(rows, regions, labels)
    region_mask, masked, predicted = (torch.zeros(rows, regions, dtype=torch.bool) for _ in range(3))
    for row, sample in enumerate(samples):
        pieces, count = len(sample.text_ids), len(sample.boxes)
        text_ids[row, :pieces] = torch.from_numpy(sample.text_ids)
        text_labels[row, :pieces] = torch.from_numpy(sample.text_labels)
        text_mask[row, :pieces] = True
        features[row, :count] = sample.features
        boxes[row, :count] = torch.from_numpy(sample.boxes)
        targets[row, :count] = sample.targets
        region_mask[row, :count] = True
        masked[row, :count] = torch.from_numpy(sample.masked)
        predicted[row, :count] = torch.from_numpy(sample.predicted)
    return VLBatch(
        text_ids=text_ids,
        text_mask=text_mask,
        text_segments=torch.zeros_like(text_ids),
        region_features=features,
        region_boxes=boxes,
        region_mask=region_mask,
        image_hw=torch.tensor([[sample.height, sample.width] for sample in samples], dtype=torch.float32),
        masked_regions=masked,
        whole_image_features=torch.stack([sample.whole_image for sample in samples]),
        text_labels=text_labels,
        region_targets=targets,
        region_target_mask=predicted,
        sample_ids=tuple(sample_ids),
    )
