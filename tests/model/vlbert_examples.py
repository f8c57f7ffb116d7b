"""Tiny VL-BERTs and batches whose padding is filled with numbers that must not matter."""

import dataclasses

import torch
import vilbert_examples
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE

from roibeam.model.vlbert.config import vlbert_config
from roibeam.model.vlbert.model import VLBertForPreTraining

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCAB_SIZE,
    "region_feature_size": FEATURES,
    "num_region_labels": LABELS,
    "coordinate_embedding_size": 16,
    "max_position_embeddings": POSITIONS,
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
    batch = vilbert_examples.make_batch(lengths, regions, text_pad=text_pad, region_pad=region_pad)
    own = {
        "text_segments": torch.zeros_like(batch.text_segments),
        "whole_image_features": torch.randn(len(lengths), FEATURES, generator=torch.Generator().manual_seed(3)),
        "region_target_mask": batch.masked_regions,
        "match_labels": torch.arange(len(lengths)) % 2,
    }
    return dataclasses.replace(batch, **(own | fields))
