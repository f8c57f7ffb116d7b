"""What the cases of ViLBERT and InterBERT share: the arrays of one batch, and names of outputs and losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.model_case import ModelArrays
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.interbert.model import InterBertConfig
from roibeam.model.vilbert.encoder import ViLbertConfig

PRETRAINING_LOSSES = {
    "masked_lm_loss": "masked_words",
    "masked_img_loss": "masked_regions",
    "next_sentence_loss": "matching",
}


def read_batch(arrays: ModelArrays, config: ViLbertConfig | InterBertConfig, *, num_task_tokens: int = 0) -> VLBatch:
    """The rows of the file: features are masked already and IMG is given, with the targets that are there.

    One row of text goes with every image.

    Args:
        num_task_tokens: above 0, "in/task_ids" is read.
    Raises:
        ValueError: naming the array, when it holds what cannot be a batch.
    """
    features = arrays.floats("in/image_feat", None, None, config.region_feature_size)
    rows, elements = features.shape[:2]
    if elements < 1:
        raise ValueError("in/image_feat has no IMG token; it comes first")
    ids = arrays.whole("in/input_ids", 0, config.vocab_size, None, None)
    if len(ids) not in (1, rows):
        raise ValueError(f"in/input_ids has {len(ids)} rows for {rows} images; expected as many, or 1")
    captions = tuple(ids.shape)
    locations = arrays.floats("in/image_loc", rows, elements, 5)
    mask = arrays.mask("in/image_attention_mask", rows, elements)
    areas = (locations[..., 2] - locations[..., 0]) * (locations[..., 3] - locations[..., 1])
    # Our batch has boxes; a reference whose area is not that of its corners would be computed as another one.
    if not torch.allclose(areas, locations[..., 4], atol=1e-6) or not mask[:, 0].all():
        raise ValueError("in/image_loc: the fifth number is not the area of the corners, or IMG is masked out")
    tasks = None
    if num_task_tokens:
        tasks = arrays.whole("in/task_ids", 0, num_task_tokens, len(ids), 1)[:, 0].expand(rows)
    labels: dict[str, Any] = {}
    if "in/masked_lm_labels" in arrays:
        words = arrays.whole("in/masked_lm_labels", -1, config.vocab_size, *captions)
        labels["text_labels"] = words.masked_fill(words == -1, IGNORE_INDEX).expand(rows, -1)
    if "in/image_target" in arrays:
        regions = arrays.whole("in/image_label", -1, 2, rows, elements - 1)
        labels["region_target_mask"] = regions == 1
        labels["region_targets"] = arrays.floats("in/image_target", rows, elements - 1, config.region_target_size)
    if "in/next_sentence_label" in arrays:
        random = arrays.whole("in/next_sentence_label", -1, 2, rows)
        labels["match_labels"] = torch.where(random == -1, IGNORE_INDEX, 1 - random)  # 0 = match there
    return VLBatch(
        text_ids=ids.expand(rows, -1),
        text_mask=arrays.mask("in/attention_mask", *captions).expand(rows, -1),
        text_segments=arrays.whole("in/token_type_ids", 0, config.num_segments, *captions).expand(rows, -1),
        region_features=features[:, 1:],
        region_boxes=locations[:, 1:, :4],
        region_mask=mask[:, 1:],
        image_hw=torch.ones(rows, 2),
        masked_regions=torch.zeros_like(mask[:, 1:]),
        whole_image_features=features[:, 0],
        task_ids=tasks,
        **labels,
    )


def with_img(whole: Tensor | None, regions: Tensor | None) -> Tensor:
    """What a reference has of all elements of the image, IMG first."""
    if whole is None or regions is None:
        raise ValueError("this model gives no such output")
    return torch.cat([whole[:, None], regions], dim=1)


def choice_loss(arrays: ModelArrays, scores_B: Tensor) -> Tensor:
    """Cross-entropy of "in/choice_target" (questions,) with the scores of each question's rows."""
    rows, questions = len(scores_B), len(arrays.arrays.take("in/choice_target", None))
    if not questions or rows % questions:
        raise ValueError(f"in/choice_target has {questions} questions for {rows} rows of choices")
    return F.cross_entropy(
        scores_B.reshape(questions, -1), arrays.whole("in/choice_target", 0, rows // questions, questions)
    )
