"""The ImageBERT reference is itself right: what can be worked out by hand, and what must not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import imagebert_reference as ref
import numpy as np
import pytest
from imagebert_reference import Batch, Parameters, Sizes

SIZES = Sizes(final_separator="next", global_feature=5)


@pytest.fixture
def parameters() -> Parameters:
    return ref.draw_parameters(SIZES, np.random.default_rng(1))


@pytest.fixture
def batch() -> Batch:
    return ref.draw_batch(SIZES, np.random.default_rng(2))


def changed(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Other values, still in range, where the mask holds."""
    other = values + 7.5 if values.dtype == float else (values + 1) % 7
    return np.where(where.reshape(where.shape + (1,) * (values.ndim - where.ndim)), other, values)


# -- bricks ----------------------------------------------------------------------------------------------------------


def test_gelu_is_x_times_the_normal_distribution() -> None:
    # Phi(1) = 0.841344746068543, Phi(-2) = 0.022750131948179 from tables; the tanh approximation gives 0.8411920 for 1.
    np.testing.assert_allclose(ref.gelu(np.array([0.0, 1.0, -2.0])), [0.0, 0.841344746068543, -0.045500263896358])


def test_layer_norm_uses_the_biased_variance() -> None:
    # (1, 1, 3, 3): mean 2, variance 1 (unbiased 4/3), so -1, -1, 1, 1 before weight and bias.
    parameters = {"n.weight": np.array([1.0, 2.0, 3.0, 4.0]), "n.bias": np.array([0.5, 0.0, 0.0, -1.0])}
    normed = ref.layer_norm(parameters, "n", np.array([1.0, 1.0, 3.0, 3.0]))
    np.testing.assert_allclose(normed, [-0.5, -2.0, 3.0, 3.0], atol=1e-11)


def test_layer_norm_of_a_constant_row_is_its_bias() -> None:
    parameters = {"n.weight": np.ones(2), "n.bias": np.array([0.25, -1.0])}
    np.testing.assert_array_equal(ref.layer_norm(parameters, "n", np.array([3.0, 3.0])), [0.25, -1.0])


def test_attention_by_hand() -> None:
    """Two heads of width 1 over two rows and one padded row; all projections are the identity."""
    parameters = {f"l.{part}.weight": np.eye(2) for part in ("query", "key", "value")}
    parameters |= {f"l.{part}.bias": np.zeros(2) for part in ("query", "key", "value")}
    rows = np.array([[[1.0, 0.0], [math.log(3.0), 2.0], [50.0, 50.0]]])
    context = ref.self_attention(parameters, "l", rows, np.array([[True, True, False]]), heads=2)
    # Row 0, head 0: scores 1 and log 3, so weights e/(e+3) and 3/(e+3). Head 1: query 0, equal weights.
    head_0 = (math.e * 1.0 + 3.0 * math.log(3.0)) / (math.e + 3.0)
    np.testing.assert_allclose(context[0, 0], [head_0, 1.0])


def test_attention_scores_are_divided_by_the_root_of_the_head_width() -> None:
    parameters = {f"l.{part}.weight": np.eye(4) for part in ("query", "key", "value")}
    parameters |= {f"l.{part}.bias": np.zeros(4) for part in ("query", "key", "value")}
    rows = np.array([[[1.0, 0.0, 0.0, 0.0], [2.0 * math.log(3.0), 0.0, 0.0, 0.0]]])
    context = ref.self_attention(parameters, "l", rows, np.ones((1, 2), dtype=bool), heads=1)
    # Row 0: scores 1/2 and log 3.
    weight = 3.0 / (math.exp(0.5) + 3.0)
    np.testing.assert_allclose(context[0, 0, 0], (1.0 - weight) + weight * 2.0 * math.log(3.0))


