"""VL-BERT's rules for a sample: order, masks, and the cut to 64 elements (arXiv:1908.08530, sections 3.2 and 3.3).

A model with a relationship head sees mismatched pairs too; one made with `with_text_only` may get rows of text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.masking import mask_regions, mask_words
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import mean_of_visible
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample, as_tensor
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_region_labels
from roibeam.pipelines.pretraining.samples.sampler import Lengths, RowSize, Sampler
from roibeam.pipelines.pretraining.samples.sampling import VLBertSampling


class VLBertSampler(Sampler):
    """A `Sampler`."""

    def _fit(self, sampling: VLBertSampling, model_config: VLBertConfig) -> None:
        # Read once, not for every sample: a configuration is slow to answer.
        self._predicts_regions = bool(model_config.with_region_head)
        if self._predicts_regions:
            check_region_labels(model_config.num_region_labels, self._num_classes, "num_region_labels")
        self._draws_pairs = bool(model_config.with_relationship_head)
        self._text_only = False if model_config.with_text_only else None
        self._max_text = model_config.max_position_embeddings - 2

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling = self._sampling
        pair = self._pair(corpus, row, random)
        record = corpus.record(row)
        encoded = self._tokenizer.encode(corpus.caption(pair.caption_row))
        text_ids, text_labels = self._masked(encoded.ids, encoded.word_ids, random)
        masked = predicted = np.zeros(record.num_regions, bool)
        if self._predicts_regions:
            masked, predicted = mask_regions(
                record.num_regions,
                random,
                probability=sampling.region_probability,
                masked_share=sampling.region_masked_share,
            )
        return make_sample(
            record,
            text_ids,
            text_labels,
            masked,
            predicted,
            num_classes=self._num_classes if self._predicts_regions else None,
            max_elements=sampling.max_elements,
            max_text=self._max_text,
            match=int(pair.matched) if self._draws_pairs else None,
            text_only=self._text_only,
        )

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        pieces = lengths.pieces(self._pair(corpus, row, random).caption_row)
        limits = {"max_elements": self._sampling.max_elements, "max_text": self._max_text}
        return [_kept(pieces, lengths.regions(row), **limits)]

    @property
    def most_text_pieces(self) -> int:
        """See `TextSampler`."""
        return min(self._sampling.max_text_pieces, self._max_text)

    def text_sample(self, lines: Sequence[str], line: int, random: np.random.Generator) -> PretrainSample:
        """A row of text alone: no [CLS], no [SEP], no region; after the last line of the corpus comes the first.

        jackroos/VL-BERT pretrain/data/datasets/general_corpus.py, __getitem__.
        """
        sampling, config = self._sampling, self._config
        ids, words, number = [], [], 0
        for place in count(line):
            encoded = self._tokenizer.encode(lines[place % len(lines)])
            ids.append(encoded.ids[1:-1])
            words.append(encoded.word_ids[1:-1] + number)
            number += int(encoded.word_ids.max()) + 1
            # A corpus whose lines hold not one word would have no end.
            if number >= sampling.min_text_words or (not number and place - line >= len(lines)):
                break
        text_ids, text_labels = self._masked(np.concatenate(ids), np.concatenate(words), random)
        text_ids, text_labels = text_ids[: self.most_text_pieces], text_labels[: self.most_text_pieces]
        nothing = np.zeros(0, bool)
        return PretrainSample(
            sample_id=f"text line {line}",
            text_ids=text_ids,
            text_labels=text_labels,
            text_segments=np.zeros(len(text_ids), np.int64),
            features=torch.zeros(0, config.region_feature_size),
            boxes=np.zeros((0, 4), np.float32),
            masked=nothing,
            predicted=nothing,
            region_targets=torch.zeros(0, self._num_classes + 1) if self._predicts_regions else None,
            match=IGNORE_INDEX if self._draws_pairs else None,
            text_only=True,
            height=1,
            width=1,
        )

    def _masked(
        self, ids: np.ndarray, word_ids: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels after masking by whole words."""
        return mask_words(
            ids,
            word_ids,
            random,
            **self._words,
            probability=self._sampling.word_probability,
            masked_share=self._sampling.word_masked_share,
        )


def make_sample(
    record: RegionRecord,
    text_ids: np.ndarray,
    text_labels: np.ndarray,
    masked: np.ndarray,
    predicted: np.ndarray,
    *,
    num_classes: int | None,
    max_elements: int,
    max_text: int,
    match: int | None = None,
    text_only: bool | None = None,
) -> PretrainSample:
    """Orders, masks and cuts one record (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py, __getitem__).

    Args:
        text_ids, text_labels: (T,) int64 after word masking.
        masked, predicted: (K,) bool, in the order of the regions by class score, highest first.
        num_classes: foreground classes; None for a model that predicts no regions.
        max_elements: as in `VLBertSampling`.
        max_text: most text pieces the model takes.
    """
    order = np.argsort(-record.class_scores, kind="stable")
    features = as_tensor(record.features[order])
    # As `average_visible_regions`, whose own way of hiding takes longer than all else here.
    visible = features.to(torch.float32, copy=True)
    visible.numpy()[masked] = 0.0
    whole_image = mean_of_visible(visible.sum(dim=0), torch.tensor([np.count_nonzero(~masked)]))
    text_kept, regions_kept = _kept(len(text_ids), len(order), max_elements=max_elements, max_text=max_text)
    order, masked, predicted = order[:regions_kept], masked[:regions_kept], predicted[:regions_kept]
    return PretrainSample(
        sample_id=record.image_id,
        text_ids=_shortened(text_ids, text_kept),
        text_labels=_shortened(text_labels, text_kept),
        text_segments=np.zeros(text_kept, np.int64),
        features=features[:regions_kept],
        boxes=record.boxes[order],
        masked=masked,
        predicted=predicted,
        region_targets=None if num_classes is None else ClassTargets.of(record, order, predicted, num_classes),
        whole_image=whole_image,
        height=record.height,
        width=record.width,
        match=match,
        text_only=text_only,
    )


def _shortened(pieces: np.ndarray, kept: int) -> np.ndarray:
    """The first `kept` pieces; the last one is [SEP] and stays."""
    return pieces if kept == len(pieces) else np.concatenate([pieces[: kept - 1], pieces[-1:]])


def _kept(pieces: int, regions: int, *, max_elements: int, max_text: int) -> RowSize:
    """Lengths of a caption and a record after the cut; arguments as of `make_sample`."""
    if max_elements:
        pieces, elements = _cut(pieces, regions + 1, max_elements)
        regions = elements - 1
    return RowSize(min(pieces, max_text), regions)


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
