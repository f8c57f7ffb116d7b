"""ImageBERT's rules for a sample (arXiv:2001.07966, sections 4.3 and 5.1; there is no public code).

[CLS] text [SEP] regions        44 pieces and 100 regions, 144 in all; words and regions masked, 1 = they match
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.masking import mask_pieces, mask_regions
from roibeam.model.imagebert.model import ImageBertConfig
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample, as_float32, as_tensor
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_vocabulary, check_width
from roibeam.pipelines.data.record_regions import strongest_regions
from roibeam.pipelines.pretraining.samples.sampler import Lengths, RowSize
from roibeam.pipelines.pretraining.samples.sampling import ImageBertSampling, PairRows, draw_pair
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class ImageBertSampler:
    """A `Sampler`."""

    def __init__(
        self,
        sampling: ImageBertSampling,
        tokenizer: CaptionTokenizer,
        model_config: ImageBertConfig,
        *,
        num_classes: int,
    ) -> None:
        check_vocabulary(model_config, tokenizer)
        if model_config.with_region_class_head and model_config.num_region_labels not in (num_classes, num_classes + 1):
            raise ValueError(
                f"the model has {model_config.num_region_labels} region labels, this store has {num_classes} classes; "
                f"set num_region_labels to {num_classes}, or to {num_classes + 1} to count background"
            )
        self._sampling, self._tokenizer, self._config = sampling, tokenizer, model_config
        self._num_classes = num_classes
        last_separator = int(model_config.final_separator != "none")
        self._max_pieces = min(sampling.max_pieces, model_config.max_position_embeddings) - last_separator
        self._predicts_regions = model_config.with_region_class_head or model_config.with_region_feature_head

    @property
    def draws_images(self) -> bool:
        """See `Sampler`."""
        sampling = self._sampling
        return bool(
            self._config.with_match_head and sampling.mismatched_probability and sampling.negatives != "caption"
        )

    def check(self, record: RegionRecord) -> None:
        check_width(self._config, record)
        self._global_feature(record)

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling = self._sampling
        pair = self._pair(corpus, row, random)
        record = corpus.record(pair.image_row)
        text_ids, text_labels = self._text(corpus.caption(pair.caption_row), random)
        chosen = strongest_regions(record, sampling.max_regions)
        masked = predicted = np.zeros(len(chosen), bool)
        targets: ClassTargets | Tensor | None = None
        if self._predicts_regions:
            masked, predicted = mask_regions(
                len(chosen),
                random,
                probability=sampling.region_probability,
                masked_share=sampling.region_masked_share,
            )
            targets = self._targets(record, chosen, predicted)
        return PretrainSample(
            sample_id=record.image_id,
            text_ids=text_ids,
            text_labels=text_labels,
            text_segments=np.zeros(len(text_ids), np.int64),
            features=as_tensor(record.features[chosen]),
            boxes=record.boxes[chosen],
            masked=masked,
            predicted=predicted,
            region_targets=targets,
            global_feature=self._global_feature(record),
            match=int(pair.matched) if self._config.with_match_head else None,
            height=record.height,
            width=record.width,
        )

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        pair, most = self._pair(corpus, row, random), self._sampling.max_regions
        pieces, regions = lengths.pieces(pair.caption_row), lengths.regions(pair.image_row)
        return [RowSize(min(pieces, self._max_pieces), min(regions, most) if most else regions)]

    def _pair(self, corpus: Corpus, row: int, random: np.random.Generator) -> PairRows:
        if not self._config.with_match_head:
            return PairRows(row, row, True)
        return draw_pair(
            corpus,
            row,
            random,
            mismatched_probability=self._sampling.mismatched_probability,
            negatives=self._sampling.negatives,
        )

    def _text(self, caption: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels, each (T,) int64, of the cut and masked caption."""
        sampling, tokenizer = self._sampling, self._tokenizer
        words = tokenizer.encode(caption).ids[1:-1][: self._max_pieces - 2]
        ids = np.concatenate([[tokenizer.cls_id], words, [tokenizer.sep_id]])
        maskable = np.ones(len(ids), bool)
        maskable[[0, -1]] = False
        return mask_pieces(
            ids,
            maskable,
            random,
            mask_id=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            probability=sampling.word_probability,
            masked_share=sampling.word_masked_share,
        )

    def _targets(self, record: RegionRecord, chosen: np.ndarray, predicted: np.ndarray) -> ClassTargets | Tensor:
        """Classes, if the model has a head for them; a model reads the features that it predicts itself."""
        if self._config.with_region_class_head:
            return ClassTargets.of(record, chosen, predicted, self._num_classes)
        return as_float32(record.features[chosen])

    def _global_feature(self, record: RegionRecord) -> Tensor | None:
        """(G,) float; None for a model without a global feature."""
        width = self._config.global_feature_size
        if not width:
            return None
        feature = record.image_feature
        if feature is None or len(feature) != width:
            got = "none" if feature is None else f"one of width {len(feature)}"
            raise ValueError(
                f"record {record.image_id!r}: the model reads a feature of the whole image of width {width}, the "
                f"record has {got}; set global_feature_size to what the store has, or 0"
            )
        return as_float32(feature)
