"""Scores of every text of a block with every image of it: what has one side only is done once for that side.

    read_texts, read_images     what can be computed of each side by itself
    score                       the pairs of it that are named

A two-stream model has done most of its text when the streams first meet (arXiv:1908.02265, section 3.2). Others read
both sides in one row; their rows share texts and images (`VLBatch.row_texts`, `row_images`).

Shapes: C texts, I images, N pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import MatchModel
from roibeam.model.vilbert.encoder import Stream
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.tasks import ViLbertWithScores
from roibeam.pipelines.data.batches.sample import in_float32

_OF_TEXTS = ("text_ids", "text_mask", "text_segments", "task_ids")


class PairScorer(Protocol):
    """Scores texts and images that were read once."""

    def read_texts(self, texts: VLBatch) -> Any:
        """Of the C texts of a batch; its images are not read."""

    def read_images(self, images: VLBatch) -> Any:
        """Of the I images of a batch; its texts are not read."""

    def score(self, texts: Any, images: Any, of_text: Tensor, of_image: Tensor) -> Tensor:
        """(N,) scores.

        Args:
            of_text, of_image: (N,) long, numbers of text and image of each pair.
        """


class JointPairs:
    """For models that read both sides in one row, and any other.

    Args:
        network: called with a batch it gives (N, 1) scores.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def read_texts(self, texts: VLBatch) -> VLBatch:
        return texts

    def read_images(self, images: VLBatch) -> VLBatch:
        return in_float32(images)

    def score(self, texts: VLBatch, images: VLBatch, of_text: Tensor, of_image: Tensor) -> Tensor:
        return self._network(shared_batch(texts, images, of_text, of_image)).squeeze(-1)


class TwoStreamPairs:
    """ViLBERT: each side up to the first co-attention once; and of the last layers only what the score is read from.

    Args:
        model: in whose `vilbert` the streams are; head: (batch, output) -> (N, 1) scores of pooled vectors.
    """

    def __init__(self, model: ViLbertForPreTraining, head: Any) -> None:
        self._model, self._head = model.vilbert, head

    def read_texts(self, texts: VLBatch) -> Stream:
        return self._model.read_text(texts)

    def read_images(self, images: VLBatch) -> Stream:
        return self._model.read_images(in_float32(images))

    def score(self, texts: Stream, images: Stream, of_text: Tensor, of_image: Tensor) -> Tensor:
        output = self._model.fuse_firsts(texts.take(of_text), images.take(of_image))
        return self._head(output).squeeze(-1)


def pair_scorer(network: Any) -> PairScorer:
    """The quickest one of a network that scores rows.

    Args:
        network: `TaskModel` of a choice, or a model with the head of its release; in evaluation mode.
    """
    model = getattr(network, "model", network)
    if not isinstance(model, ViLbertForPreTraining):
        return JointPairs(network)
    if isinstance(network, MatchModel):
        return TwoStreamPairs(model, network.scores)
    if isinstance(network, ViLbertWithScores):
        return TwoStreamPairs(network, lambda output: network.score_pairs(output)[:, None])
    return TwoStreamPairs(model, lambda output: network.head(_NO_BATCH, output))


_NO_BATCH: Any = None  # heads on pooled vectors read none


def shared_batch(texts: VLBatch, images: VLBatch, of_text: Tensor, of_image: Tensor) -> VLBatch:
    """Rows of the texts of one batch and the images of another."""
    of_texts: dict[str, Any] = {name: getattr(texts, name) for name in _OF_TEXTS}
    words = None if images.aligned_words is None else images.aligned_words[of_image]  # that name nothing
    return replace(images, **of_texts, aligned_words=words, sample_ids=(), row_texts=of_text, row_images=of_image)


def score_block(
    scorer: PairScorer, texts: Any, images: Any, num: tuple[int, int], at_once: int, device: torch.device
) -> Tensor:
    """(C, I) scores of all pairs, on the CPU.

    Args:
        texts, images: as the scorer read them.
        num: C and I.
        at_once: pairs in one call.
        device: where model and what it read are.
    """
    found = []
    for rows, columns in _tiles(*num, at_once):
        of_text = torch.arange(rows.start, rows.stop, device=device).repeat_interleave(len(columns))
        of_image = torch.arange(columns.start, columns.stop, device=device).repeat(len(rows))
        found.append((rows, columns, scorer.score(texts, images, of_text, of_image)))
    scores = torch.empty(num, dtype=found[0][2].dtype)
    for rows, columns, part in found:  # an accelerator is waited for once
        scores[rows.start : rows.stop, columns.start : columns.stop] = part.view(len(rows), len(columns)).cpu()
    return scores


def _tiles(captions: int, pictures: int, at_once: int) -> Iterator[tuple[range, range]]:
    """Rectangles of at most so many pairs, as square as they can be: neighbours are of like length."""
    high = max(1, min(captions, int(at_once**0.5)))
    wide = max(1, at_once // high)
    for top in range(0, captions, high):
        for left in range(0, pictures, wide):
            yield range(top, min(top + high, captions)), range(left, min(left + wide, pictures))