def test_encoder_layer_by_hand() -> None:
    """Attention adds only its output bias; the feed-forward part reads the first number and adds to the second."""
    shapes = {name: (4, 4) for name in ("query", "key", "value", "attention_output")}
    shapes |= {"intermediate": (1, 4), "output": (4, 1)}
    parameters = {f"l.{name}.weight": np.zeros(shape) for name, shape in shapes.items()}
    parameters |= {f"l.{name}.bias": np.zeros(shape[0]) for name, shape in shapes.items()}
    parameters["l.attention_output.bias"] = np.array([4.0, 4.0, 0.0, 0.0])
    parameters["l.intermediate.weight"] = np.array([[1.0, 0.0, 0.0, 0.0]])
    parameters["l.output.weight"] = np.array([[0.0], [1.0], [0.0], [0.0]])
    parameters |= {f"l.{name}.weight": np.ones(4) for name in ("attention_norm", "output_norm")}
    parameters["l.attention_norm.bias"] = np.array([0.0, 0.0, 1.0, 1.0])
    parameters["l.output_norm.bias"] = np.zeros(4)
    out = ref.encoder_layer(parameters, "l", np.array([[[0.0, 0.0, 2.0, 2.0]]]), np.ones((1, 1), dtype=bool), heads=1)
    # (4, 4, 2, 2) -> LN (1, 1, -1, -1) + (0, 0, 1, 1) = (1, 1, 0, 0); the second gets GELU(1) added; LN again.
    second = 1.841344746068543
    mean, square = (1.0 + second) / 4.0, (1.0 + second**2) / 4.0
    expected = (np.array([1.0, second, 0.0, 0.0]) - mean) / math.sqrt(square - mean**2)
    np.testing.assert_allclose(out[0, 0], expected, atol=1e-11)


def test_mlm_head_by_hand() -> None:
    """Dense (identity), GELU, then LN, then the word embeddings as decoder."""
    parameters = {
        "mlm.dense.weight": np.eye(3),
        "mlm.dense.bias": np.zeros(3),
        "mlm.norm.weight": np.ones(3),
        "mlm.norm.bias": np.zeros(3),
        "word_embed": np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]),
        "mlm.bias": np.array([0.0, 5.0]),
    }
    logits = ref.mlm_logits(parameters, np.array([[[1.0, 0.0, -2.0]]]))
    a, c = 0.841344746068543, -0.045500263896358
    mean = (a + c) / 3.0
    deviation = math.sqrt((a**2 + c**2) / 3.0 - mean**2)
    np.testing.assert_allclose(logits[0, 0], [(a - mean) / deviation, 2.0 * -mean / deviation + 5.0], atol=1e-11)


# -- embeddings ------------------------------------------------------------------------------------------------------


def test_location_vector_by_hand() -> None:
    boxes_px = np.array([[[20.0, 10.0, 120.0, 60.0], [0.0, 0.0, 0.0, 0.0]]])
    locations = ref.location_vectors(boxes_px, np.array([[100, 200]]))  # height 100, width 200
    # 100 x 50 of 200 x 100 pixels is a quarter of the image.
    np.testing.assert_allclose(locations, [[[0.1, 0.1, 0.6, 0.6, 0.25], [0.0] * 5]])


def test_image_embedding_by_hand() -> None:
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
    out = ref.image_embedding(parameters, "image_embed", np.array([[[5.0]]]), locations, dummy_position=1)
    np.testing.assert_allclose(out[0, 0], [-1.0, -1.0, 1.0, 1.0], atol=1e-11)


def test_linguistic_embedding_by_hand() -> None:
    parameters = {
        "word_embed": np.array([[9.0, 0.0, 0.0, 9.0], [1.0, 0.0, 0.0, 1.0]]),
        "segment_embed": np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 70.0, 0.0]]),
        "position_embed": np.array([[0.0, 60.0, 0.0, 0.0], [0.0, 0.0, 3.0, 2.0]]),
        "text_norm.weight": np.ones(4),
        "text_norm.bias": np.zeros(4),
    }
    out = ref.linguistic_embedding(parameters, np.array([[1]]), np.array([1]), ref.TEXT_SEGMENT)
    np.testing.assert_allclose(out[0, 0], [-1.0, -1.0, 1.0, 1.0], atol=1e-11)  # (1, 1, 3, 3)


