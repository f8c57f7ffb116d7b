"""Small ImageBERTs for tests."""

from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, randomised

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining


def tiny(**overrides):
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": POSITIONS,
        "region_feature_size": FEATURES,
        "num_region_labels": LABELS,
    }
    return ImageBertConfig(**(sizes | overrides))


def make_model(**overrides):
    return randomised(ImageBertForPreTraining(tiny(**overrides)))
