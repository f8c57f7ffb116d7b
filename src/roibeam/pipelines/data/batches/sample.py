"""Samples: one row of a batch before padding, its targets and features, and rows to a `VLBatch`.

Class targets are what the detector predicted for the regions of a record. Rows that share texts and images are padded
so that each text and each image stands in the batch once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord, TopKDistribution, box_numbers
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.data.batches.batch_workers import empty_tensor

_KNOWN = (np.dtype(np.float32), np.dtype(np.float16))  # to torch


def as_tensor(features: np.ndarray) -> Tensor:
    """The same numbers in the same type; ml_dtypes' bfloat16 is torch's. Views into a store's file are copied."""
    if not features.flags.writeable:
        features = features.copy()
    if features.dtype in _KNOWN:
        return torch.from_numpy(features)
    return torch.from_numpy(features.view(np.int16)).view(torch.bfloat16)


def with_box_numbers(features: Tensor, boxes: np.ndarray, width: int, height: int) -> Tensor:
    """(R, D + 6) float32 of (R, D) features and their boxes (R, 4) in pixels of an image of that size; see
    `box_numbers`."""
    return torch.cat([features.float(), torch.from_numpy(box_numbers(boxes, height=height, width=width))], dim=1)


def as_float32(features: np.ndarray) -> Tensor:
    # torch converts half precision many times faster than numpy.
    return as_tensor(features).float()


@dataclass(frozen=True, eq=False)
class ClassTargets:
    """Distributions of the few regions of a row that are predicted: those of all would be most of a batch's bytes.

    Attributes:
        rows: (P, C) float32, of the predicted regions in their order.
        predicted: (R,) bool.
    """

    rows: Tensor
    predicted: np.ndarray

    @classmethod
    def of(cls, record: RegionRecord, regions: np.ndarray, predicted: np.ndarray, num_classes: int) -> ClassTargets:
        """`class_targets` of the predicted regions.

        Args:
            regions: (R,) int64, places in the record.
        """
        if not predicted.any():
            return cls(torch.zeros(0, num_classes + 1), predicted)
        return cls(class_targets(record, regions[predicted], num_classes), predicted)

    def of_regions(self, chosen: np.ndarray) -> Tensor:
        """(n, C) of the regions in `chosen` (R,) bool, which are predicted ones."""
        kept = chosen[self.predicted]
        return self.rows if kept.all() else self.rows[torch.from_numpy(kept)]

    def dense(self) -> Tensor:
        """(R, C), zeros where nothing is predicted."""
        targets = torch.zeros(len(self.predicted), self.rows.shape[1])
        targets[torch.from_numpy(np.flatnonzero(self.predicted))] = self.rows
        return targets


