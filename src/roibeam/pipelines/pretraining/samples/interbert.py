"""InterBERT's rules for a sample (arXiv:2003.13198, section 2.3; black4321/InterBERT concept_cap_dataset.py).

The model adds IMG, the whole image, itself: the features that are not masked, over the number of all regions.
"""

from __future__ import annotations

import numpy as np

from roibeam.model.common.masking import (
    mask_one_span,
    mask_pieces,
    mask_region_groups,
    mask_region_groups_as_released,
    mask_regions,
    mask_segments,
)
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.interbert.model import InterBertConfig
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_positions, check_region_labels
from roibeam.pipelines.pretraining.samples.sampler import CaptionAndRegions, Lengths, RowSize, Sampler
from roibeam.pipelines.pretraining.samples.sampling import InterBertSampling

ANCHOR_PROBABILITY, SINGLE_PROBABILITY = 0.1, 0.15


class InterBertSampler(Sampler):
    """A `Sampler`."""

    def _fit(self, sampling: InterBertSampling, model_config: InterBertConfig) -> None:
        check_positions(model_config.max_position_embeddings, sampling.max_pieces)
        elements = 1 + sampling.max_regions + model_config.with_image_sep
        if model_config.with_region_positions and elements > model_config.max_position_embeddings:
            raise ValueError(
                f"images of up to {elements} elements, the model has positions for "
                f"{model_config.max_position_embeddings}; set sampling.max_regions or max_position_embeddings"
            )
        self._classifies = model_config.region_loss == "kl"
        self._predicts_regions = model_config.region_loss != "none"
        if sampling.conditional_masking and not self._predicts_regions:
            raise ValueError(
                "sampling.conditional_masking makes a row in which regions alone are predicted, but the model predicts "
                "none (region_loss 'none'); leave it out"
            )
        if self._classifies:
            check_region_labels(model_config.region_target_size, self._num_classes, "region_target_size")

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        inputs = self._inputs(corpus, self._pair(corpus, row, random))
        text_ids, text_labels = self._mask_text(inputs, random)
        if not self._predicts_regions:
            nothing = np.zeros(len(inputs.boxes), bool)
            return inputs.sample(text_ids, text_labels, nothing, nothing, None)
        masked, predicted = self._mask_image(inputs, random)
        targets = inputs.targets(predicted, self._num_classes if self._classifies else None)
        if not self._sampling.conditional_masking:
            return inputs.sample(text_ids, text_labels, masked, predicted, targets)
        nothing = np.zeros_like(predicted)
        of_words = inputs.sample(text_ids, text_labels, nothing, nothing, targets)
        no_labels = np.full_like(text_labels, IGNORE_INDEX)
        return inputs.sample(inputs.caption.ids, no_labels, masked, predicted, targets, twin=of_words)

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        return super().sizes(corpus, row, lengths, random) * (2 if self._sampling.conditional_masking else 1)

    def _mask_text(self, inputs: CaptionAndRegions, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sampling, caption = self._sampling, inputs.caption
        if sampling.masking == "groups_as_released":
            return mask_one_span(caption.ids, caption.word_ids, random, **self._words)
        if sampling.masking == "groups":
            probability = _or(sampling.word_probability, ANCHOR_PROBABILITY)
            return mask_segments(caption.ids, caption.word_ids, random, **self._words, probability=probability)
        probability = _or(sampling.word_probability, SINGLE_PROBABILITY)
        return mask_pieces(caption.ids, caption.word_ids >= 0, random, **self._words, probability=probability)

    def _mask_image(self, inputs: CaptionAndRegions, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sampling = self._sampling
        if sampling.masking == "single":
            probability = _or(sampling.region_probability, SINGLE_PROBABILITY)
            return mask_regions(len(inputs.boxes), random, probability=probability)
        probability = _or(sampling.region_probability, ANCHOR_PROBABILITY)
        if sampling.masking == "groups":
            masked = mask_region_groups(inputs.boxes, random, probability=probability)
            return masked, masked
        return mask_region_groups_as_released(
            inputs.boxes, inputs.features.float().numpy(), random, probability=probability
        )


def _or(given: float | None, published: float) -> float:
    return published if given is None else given
