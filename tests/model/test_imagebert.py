"""ImageBERT: what is hidden, what is predicted and where, and its configuration.

Its numbers are compared by test_imagebert_against_reference.py; what it shares with all models (padding, order,
half-empty batches, maps, files) by test_invariances.py.
"""

import dataclasses

import pytest
import torch
from model_examples import make_imagebert as make_model
from model_examples import tiny_imagebert as tiny
from vilbert_examples import FEATURES, LABELS, make_batch, randomised

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining, detected_classes, imagebert_small
from roibeam.model.inputs import IGNORE_INDEX

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
EVERYTHING = {"global_feature_size": 5, "final_separator": "next"}
LOSSES = {"masked_words", "masked_regions", "masked_region_features", "matching"}


def whole(batch):
    """With a global feature for each row."""
    features = torch.randn(batch.batch_size, 5, generator=torch.Generator().manual_seed(3))
    return dataclasses.replace(batch, global_features=features)


def test_pixels_show_a_masked_region_s_feature():
    """What an encoder made of blanked pixels; test_invariances.py has the other appearance, which hides it."""
    batch = make_batch()
    seen = batch.region_features + 1.0 * batch.masked_regions[..., None]
    model = make_model(masked_appearance="pixels")
    with torch.no_grad():
        batches = (batch, dataclasses.replace(batch, region_features=seen))
        pooled, other = (model.encode(each).pooled for each in batches)
    assert not torch.allclose(pooled, other, atol=1e-4)


def test_features_to_predict_are_the_stored_ones_and_get_no_gradient():
    model, batch = make_model(), make_batch()
    features = batch.region_features.clone().requires_grad_()
    ours = model(dataclasses.replace(batch, region_features=features)).losses["masked_region_features"]
    # Without the path through the encoder nothing is left: the target is given.
    detached = model.encode(dataclasses.replace(batch, region_features=features.detach()))
    alone = model.score(dataclasses.replace(batch, region_features=features), detached).losses
    alone["masked_region_features"].mean.backward()
    assert features.grad is None
    stored = dataclasses.replace(batch, region_feature_targets=batch.region_features + 1.0)
    same = dataclasses.replace(batch, region_feature_targets=batch.region_features)
    assert model(same).losses["masked_region_features"].total == ours.total
    assert model(stored).losses["masked_region_features"].total != ours.total
    # Row 0 has a hidden and a kept region to predict, row 2 its only one.
    assert ours.count == 3 and not batch.masked_regions[0, 1] and batch.region_target_mask[0, 1]


def test_detected_classes_leave_background_out_or_count_it():
    """The store has background last, so a foreground class has one number with and without it."""
    targets = torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    assert detected_classes(targets, 2).tolist() == [1, 0, IGNORE_INDEX]
    assert detected_classes(targets, 3).tolist() == [2, 0, 2]
    assert detected_classes(targets[:0], 2).shape == (0,)
    for num_labels in (1, 4):
        with pytest.raises(ValueError, match=rf"have 3 classes, this model {num_labels} \(num_region_labels\)"):
            detected_classes(targets, num_labels)


def test_a_region_that_is_surely_background_has_no_class_but_a_feature():
    batch = make_batch(target_size=LABELS + 1)
    targets = batch.region_targets.clone()
    targets[0, 0] = torch.nn.functional.one_hot(torch.tensor(LABELS), LABELS + 1)
    output = make_model()(dataclasses.replace(batch, region_targets=targets))
    assert output.losses["masked_regions"].count == output.metrics["masked_region_accuracy"].count == 2
    assert output.losses["masked_region_features"].count == 3


@pytest.mark.parametrize(
    "switched_off, missing",
    [
        ("with_word_head", {"masked_words"}),
        ("with_region_class_head", {"masked_regions"}),
        ("with_region_feature_head", {"masked_region_features"}),
        ("with_match_head", {"matching"}),
    ],
)
def test_each_task_can_be_left_out(switched_off, missing):
    """With its parameters: none is left without a gradient."""
    choices = {"masked_loss_pairs": "all"} if switched_off == "with_match_head" else {}
    model, batch = make_model(**{switched_off: False}, **choices), make_batch()
    losses = model(batch).losses
    assert set(losses) == LOSSES - missing
    sum(term.mean for term in losses.values()).backward()
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    assert unused == ({f"imagebert.pooler.dense.{n}" for n in ("weight", "bias")} if "matching" in missing else set())


def test_heads_for_looking():
    batch = make_batch()
    model = make_model(with_region_class_head=False, with_match_head=False, masked_loss_pairs="all")
    output = model.encode(batch)
    assert model.region_logits(output.region_states) is None and model.match_log_odds(output) is None
    with pytest.raises(ValueError, match="no masked-word head"):
        make_model(with_word_head=False).word_logits(output.text_states)
    assert make_model().region_logits(output.region_states).shape == (3, 6, LABELS)


def test_fine_tuning_needs_no_targets():
    """Masked tasks dropped (section 4.2): the same model, pairs with match labels alone."""
    off = {"with_word_head": False, "with_region_class_head": False, "with_region_feature_head": False}
    batch = dataclasses.replace(make_batch(), text_labels=None, region_targets=None, region_target_mask=None)
    assert set(make_model(**off)(batch).losses) == {"matching"}


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: ImageBertConfig(region_positions=3), "unknown field 'region_positions'"),
        (
            lambda: ImageBertConfig(feature_reduction="max"),
            "feature_reduction is 'max'; it must be one of 'mean', 'sum'",
        ),
        (lambda: ImageBertConfig(final_separator="last"), "final_separator is 'last'"),
        (lambda: ImageBertConfig(masked_appearance="learned"), "masked_appearance is 'learned'"),
        (lambda: ImageBertConfig(masked_loss_pairs="mismatched"), "masked_loss_pairs is 'mismatched'"),
        (lambda: ImageBertConfig(num_segments=1), "num_segments must be at least 2"),
        (lambda: ImageBertConfig(dummy_position=512), "dummy_position 512 is none of 512 rows"),
        (lambda: ImageBertConfig(global_feature_size=-1), "must not be negative"),
        (lambda: ImageBertConfig(with_match_head=False), "set masked_loss_pairs='all'"),
        (lambda: make_model()(make_batch((25, 3, 3))), r"takes 1 \(\[CLS\]\) to 24"),
        (lambda: make_model(**EVERYTHING)(whole(make_batch((24, 3, 3)))), r"takes 1 \(\[CLS\]\) to 23"),
        (lambda: make_model(**EVERYTHING)(make_batch()), "global_features of width 5, the batch has none"),
        (lambda: make_model(global_feature_size=4)(whole(make_batch())), "width 4, the batch has width 5"),
        (lambda: make_model()(make_batch(target_size=LABELS + 2)), "have 9 classes, this model 7"),
    ],
)
def test_what_it_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_new_weights_are_drawn_as_bert_s():
    torch.manual_seed(0)
    model = ImageBertForPreTraining(tiny(hidden_size=64, vocab_size=500))
    embeddings = model.imagebert.embeddings
    assert embeddings.words.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert embeddings.features.bias.eq(0).all() and embeddings.region_norm.weight.eq(1).all()


def test_small_model():
    config = imagebert_small(vocab_size=90, region_feature_size=FEATURES, num_region_labels=LABELS)
    assert config.hidden_size == 256 and config.masked_loss_pairs == "matched"
    losses = randomised(ImageBertForPreTraining(config))(make_batch()).losses
    assert set(losses) == LOSSES and all(term.mean.isfinite() for term in losses.values())
