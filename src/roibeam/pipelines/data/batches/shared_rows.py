"""Rows that share texts and images, collected and padded: each text and each image stands in the batch once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.data.batches.sample import ImageSide, aligned_words, image_fields, text_fields


@dataclass(frozen=True, eq=False, kw_only=True)
class AskedImage(ImageSide):
    """An image of rows that may be asked for the classes of its regions.

    Attributes, beside those of `ImageSide`:
        predicted: (R,) bool, regions whose class is asked.
        region_targets: (R, C) float32, distributions over classes; None where nothing is asked.
    """

    predicted: np.ndarray
    region_targets: Tensor | None = None


@dataclass(eq=False)
class SharedRows:
    """Of a batch that is being made.

    Attributes:
        texts: ids and segments of each, (T,) int64; images: in the order in which they came first.
        row_texts, row_images: for each row the number of its text, and of its image.
        row_words, row_labels: for each row what `aligned_words` and `text_labels` of `PretrainSample` are; labels of
            None where no piece is predicted.
        row_names: what to call the rows in an error message.
        row_phrases: for each row the places of the pieces that stand for its phrases; () where nothing asks for them.
    """

    texts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    images: list[AskedImage] = field(default_factory=list)
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

    def image(self, key: Hashable, make: Callable[[], AskedImage]) -> int:
        """Number of the image that goes by this key in the batch; it is made when it is first asked for."""
        if key not in self._numbers:
            self._numbers[key] = len(self.images)
            self.images.append(make())
        return self._numbers[key]

    def row(self, name: str, text: int, image: int, words: np.ndarray | None, labels: np.ndarray | None = None) -> None:
        """One more row."""
        self.row_texts.append(text)
        self.row_images.append(image)
        self.row_words.append(words)
        self.row_labels.append(labels)
        self.row_names.append(name)

    def collate(self, *, pad_id: int) -> VLBatch:
        """The batch, padded. Where every row has its own text, or image, nothing is said to be shared."""
        of_texts = text_fields([ids for ids, _ in self.texts], [each for _, each in self.texts], pad_id=pad_id)
        of_images = image_fields(self.images)
        most = of_images["region_mask"].shape[1]
        return VLBatch(
            **of_texts,
            **of_images,
            **self._region_targets(most),
            text_labels=self._text_labels(of_texts["text_ids"].shape[1]),
            aligned_words=aligned_words(self.row_words, most),
            phrase_positions=self._phrase_positions(),
            row_texts=_shared(self.row_texts),
            row_images=_shared(self.row_images),
            sample_ids=tuple(self.row_names),
        )

    def _phrase_positions(self) -> Tensor | None:
        """(B, P); None where no row has phrases."""
        if not self.row_phrases:
            return None
        found = torch.full((len(self.row_phrases), max(map(len, self.row_phrases))), -1)
        for row, places in enumerate(self.row_phrases):
            found[row, : len(places)] = torch.tensor(list(places))
        return found

    def _text_labels(self, most_pieces: int) -> Tensor | None:
        """(B, T); None where no piece of any row is predicted."""
        if all(labels is None for labels in self.row_labels):
            return None
        found = torch.full((len(self.row_labels), most_pieces), IGNORE_INDEX)
        for row, labels in enumerate(self.row_labels):
            if labels is not None:
                found[row, : len(labels)] = torch.from_numpy(labels)
        return found

    def _region_targets(self, most_regions: int) -> dict[str, Any]:
        """`region_targets`, of the predicted regions alone, row after row, and `region_target_mask`; nothing where no
        image is asked."""
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
