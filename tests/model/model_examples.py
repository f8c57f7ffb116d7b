"""Every model with pre-training heads, small and with weights drawn, for tests of what all of them promise.

Batches of `vilbert_examples.make_batch` fit them all.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, randomised
from vilbert_examples import tiny as tiny_vilbert

from model.vilbert import ViLbertForPreTraining
from model.vilbert_single_stream import SingleStreamConfig, SingleStreamForPreTraining
from model.visualbert import VisualBertConfig, VisualBertForPreTraining
from model.vlbert import VLBertConfig, VLBertForPreTraining

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
SIZES |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS, "region_feature_size": FEATURES}


def _vlbert(**overrides):
    sizes = SIZES | {"coordinate_embedding_size": 16, "num_region_labels": LABELS}
    return VLBertForPreTraining(VLBertConfig(**(sizes | overrides)))


def _vilbert(**overrides):
    return ViLbertForPreTraining(tiny_vilbert(**overrides))


def _single_stream(**overrides):
    return SingleStreamForPreTraining(SingleStreamConfig(**(SIZES | {"region_target_size": LABELS} | overrides)))


def _visualbert(**overrides):
    return VisualBertForPreTraining(VisualBertConfig(**(SIZES | overrides)))


class Example(NamedTuple):
    """How a model is made, and what the tests must know about it."""

    make: Callable[..., torch.nn.Module]
    joint: tuple[str, ...] = ()  # parts of the sequence whose attention maps are in `AttentionMaps.joint`
    masks_regions: bool = True


EXAMPLES = {
    "VL-BERT": Example(_vlbert, ("text", "whole image", "regions", "end")),
    "VL-BERT with relationship": Example(
        partial(_vlbert, with_pooler=True, with_relationship_head=True), ("text", "whole image", "regions", "end")
    ),
    "ViLBERT": Example(_vilbert),
    "ViLBERT, multi-task": Example(partial(_vilbert, masked_loss_pairs="matched", whole_image_count="visible")),
    "ViLBERT single-stream": Example(_single_stream, ("text", "whole image", "regions")),
    "VisualBERT": Example(_visualbert, ("text", "regions"), masks_regions=False),
    "VisualBERT, late fusion": Example(
        partial(_visualbert, early_fusion=False), ("text", "regions"), masks_regions=False
    ),
}


def build(name, **overrides):
    """In evaluation mode."""
    return randomised(EXAMPLES[name].make(**overrides))
