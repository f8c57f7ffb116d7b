"""InterBERT's own choices and presets; what it shares with all is in test_invariances.py."""

import dataclasses

import pytest
import torch
from model_examples import make_interbert as make_model
from model_examples import tiny_interbert as tiny
from vilbert_examples import FEATURES, POSITIONS, make_batch, randomised

from roibeam.model.common.heads import PADDED_SCORE
from roibeam.model.common.transformer import Packing
from roibeam.model.interbert.fields import PRESETS
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining, InterBertForTasks, interbert_config

KINDS = ["release", "paper", "single-stream"]


@pytest.mark.parametrize("preset", KINDS)
def test_text_alone(preset):
    """Neither IMG nor padding, and the same as the layers of a plain BERT in a row."""
    model, batch = make_model(preset), make_batch(regions=(0, 0, 0))
    padded = make_batch(regions=(0, 0, 0), text_pad=4)
    bare, real = model.interbert, batch.text_mask
    with torch.no_grad():
        output, other = model.encode_text(batch, with_attention=True), model.encode_text(padded)
        packing = Packing(real)
        states = packing.pack(bare.text_embeddings(batch))
        for layer in [*bare.joint.layers, *bare.text.layers]:
            states = layer(states, packing)
        states = packing.pad(states)
        with_img = model.encode(batch)
    torch.testing.assert_close(output.text_states[real], states[real], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.text_states[:, :9][real], output.text_states[real], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(other.pooled, output.pooled, rtol=1e-4, atol=2e-5)
    assert output.region_states.shape == (3, 0, 24) and output.whole_image_state is None
    assert output.pooled.shape == (3, 16) and torch.equal(output.pooled, output.pooled_text)
    assert output.attention.joint[0].shape[-1] == 9
    assert (with_img.text_states - output.text_states).abs().max() > 1e-3
    with pytest.raises(ValueError, match="encode_text reads no image, but the batch has 6 regions a row"):
        model.encode_text(make_batch())


def test_the_layers_of_a_stream_see_only_that_stream():
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        before = model.encode(batch)
        for layer in model.interbert.image.layers:
            layer.feed_forward.contract.weight *= 2.0
        after = model.encode(batch)
    assert torch.equal(before.text_states, after.text_states)
    assert (before.region_states - after.region_states).abs().max() > 1e-2


def test_every_choice_of_the_paper_changes_what_is_computed():
    """Each field by itself, on weights that are the same where both have them."""
    batch, plain = make_batch(), make_model()
    with torch.no_grad():
        usual = plain.encode(batch)
        for choice in (
            {"region_projection": "mlp"},
            {"with_region_segment": True},
            {"with_region_positions": True},
            {"with_image_sep": True},
            {"pair_from": "states"},
            {"fusion": "sum"},
            {"image_num_attention_heads": 4},
        ):
            model = make_model(**choice)
            model.load_state_dict(plain.state_dict(), strict=False)
            output = model.encode(batch)
            assert output.region_states.shape == usual.region_states.shape
            assert (output.pooled - usual.pooled).abs().max() > 1e-3, choice


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: InterBertConfig(t_layers=6), "unknown field 't_layers'"),
        (lambda: InterBertConfig(image_num_attention_heads=7), "is not a multiple of image_num_attention_heads 7"),
        (lambda: InterBertConfig(region_projection="conv"), "region_projection is 'conv'"),
        (lambda: InterBertConfig(pair_from="tokens"), "pair_from is 'tokens'; it must be one of 'pooled', 'states'"),
        (lambda: InterBertConfig(fusion="mul"), "fusion is 'mul'"),
        (lambda: InterBertConfig(text_num_hidden_layers=-1), "text_num_hidden_layers is -1"),
        (lambda: tiny(region_loss="regression"), "predicts features of width 12, region_target_size is 7"),
        (lambda: tiny(region_loss="contrastive"), "region_loss is 'contrastive'"),
        (lambda: interbert_config("code"), "no InterBERT preset 'code'; there are paper, release, single-stream"),
    ],
)
def test_config_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_too_long():
    with pytest.raises(ValueError, match=f"text of 25 pieces; this model takes 1 .* to {POSITIONS}"):
        make_model()(make_batch(lengths=(25, 3, 3)))
    regions = (POSITIONS - 2, 1, 1)
    assert make_model("paper").encode(make_batch(regions=regions)).pooled.isfinite().all()
    with pytest.raises(ValueError, match=f"image of 25 elements; this model has positions for {POSITIONS}"):
        make_model("paper").encode(make_batch(regions=(POSITIONS - 1, 1, 1)))


