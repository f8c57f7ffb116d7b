"""What every model promises, whatever its floor plan. A new model joins by its line in `model_examples.EXAMPLES`."""

import dataclasses
import math
import typing
from itertools import accumulate
from pathlib import Path

import interface_for_mypy
import pytest
import torch
from model_examples import (
    CHOICES,
    EXAMPLES,
    MOSTLY_ONE_OF_EACH,
    PER_REGION,
    build,
    in_dtype,
    make_full_batch,
    padded,
    tensors,
)
from torch.nn import functional as F
from vilbert_examples import FEATURES, LABELS, VOCAB_SIZE, randomised, take_rows

from roibeam.model.inputs import IGNORE_INDEX, VLOutput
from roibeam.model.interbert.model import InterBertForTasks
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForTasks
from roibeam.model.visualbert.model import VisualBertForGrounding, VisualBertForLabels

MASKING = [name for name, example in EXAMPLES.items() if example.masks_regions]
# Summation order differs with the shape.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def every_model(test):
    return pytest.mark.parametrize("name", EXAMPLES)(test)


def every_choice(test):
    """Every model, and VL-BERT with every choice of its config."""
    return pytest.mark.parametrize("name", [*EXAMPLES, *CHOICES])(test)


def batch_of(name):
    """Some choices need the whole image given, and one region at most for each piece."""
    batch = make_full_batch()
    if name in EXAMPLES:
        return batch
    words = torch.arange(6).expand(3, -1)[..., None]
    return dataclasses.replace(batch, whole_image_features=batch.region_features[:, 0], aligned_words=words)


def vectors(output, batch):
    """All that means something, by name: states of real positions, and one vector a row."""
    text, regions = batch.text_mask, batch.region_mask
    single = ("whole_image_state", "task_state", "pooled", "pooled_text", "pooled_image")
    found = {name: getattr(output, name) for name in single if getattr(output, name) is not None}
    found["text_states"] = output.text_states[:, : text.shape[1]][text]
    found["region_states"] = output.region_states[:, : regions.shape[1]][regions]
    return found


def assert_same(found, wanted, **tolerance):
    """Of two dictionaries with tensors."""
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], **(tolerance or CLOSE), msg=lambda m, n=name: f"{n}: {m}")


def terms(model, batch):
    """Sums, counts and metrics by name."""
    output = model.score(batch, model.encode(batch))
    named = output.losses | output.metrics
    return {name: torch.tensor([float(term.total), float(term.count)]) for name, term in named.items()}


def total_loss(model, batch):
    return sum(term.mean for term in model(batch).losses.values())


def gradients(model, batch):
    model.zero_grad()
    total_loss(model, batch).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "name, text_pad, region_pad",
    [*((name, 3, 2) for name in (*EXAMPLES, *CHOICES)), ("ViLBERT", 6, 0), ("ViLBERT", 0, 5)],
)
def test_padding_does_not_matter(name, text_pad, region_pad):
    """To no state, loss or gradient; it may hold anything, NaN where numbers are fractions."""
    model, batch = build(name), batch_of(name)
    longer = padded(batch, text_pad, region_pad)
    with torch.no_grad():
        assert_same(vectors(model.encode(longer), batch), vectors(model.encode(batch), batch))
        assert_same(terms(model, longer), terms(model, batch))
    assert_same(gradients(model, longer), gradients(model, batch), rtol=1e-3, atol=2e-5)


@every_choice
def test_batch_order_and_neighbours_do_not_matter(name):
    model, batch = build(name), batch_of(name)
    with torch.no_grad():
        whole = model.encode(batch)
        for order in ([2, 0, 1], [1]):
            part = take_rows(batch, order)
            wanted = VLOutput(**{key: value[order] for key, value in tensors(whole).items()})
            assert_same(vectors(model.encode(part), part), vectors(wanted, part))
        assert_same(terms(model, take_rows(batch, [2, 0, 1])), terms(model, batch))


