"""ViLBERT's single-stream baseline; what it shares with all is in test_invariances.py. It has no reference arrays."""

import dataclasses

import pytest
import torch
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, make_batch, randomised

from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining


def make_model():
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS}
    sizes |= {"region_feature_size": FEATURES, "region_target_size": LABELS}
    return randomised(SingleStreamForPreTraining(SingleStreamConfig(**sizes)))


def test_text_and_image_see_each_other_from_the_first_layer():
    model, batch = make_model(), make_batch()
    output = model.encode(batch, with_attention=True)
    assert [weights.shape for weights in output.attention.joint] == [(3, 4, 16, 16)] * 2  # 9 pieces, IMG, 6 regions
    torch.testing.assert_close(output.pooled, model.encode(batch).pooled, rtol=1e-4, atol=1e-5)
    assert output.attention.joint[0][0, :, 0, 10:15].min() > 0


def test_what_it_refuses():
    with pytest.raises(ValueError, match="not a multiple of num_attention_heads 5"):
        SingleStreamConfig(num_attention_heads=5)
    with pytest.raises(ValueError, match="num_segments must be at least 2"):
        SingleStreamConfig(num_segments=1)
    with pytest.raises(ValueError, match=r"this model takes 1 .* to 24"):
        make_model().encode(make_batch((25, 3, 3)))
    with pytest.raises(ValueError, match="lacks text_labels or match_labels"):
        make_model()(dataclasses.replace(make_batch(), match_labels=None))
