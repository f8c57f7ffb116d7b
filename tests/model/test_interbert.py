"""InterBERT's own choices, gradients, presets and files; what it shares with all is in test_invariances.py."""

import dataclasses

import pytest
import torch
from interbert_examples import make_model, tiny
from vilbert_examples import FEATURES, LABELS, POSITIONS, make_batch, randomised, take_rows

from roibeam.model.common.heads import PADDED_SCORE
from roibeam.model.common.transformer import Packing
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.interbert.fields import PRESETS
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining, InterBertForTasks, interbert_config

KINDS = ["release", "paper", "single-stream"]


@pytest.mark.parametrize("with_region_positions", [False, True])
def test_region_order_counts_only_with_region_positions(with_region_positions):
    model = make_model("paper", with_region_positions=with_region_positions)
    batch, order = take_rows(make_batch(), [0, 1]), [4, 2, 0, 1, 3]  # of row 0's five regions
    turned = {name: getattr(batch, name).clone() for name in ("region_features", "region_boxes", "masked_regions")}
    for value in turned.values():
        value[0, :5] = value[0, order]
    with torch.no_grad():
        before, after = model.encode(batch), model.encode(dataclasses.replace(batch, **turned))
    difference = (after.region_states[0, :5] - before.region_states[0, order]).abs().max()
    assert difference > 1e-2 if with_region_positions else difference < 2e-5
    assert torch.equal(after.text_states[1], before.text_states[1])


@pytest.mark.parametrize("preset", KINDS)
def test_the_box_of_a_masked_region_can_be_seen(preset):
    model, batch = make_model(preset), make_batch()
    boxes = batch.region_boxes.clone()
    boxes[batch.masked_regions] += 9.0
    with torch.no_grad():
        before, moved = model.encode(batch), model.encode(dataclasses.replace(batch, region_boxes=boxes))
    assert (before.text_states - moved.text_states).abs().max() > 1e-3


def test_img_divides_by_all_regions():
    """Row 0 has five regions, the first of them masked."""
    model, batch = make_model(), make_batch()
    mean = torch.zeros(3, FEATURES)
    mean[0] = batch.region_features[0, 1:5].sum(dim=0) / 5
    with torch.no_grad():
        ours = model.encode(batch).pooled[0]
        given = model.encode(dataclasses.replace(batch, whole_image_features=mean)).pooled[0]
        other = model.encode(dataclasses.replace(batch, whole_image_features=mean * 1.25)).pooled[0]
    torch.testing.assert_close(ours, given, rtol=1e-5, atol=1e-6)
    assert (ours - other).abs().max() > 1e-4


def test_half_empty_batches_of_a_model_that_regresses_features():
    model = make_model(region_loss="regression", region_target_size=FEATURES).train()
    batch = make_batch(target_size=FEATURES)
    batch = dataclasses.replace(batch, region_target_mask=torch.zeros_like(batch.region_target_mask))
    losses = model(batch).losses
    assert losses["masked_words"].mean > 0 == losses["masked_regions"].mean
    sum(term.mean for term in losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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


def test_regression_divides_by_regions_and_not_by_width():
    model = make_model(region_loss="regression", region_target_size=FEATURES)
    batch = make_batch(target_size=FEATURES)
    with torch.no_grad():
        output = model.encode(batch)
        loss = model.score(batch, output).losses["masked_regions"]
        chosen = batch.region_target_mask & (batch.match_labels == 1)[:, None]
        errors = model.logits(output).regions[chosen] - batch.region_targets[chosen]
    torch.testing.assert_close(loss.mean, errors.square().sum() / 3, rtol=1e-5, atol=0)
    assert model.region_logits(output.region_states) is None


def test_our_match_label_is_one_and_the_release_s_logit_is_the_first():
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        model.match_head.weight.zero_()
        model.match_head.bias.copy_(torch.tensor([9.0, 0.0]))  # says: all match
        scored = model(dataclasses.replace(batch, match_labels=torch.tensor([1, 1, IGNORE_INDEX])))
        assert scored.losses["matching"].mean < 0.01 and scored.losses["matching"].count == 2
        assert (model.match_log_odds(model.encode(batch)) > 8.9).all()


@pytest.mark.parametrize("missing", ["text_labels", "match_labels"])
def test_missing_targets_are_named(missing):
    with pytest.raises(ValueError, match=missing):
        make_model()(dataclasses.replace(make_batch(), **{missing: None}))


@pytest.mark.parametrize("preset, region_loss", [("release", "regression"), ("paper", "kl")])
def test_gradients_are_those_of_finite_differences(preset, region_loss):
    """float64, each part of the model along one random direction of all its parameters."""
    size = FEATURES if region_loss == "regression" else LABELS
    layers = {"num_hidden_layers": 1, "image_num_hidden_layers": 1}
    model = make_model(preset, region_loss=region_loss, region_target_size=size, **layers).double()
    batch = make_batch((5, 4), (3, 2), target_size=size)
    double = {n: v.double() for n, v in vars(batch).items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    batch = dataclasses.replace(batch, **double)

    def total():
        return sum(term.mean for term in model(batch).losses.values())

    total().backward()
    parts = {"heads": [p for name, p in model.named_parameters() if not name.startswith("interbert.")]}
    parts |= {name: list(part.parameters()) for name, part in model.interbert.named_children()}
    generator, step = torch.Generator().manual_seed(1), 1e-6
    for name, parameters in parts.items():
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        expected = sum((p.grad * d).sum().item() for p, d in zip(parameters, directions, strict=True))
        values = []
        with torch.no_grad():
            for change in (step, -2 * step, step):
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.add_(direction, alpha=change)
                values.append(total().item())
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-5), name


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


@pytest.mark.parametrize("model_class, preset", [(InterBertForPreTraining, "paper"), (InterBertForTasks, "release")])
def test_save_and_load_give_the_same_model(model_class, preset, tmp_path):
    model, batch = randomised(model_class(tiny(preset))), make_batch()
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = model_class.from_pretrained(tmp_path).eval()
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    state, other = model.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(batch).pooled, loaded.encode(batch).pooled, rtol=1e-6, atol=1e-6)


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