@every_choice
def test_region_order_does_not_matter(name):
    model, batch = build(name), take_rows(batch_of(name), [0, 1])
    order = [4, 2, 0, 1, 3]  # of row 0's five regions
    turned = {field: value.clone() for field, value in tensors(batch).items() if field in PER_REGION}
    for value in turned.values():
        value[0, :5] = value[0, order]
    other = dataclasses.replace(batch, **turned)
    with torch.no_grad():
        before, after = model.encode(batch), model.encode(other)
        if name in EXAMPLES and EXAMPLES[name].region_order_counts:
            assert (before.text_states[0] - after.text_states[0]).abs().max() > 1e-3
            return
        moved = before.region_states.clone()
        moved[0, :5] = moved[0, order]
        assert_same(vectors(after, other), vectors(dataclasses.replace(before, region_states=moved), batch))
        assert_same(terms(model, other), terms(model, batch))


@pytest.mark.parametrize("name", MASKING)
def test_a_masked_region_cannot_be_seen(name):
    model, batch = build(name), make_full_batch()
    features = batch.region_features.clone()
    features[batch.masked_regions] += 5.0
    with torch.no_grad():
        before = vectors(model.encode(batch), batch)
        other = vectors(model.encode(dataclasses.replace(batch, region_features=features)), batch)
        assert_same(other, before, rtol=0, atol=0)
        boxes = batch.region_boxes + 9.0 * batch.masked_regions[..., None]
        moved = vectors(model.encode(dataclasses.replace(batch, region_boxes=boxes)), batch)
        nothing = torch.zeros_like(batch.masked_regions)
        shown = vectors(model.encode(dataclasses.replace(batch, masked_regions=nothing)), batch)
    assert (before["text_states"] - shown["text_states"]).abs().max() > 1e-3
    # VL-BERT's paper embeds neither; in all others its place can be seen.
    assert torch.equal(before["text_states"], moved["text_states"]) == (name == "VL-BERT, paper")


@every_model
def test_labels_and_targets_are_not_read_by_the_encoder(name):
    model, batch = build(name), make_full_batch()
    labels = ("text_labels", "region_targets", "region_target_mask", "match_labels")
    bare = dataclasses.replace(batch, **dict.fromkeys(labels))
    with torch.no_grad():
        assert_same(vectors(model.encode(bare), batch), vectors(model.encode(batch), batch), rtol=0, atol=0)


@every_model
def test_targets_of_predicted_regions_alone_give_the_same_losses(name):
    model, batch = build(name), make_full_batch()
    batch = dataclasses.replace(batch, match_labels=torch.tensor([1, 0, 1]))  # some models leave mismatched pairs out
    compact = dataclasses.replace(batch, region_targets=batch.region_targets[batch.region_target_mask])
    assert model.loss_counts(compact) == model.loss_counts(batch)
    with torch.no_grad():
        dense, same = model(batch), model(compact)
    for terms, others in ((dense.losses, same.losses), (dense.metrics, same.metrics)):
        assert terms.keys() == others.keys()
        for key, term in terms.items():
            assert torch.equal(term.total, others[key].total) and int(term.count) == int(others[key].count), key


def without_words(batch):
    return dataclasses.replace(batch, text_labels=torch.full_like(batch.text_labels, IGNORE_INDEX))


def without_masked_regions(batch):
    nothing = torch.zeros_like(batch.masked_regions)
    return dataclasses.replace(batch, masked_regions=nothing, region_target_mask=nothing)


def with_match_labels(batch, label):
    return dataclasses.replace(batch, match_labels=torch.full_like(batch.match_labels, label))


def with_text_lengths(batch, lengths):
    mask = torch.arange(batch.text_mask.shape[1]) < torch.tensor(lengths)[:, None]
    return dataclasses.replace(batch, text_mask=mask, text_labels=batch.text_labels.masked_fill(~mask, IGNORE_INDEX))


HALF_EMPTY = {
    "no masked word": lambda: without_words(make_full_batch()),
    "no masked region": lambda: without_masked_regions(make_full_batch()),
    "nothing masked": lambda: without_words(without_masked_regions(make_full_batch())),
    "nothing to learn": lambda: with_match_labels(HALF_EMPTY["nothing masked"](), IGNORE_INDEX),
    "one region": lambda: make_full_batch(regions=(1, 1, 1)),
    "an image without a region": lambda: make_full_batch(regions=(0, 2, 1)),
    "no region": lambda: make_full_batch(regions=(0, 0, 0)),
    "no region but padding": lambda: make_full_batch(regions=(0, 0, 0), region_pad=2),
    "all regions masked": lambda: (
        lambda batch: dataclasses.replace(batch, masked_regions=batch.region_mask, region_target_mask=batch.region_mask)
    )(make_full_batch()),
    "only [CLS] [SEP]": lambda: with_text_lengths(make_full_batch(), [2, 2, 2]),
    "a row without text": lambda: with_text_lengths(make_full_batch(), [9, 0, 1]),
    "all mismatched": lambda: with_match_labels(make_full_batch(), 0),
    "one row, nothing else": lambda: with_text_lengths(make_full_batch((3,), (0,)), [1]),
}