def class_targets(record: RegionRecord, chosen: np.ndarray, num_classes: int) -> Tensor:
    """(n, num_classes + 1) float32 distributions of the `chosen` regions, background last.

    A record without distributions gives its best class alone, with probability 1; one that keeps the top k spreads the
    rest of the mass evenly over the other classes. Raises ValueError naming the record, when its classes do not fit
    `num_classes` or a distribution does not sum to 1."""
    distribution = record.class_distribution
    if distribution is None:
        if int(record.class_ids[chosen].max()) >= num_classes:
            raise ValueError(
                f"record {record.image_id!r}: has class {int(record.class_ids[chosen].max())}, the model was made for "
                f"classes 0..{num_classes - 1}; give the number of the store's detector (pretrain --num-classes)"
            )
        one_hot = torch.zeros(len(chosen), num_classes + 1)
        one_hot[torch.arange(len(chosen)), torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0
        return one_hot
    if isinstance(distribution, TopKDistribution):
        rows = torch.from_numpy(distribution.dense()[chosen])
    else:
        rows = as_float32(distribution[chosen])
    if rows.shape[1] != num_classes + 1:
        raise ValueError(
            f"record {record.image_id!r}: class distribution has {rows.shape[1]} columns, the model was made for "
            f"{num_classes} classes and background; give the number of the store's detector (pretrain --num-classes)"
        )
    sums = rows.numpy().sum(axis=1)
    # The release silently drops a region whose distribution is further off than this.
    if not (sums.min() > 0.9 and sums.max() < 1.1):
        worst = sums[np.abs(sums - 1).argmax()]
        raise ValueError(
            f"record {record.image_id!r}: a class distribution sums to {worst:.3f}, not 1; was the background removed?"
        )
    return rows


def whole_image_feature(record: RegionRecord, *, stored: bool) -> Tensor:
    """(D,) float32: the mean of all regions of the record, visible or not; 0 where it has none.

    Args:
        stored: the record's own feature of the whole image in place of the mean, where it has one (jackroos/VL-BERT
            vqa.py, `image_box_feature`).
    Raises:
        ValueError: when the record's own feature has another width than its regions.
    """
    own, width = record.image_feature, record.features.shape[1]
    if stored and own is not None:
        if len(own) != width:
            raise ValueError(
                f"record {record.image_id!r}: its feature of the whole image has width {len(own)}, its regions "
                f"{width}, and a model reads both alike; leave layout.whole_image at 'shown'"
            )
        return as_float32(own)
    if not record.num_regions:
        return torch.zeros(width)
    return as_tensor(record.features).float().mean(dim=0)


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSide:
    """An image of a batch, before padding. R regions, D feature width.

    Attributes:
        features: (R, D) in the type of the store, also where the region is masked; boxes: (R, 4) float32, pixels.
        masked: (R,) bool, hidden from the model.
        height, width: of the image, pixels.
        whole_image: (D,) float32, the feature of the whole image with masked regions left out; None lets the model take
            the mean of its regions.
        global_feature: (G,) float32, the whole image as another network sees it, for a model that reads one.
        region_images: (R,) int64, which of the row's images each region is from, for a row with several; `height` and
            `width` are those of the first.
        region_classes: (R,) int64, the class of each region, for a model with classes as input.
        outlines: cells each way -> (R, cells, cells) float32, share of each cell inside the outline of the region's
            object, for an encoder that reads it; None for whole boxes.
    """

    features: Tensor
    boxes: np.ndarray
    masked: np.ndarray
    height: int
    width: int
    whole_image: Tensor | None = None
    global_feature: Tensor | None = None
    region_images: np.ndarray | None = None
    region_classes: np.ndarray | None = None
    outlines: Callable[[int], np.ndarray] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class PretrainSample(ImageSide):
    """One row of a batch, before padding. T text pieces, R regions, C region targets' width.

    Attributes, beside those of its image:
        sample_id: id of the image whose regions these are; for a row without an image, its name in errors.
        text_ids, text_labels, text_segments: (T,) int64; labels are `IGNORE_INDEX` where nothing is predicted.
        predicted: (R,) bool, predicted by the model.
        region_targets: what predicted regions are predicted to be: classes, or (R, C) float32, such as their features;
            None for a system that predicts no regions.
        contrasted: whether the targets of all regions count: predicted ones are distinguished from them.
        match: 1 = the caption belongs to the image, 0 = it does not, `IGNORE_INDEX` = not predicted for this row; None
            for a run without this prediction.
        text_only: a row without an image: R is 0, `height` and `width` mean nothing. None for a run without such rows.
        aligned_words: (R, A) int64, positions of the text pieces that name a region, -1 where there are no more; None
            where no word names one.
        twin: one more row of the same caption and image, masked in another way; it comes right after this one.
        draw_seed: of what a model draws itself to make a loss of this row.
    """

    sample_id: str
    text_ids: np.ndarray
    text_labels: np.ndarray
    text_segments: np.ndarray
    predicted: np.ndarray
    region_targets: ClassTargets | Tensor | None
    match: int | None = None
    text_only: bool | None = None
    contrasted: bool = False
    aligned_words: np.ndarray | None = None
    twin: PretrainSample | None = None
    draw_seed: int = 0

    @property
    def targets(self) -> Tensor | None:
        """(R, C) float32, of all regions; classes are zeros where nothing is predicted."""
        given = self.region_targets
        return given.dense() if isinstance(given, ClassTargets) else given

    def targets_of_predicted(self) -> Tensor | None:
        """(n, C), of the regions that are predicted, in their order."""
        given = self.region_targets
        if isinstance(given, ClassTargets):
            return given.of_regions(self.predicted)
        return None if given is None else given[torch.from_numpy(np.flatnonzero(self.predicted))]


def collate(samples: Sequence[PretrainSample], *, pad_id: int) -> VLBatch:
    """Pads samples of one system to one batch; optional fields are there when any row has them.

    Targets are of predicted regions alone, or of all where they are contrasted. A field that is there in one batch
    of a run must be there in all of them: losses are added up by name. So a run with rows of text alone sets
    `text_only` and `match` in every row.
    """
    pieces, regions = [len(sample.text_ids) for sample in samples], [len(sample.boxes) for sample in samples]
    text, most = (len(samples), max(pieces)), (len(samples), max(regions))
    predicted = _padded([sample.predicted for sample in samples], regions, most, np.bool_)
    matches = [IGNORE_INDEX if sample.match is None else sample.match for sample in samples]
    with_match = any(sample.match is not None for sample in samples)
    with_text_only = any(sample.text_only is not None for sample in samples)
    with_targets = any(sample.region_targets is not None for sample in samples)
    return VLBatch(
        **text_fields(
            [sample.text_ids for sample in samples], [sample.text_segments for sample in samples], pad_id=pad_id
        ),
        **image_fields(samples),
        text_labels=_padded([sample.text_labels for sample in samples], pieces, text, np.int64, IGNORE_INDEX),
        region_targets=_targets(samples, predicted) if with_targets else None,
        region_target_mask=predicted if with_targets else None,
        aligned_words=aligned_words([sample.aligned_words for sample in samples], max(regions)),
        match_labels=torch.tensor(matches) if with_match else None,
        text_only=torch.tensor([bool(sample.text_only) for sample in samples]) if with_text_only else None,
        sample_ids=tuple(sample.sample_id for sample in samples),
        draw_seeds=tuple(sample.draw_seed for sample in samples),
    )


def text_fields(ids: Sequence[np.ndarray], segments: Sequence[np.ndarray], *, pad_id: int) -> dict[str, Any]:
    """Fields of a `VLBatch` with Q texts: `text_ids`, `text_mask`, `text_segments`.

    Args:
        ids, segments: (T,) int64 each.
    """
    pieces = [len(each) for each in ids]
    shape = (len(ids), max(pieces))
    return {
        "text_ids": _padded(ids, pieces, shape, np.int64, pad_id),
        "text_mask": _lengths_mask(pieces, shape),
        "text_segments": _padded(segments, pieces, shape, np.int64),
    }


def image_fields(images: Sequence[ImageSide]) -> dict[str, Any]:
    """Fields of a `VLBatch` with I images; a field that none of them has is None."""
    regions, width = [len(image.boxes) for image in images], images[0].features.shape[1]
    shape = (len(images), max(regions))
    global_features = [image.global_feature for image in images if image.global_feature is not None]
    given = [each.region_classes for each in images if each.region_classes is not None]
    return {
        "region_features": _padded_tensors([image.features for image in images], (*shape, width)),
        "region_boxes": _padded([image.boxes for image in images], regions, (*shape, 4), np.float32),
        "region_mask": _lengths_mask(regions, shape),
        "image_hw": torch.tensor([[image.height, image.width] for image in images], dtype=torch.float32),
        "masked_regions": _padded([image.masked for image in images], regions, shape, np.bool_),
        "whole_image_features": _whole_images(images, width),
        "global_features": torch.stack(global_features) if global_features else None,
        "region_images": _padded_if_any([image.region_images for image in images], regions, shape),
        "region_classes": _padded(given, regions, shape, np.int64) if len(given) == len(images) else None,
    }


def _padded(values: Sequence[Any], lengths: Sequence[int], shape: tuple[int, ...], kind: type, fill: int = 0) -> Tensor:
    """One value in each row of `shape`, and `fill` behind it; `fill` alone where the value is None."""
    padded: np.ndarray = np.full(shape, fill, kind)
    for row, (value, length) in enumerate(zip(values, lengths, strict=True)):
        if value is not None:
            padded[row, :length] = value
    return torch.from_numpy(padded)


def _padded_if_any(
    values: Sequence[np.ndarray | None], lengths: Sequence[int], shape: tuple[int, int], fill: int = 0
) -> Tensor | None:
    """`_padded` int64; None where all values are None."""
    return None if all(value is None for value in values) else _padded(values, lengths, shape, np.int64, fill)


def _lengths_mask(lengths: Sequence[int], shape: tuple[int, int]) -> Tensor:
    """True in the first places of each row, as many as its length."""
    return torch.from_numpy(np.arange(shape[1]) < np.array(lengths)[:, None])


def _padded_tensors(values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """`_padded` of large values, in the widest of their types and in the memory of the batch."""
    padded = empty_tensor(shape, reduce(torch.promote_types, (value.dtype for value in values)))
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
        padded[row, len(value) :] = 0
    return padded


def _targets(samples: Sequence[PretrainSample], predicted: Tensor) -> Tensor:
    """(N, C) of the predicted regions, row after row, or (B, R, C)."""
    if any(sample.contrasted for sample in samples):
        of_all = [sample.targets for sample in samples if sample.targets is not None]
        return _padded_tensors(of_all, (*predicted.shape, of_all[0].shape[1]))
    given = [sample.targets_of_predicted() for sample in samples]
    return torch.cat([rows for rows in given if rows is not None])


def aligned_words(given: Sequence[np.ndarray | None], most_regions: int) -> Tensor | None:
    """(B, R, A) int64 of what `PretrainSample.aligned_words` is of each row; None when no row has any."""
    widths = [words.shape[1] for words in given if words is not None]
    if not widths:
        return None
    padded: np.ndarray = np.full((len(given), most_regions, max(widths)), -1, np.int64)
    for row, words in enumerate(given):
        if words is not None:
            padded[row, : words.shape[0], : words.shape[1]] = words
    return torch.from_numpy(padded)


def _whole_images(images: Sequence[ImageSide], width: int) -> Tensor | None:
    """(I, D) float32; None when no image has its own."""
    if all(image.whole_image is None for image in images):
        return None
    nothing = torch.zeros(width)
    return torch.stack([nothing if image.whole_image is None else image.whole_image for image in images])


def in_float32(batch: VLBatch) -> VLBatch:
    """The batch with features of half precision, as stores keep them, as models read them."""
    features = batch.region_features
    return replace(batch, region_features=features.float()) if features.itemsize == 2 else batch


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageWithTargets(ImageSide):
    """An image of rows that may predict the classes of its regions.

    Attributes, beside those of `ImageSide`:
        predicted: (R,) bool, regions whose class is predicted.
        region_targets: (R, C) float32, distributions over classes; None where none is predicted.
    """

    predicted: np.ndarray
    region_targets: Tensor | None = None


@dataclass(eq=False)
class SharedRows:
    """Rows of a batch that is being made; they share texts and images.

    Attributes:
        texts: ids and segments of each, (T,) int64; images: in the order in which they came first.
        row_words, row_labels: for each row what `aligned_words` and `text_labels` of `PretrainSample` are; labels of
            None where no piece is predicted.
        row_phrases: for each row the places of the pieces that stand for its phrases; () where they are not needed.
    """

    texts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    images: list[ImageWithTargets] = field(default_factory=list)
    row_texts: list[int] = field(default_factory=list)
    row_images: list[int] = field(default_factory=list)
    row_words: list[np.ndarray | None] = field(default_factory=list)
    row_labels: list[np.ndarray | None] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    row_phrases: list[Sequence[int]] = field(default_factory=list)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def text(self, ids: np.ndarray, segments: np.ndarray) -> int:
        """Number of a new text."""
        self.texts.append((ids, segments))
        return len(self.texts) - 1

    def image(self, key: Hashable, make: Callable[[], ImageWithTargets]) -> int:
        """Number of the image with this key in the batch; makes the image at its first use."""
        if key not in self._numbers:
            self._numbers[key] = len(self.images)
            self.images.append(make())
        return self._numbers[key]

    def row(self, name: str, text: int, image: int, words: np.ndarray | None, labels: np.ndarray | None = None) -> None:
        self.row_texts.append(text)
        self.row_images.append(image)
        self.row_words.append(words)
        self.row_labels.append(labels)
        self.row_names.append(name)

    def collate(self, *, pad_id: int) -> VLBatch:
        """The batch, padded. Where every row has its own text, or image, no sharing is recorded."""
        of_texts = text_fields([ids for ids, _ in self.texts], [each for _, each in self.texts], pad_id=pad_id)
        of_images = image_fields(self.images)
        most = of_images["region_mask"].shape[1]
        pieces = [len(self.texts[text][0]) for text in self.row_texts]
        phrases = list(map(len, self.row_phrases))
        return VLBatch(
            **of_texts,
            **of_images,
            **self._region_targets(most),
            text_labels=_padded_if_any(
                self.row_labels, pieces, (len(pieces), of_texts["text_ids"].shape[1]), IGNORE_INDEX
            ),
            aligned_words=aligned_words(self.row_words, most),
            phrase_positions=_padded(self.row_phrases, phrases, (len(phrases), max(phrases)), np.int64, -1)
            if phrases
            else None,
            row_texts=_shared(self.row_texts),
            row_images=_shared(self.row_images),
            sample_ids=tuple(self.row_names),
        )

    def _region_targets(self, most_regions: int) -> dict[str, Any]:
        """`region_targets`, of the predicted regions alone, row after row, and `region_target_mask`; empty where no
        region is predicted."""
        if all(image.region_targets is None for image in self.images):
            return {}
        mask = torch.zeros(len(self.row_images), most_regions, dtype=torch.bool)
        targets = []
        for row, number in enumerate(self.row_images):
            image = self.images[number]
            predicted = torch.from_numpy(image.predicted)
            mask[row, : len(predicted)] = predicted
            if image.region_targets is not None:
                targets.append(image.region_targets[predicted])
        return {"region_targets": torch.cat(targets), "region_target_mask": mask}


def _shared(numbers: list[int]) -> Tensor | None:
    return None if numbers == list(range(len(numbers))) else torch.tensor(numbers)
