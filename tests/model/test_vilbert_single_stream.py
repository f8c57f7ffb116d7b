"""ViLBERT's single-stream baseline; what it shares with all is in test_invariances.py. It has no reference arrays."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, make_batch, randomised

from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, SingleStreamForTasks


def make_model(model_class=SingleStreamForPreTraining, *, awake=True, **fields):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS}
    sizes |= {"region_feature_size": FEATURES, "region_target_size": LABELS}
    model = model_class(SingleStreamConfig(**sizes, **fields))
    return randomised(model) if awake else model


def test_text_and_image_see_each_other_from_the_first_layer():
    model, batch = make_model(), make_batch()
    output = model.encode(batch, with_attention=True)
    assert [weights.shape for weights in output.attention.joint] == [(3, 4, 16, 16)] * 2  # 9 pieces, IMG, 6 regions
    torch.testing.assert_close(output.pooled, model.encode(batch).pooled, rtol=1e-4, atol=1e-5)
    assert output.attention.joint[0][0, :, 0, 10:15].min() > 0


def test_heads_of_tasks_read_the_baseline_s_own_states():
    """The pooled [CLS] by two weight-normed layers, or by one; regions with IMG first, padding far below."""
    model, batch = make_model(SingleStreamForTasks, num_answers=5).eval(), make_batch()
    with torch.no_grad():
        output = model.encode(batch)
        answers, pairs = model.answers(output), model.score_pairs(output)
        regions = model.score_regions(batch, output)
        inner = model.answer_head.expand(output.pooled).relu()
        torch.testing.assert_close(answers, model.answer_head.decoder(inner))
        torch.testing.assert_close(pairs, F.linear(output.pooled, model.pair_score.weight, model.pair_score.bias)[:, 0])
        first = F.linear(output.whole_image_state, model.region_score.weight, model.region_score.bias)[:, 0]
        torch.testing.assert_close(regions[:, 0], first)
    assert answers.shape == (3, 5) and regions.shape == (3, batch.region_mask.shape[1] + 1)
    assert bool((regions[:, 1:][~batch.region_mask] < -9000).all())
    assert (model.pair_score.dropout, model.region_score.dropout) == (0.0, model.config.hidden_dropout)


def test_new_heads_of_tasks_start_as_those_of_the_first_release():
    """The weight that a weight-normed layer starts with is that of PyTorch's linear layer."""
    torch.manual_seed(0)
    head = make_model(SingleStreamForTasks, num_answers=5, awake=False).answer_head
    for layer in (head.expand, head.decoder):
        bound = layer.direction.shape[1] ** -0.5
        assert 0.5 * bound < float(layer.direction.detach().abs().max()) <= bound
        assert float(layer.scale.detach()) == pytest.approx(float(layer.direction.detach().norm()), rel=1e-5)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="not a multiple of num_attention_heads 5"):
        SingleStreamConfig(num_attention_heads=5)
    with pytest.raises(ValueError, match="num_segments must be at least 2"):
        SingleStreamConfig(num_segments=1)
    with pytest.raises(ValueError, match=r"this model takes 1 .* to 24"):
        make_model().encode(make_batch((25, 3, 3)))
    with pytest.raises(ValueError, match="has no match_labels"):
        make_model()(dataclasses.replace(make_batch(), match_labels=None))