@pytest.mark.parametrize("name", MOSTLY_ONE_OF_EACH)
@pytest.mark.parametrize("case", HALF_EMPTY)
def test_half_empty_batches_give_finite_losses_and_gradients(name, case):
    model, batch = build(name).train(), HALF_EMPTY[case]()
    output = model(batch)
    assert all(term.total.isfinite() and (term.count > 0 or term.total == 0) for term in output.losses.values())
    if case in ("no masked word", "nothing masked"):
        assert output.losses["masked_words"].count == 0
    if case in ("no masked region", "no region", "no region but padding") and EXAMPLES[name].masks_regions:
        assert output.losses["masked_regions"].count == 0
    assert all(grad.isfinite().all() for grad in gradients(model, batch).values())
    maps = model.eval().encode(batch, with_attention=True).attention
    sides = (maps.text, maps.image, maps.text_to_image, maps.image_to_text, maps.joint)
    assert all(weights.isfinite().all() for side in sides for weights in side)


@pytest.mark.parametrize("words, regions", [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", ["ViLBERT", "InterBERT"])
def test_half_empty_batches_of_a_model_that_regresses_features(name, words, regions):
    model = randomised(EXAMPLES[name].make(region_loss="regression", region_target_size=FEATURES)).train()
    batch = make_full_batch(target_size=FEATURES)
    if not words:
        batch = without_words(batch)
    if not regions:
        batch = dataclasses.replace(batch, region_target_mask=torch.zeros_like(batch.region_target_mask))
    losses = model(batch).losses
    assert (losses["masked_words"].mean > 0, losses["masked_regions"].mean > 0) == (words, regions)
    assert model.region_logits(model.encode(batch).region_states) is None
    sum(term.mean for term in losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name, divisor", [("ViLBERT", 5), ("ViLBERT, multi-task", 4), ("InterBERT", 5)])
def test_img_is_the_mean_of_all_regions_or_of_the_visible_ones(name, divisor):
    """Row 0 has five regions, the first of them masked."""
    model, batch = build(name), make_full_batch()
    mean = torch.zeros(3, FEATURES)
    mean[0] = batch.region_features[0, 1:5].sum(dim=0) / divisor
    with torch.no_grad():
        ours, given, other = (
            model.encode(dataclasses.replace(batch, whole_image_features=whole)).pooled[0]
            for whole in (None, mean, mean * 1.2)
        )
    torch.testing.assert_close(ours, given, rtol=1e-5, atol=1e-6)
    assert (ours - other).abs().max() > 1e-4


@every_model
def test_a_row_without_text_leaves_others_alone(name):
    model, batch = build(name), make_full_batch()
    less = with_text_lengths(dataclasses.replace(batch, aligned_words=None), [9, 0, 7])
    changed = dataclasses.replace(less, text_ids=torch.where(less.text_mask, less.text_ids, 3))
    with torch.no_grad():
        got, other = model.encode(less), model.encode(changed)
        wanted = model.encode(take_rows(less, [0, 2]))
    torch.testing.assert_close(other.region_states[1], got.region_states[1], rtol=0, atol=0)
    others = dataclasses.replace(got, **{key: value[[0, 2]] for key, value in tensors(got).items()})
    part = take_rows(less, [0, 2])
    assert_same(vectors(others, part), vectors(wanted, part))


@every_model
def test_double_precision(name):
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        single = {key: value.double() for key, value in vectors(model.encode(batch), batch).items()}
        losses = terms(model, batch)
        batch, model = in_dtype(batch, torch.float64), model.double()
        precise = vectors(model.encode(batch), batch)
        assert all(value.dtype == torch.float64 for value in precise.values())
        assert_same(precise, single)
        assert_same(terms(model, batch), losses)


@every_model
def test_dropout_acts_in_training_only(name):
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        first, second = (model.encode(batch).text_states for _ in range(2))
        assert torch.equal(first, second)
        model.train()
        assert not torch.equal(model.encode(batch).text_states, first)


@every_model
def test_log_odds_and_matching_loss_say_the_same(name):
    """Whatever the order of a head's logits: for a pair labelled 1 the loss is softplus(-log odds)."""
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        odds = model.match_log_odds(model.encode(batch))
        if odds is None:
            assert "matching" not in model(batch).losses
            return
        assert odds.shape == (3,) and odds.abs().min() > 1e-4
        for label, wanted in ((1, F.softplus(-odds)), (0, F.softplus(odds))):
            scored = model(with_match_labels(batch, label))
            torch.testing.assert_close(scored.losses["matching"].total, wanted.sum(), rtol=1e-5, atol=1e-6)
            assert scored.losses["matching"].count == 3
            right = (odds > 0) if label else (odds < 0)
            assert scored.metrics["matching_accuracy"].total == right.sum()
        labels = torch.tensor([1, IGNORE_INDEX, 0])
        term = model(dataclasses.replace(batch, match_labels=labels)).losses["matching"]
    assert term.count == 2
    torch.testing.assert_close(term.total, F.softplus(-odds[0]) + F.softplus(odds[2]), rtol=1e-5, atol=1e-6)


@every_model
@pytest.mark.parametrize("missing", ["text_labels", "match_labels"])
def test_missing_targets_are_named(name, missing):
    """Only VisualBERT may learn from words alone with a match head."""
    model, batch = build(name), make_full_batch()
    bare = dataclasses.replace(batch, **{missing: None})
    if missing == "match_labels" and (name.startswith("VisualBERT") or "matching" not in model(batch).losses):
        assert "matching" not in model(bare).losses
        return
    with pytest.raises(ValueError, match=missing):
        model(bare)


@every_model
def test_losses_of_mismatched_pairs(name):
    """The table of docs/models.md; a loss that skips such pairs leaves them out of its denominator too."""
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        if model.match_log_odds(model.encode(batch)) is None:
            return  # not told that a pair is mismatched
        matched = model(with_match_labels(batch, 1)).losses
        mixed, none = model(batch).losses, model(with_match_labels(batch, 0)).losses
    masked = {key: (int(matched[key].count), int(mixed[key].count), int(none[key].count)) for key in matched}
    assert masked.pop("matching") == (3, 3, 3)
    for key, counts in masked.items():
        every, of_matched = (6, 4) if key == "masked_words" else (5, 3)
        assert counts == ((every,) * 3 if key in EXAMPLES[name].mismatched else (every, of_matched, 0)), key
        assert counts[2] or none[key].total == 0


def parts(batch):
    """Masks of what sequences consist of."""
    one = batch.text_mask.new_ones(batch.batch_size, 1)
    return {"text": batch.text_mask, "regions": batch.region_mask, "whole image": one, "end": one}


@every_model
def test_attention_maps(name):
    model, batch = build(name), padded(make_full_batch(), 2, 1)
    with torch.no_grad():
        output, plain = model.encode(batch, with_attention=True), model.encode(batch)
    assert plain.attention is None
    assert_same(vectors(output, batch), vectors(plain, batch))
    masks, maps = parts(batch), output.attention
    joint = torch.cat([masks[part] for part in EXAMPLES[name].joint or ("text",)], dim=1)
    image = torch.cat([masks[part] for part in EXAMPLES[name].image], dim=1)
    sides = {"text": (masks["text"],) * 2, "image": (image, image), "joint": (joint, joint)}
    sides |= {"text_to_image": (masks["text"], image), "image_to_text": (image, masks["text"])}
    assert bool(maps.joint) == bool(EXAMPLES[name].joint) and any(getattr(maps, side) for side in sides)
    if maps.joint:
        lengths = [masks[part].shape[1] for part in EXAMPLES[name].joint]
        starts = dict(zip(EXAMPLES[name].joint, accumulate(lengths, initial=0), strict=False))
        assert (maps.joint_text, maps.joint_regions) == (starts["text"], starts["regions"])
    for side, (asking, asked) in sides.items():
        for weights in getattr(maps, side):
            heads = weights.shape[1]
            assert weights.shape == (3, heads, asking.shape[1], asked.shape[1]) and heads > 1, side
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
            real = asked[:, None, None].expand_as(weights)
            assert (weights[~real] == 0).all() and (weights[real] > 0).all()


# One layer of each kind is enough, with one of text before the co-attention.
ONE_OF_EACH_LAYER = {"num_hidden_layers": 1, "image_num_hidden_layers": 1}
ONE_CO_ATTENTION = {"num_hidden_layers": 2, "text_co_attention": (1,), "image_co_attention": (0,)}


@pytest.mark.parametrize("region_loss", ["kl", "regression"])
@pytest.mark.parametrize("name", ["ViLBERT", "InterBERT", "InterBERT, paper"])
def test_gradients_are_those_of_finite_differences(name, region_loss):
    """float64, every parameter along a random direction."""
    size = FEATURES if region_loss == "regression" else LABELS
    layers = ONE_OF_EACH_LAYER | (ONE_CO_ATTENTION if name == "ViLBERT" else {})
    model = EXAMPLES[name].make(region_loss=region_loss, region_target_size=size, **layers)
    model = randomised(model).double()
    batch = in_dtype(make_full_batch((5, 4), (3, 2), target_size=size), torch.float64)
    wanted = gradients(model, batch)
    generator, step = torch.Generator().manual_seed(1), 1e-6
    for key, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        found = []
        with torch.no_grad():
            for change in (step, -2 * step):
                parameter.add_(direction, alpha=change)
                found.append(total_loss(model, batch).item())
            parameter.add_(direction, alpha=step)
        slope = (wanted[key] * direction).sum().item()
        assert (found[0] - found[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7), key


# VL-BERT's norms of visual features are 0 at first.
AWAKE = {"visual_norm_text_init": 1.0, "visual_norm_region_init": 1.0}
SAVED = [(name, None) for name in (*EXAMPLES, *CHOICES)] + [
    ("ViLBERT", ViLbertForTasks),
    ("ViLBERT, multi-task", ViLbertForMultiTask),
    ("InterBERT", InterBertForTasks),
    ("VisualBERT", VisualBertForLabels),
    ("VisualBERT, late fusion", VisualBertForGrounding),
]


@pytest.mark.parametrize("name, with_heads", SAVED)
def test_save_and_load_give_the_same_model(name, with_heads, tmp_path):
    model, batch = build(name), batch_of(name)
    if with_heads:
        model = randomised(with_heads(model.config))
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    state, other = model.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys() and all(torch.equal(state[key], other[key]) for key in state)
    if with_heads:
        return
    # Read from a file, equal weights lie elsewhere in memory, which changes last digits on some machines.
    with torch.no_grad():
        assert_same(vectors(loaded.encode(batch), batch), vectors(model.encode(batch), batch), rtol=1e-6, atol=1e-6)
        assert_same(terms(loaded, batch), terms(model, batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name, start", [*((name, {}) for name in EXAMPLES), ("VL-BERT", AWAKE)])
def test_untrained_losses_are_those_of_guessing(name, start):
    torch.manual_seed(0)
    batch = make_full_batch((9, 9, 9), (6, 6, 6))
    best = batch.region_targets.argmax(dim=-1)
    batch = dataclasses.replace(batch, region_targets=F.one_hot(best, LABELS).float())
    losses = EXAMPLES[name].make(**start).eval()(batch).losses
    for loss, outcomes in (("masked_words", VOCAB_SIZE), ("masked_regions", LABELS), ("matching", 2)):
        if loss in losses:
            assert losses[loss].mean.item() == pytest.approx(math.log(outcomes), rel=0.1), loss


@every_model
def test_the_interface(name):
    """`PreTrainingModel` at run time."""
    model, batch = build(name), make_full_batch()
    output = model.encode(batch)
    assert model.word_logits(output.text_states).shape == (3, 9, model.config.vocab_size)
    assert model.word_logits(output.text_states[batch.text_mask]).shape == (20, model.config.vocab_size)
    classes = model.region_logits(output.region_states)
    assert (classes is not None) == EXAMPLES[name].masks_regions
    assert classes is None or classes.shape[:2] == batch.region_mask.shape
    called, scored = model(batch), model.score(batch, output)
    assert called.losses.keys() == scored.losses.keys() and called.metrics.keys() == scored.metrics.keys()
    for key, term in called.losses.items():
        torch.testing.assert_close(term.total, scored.losses[key].total)


def test_mypy_is_shown_every_model():
    """`make lint` gives it the file that says that they are `PreTrainingModel`s."""
    hints = typing.get_type_hints(interface_for_mypy.check_models)
    assert {*hints.values()} - {hints["return"]} == {type(build(name)) for name in EXAMPLES}
    assert interface_for_mypy.__name__ + ".py" in (Path(__file__).parents[2] / "Makefile").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_features_of_another_width_are_one_clear_error(name):
    batch = make_full_batch()
    wide = torch.cat([batch.region_features] * 2, dim=-1)
    changed = dataclasses.replace(batch, region_features=wide, region_feature_targets=None, whole_image_features=None)
    with pytest.raises(ValueError, match=rf"region_features are {wide.shape[-1]} wide, this model takes {FEATURES}"):
        build(name).encode(changed)


@every_model
def test_weights_of_half_the_width_take_features_of_their_dtype(name):
    """Boxes stay in float32, so that only the network rounds; its losses stay finite."""
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        wanted = vectors(model.encode(batch), batch)
        model.bfloat16()
        halved = batch.to(dtype=torch.bfloat16)
        found = vectors(model.encode(halved), batch)
        assert all(torch.isfinite(torch.as_tensor(float(term.total))) for term in model(halved).losses.values())
        for what, value in found.items():
            assert value.dtype == torch.bfloat16
            assert (value.float() - wanted[what]).norm() < 0.05 * wanted[what].norm(), what
        with pytest.raises(ValueError, match=r"region_features are torch.float32, .* write batch.to\(dtype=torch.bf"):
            model.encode(batch)


@every_model
def test_a_piece_beyond_the_vocabulary_is_named_with_its_size(name):
    model, batch = build(name), make_full_batch()
    most = model.config.vocab_size
    batch.text_ids[0, 1] = most + 3
    with pytest.raises(ValueError, match=rf"text_ids are from \d+ to {most + 3}, vocab_size is {most}; "):
        model.encode(batch)


def differently_labelled():
    batch = make_full_batch()
    matched = torch.ones_like(batch.match_labels)
    yield "as drawn", batch
    yield "all matched", dataclasses.replace(batch, match_labels=matched)
    yield "none matched", dataclasses.replace(batch, match_labels=torch.zeros_like(matched))
    yield "one is not asked", dataclasses.replace(batch, match_labels=torch.tensor([1, IGNORE_INDEX, 0]))
    yield "no word", dataclasses.replace(batch, text_labels=torch.full_like(batch.text_labels, IGNORE_INDEX))
    none = torch.zeros_like(batch.region_target_mask)
    yield "no region", dataclasses.replace(batch, region_target_mask=none)


@pytest.mark.parametrize("name", EXAMPLES)
def test_counts_are_those_of_the_losses(name):
    model = build(name)
    for what, batch in differently_labelled():
        with torch.no_grad():
            losses = model(batch).losses
        assert model.loss_counts(batch) == {loss: int(term.count) for loss, term in losses.items()}, what


@pytest.mark.parametrize("name", ["ViLBERT", "ViLBERT single-stream", "InterBERT"])
def test_a_model_that_predicts_no_regions_asks_for_no_targets(name):
    """And has no parameters for them."""
    model = EXAMPLES[name].make(region_loss="none")
    assert not [each for each in model.state_dict() if "region_head" in each]
    batch = dataclasses.replace(make_full_batch(), region_targets=None, region_target_mask=None)
    output = model.encode(batch)
    losses = model.score(batch, output).losses
    assert model.loss_counts(batch) == {loss: int(term.count) for loss, term in losses.items()}
    assert set(losses) == {"masked_words", "matching"} and model.region_logits(output.region_states) is None


@pytest.mark.parametrize("mean", ["items", "rows"])
def test_words_without_an_image_count_by_themselves_in_a_vlbert(mean):
    model = EXAMPLES["VL-BERT"].make(with_text_only=True, word_loss_mean=mean, region_loss_mean=mean)
    batch = make_full_batch(regions=(5, 0, 1))
    batch = dataclasses.replace(batch, text_only=torch.tensor([False, True, False]))
    counts = model.loss_counts(batch)
    assert counts == {loss: int(term.count) for loss, term in model(batch).losses.items()}
    assert counts["text_only_words"] > 0
