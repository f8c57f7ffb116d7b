"""InterBERT's rules for a sample (arXiv:2003.13198, section 2.3; black4321/InterBERT concept_cap_dataset.py).

The model adds IMG, the whole image, itself: the features that are not masked, over the number of all regions.
"""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import RegionRecord
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
from roibeam.pipelines.data.compatibility import check_positions, check_region_labels, check_vocabulary, check_width
from roibeam.pipelines.pretraining.samples.sampler import CaptionAndRegions, Lengths, RowSize
from roibeam.pipelines.pretraining.samples.sampling import InterBertSampling, PairRows, draw_pair
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

ANCHOR_PROBABILITY, SINGLE_PROBABILITY = 0.1, 0.15


class InterBertSampler:
    """A `Sampler`."""

    draws_images = False

    def __init__(
        self,
        sampling: InterBertSampling,
        tokenizer: CaptionTokenizer,
        model_config: InterBertConfig,
        *,
        num_classes: int,
    ) -> None:
        check_vocabulary(model_config, tokenizer)
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
            check_region_labels(model_config.region_target_size, num_classes, "region_target_size")
        self._sampling, self._tokenizer, self._config = sampling, tokenizer, model_config
        self._num_classes = num_classes

    def check(self, record: RegionRecord) -> None:
        check_width(self._config, record)

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling = self._sampling
        pair = self._pair(corpus, row, random)
        inputs = CaptionAndRegions.of(
            corpus.record(pair.image_row),
            corpus.caption(pair.caption_row),
            self._tokenizer,
            max_pieces=sampling.max_pieces,
            max_regions=sampling.max_regions,
            matched=pair.matched,
        )
        text_ids, text_labels = self._mask_text(inputs, random)
        if not self._predicts_regions:
            nothing = np.zeros(len(inputs.boxes), bool)
            return inputs.sample(text_ids, text_labels, nothing, nothing, None)
        masked, predicted = self._mask_image(inputs, random)
        targets = inputs.class_targets(predicted, self._num_classes) if self._classifies else inputs.features.float()
        if not sampling.conditional_masking:
            return inputs.sample(text_ids, text_labels, masked, predicted, targets)
        nothing = np.zeros_like(predicted)
        of_words = inputs.sample(text_ids, text_labels, nothing, nothing, targets)
        no_labels = np.full_like(text_labels, IGNORE_INDEX)
        return inputs.sample(inputs.caption.ids, no_labels, masked, predicted, targets, twin=of_words)

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        pair, sampling = self._pair(corpus, row, random), self._sampling
        pieces, regions = lengths.pieces(pair.caption_row), lengths.regions(pair.image_row)
        size = RowSize(min(pieces, sampling.max_pieces), min(regions, sampling.max_regions))
        return [size, size] if sampling.conditional_masking else [size]

    def _pair(self, corpus: Corpus, row: int, random: np.random.Generator) -> PairRows:
        return draw_pair(corpus, row, random, mismatched_probability=self._sampling.mismatched_probability)

    def _mask_text(self, inputs: CaptionAndRegions, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sampling, tokenizer, caption = self._sampling, self._tokenizer, inputs.caption
        pieces = {"mask_id": tokenizer.mask_id, "vocab_size": tokenizer.vocab_size}
        if sampling.masking == "groups_as_released":
            return mask_one_span(caption.ids, caption.word_ids, random, **pieces)
        if sampling.masking == "groups":
            probability = _or(sampling.word_probability, ANCHOR_PROBABILITY)
            return mask_segments(caption.ids, caption.word_ids, random, **pieces, probability=probability)
        probability = _or(sampling.word_probability, SINGLE_PROBABILITY)
        return mask_pieces(caption.ids, caption.word_ids >= 0, random, **pieces, probability=probability)

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