def test_text_rows_and_pooler_without_a_transformer(parameters: Parameters, batch: Batch) -> None:
    """With no layer in between: word t at position t in segment 0, and tanh of a layer on [CLS]."""
    parameters |= {"pooler.weight": 0.5 * np.eye(12), "pooler.bias": np.full(12, 0.25)}
    output = ref.forward(parameters, replace(SIZES, layers=0), batch)
    for t in range(9):
        word = ref.linguistic_embedding(parameters, batch.word_ids[:, t], np.array(t), 0)
        np.testing.assert_array_equal(output.text[:, t], word)
    np.testing.assert_allclose(output.pooled, np.tanh(0.5 * output.text[:, 0] + 0.25), atol=1e-13)


def test_rows_of_the_joint_sequence(parameters: Parameters, batch: Batch) -> None:
    rows, is_row = ref.embed(parameters, SIZES, batch)
    assert rows.shape == (4, 9 + 6 + 1 + 1, 12)
    np.testing.assert_array_equal(is_row[:, :9], batch.is_word)
    np.testing.assert_array_equal(is_row[:, 9:15], batch.is_region)
    assert is_row[:, 15:].all()
    # The final [SEP] stands one position after each pair's own last word.
    for pair, num_words in enumerate(batch.is_word.sum(axis=1)):
        separator = ref.linguistic_embedding(parameters, np.array([[ref.SEP]]), np.array([num_words]), 1)
        np.testing.assert_array_equal(rows[pair, 16], separator[0, 0])


def test_global_token_is_a_region_that_covers_the_image(parameters: Parameters, batch: Batch) -> None:
    assert batch.global_features is not None
    tied = parameters | {f"global_embed.{kind}": parameters[f"image_embed.{kind}"] for kind in ("weight", "bias")}
    height, width = batch.image_hw.T
    zeros = np.zeros_like(width)
    as_region = replace(
        batch,
        region_features=batch.region_features[:, :1],
        boxes_px=np.stack([zeros, zeros, width, height], axis=1)[:, None],
        zeroed_regions=np.zeros((4, 1), dtype=bool),
        global_features=batch.region_features[:, 0],
    )
    rows, _ = ref.embed(tied, replace(SIZES, dummy_position=3), as_region)
    np.testing.assert_allclose(rows[:, 9], rows[:, 10], atol=1e-13)  # region, then global token


@pytest.mark.parametrize("switched", [{"final_separator": None}, {"final_separator": "dummy"}, {"global_feature": 0}])
def test_switches_reach_the_states(parameters: Parameters, batch: Batch, switched: dict[str, object]) -> None:
    default = ref.forward(parameters, SIZES, batch)
    other = ref.forward(parameters, replace(SIZES, **switched), batch)
    assert default.text.shape == other.text.shape and default.regions.shape == other.regions.shape
    assert np.abs(default.pooled - other.pooled).max() > 1e-4


# -- what must not matter --------------------------------------------------------------------------------------------


def test_padding_does_not_matter(parameters: Parameters, batch: Batch) -> None:
    longer = replace(
        batch,
        word_ids=np.pad(batch.word_ids, [(0, 0), (0, 3)]),
        is_word=np.pad(batch.is_word, [(0, 0), (0, 3)]),
        masked_words=np.pad(batch.masked_words, [(0, 0), (0, 3)]),
        word_targets=np.pad(batch.word_targets, [(0, 0), (0, 3)]),
        region_features=np.pad(batch.region_features, [(0, 0), (0, 2), (0, 0)], constant_values=9.0),
        boxes_px=np.pad(batch.boxes_px, [(0, 0), (0, 2), (0, 0)], constant_values=300.0),
        is_region=np.pad(batch.is_region, [(0, 0), (0, 2)]),
        masked_regions=np.pad(batch.masked_regions, [(0, 0), (0, 2)]),
        zeroed_regions=np.pad(batch.zeroed_regions, [(0, 0), (0, 2)]),
        region_labels=np.pad(batch.region_labels, [(0, 0), (0, 2)]),
    )
    one, other = ref.forward(parameters, SIZES, batch), ref.forward(parameters, SIZES, longer)
    np.testing.assert_allclose(other.pooled, one.pooled, atol=1e-12)
    np.testing.assert_allclose(other.text[:, :9][batch.is_word], one.text[batch.is_word], atol=1e-12)
    np.testing.assert_allclose(other.regions[:, :6][batch.is_region], one.regions[batch.is_region], atol=1e-12)
    assert ref.pretraining_losses(parameters, SIZES, longer) == pytest.approx(
        ref.pretraining_losses(parameters, SIZES, batch), abs=1e-12
    )


