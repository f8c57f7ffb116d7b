"""ImageBERT against the numpy float64 reference made from the paper alone, on random configurations and batches.

What the reference shares with BERT is held by this comparison, since ours has reference arrays of other models; what is
ImageBERT's own in it is worked out by hand at the end.
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
from roibeam.model.task_losses import retrieval_losses, triplet_loss

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


@pytest.mark.parametrize("seed", range(4))
def test_retrieval_losses_are_those_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    groups, candidates = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    log_odds, true = rng.normal(0.0, 2.0, (groups, candidates)), rng.integers(0, candidates, groups)
    ours = (torch.from_numpy(log_odds), torch.from_numpy(true))
    losses = retrieval_losses(*ours, ("binary", "multi_class", "triplet"))
    assert_equal(losses["binary"].mean, reference.retrieval_binary_loss(log_odds, true))
    assert_equal(losses["multi_class"].mean, reference.retrieval_multi_class_loss(log_odds, true))
    assert_equal(losses["triplet"].mean, reference.retrieval_triplet_loss(log_odds, true))
    assert_equal(triplet_loss(*ours, margin=0.7).mean, reference.retrieval_triplet_loss(log_odds, true, margin=0.7))


def test_retrieval_from_pairs_to_losses():
    """Rows of a batch, one group after the other, through the model."""
    sizes, parameters, drawn, model, batch = draw(3)
    log_odds = model.match_log_odds(model.encode(batch))[: 2 * (sizes.pairs // 2)].view(-1, 2)
    theirs = reference.itm_logits(parameters, reference.forward(parameters, sizes, drawn).pooled)
    theirs, true = theirs[: log_odds.numel()].reshape(-1, 2), np.arange(len(log_odds)) % 2
    losses = retrieval_losses(log_odds, torch.from_numpy(true), ("binary", "triplet"))
    assert_equal(losses["binary"].mean, reference.retrieval_binary_loss(theirs, true))
    assert_equal(losses["triplet"].mean, reference.retrieval_triplet_loss(theirs, true))


SIZES = reference.Sizes(final_separator="next", global_feature=5)


@pytest.fixture
def drawn():
    """Parameters and a batch of `SIZES`."""
    draws = (np.random.default_rng(seed) for seed in (1, 2))
    return reference.draw_parameters(SIZES, next(draws)), reference.draw_batch(SIZES, next(draws))


def test_location_vector_by_hand():
    boxes_px = np.array([[[20.0, 10.0, 120.0, 60.0], [0.0, 0.0, 0.0, 0.0]]])
    locations = reference.location_vectors(boxes_px, np.array([[100, 200]]))  # height 100, width 200
    # 100 x 50 of 200 x 100 pixels is a quarter of the image.
    np.testing.assert_allclose(locations, [[[0.1, 0.1, 0.6, 0.6, 0.25], [0.0] * 5]])


def test_image_embedding_by_hand():
    parameters = {
        "image_embed.weight": np.array([[1.0], [0.0], [0.0], [0.0]]),
        "image_embed.bias": np.array([0.0, 0.0, 0.0, 1.0]),
        "location_embed.weight": np.vstack([np.zeros((2, 5)), [[0.0, 0.0, 0.0, 0.0, 12.0]], np.zeros((1, 5))]),
        "location_embed.bias": np.array([0.0, 1.0, 0.0, 0.0]),
        "segment_embed": np.array([[90.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]]),
        "position_embed": np.array([[80.0, 0.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 0.0]]),
        "image_norm.weight": np.ones(4),
        "image_norm.bias": np.zeros(4),
    }
    locations = np.array([[[0.1, 0.1, 0.6, 0.6, 0.25]]])
    # (5, 0, 0, 1) + segment 1 (0, 0, 0, 2) + location (0, 1, 3, 0) + position 1 (-4, 0, 0, 0) = (1, 1, 3, 3)
    out = reference.image_embedding(parameters, "image_embed", np.array([[[5.0]]]), locations, dummy_position=1)
    np.testing.assert_allclose(out[0, 0], [-1.0, -1.0, 1.0, 1.0], atol=1e-11)


def test_linguistic_embedding_by_hand():
    parameters = {
        "word_embed": np.array([[9.0, 0.0, 0.0, 9.0], [1.0, 0.0, 0.0, 1.0]]),
        "segment_embed": np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 70.0, 0.0]]),
        "position_embed": np.array([[0.0, 60.0, 0.0, 0.0], [0.0, 0.0, 3.0, 2.0]]),
        "text_norm.weight": np.ones(4),
        "text_norm.bias": np.zeros(4),
    }
    out = reference.linguistic_embedding(parameters, np.array([[1]]), np.array([1]), reference.TEXT_SEGMENT)
    np.testing.assert_allclose(out[0, 0], [-1.0, -1.0, 1.0, 1.0], atol=1e-11)  # (1, 1, 3, 3)


def test_rows_of_the_joint_sequence(drawn):
    parameters, batch = drawn
    rows, is_row = reference.embed(parameters, SIZES, batch)
    assert rows.shape == (4, 9 + 6 + 1 + 1, 12)
    np.testing.assert_array_equal(is_row[:, :9], batch.is_word)
    np.testing.assert_array_equal(is_row[:, 9:15], batch.is_region)
    assert is_row[:, 15:].all()
    # The final [SEP] stands one position after each pair's own last word.
    for pair, num_words in enumerate(batch.is_word.sum(axis=1)):
        separator = reference.linguistic_embedding(parameters, np.array([[reference.SEP]]), np.array([num_words]), 1)
        np.testing.assert_array_equal(rows[pair, 16], separator[0, 0])


def test_global_token_is_a_region_that_covers_the_image(drawn):
    parameters, batch = drawn
    assert batch.global_features is not None
    tied = parameters | {f"global_embed.{kind}": parameters[f"image_embed.{kind}"] for kind in ("weight", "bias")}
    height, width = batch.image_hw.T
    zeros = np.zeros_like(width)
    as_region = dataclasses.replace(
        batch,
        region_features=batch.region_features[:, :1],
        boxes_px=np.stack([zeros, zeros, width, height], axis=1)[:, None],
        zeroed_regions=np.zeros((4, 1), dtype=bool),
        global_features=batch.region_features[:, 0],
    )
    rows, _ = reference.embed(tied, dataclasses.replace(SIZES, dummy_position=3), as_region)
    np.testing.assert_allclose(rows[:, 9], rows[:, 10], atol=1e-13)  # region, then global token


def test_total_is_the_plain_sum_of_losses_on_the_right_heads(drawn):
    """Heads whose weights are zero give their bias, and so losses that one can work out."""
    parameters, batch = drawn
    zeroed = ("mlm.dense", "mlm.norm", "moc", "mrfr", "itm")
    silent = {name: np.zeros_like(p) if name.startswith(zeroed) else p for name, p in parameters.items()}
    silent["mlm.bias"] = np.zeros(30)
    silent["itm.bias"] = np.array([math.log(3.0)])
    batch = dataclasses.replace(
        batch, matched=np.array([True, False, True, True]), region_features=batch.region_features * 0 + 2.0
    )
    losses = reference.pretraining_losses(silent, SIZES, batch)
    expected = {
        "mlm": math.log(30.0),
        "moc": math.log(7.0),
        "mrfr": 4.0,
        "itm": (3.0 * math.log(4.0 / 3.0) + math.log(4.0)) / 4.0,
    }
    assert losses == pytest.approx(expected | {"total": sum(expected.values())})
    assert reference.pretraining_losses(silent, SIZES, batch, "sum")["mrfr"] == pytest.approx(40.0)
