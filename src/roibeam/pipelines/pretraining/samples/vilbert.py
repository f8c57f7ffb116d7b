"""ViLBERT's rules for a sample, and those of its single-stream baseline.

arXiv:1908.02265, section 2.2, "Training Tasks and Objectives"; jiasenlu/vilbert_beta and facebookresearch/
vilbert-multi-task, vilbert/datasets/concept_cap_dataset.py. The model adds IMG, the whole image, itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roibeam.model.common.masking import mask_overlapping_regions, mask_pieces, mask_regions
from roibeam.model.common.regions import mean_feature
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.single_stream import SingleStreamConfig
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_positions, check_region_labels
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.sampling import ViLbertSampling


class ViLbertSampler(Sampler):
    """A `Sampler`, of either model."""

    def _fit(self, sampling: ViLbertSampling, model_config: ViLbertConfig | SingleStreamConfig) -> None:
        # The baseline always has a match head.
        region_loss, positions, self._with_match = model_config.region_loss, model_config.max_position_embeddings, True
        if isinstance(model_config, ViLbertConfig):
            self._with_match = model_config.with_match_head
            positions -= model_config.first_position
            if model_config.num_task_tokens:
                raise ValueError(
                    f"the model has {model_config.num_task_tokens} task tokens, which pre-training on captions does "
                    f"not use; set num_task_tokens to 0"
                )
        check_positions(positions, sampling.max_pieces)
        if not self._with_match and sampling.mismatched_probability:
            raise ValueError(
                f"the model has no match head, but {sampling.mismatched_probability:.0%} of the pairs would be "
                f"mismatched; set sampling.mismatched_probability to 0, or with_match_head to true"
            )
        self._classifies, self._contrasts = region_loss == "kl", region_loss == "contrastive"
        self._predicts_regions = region_loss != "none"
        if self._classifies:
            check_region_labels(model_config.region_target_size, self._num_classes, "region_target_size")

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling = self._sampling
        inputs = self._inputs(corpus, self._pair(corpus, row, random), with_match=self._with_match)
        words = inputs.caption.word_ids >= 0
        text_ids, text_labels = mask_pieces(
            inputs.caption.ids, words, random, **self._words, probability=sampling.word_probability
        )
        masked = predicted = np.zeros(len(inputs.boxes), bool)
        if self._predicts_regions:
            masked, predicted = mask_regions(len(inputs.boxes), random, probability=sampling.region_probability)
        whole_image: Tensor | None = None
        if sampling.overlapping_regions != "kept":
            masked, counted = mask_overlapping_regions(
                inputs.boxes, masked, predicted, hide_overlapping=sampling.overlapping_regions == "hidden"
            )
            if sampling.overlapping_regions == "uncounted":
                whole_image = mean_feature(
                    inputs.features.float(), torch.from_numpy(~masked), torch.from_numpy(counted)
                )
        targets: ClassTargets | Tensor | None = None
        if self._predicts_regions:
            targets = inputs.targets(predicted, self._num_classes if self._classifies else None)
        return inputs.sample(
            text_ids,
            text_labels,
            masked,
            predicted,
            targets,
            # Negatives are drawn among all regions.
            contrasted=self._contrasts,
            whole_image=whole_image,
        )
