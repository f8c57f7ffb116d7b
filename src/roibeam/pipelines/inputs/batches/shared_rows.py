"""Rows that share texts and images, collected and padded: each text and each image stands in the batch once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from roibeam.model.inputs import VLBatch
from roibeam.pipelines.inputs.batches.sample import ImageSide, aligned_words, image_fields, text_fields


@dataclass(eq=False)
class SharedRows:
    """Of a batch that is being made.

    Attributes:
        texts: ids and segments of each, (T,) int64; images: in the order in which they came first.
        row_texts, row_images: for each row the number of its text, and of its image.
        row_words: for each row what `PretrainSample.aligned_words` is.
        row_names: what to call the rows in an error message.
    """

    texts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    images: list[ImageSide] = field(default_factory=list)
    row_texts: list[int] = field(default_factory=list)
    row_images: list[int] = field(default_factory=list)
    row_words: list[np.ndarray | None] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def text(self, ids: np.ndarray, segments: np.ndarray) -> int:
        """Number of a new text."""
        self.texts.append((ids, segments))
        return len(self.texts) - 1

    def image(self, key: Hashable, make: Callable[[], ImageSide]) -> int:
        """Number of the image that goes by this key in the batch; it is made when it is first asked for."""
        if key not in self._numbers:
            self._numbers[key] = len(self.images)
            self.images.append(make())
        return self._numbers[key]

    def row(self, name: str, text: int, image: int, words: np.ndarray | None) -> None:
        """One more row."""
        self.row_texts.append(text)
        self.row_images.append(image)
        self.row_words.append(words)
        self.row_names.append(name)

    def collate(self, *, pad_id: int) -> VLBatch:
        """The batch, padded. Where every row has its own text, or image, nothing is said to be shared."""
        of_images = image_fields(self.images)
        return VLBatch(
            **text_fields([ids for ids, _ in self.texts], [segments for _, segments in self.texts], pad_id=pad_id),
            **of_images,
            aligned_words=aligned_words(self.row_words, of_images["region_mask"].shape[1]),
            row_texts=_shared(self.row_texts),
            row_images=_shared(self.row_images),
            sample_ids=tuple(self.row_names),
        )


def _shared(numbers: list[int]) -> Tensor | None:
    return None if numbers == list(range(len(numbers))) else torch.tensor(numbers)
