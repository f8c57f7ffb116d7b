"""ImageBERT against the numpy float64 reference made from the paper alone, on random configurations and batches.

What the reference shares with BERT is held by this comparison, since ours has reference arrays of other models; its
locations and the sum of its losses are worked out by hand at the end. Retrieval: test_retrieval_losses.py, by hand.
"""

import dataclasses
import math
import random

import imagebert_reference as reference
import numpy as np
import pytest
import torch

from roibeam.model.common.transformer import Packing
from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import IGNORE_INDEX, VLBatch

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
LOSSES = {"masked_words": "mlm", "masked_regions": "moc", "masked_region_features": "mrfr", "matching": "itm"}
# Prefixes here and in the reference; a layer's follow.
NAMES = {
    "imagebert.embeddings.words.weight": "word_embed",
    "imagebert.embeddings.positions.weight": "position_embed",
    "imagebert.embeddings.segments.weight": "segment_embed",
    "imagebert.embeddings.text_norm.": "text_norm.",
    "imagebert.embeddings.features.": "image_embed.",
    "imagebert.embeddings.locations.": "location_embed.",
    "imagebert.embeddings.region_norm.": "image_norm.",
    "imagebert.embeddings.global_feature.": "global_embed.",
    "imagebert.pooler.dense.": "pooler.",
    "masked_word_head.": "mlm.",
    "region_class_head.": "moc.",
    "region_feature_head.": "mrfr.",
    "match_head.": "itm.",
}
LAYER_NAMES = {
    "attention.query.": "query.",
    "attention.key.": "key.",
    "attention.value.": "value.",
    "attention.output.": "attention_output.",
    "attention_norm.": "attention_norm.",
    "feed_forward.expand.": "intermediate.",
    "feed_forward.contract.": "output.",
    "feed_forward_norm.": "output_norm.",
}


def reference_name(name):
    """Of one of our parameters."""
    if name.startswith("imagebert.encoder.layers."):
        number, rest = name.removeprefix("imagebert.encoder.layers.").split(".", 1)
        ours = next(ours for ours in LAYER_NAMES if rest.startswith(ours))
        return f"encoder.{number}.{LAYER_NAMES[ours]}{rest.removeprefix(ours)}"
    ours = next(ours for ours in NAMES if name.startswith(ours))
    return NAMES[ours] + name.removeprefix(ours)


def draw_sizes(seed):
    pick = random.Random(seed)
    heads = pick.choice([1, 2, 3])
    return reference.Sizes(
        hidden=heads * pick.choice([4, 6]),
        layers=pick.randint(1, 3),
        heads=heads,
        intermediate=pick.randint(8, 30),
        vocabulary=pick.randint(10, 40),
        positions=pick.randint(10, 20),
        region_feature=pick.randint(3, 12),
        object_classes=pick.randint(7, 12),
        dummy_position=pick.randint(0, 9),
        final_separator=(None, "dummy", "next")[seed % 3],
        global_feature=(0, 5)[seed % 2],
        pairs=pick.randint(2, 6),
        words=pick.randint(5, 9),
        regions=pick.randint(2, 8),
    )


def make_model(sizes, parameters, **choices):
    config = ImageBertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.positions,
        region_feature_size=sizes.region_feature,
        num_region_labels=sizes.object_classes,
        dummy_position=sizes.dummy_position,
        final_separator=sizes.final_separator or "none",
        global_feature_size=sizes.global_feature,
        **choices,
    )
    model = ImageBertForPreTraining(config).double().eval()
    state = {name: torch.from_numpy(parameters[reference_name(name)]) for name in model.state_dict()}
    assert len(state) == len(parameters)  # none of the reference's is left over
    model.load_state_dict(state)
    return model


def to_batch(sizes, drawn, rng):
    """Class distributions whose best foreground class is the drawn label; background, often the best of all, last."""
    labels = torch.from_numpy(drawn.region_labels)
    scores = torch.from_numpy(rng.normal(size=(*labels.shape, sizes.object_classes + 1)))
    best = scores[..., :-1].amax(dim=-1, keepdim=True) + 1.0
    targets = scores.scatter(2, labels[..., None], best).softmax(dim=-1)
    globals_ = drawn.global_features
    return VLBatch(
        text_ids=torch.from_numpy(drawn.word_ids),
        text_mask=torch.from_numpy(drawn.is_word),
        text_segments=torch.zeros(drawn.word_ids.shape, dtype=torch.long),
        region_features=torch.from_numpy(drawn.region_features),
        region_boxes=torch.from_numpy(drawn.boxes_px),
        region_mask=torch.from_numpy(drawn.is_region),
        image_hw=torch.from_numpy(drawn.image_hw).double(),
        masked_regions=torch.from_numpy(drawn.zeroed_regions),
        global_features=None if globals_ is None else torch.from_numpy(globals_),
        text_labels=torch.from_numpy(np.where(drawn.masked_words, drawn.word_targets, IGNORE_INDEX)),
        region_targets=targets,
        region_target_mask=torch.from_numpy(drawn.masked_regions),
        match_labels=torch.from_numpy(drawn.matched).long(),
    )


def draw(seed, **choices):
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(seed)
    parameters, drawn = reference.draw_parameters(sizes, rng), reference.draw_batch(sizes, rng)
    return sizes, parameters, drawn, make_model(sizes, parameters, **choices), to_batch(sizes, drawn, rng)


def assert_equal(ours, theirs):
    torch.testing.assert_close(ours.detach(), torch.from_numpy(np.asarray(theirs, dtype=np.float64)), **TOLERANCE)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("seed", range(12))
