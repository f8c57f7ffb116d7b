"""Small InterBERTs of every preset, with weights that are not at their start values."""

from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, randomised

from roibeam.model.interbert.model import InterBertForPreTraining, interbert_config

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "text_num_hidden_layers": 1,
    "image_num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_num_attention_heads": 3,
    "intermediate_size": 32,
    "image_intermediate_size": 28,
    "max_position_embeddings": POSITIONS,
    "region_feature_size": FEATURES,
    "region_target_size": LABELS,
    "pooled_size": 16,
    "num_answers": 11,
}


def tiny(preset="release", **overrides):
    """The preset's choices at small sizes; the baseline keeps its missing layers."""
    layers = {name: 0 for name in ("text_num_hidden_layers", "image_num_hidden_layers") if preset == "single-stream"}
    return interbert_config(preset, **(SIZES | layers | overrides))


def make_model(preset="release", **overrides):
    return randomised(InterBertForPreTraining(tiny(preset, **overrides)))
