"""Match scores of every text with every image, in chunks of bounded memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.encoder import Stream
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples

_OF_TEXT = ("text_ids", "text_mask", "text_segments", "task_ids")
_LABELS = ("text_labels", "region_targets", "region_target_mask")


class PairScorer(Protocol):
    """Scores texts that were read once with one image after the other."""

    def read(self, texts: VLBatch) -> Any:
        """What can be computed of texts alone; the images of the batch are not read."""

    def score(self, read: Any, image: VLBatch) -> Tensor:
        """(texts,) log-odds of a match with the only image of `image`, whose text is not read."""


class JointScorer:
    """For models whose text cannot be read without the image."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def read(self, texts: VLBatch) -> VLBatch:
        return texts

    def score(self, read: VLBatch, image: VLBatch) -> Tensor:
        return _log_odds(self._model, self._model.encode(_each_with(read, image)))


class TwoStreamScorer:
    """ViLBERT: up to the first co-attention, text is read once for all images (arXiv:1908.02265, section 3.2)."""

    def __init__(self, model: ViLbertForPreTraining) -> None:
        self._model = model

    def read(self, texts: VLBatch) -> Stream:
        return self._model.vilbert.read_text(texts)

    def score(self, read: Stream, image: VLBatch) -> Tensor:
        return _log_odds(self._model, self._model.vilbert.fuse(read, self._model.vilbert.read_images(image)))


def pair_scorer(model: Any) -> PairScorer:
    """The quickest one that the model has."""
    return TwoStreamScorer(model) if isinstance(model, ViLbertForPreTraining) else JointScorer(model)


class AllPairs:
    """The scores of some texts with some images.

    Args:
        model: a `PreTrainingModel` with a match head, in evaluation mode.
        texts: (T,) pieces each; shorter ones beside each other waste less.
        record_of: record of an image's number.
        texts_at_once: pairs in memory at once; more are quicker on an accelerator.
    """

    def __init__(
        self,
        model: Any,
        samples: EvaluationSamples,
        texts: Sequence[np.ndarray],
        record_of: Callable[[int], RegionRecord],
        num_images: int,
        *,
        texts_at_once: int,
        device: torch.device,
    ) -> None:
        self._scorer, self._samples, self._texts, self._record_of = pair_scorer(model), samples, texts, record_of
        self._num_images, self._at_once, self._device = num_images, texts_at_once, device

    @property
    def count(self) -> int:
        return len(self._texts) * self._num_images

    @torch.inference_mode()
    def seconds_per_pair(self) -> float:
        """Measured on one chunk of texts of middle length."""
        start = len(self._texts) // 2 // self._at_once * self._at_once
        chunk = self._texts[start : start + self._at_once]
        read, image = self._scorer.read(self._samples.texts(chunk).to(self._device)), self._image(0)
        self._scorer.score(read, image).cpu()  # the first call of a kernel takes longer
        begin = time.perf_counter()
        self._scorer.score(read, self._image(0)).cpu()
        return (time.perf_counter() - begin) / len(chunk)

    @torch.inference_mode()
    def write(self, scores_TI: np.ndarray, progress: Callable[[int], None]) -> None:
        """Fills `scores_TI` (T, I) float32, a file on disk perhaps.

        Args:
            progress: is called with the number of pairs done.
        """
        for start in range(0, len(self._texts), self._at_once):
            chunk = self._texts[start : start + self._at_once]
            read = self._scorer.read(self._samples.texts(chunk).to(self._device))
            block = np.empty((len(chunk), self._num_images), np.float32)
            for image in range(self._num_images):
                block[:, image] = self._scorer.score(read, self._image(image)).float().cpu().numpy()
                progress(start * self._num_images + (image + 1) * len(chunk))
            scores_TI[start : start + len(chunk)] = block

    def _image(self, number: int) -> VLBatch:
        return self._samples.image(self._record_of(number)).to(self._device)


def _each_with(texts: VLBatch, image: VLBatch) -> VLBatch:
    """Every text with the one image."""
    parts: dict[str, Any] = {name: getattr(texts, name) for name in _OF_TEXT}
    for field in dataclasses.fields(image):
        value = getattr(image, field.name)
        # Nothing is predicted here.
        if field.name not in (*_OF_TEXT, *_LABELS) and isinstance(value, Tensor):
            parts[field.name] = value.expand(texts.batch_size, *value.shape[1:])
    return VLBatch(**parts)


def _log_odds(model: Any, output: Any) -> Tensor:
    found = model.match_log_odds(output)
    assert found is not None, "asked for scores of a model without a match head"
    return found