def test_equal_to_the_reference(seed, reduction):
    """Embeddings, every layer, logits and losses."""
    sizes, parameters, drawn, model, batch = draw(seed, feature_reduction=reduction)
    rows, is_row = reference.embed(parameters, sizes, drawn)
    states, mask = model.imagebert.embeddings(batch)
    assert torch.equal(mask, torch.from_numpy(is_row))
    assert_equal(states[mask], rows[is_row])
    packing = Packing(mask)
    states = packing.pack(states)
    for number, layer in enumerate(model.imagebert.encoder.layers):
        rows = reference.encoder_layer(parameters, f"encoder.{number}", rows, is_row, sizes.heads)
        states = layer(states, packing)
        assert_equal(states, rows[is_row])
    theirs, output = reference.forward(parameters, sizes, drawn), model.encode(batch)
    words, regions = batch.text_mask, batch.region_mask
    assert_equal(output.text_states[words], theirs.text[drawn.is_word])
    assert_equal(output.region_states[regions], theirs.regions[drawn.is_region])
    assert_equal(output.pooled, theirs.pooled)
    if sizes.global_feature:
        assert_equal(output.whole_image_state, rows[:, drawn.word_ids.shape[1] + drawn.is_region.shape[1]])
    word_logits, region_logits = model.word_logits(output.text_states), model.region_logits(output.region_states)
    assert_equal(word_logits[words], reference.mlm_logits(parameters, theirs.text)[drawn.is_word])
    assert_equal(region_logits[regions], reference.moc_logits(parameters, theirs.regions)[drawn.is_region])
    assert_equal(model.match_log_odds(output), reference.itm_logits(parameters, theirs.pooled))
    losses = model.score(batch, output).losses
    wanted = reference.pretraining_losses(parameters, sizes, drawn, reduction)
    for name, their_name in LOSSES.items():
        assert_equal(losses[name].mean, wanted[their_name])
    assert_equal(sum(term.mean for term in losses.values()), wanted["total"])
    counted = drawn.masked_words & drawn.is_word & drawn.matched[:, None]
    assert losses["masked_words"].count == counted.sum() > 0


def test_all_pairs_without_the_conditional_mask():
    sizes, parameters, drawn, model, batch = draw(0, masked_loss_pairs="all")
    assert not drawn.matched.all()
    losses = model(batch).losses
    all_matched = dataclasses.replace(drawn, matched=np.ones_like(drawn.matched))
    wanted = reference.pretraining_losses(parameters, sizes, all_matched)
    for name in ("masked_words", "masked_regions", "masked_region_features"):
        assert_equal(losses[name].mean, wanted[LOSSES[name]])


@pytest.mark.parametrize("seed", [1, 2])
def test_gradients_are_finite_differences_of_the_reference(seed):
    """One entry of every parameter, of the sum of all four losses."""
    sizes, parameters, drawn, model, batch = draw(seed)
    sum(term.mean for term in model(batch).losses.values()).backward()
    rng = np.random.default_rng(seed)

    def total(changed):
        return reference.pretraining_losses(changed, sizes, drawn)["total"]

    for name, parameter in model.named_parameters():
        # The entry with the largest gradient: a table's random entry is seldom read.
        gradient = parameter.grad.abs()
        index = np.unravel_index(int(gradient.argmax()), parameter.shape)
        wanted = reference.numerical_gradient(total, parameters, reference_name(name), index)
        assert parameter.grad[index].item() == pytest.approx(wanted, rel=1e-6, abs=1e-8), name
        other = tuple(int(rng.integers(size)) for size in parameter.shape)
        wanted = reference.numerical_gradient(total, parameters, reference_name(name), other)
        assert parameter.grad[other].item() == pytest.approx(wanted, rel=1e-6, abs=1e-8), name


def test_location_vector_by_hand():
    boxes_px = np.array([[[20.0, 10.0, 120.0, 60.0], [0.0, 0.0, 0.0, 0.0]]])
    locations = reference.location_vectors(boxes_px, np.array([[100, 200]]))  # height 100, width 200
    # 100 x 50 of 200 x 100 pixels is a quarter of the image.
    np.testing.assert_allclose(locations, [[[0.1, 0.1, 0.6, 0.6, 0.25], [0.0] * 5]])


def test_total_is_the_plain_sum_of_losses_on_the_right_heads():
    """Heads whose weights are zero give their bias, and so losses that one can work out."""
    sizes, rng = reference.Sizes(final_separator="next", global_feature=5), np.random.default_rng(1)
    parameters, batch = reference.draw_parameters(sizes, rng), reference.draw_batch(sizes, rng)
    zeroed = ("mlm.dense", "mlm.norm", "moc", "mrfr", "itm")
    silent = {name: np.zeros_like(p) if name.startswith(zeroed) else p for name, p in parameters.items()}
    silent["mlm.bias"] = np.zeros(30)
    silent["itm.bias"] = np.array([math.log(3.0)])
    batch = dataclasses.replace(
        batch, matched=np.array([True, False, True, True]), region_features=batch.region_features * 0 + 2.0
    )
    losses = reference.pretraining_losses(silent, sizes, batch)
    expected = {
        "mlm": math.log(30.0),
        "moc": math.log(7.0),
        "mrfr": 4.0,
        "itm": (3.0 * math.log(4.0 / 3.0) + math.log(4.0)) / 4.0,
    }
    assert losses == pytest.approx(expected | {"total": sum(expected.values())})
    assert reference.pretraining_losses(silent, sizes, batch, "sum")["mrfr"] == pytest.approx(40.0)
