"""Every model with pre-training heads, small and with weights drawn, for tests of what all of them promise.

Batches of `vilbert_examples.make_batch` fit them all.
"""

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


BUILDERS = {
    "VL-BERT": _vlbert,
    "VL-BERT with relationship": lambda **o: _vlbert(with_pooler=True, with_relationship_head=True, **o),
    "ViLBERT": _vilbert,
    "ViLBERT, matched pairs": lambda **o: _vilbert(masked_loss_pairs="matched", whole_image_count="visible", **o),
    "ViLBERT single-stream": _single_stream,
    "VisualBERT": _visualbert,
    "VisualBERT, late fusion": lambda **o: _visualbert(early_fusion=False, **o),
}


def build(name, **overrides):
    """In evaluation mode."""
    return randomised(BUILDERS[name](**overrides))
