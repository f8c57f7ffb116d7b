"""Tiny VL-BERTs and batches whose padding is filled with numbers that must not matter."""

import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.config import vlbert_config
from roibeam.model.vlbert.model import VLBertForPreTraining

VOCAB_SIZE, FEATURES, LABELS = 60, 16, 7
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCAB_SIZE,
    "region_feature_size": FEATURES,
    "num_region_labels": LABELS,
    "coordinate_embedding_size": 16,
    "max_position_embeddings": 24,
    # Awake: at the release's start value 0 much of the model could not be seen from outside.
    "visual_norm_text_init": 1.0,
    "visual_norm_region_init": 1.0,
    "initializer_range": 0.2,
}


def make_model(preset="release-captions", **overrides):
    torch.manual_seed(0)
    return VLBertForPreTraining(vlbert_config(preset, **(SIZES | overrides))).eval()


def make_batch(lengths=(7, 4, 6), regions=(4, 5, 1), *, text_pad=0, region_pad=0, **fields):
    """Rows of these sizes with all targets; the first region of each is masked, and the whole image is given."""
    generator = torch.Generator().manual_seed(3)
    rows, text, most = len(lengths), max(lengths) + text_pad, max(regions) + region_pad
    text_mask = torch.arange(text) < torch.tensor(lengths)[:, None]
    region_mask = torch.arange(most) < torch.tensor(regions)[:, None]
    text_ids, labels = torch.full((rows, text), 7), torch.full((rows, text), IGNORE_INDEX)
    features, boxes = torch.full((rows, most, FEATURES), 1e3), torch.full((rows, most, 4), -50.0)
    targets = torch.zeros(rows, most, LABELS)
    masked = torch.zeros(rows, most, dtype=torch.bool)
    for row, (length, count) in enumerate(zip(lengths, regions, strict=True)):
        text_ids[row, :length] = torch.randint(VOCAB_SIZE, (length,), generator=generator)
        labels[row, 1:3] = text_ids[row, 1:3]
        features[row, :count] = torch.randn(count, FEATURES, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * 100
        boxes[row, :count] = torch.cat([corner, corner + 40], dim=1)
        targets[row, :count] = torch.softmax(torch.randn(count, LABELS, generator=generator), dim=1)
        masked[row, : min(count, 1)] = True
    values = {
        "text_ids": text_ids,
        "text_mask": text_mask,
        "text_segments": torch.zeros_like(text_ids),
        "region_features": features,
        "region_boxes": boxes,
        "region_mask": region_mask,
        "image_hw": torch.tensor([[150.0, 200.0]]).expand(rows, 2),
        "masked_regions": masked,
        "whole_image_features": torch.randn(rows, FEATURES, generator=generator),
        "text_labels": labels,
        "region_targets": targets,
        "region_target_mask": masked,
        "match_labels": torch.arange(rows) % 2,
    }
    return VLBatch(**(values | fields))
