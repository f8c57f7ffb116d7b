"""ImageBERT's rules for a sample (arXiv:2001.07966, sections 4.3 and 5.1; there is no public code).

[CLS] text [SEP] regions        44 pieces and 100 regions, 144 in all; words and regions masked, 1 = they match
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.masking import mask_pieces, mask_regions
from roibeam.model.imagebert.model import ImageBertConfig
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample, as_float32
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.sampling import ImageBertSampling


class ImageBertSampler(Sampler):
    """A `Sampler`."""

    def _fit(self, sampling: ImageBertSampling, model_config: ImageBertConfig) -> None:
        num_classes = self._num_classes
        if model_config.with_region_class_head and model_config.num_region_labels not in (num_classes, num_classes + 1):
            raise ValueError(
                f"the model has {model_config.num_region_labels} region labels, this store has {num_classes} classes; "
                f"set num_region_labels to {num_classes}, or to {num_classes + 1} to count background"
            )
        last_separator = int(model_config.final_separator != "none")
        self._max_pieces = min(sampling.max_pieces, model_config.max_position_embeddings) - last_separator
        self._draws_pairs = bool(model_config.with_match_head)
        self._predicts_regions = model_config.with_region_class_head or model_config.with_region_feature_head

    def check(self, record: RegionRecord) -> None:
        super().check(record)
        self._global_feature(record)

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling = self._sampling
        inputs = self._inputs(corpus, self._pair(corpus, row, random), with_match=self._draws_pairs)
        maskable = np.ones(len(inputs.caption.ids), bool)
        maskable[[0, -1]] = False
        text_ids, text_labels = mask_pieces(
            inputs.caption.ids,
            maskable,
            random,
            **self._words,
            probability=sampling.word_probability,
            masked_share=sampling.word_masked_share,
        )
        masked = predicted = np.zeros(len(inputs.boxes), bool)
        targets: ClassTargets | Tensor | None = None
        if self._predicts_regions:
            masked, predicted = mask_regions(
                len(inputs.boxes),
                random,
                probability=sampling.region_probability,
                masked_share=sampling.region_masked_share,
            )
            # Classes, if the model has a head for them; a model reads the features that it predicts itself.
            targets = inputs.targets(predicted, self._num_classes if self._config.with_region_class_head else None)
        global_feature = self._global_feature(inputs.record)
        return inputs.sample(text_ids, text_labels, masked, predicted, targets, global_feature=global_feature)

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