def test_what_stands_on_padding_does_not_matter(parameters: Parameters, batch: Batch) -> None:
    assert not batch.is_word.all() and not batch.is_region.all()
    garbage = replace(
        batch,
        word_ids=changed(batch.word_ids, ~batch.is_word),
        word_targets=changed(batch.word_targets, ~batch.is_word),
        masked_words=batch.masked_words | ~batch.is_word,
        region_features=changed(batch.region_features, ~batch.is_region),
        boxes_px=changed(batch.boxes_px, ~batch.is_region),
        masked_regions=batch.masked_regions | ~batch.is_region,
        region_labels=changed(batch.region_labels, ~batch.is_region),
    )
    assert ref.pretraining_losses(parameters, SIZES, garbage) == ref.pretraining_losses(parameters, SIZES, batch)


def test_permuting_regions_permutes_their_states(parameters: Parameters, batch: Batch) -> None:
    order = np.array([3, 0, 5, 1, 4, 2])
    names = ("region_features", "boxes_px", "is_region", "masked_regions", "zeroed_regions", "region_labels")
    permuted = replace(batch, **{name: getattr(batch, name)[:, order] for name in names})
    one, other = ref.forward(parameters, SIZES, batch), ref.forward(parameters, SIZES, permuted)
    np.testing.assert_allclose(other.regions, one.regions[:, order], atol=1e-12)
    np.testing.assert_allclose(other.text, one.text, atol=1e-12)
    np.testing.assert_allclose(other.pooled, one.pooled, atol=1e-12)
    assert np.abs(one.regions - one.regions[:, order]).max() > 0.1


def test_word_order_does_matter(parameters: Parameters, batch: Batch) -> None:
    order = np.array([0, 2, 1, *range(3, 9)])
    swapped = replace(batch, word_ids=batch.word_ids[:, order])
    assert (swapped.word_ids[0] != batch.word_ids[0]).any()
    one, other = ref.forward(parameters, SIZES, batch), ref.forward(parameters, SIZES, swapped)
    assert np.abs(one.pooled[0] - other.pooled[0]).max() > 1e-4


def test_a_zeroed_region_hides_its_feature_but_not_its_box(parameters: Parameters, batch: Batch) -> None:
    assert batch.zeroed_regions.any() and (batch.masked_regions & ~batch.zeroed_regions).any()
    one = ref.forward(parameters, SIZES, batch)
    hidden = replace(batch, region_features=changed(batch.region_features, batch.zeroed_regions))
    np.testing.assert_array_equal(ref.forward(parameters, SIZES, hidden).regions, one.regions)
    moved = replace(batch, boxes_px=changed(batch.boxes_px, batch.zeroed_regions))
    assert np.abs(ref.forward(parameters, SIZES, moved).regions - one.regions).max() > 1e-4
    kept = batch.masked_regions & ~batch.zeroed_regions
    seen = replace(batch, region_features=changed(batch.region_features, kept))
    assert np.abs(ref.forward(parameters, SIZES, seen).regions - one.regions).max() > 1e-4
    # The regression target is the feature that was hidden.
    mrfr = [ref.pretraining_losses(parameters, SIZES, b)["mrfr"] for b in (batch, hidden)]
    assert mrfr[1] > mrfr[0] + 1.0


def test_mismatched_pairs_do_not_change_the_masked_losses(parameters: Parameters, batch: Batch) -> None:
    mismatched = ~batch.matched
    assert batch.matched.any() and (batch.masked_words & mismatched[:, None]).any()
    other = replace(
        batch,
        word_ids=changed(batch.word_ids, mismatched),
        word_targets=changed(batch.word_targets, mismatched),
        masked_words=batch.masked_words & batch.matched[:, None],
        region_features=changed(batch.region_features, mismatched),
        masked_regions=batch.masked_regions | mismatched[:, None],
        region_labels=changed(batch.region_labels, mismatched),
    )
    before, after = (ref.pretraining_losses(parameters, SIZES, b) for b in (batch, other))
    assert {name: before[name] for name in ("mlm", "moc", "mrfr")} == {
        name: after[name] for name in ("mlm", "moc", "mrfr")
    }
    assert abs(before["itm"] - after["itm"]) > 1e-6


