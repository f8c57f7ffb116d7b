"""ImageBERT against the numpy float64 reference made from the paper alone, on random configurations and batches.

What the reference shares with BERT is held by this comparison, since ours has reference arrays of other models.
Retrieval: test_task_losses.py, by hand.
"""

import dataclasses
import random

import imagebert_reference as reference
import numpy as np
import pytest
import torch
from model_examples import in_dtype, tensors
from vilbert_examples import make_batch

from roibeam.model.common.transformer import Packing
from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import IGNORE_INDEX

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


def make_model(sizes, parameters, **choices):
    config = ImageBertConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.positions, region_feature_size=sizes.region_feature,
        num_region_labels=sizes.object_classes, dummy_position=sizes.dummy_position,
        final_separator=sizes.final_separator or "none", global_feature_size=sizes.global_feature, **choices,
    )  # fmt: skip
    model = ImageBertForPreTraining(config).double().eval()
    state = {name: torch.from_numpy(parameters[reference_name(name)]) for name in model.state_dict()}
    assert len(state) == len(parameters)  # none of the reference's is left over
    model.load_state_dict(state)
    return model


def as_reference(batch):
    """The same batch by the reference's names; the object class is the best of the foreground, background is last."""
    arrays = {name: value.numpy() for name, value in tensors(batch).items()}
    labelled = arrays["text_labels"] != IGNORE_INDEX
    return reference.Batch(
        word_ids=arrays["text_ids"],
        is_word=arrays["text_mask"],
        masked_words=labelled,
        word_targets=np.where(labelled, arrays["text_labels"], 0),
        region_features=arrays["region_features"],
        boxes_px=arrays["region_boxes"],
        image_hw=arrays["image_hw"],
        is_region=arrays["region_mask"],
        masked_regions=arrays["region_target_mask"],
        zeroed_regions=arrays["masked_regions"],
        region_labels=arrays["region_targets"][..., :-1].argmax(axis=-1),
        matched=arrays["match_labels"] == 1,
        global_features=arrays.get("global_features"),
    )


def draw(seed, **choices):
    """Pairs 0 and 2 match, pair 1 does not; a masked word is replaced by another, the second predicted region kept."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    heads = pick.choice([1, 2, 3])
    sizes = reference.Sizes(
        hidden=heads * pick.choice([4, 6]),
        layers=pick.randint(1, 3),
        heads=heads,
        intermediate=pick.randint(8, 30),
        object_classes=pick.randint(7, 12),
        dummy_position=pick.randint(0, 9),
        final_separator=(None, "dummy", "next")[seed % 3],
        global_feature=(0, 5)[seed % 2],
    )
    lengths, regions = [pick.randint(4, 9) for _ in range(3)], [pick.randint(2, 8) for _ in range(3)]
    batch = make_batch(lengths, regions, text_pad=seed % 2, seed=seed, target_size=sizes.object_classes + 1)
    replaced = torch.where(batch.text_labels == IGNORE_INDEX, batch.text_ids, (batch.text_ids + 5) % sizes.vocabulary)
    replaced[torch.arange(3), batch.text_mask.sum(dim=1) - 1] = reference.SEP
    features = torch.from_numpy(rng.normal(size=(3, 5))) if sizes.global_feature else None
    own = {"text_ids": replaced, "text_segments": torch.zeros_like(batch.text_segments), "global_features": features}
    batch = in_dtype(dataclasses.replace(batch, **own), torch.float64)
    parameters = reference.draw_parameters(sizes, rng)
    return sizes, parameters, as_reference(batch), make_model(sizes, parameters, **choices), batch


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