def parameter_count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in InterBertForPreTraining(config).parameters())


def test_presets_are_the_published_sizes():
    assert list(PRESETS) == ["paper", "release", "single-stream"]
    layer = 4 * 768 * 769 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    text = (30522 + 512 + 2 + 2) * 768
    image = 768 * 2049 + 768 * 6 + 2 * 768
    word_head = 768 * 769 + 2 * 768 + 30522
    region_head = 768 * 769 + 2 * 768 + 1601 * 769
    released = text + image + 18 * layer + 2 * 1024 * 769 + word_head + region_head + 2 * 1025
    assert parameter_count(interbert_config("release")) == released
    extra = 768 * 769 + (1 + 512 + 1) * 768  # second layer of the projection; segment, positions, [SEP]
    paper = released + 6 * layer + extra - 1024 * 769  # one pooler
    assert parameter_count(interbert_config("paper")) == paper
    assert parameter_count(interbert_config("single-stream")) == paper - 12 * layer


def test_a_task_model_starts_from_a_pretrained_one(tmp_path):
    torch.manual_seed(0)
    pretrained = make_model()
    pretrained.save_pretrained(tmp_path)
    model = InterBertForTasks.from_pretrained(tmp_path).eval()
    state, other = pretrained.state_dict(), model.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert model.answer_head.bias.abs().max() == 0 and 0.01 < model.answer_head.weight.std() < 0.03


def test_task_heads_with_padding():
    model, batch = randomised(InterBertForTasks(tiny())), make_batch()
    output = model.encode(batch)
    assert model.answers(output).shape == (3, 11) and model.score_pairs(output).shape == (3,)
    regions = model.score_regions(batch, output)
    assert regions.shape == (3, 7) and (regions < PADDED_SCORE / 2).sum() == 6  # rows of 5, 6 and 1 regions
    assert model.score_words(output.text_states).shape == (3, 9)


def test_regions_of_mismatched_pairs_are_predicted_on_request():
    """Sum and number alike; pairs that match weigh as before."""
    batch = make_batch()
    mismatched = dataclasses.replace(batch, match_labels=torch.zeros_like(batch.match_labels))
    released, every = make_model(), make_model(region_loss_pairs="all")
    assert released(mismatched).losses["masked_regions"].count == 0
    found = every(mismatched).losses["masked_regions"]
    assert found.count == batch.region_target_mask.sum() == every.loss_counts(mismatched)["masked_regions"]
    matched = dataclasses.replace(batch, match_labels=torch.ones_like(batch.match_labels))
    torch.testing.assert_close(found.total, released(matched).losses["masked_regions"].total)


def test_hard_labels_are_the_best_class_without_background():
    batch = make_batch()
    targets = torch.zeros_like(batch.region_targets)
    targets[..., -1], targets[..., 2], targets[..., 1] = 0.6, 0.3, 0.1
    matched = dataclasses.replace(batch, region_targets=targets, match_labels=torch.ones_like(batch.match_labels))
    model = make_model(region_labels="hard")
    with torch.no_grad():
        states = model.encode(matched).region_states[matched.region_target_mask]
        logits = model.masked_region_head(states)
        loss = model(matched).losses["masked_regions"]
    assert loss.count == len(logits) > 0
    torch.testing.assert_close(loss.mean, (logits.logsumexp(dim=1) - logits[:, 2]).mean())
    with pytest.raises(ValueError, match="region_labels 'hard' are of region_loss 'kl', not 'regression'"):
        tiny(region_labels="hard", region_loss="regression", region_target_size=FEATURES)