@pytest.mark.parametrize("emptied", ["no masks", "no matched pair"])
def test_nothing_to_predict_gives_zero(parameters: Parameters, batch: Batch, emptied: str) -> None:
    nothing = {
        "no masks": {
            "masked_words": np.zeros_like(batch.masked_words),
            "masked_regions": np.zeros_like(batch.masked_regions),
        },
        "no matched pair": {"matched": np.zeros_like(batch.matched)},
    }[emptied]
    losses = ref.pretraining_losses(parameters, SIZES, replace(batch, **nothing))
    assert (losses["mlm"], losses["moc"], losses["mrfr"]) == (0.0, 0.0, 0.0)
    assert losses["total"] == losses["itm"] > 0.0


# -- losses by hand --------------------------------------------------------------------------------------------------


def test_classification_loss_by_hand() -> None:
    # Probabilities (1/4, 3/4), (1/2, 1/2) and one that does not count: (log 4 + log 2) / 2 = 1.5 log 2.
    logits = np.array([[[0.0, math.log(3.0)], [5.0, 5.0], [100.0, -100.0]]])
    counted = np.array([[True, True, False]])
    assert ref.classification_loss(logits, np.array([[0, 1, 1]]), counted) == pytest.approx(1.5 * math.log(2.0))


@pytest.mark.parametrize("reduction, expected", [("mean", (2.5 + 2.0) / 2), ("sum", (5.0 + 4.0) / 2)])
def test_regression_loss_by_hand(reduction: str, expected: float) -> None:
    # Squares (1, 4) and (4, 0); the third region does not count.
    predicted = np.array([[[1.0, 2.0], [3.0, 3.0], [9.0, 9.0]]])
    target = np.array([[[0.0, 0.0], [1.0, 3.0], [0.0, 0.0]]])
    counted = np.array([[True, True, False]])
    assert ref.regression_loss(predicted, target, counted, reduction) == pytest.approx(expected)


def test_binary_loss_by_hand() -> None:
    # s = 3/4 for a match: log(4/3); s = 3/4 for a mismatch: log 4; s = 1/2: log 2. Sum log(32/3).
    logits = np.array([math.log(3.0), math.log(3.0), 0.0])
    assert ref.binary_loss(logits, np.array([True, False, True])) == pytest.approx(math.log(32.0 / 3.0) / 3.0)


def test_binary_loss_survives_large_logits() -> None:
    assert ref.binary_loss(np.array([1000.0, -1000.0]), np.array([False, False])) == pytest.approx(500.0)


def test_total_is_the_plain_sum_of_losses_on_the_right_heads(parameters: Parameters, batch: Batch) -> None:
    """Heads whose weights are zero give their bias, and so losses that one can work out."""
    zeroed = ("mlm.dense", "mlm.norm", "moc", "mrfr", "itm")
    silent = {name: np.zeros_like(p) if name.startswith(zeroed) else p for name, p in parameters.items()}
    silent["mlm.bias"] = np.zeros(30)
    silent["itm.bias"] = np.array([math.log(3.0)])
    batch = replace(batch, matched=np.array([True, False, True, True]), region_features=batch.region_features * 0 + 2.0)
    losses = ref.pretraining_losses(silent, SIZES, batch)
    expected = {
        "mlm": math.log(30.0),
        "moc": math.log(7.0),
        "mrfr": 4.0,
        "itm": (3.0 * math.log(4.0 / 3.0) + math.log(4.0)) / 4.0,
    }
    assert losses == pytest.approx(expected | {"total": sum(expected.values())})
    assert ref.pretraining_losses(silent, SIZES, batch, "sum")["mrfr"] == pytest.approx(40.0)


# Two groups of three pairs. As sigmoid scores: (3/4, 1/2, 1/4) with the first true, (1/2, 3/4, 3/4) with the second.
GROUPS = np.array([[math.log(3.0), 0.0, -math.log(3.0)], [0.0, math.log(3.0), math.log(3.0)]])
TRUE = np.array([0, 1])


