"""VL-BERT's rules for a sample: order, masks, and the cut to 64 elements (arXiv:1908.08530, sections 3.2 and 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from features.record import RegionRecord
from model.masking import mask_regions, mask_words
from model.vlbert_config import VLBertConfig
from model.vlbert_embeddings import average_visible_regions
from pipelines.pretraining.class_targets import as_float32, class_targets
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.fit import check_probabilities, check_region_labels, check_vocabulary, check_width
from pipelines.pretraining.sample import PretrainSample
from pipelines.tokenizer import CaptionTokenizer


@dataclass(frozen=True)
class VLBertSampling:
    """How samples are made; defaults are the release's.

    Attributes:
        max_elements: text pieces + whole image + regions kept, cut from the longer side (SEQ_LEN, [END] not counted);
            0 = no cut. Text is always cut to the positions the model has.
        word_probability, region_probability: how often a word or region is predicted.
        word_masked_share: how many of the predicted words become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden.
    """

    max_elements: int = 64
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9

    def __post_init__(self) -> None:
        if self.max_elements and self.max_elements < 4:
            raise ValueError(f"VLBertSampling: max_elements must be 0 or at least 4, got {self.max_elements}")
        check_probabilities(self, "word_probability", "region_probability", "word_masked_share", "region_masked_share")


class VLBertSampler:
    """A `Sampler`."""

    def __init__(
        self, sampling: VLBertSampling, tokenizer: CaptionTokenizer, model_config: VLBertConfig, *, num_classes: int
    ) -> None:
        check_vocabulary(model_config, tokenizer)
        check_region_labels(model_config.num_region_labels, num_classes, "num_region_labels")
        self._sampling, self._tokenizer, self._config = sampling, tokenizer, model_config
        self._num_classes = num_classes

    def check(self, record: RegionRecord) -> None:
        check_width(self._config, record)

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        sampling, tokenizer = self._sampling, self._tokenizer
        record = corpus.record(row)
        encoded = tokenizer.encode(corpus.caption(row))
        text_ids, text_labels = mask_words(
            encoded.ids,
            encoded.word_ids,
            random,
            mask_id=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            probability=sampling.word_probability,
            masked_share=sampling.word_masked_share,
        )
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
            num_classes=self._num_classes,
            max_elements=sampling.max_elements,
            max_text=self._config.max_position_embeddings - 2,
        )


def make_sample(
    record: RegionRecord,
    text_ids: np.ndarray,
    text_labels: np.ndarray,
    masked: np.ndarray,
    predicted: np.ndarray,
    *,
    num_classes: int,
    max_elements: int,
    max_text: int,
) -> PretrainSample:
    """Orders, masks and cuts one record (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py, __getitem__).

    Args:
        text_ids, text_labels: (T,) int64 after word masking.
        masked, predicted: (K,) bool, in the order of the regions by class score, highest first.
        num_classes: foreground classes.
        max_elements: as in `VLBertSampling`.
        max_text: most text pieces the model takes.
    Raises:
        ValueError: naming the record, when its classes do not fit `num_classes`.
    """
    order = np.argsort(-record.class_scores, kind="stable")
    features = as_float32(record.features[order])
    whole_image = average_visible_regions(
        features, torch.ones(len(order), dtype=torch.bool), torch.from_numpy(masked.copy())
    )
    text_kept, regions_kept = len(text_ids), len(order)
    if max_elements:
        text_kept, elements_kept = _cut(text_kept, regions_kept + 1, max_elements)
        regions_kept = elements_kept - 1
    text_kept = min(text_kept, max_text)
    order, masked, predicted = order[:regions_kept], masked[:regions_kept], predicted[:regions_kept]
    targets = torch.zeros(len(order), num_classes + 1)
    if predicted.any():
        targets[torch.from_numpy(predicted.copy())] = class_targets(record, order[predicted], num_classes)
    return PretrainSample(
        sample_id=record.image_id,
        # The last piece is [SEP] and stays.
        text_ids=np.append(text_ids[: text_kept - 1], text_ids[-1]),
        text_labels=np.append(text_labels[: text_kept - 1], text_labels[-1]),
        text_segments=np.zeros(text_kept, np.int64),
        features=features[:regions_kept],
        boxes=record.boxes[order],
        masked=masked,
        predicted=predicted,
        targets=targets,
        whole_image=whole_image,
        height=record.height,
        width=record.width,
    )


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
