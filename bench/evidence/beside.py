"""Matching and retrieval as VisualBERT is trained for them: a caption that is true of the candidate picture stands
first, the second one is asked about (arXiv:1908.03557, section 3.3).

    [CLS] true caption of the picture [SEP] asked caption [SEP] regions of the picture

A reader without eyes can compare the two captions; `evidence.readers` says how far it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationRow, EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import EvaluationSet
from roibeam.pipelines.common.statistics.retrieval_ranks import CUTS, CaptionedImages, retrieval_ranks
from roibeam.pipelines.data.captions.corpus import Corpus

BATCH = 128


class BesideCaptions:
    """A model, and two captions of each picture.

    Args:
        chosen: the captions that are asked about, one of each picture.
        beside: a caption of each picture that stands before them.
        device: where the model is.
    """

    def __init__(
        self,
        model: Any,
        samples: EvaluationSamples,
        chosen: EvaluationSet,
        beside: Corpus,
        device: torch.device,
    ) -> None:
        self._model, self._samples, self._device = model, samples, device
        self._chosen = chosen
        of_id = {beside.record_id(row): beside.caption(row) for row in range(len(beside))}
        self._first = [samples.text(of_id[image_id]).ids for image_id in chosen.image_ids]
        asked: dict[int, np.ndarray] = {}
        self._record_row: dict[int, int] = {}
        for row, image in zip(chosen.rows.tolist(), chosen.image_of_caption.tolist(), strict=True):
            asked[image] = samples.text(chosen.corpus.caption(row)).ids[1:]
            self._record_row[image] = row
        self._asked = [asked[image] for image in range(len(chosen.image_ids))]

    def matching(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(pictures,) each: how often the model was right about an asked caption with its own picture and with another
        one, and how often it was asked."""
        pairs = []
        for image in range(len(self._asked)):
            other = int(np.random.default_rng([seed, image]).integers(len(self._asked) - 1))
            pairs += [(image, image), (image, other + (other >= image))]
        scores = self._scores(pairs).reshape(-1, 2)
        right = (scores[:, 0] > 0).astype(np.int64) + (scores[:, 1] <= 0)
        return right, np.full(len(right), 2)

    def retrieval(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Name of the measure, and (pictures,) each: found, and asked."""
        texts = sorted({tuple(ids.tolist()) for ids in self._asked}, key=lambda ids: (len(ids), ids))
        number = {ids: place for place, ids in enumerate(texts)}
        text_of_caption = np.array([number[tuple(ids.tolist())] for ids in self._asked])
        images = len(self._asked)
        someone = {int(text): image for image, text in enumerate(text_of_caption)}  # a picture of each text
        scores = np.stack(
            [self._scores([(someone[text], image) for text in range(len(texts))]) for image in range(images)], axis=1
        )
        ranks = retrieval_ranks(scores, CaptionedImages(text_of_caption, np.arange(images), len(texts), images))
        for name, found in (("text_to_image", ranks.text_to_image), ("image_to_text", ranks.image_to_text)):
            for cut in CUTS:
                yield f"{name}_r{cut}", (found <= cut).astype(np.int64), np.ones(images, np.int64)

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """(pairs,) float32 log-odds that the asked caption of the first picture belongs to the second picture."""
        found = []
        for start in range(0, len(pairs), BATCH):
            rows = [self._row(asked, image) for asked, image in pairs[start : start + BATCH]]
            log_odds: Tensor = self._model.match_log_odds(
                self._model.encode(self._samples.batch(rows).to(self._device))
            )
            found.append(log_odds.float().cpu().numpy())
        return np.concatenate(found)

    def _row(self, asked: int, image: int) -> EvaluationRow:
        first, second = self._first[image], self._asked[asked]
        ids = np.concatenate([first, second])
        segments = np.repeat([0, 1], [len(first), len(second)])
        record: RegionRecord = self._chosen.corpus.record(self._record_row[image])
        return self._samples.row(
            record, ids, np.full(len(ids), IGNORE_INDEX), np.zeros(record.num_regions, bool), match=1, segments=segments
        )