def test_retrieval_binary_loss_by_hand() -> None:
    first = math.log(4.0 / 3.0) + math.log(2.0) + math.log(4.0 / 3.0)
    second = math.log(2.0) + math.log(4.0 / 3.0) + math.log(4.0)
    assert ref.retrieval_binary_loss(GROUPS, TRUE) == pytest.approx((first + second) / 6.0)


def test_retrieval_multi_class_loss_by_hand() -> None:
    # Softmax over (3, 1, 1/3) gives the true pair 9/13, over (1, 3, 3) it gives 3/7.
    expected = (math.log(13.0 / 9.0) + math.log(7.0 / 3.0)) / 2.0
    assert ref.retrieval_multi_class_loss(GROUPS, TRUE) == pytest.approx(expected)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, (0.0 + 0.2) / 2),  # 0.2 - 3/4 + 1/2 < 0; 0.2 - 3/4 + 3/4
        ({"margin": 0.5}, (0.25 + 0.5) / 2),
        ({"margin": 2.0, "scores": "logit"}, ((2.0 - math.log(3.0)) + 2.0) / 2),
    ],
)
def test_retrieval_triplet_loss_by_hand(options: dict[str, object], expected: float) -> None:
    assert ref.retrieval_triplet_loss(GROUPS, TRUE, **options) == pytest.approx(expected)


# -- gradients and draws ---------------------------------------------------------------------------------------------


def test_numerical_gradient_equals_what_calculus_says(parameters: Parameters, batch: Batch) -> None:
    before = {name: p.copy() for name, p in parameters.items()}
    output = ref.forward(parameters, SIZES, batch)

    def gradient(loss: str, name: str, index: tuple[int, ...]) -> float:
        return ref.numerical_gradient(
            lambda p: ref.pretraining_losses(p, SIZES, batch)[loss], parameters, name, index, eps=1e-5
        )

    # d BCE / d bias = mean(s - y)
    s = 1.0 / (1.0 + np.exp(-ref.itm_logits(parameters, output.pooled)))
    assert gradient("itm", "itm.bias", (0,)) == pytest.approx((s - batch.matched).mean(), abs=1e-8)
    # d CE / d bias_v = mean(p_v - [target is v]) over the counted words
    counted = batch.masked_words & batch.matched[:, None]
    target = batch.word_targets[counted][0]
    p = np.exp(ref.log_softmax(ref.mlm_logits(parameters, output.text)))[counted][:, target]
    expected = (p - (batch.word_targets[counted] == target)).mean()
    assert gradient("mlm", "mlm.bias", (target,)) == pytest.approx(expected, abs=1e-8)
    assert gradient("moc", "mlm.bias", (target,)) == 0.0
    assert all((parameters[name] == before[name]).all() for name in before)


def test_every_parameter_takes_part(parameters: Parameters, batch: Batch) -> None:
    """Moving any one array changes the total, but for the key bias: softmax does not see a shift of all its scores."""
    total = ref.pretraining_losses(parameters, SIZES, batch)["total"]
    rng = np.random.default_rng(3)
    inert = {
        name
        for name, p in parameters.items()
        if abs(ref.pretraining_losses(parameters | {name: p + rng.normal(size=p.shape)}, SIZES, batch)["total"] - total)
        < 1e-9
    }
    assert inert == {"encoder.0.key.bias", "encoder.1.key.bias"}
    assert all((p != 0.0).all() for p in parameters.values())


@pytest.mark.parametrize("seed", range(5))
def test_drawn_batches_hold_what_the_losses_need(seed: int) -> None:
    batch = ref.draw_batch(Sizes(), np.random.default_rng(seed))
    assert batch.matched[0] and not batch.matched[1]
    assert batch.masked_words[0].any() and batch.masked_regions[0].any()
    assert not (batch.masked_words & ~batch.is_word).any()
    assert not (batch.masked_regions & ~batch.is_region).any()
    assert not (batch.zeroed_regions & ~batch.masked_regions).any()
    assert (batch.word_ids == batch.word_targets)[~batch.masked_words].all()
    assert (batch.word_targets[batch.masked_words] > ref.MASK).all()  # never [CLS], [SEP] or padding
    locations = ref.location_vectors(batch.boxes_px, batch.image_hw)
    assert (locations >= 0.0).all() and (locations <= 1.0).all()
    assert batch.global_features is None
