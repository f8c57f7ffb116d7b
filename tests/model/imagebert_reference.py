"""ImageBERT in numpy float64, written from the paper alone (arXiv:2001.07966), to check an implementation against.

Inference only: no dropout. Sections below are those of the paper. Shapes: B pairs, T text tokens, R regions,
S = rows of the joint sequence, H hidden, I intermediate, V words, L positions, D region feature, G global feature,
K object classes. A linear layer is `x @ weight.T + bias`, weight (out, in).

Parameters are a plain dict by the names and shapes of `draw_parameters`; `word_embed` is also the decoder of the MLM
head, segment 0 is text and 1 the image, and one row of `position_embed` serves all visual tokens.
A model that shares one LN between text and image, or one projection between regions and the global feature, is
compared by giving both names the same array.

Misprints, and how they are read:

 1. 4.1, `p_img = PositionEmbed(e^(i))`: e^(i) is the sum that p_img is part of, so this is circular. Read c^(i), the
    5-D location which the sentence before describes.
 2. 4.1, one name `PositionEmbed` for p_img and p_seq: the first takes a real 5-vector (a linear layer), the second
    an index (a table). Two functions.
 3. 4.1, `SegmentEmbed(i)` and `p_seq = PositionEmbed(i)`: the text says that segments tell modalities apart and that
    all visual tokens have one fixed dummy position. Neither depends on the region's number i.
 4. 4.3, L_MOC and L_MRFR begin with a minus: CE and the squared norm are already positive, minimising their negative
    would drive the prediction away. The minus is dropped, also in L_CE and L_Triplet of 4.4.
 5. 4.3, `f(v) in R`: a class needs a vector, the H-wide output of the Transformer.
 6. 4.3, words and regions share the count M: they are masked independently, so there are two counts.
 7. 4.3, l_theta and r_theta: detector label and pooled RoI feature are constants here. No gradient flows to them.
 8. 4.3, L_MRFR sums over dimensions: 2048 terms would swamp the other losses. UNITER, which the section follows, takes
    the mean. Default "mean"; "sum" follows the formula.
 9. 4.3, sums over the masked items of a sample inside E: read as the mean over all masked items of the batch.

Readings where the paper is silent:

 - Rows: [CLS] words [SEP], then regions; padding of the text stays in the middle. A final [SEP] after the regions is a
   switch. It closes the visual part, so it carries the image segment (as BERT's second [SEP] carries segment B), with
   the dummy position or the next one after the text. It is a word, so it goes through the linguistic LN.
 - "Zero out the masked token": the RoI feature r becomes zeros, so v keeps the bias of ImageEmbed. Location stays.
 - Global image feature (4.1, 5.3: "added to the visual part", from another CNN): one more visual token with a
   projection of its own, image segment, dummy position, and c of the whole image, (0, 0, 1, 1, 1). Never masked.
 - ITM "similar to BERT": tanh pooler on [CLS], then one logit. Section 4.4, retrieval: model/task_losses.py.
 - Conditional mask: items of mismatched pairs leave the denominators too. A denominator is at least 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Parameters = dict[str, np.ndarray]

SEP = 2
TEXT_SEGMENT, IMAGE_SEGMENT = 0, 1
LAYER_NORM_EPS = 1e-12
WHOLE_IMAGE = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
# BERT's own value. In float64 exp(-10000) is exactly 0, so padding gets no weight at all.
PADDING_SCORE = -10000.0


@dataclass(frozen=True)
class Sizes:
    """Sizes and switches of one model; the defaults are tiny, some of them those of vilbert_examples.py."""

    hidden: int = 12
    layers: int = 2
    heads: int = 3
    intermediate: int = 20
    vocabulary: int = 90
    positions: int = 24
    region_feature: int = 12
    object_classes: int = 7
    dummy_position: int = 0
    final_separator: str | None = None  # position of a [SEP] after the regions: "dummy", "next"; None: no such row
    global_feature: int = 0  # width of the global image feature; 0: no such token


@dataclass(frozen=True)
class Batch:
    """Image-text pairs as the model sees them, and what it must predict. Masks are True where the name holds."""

    word_ids: np.ndarray  # (B, T) int, after masking
    is_word: np.ndarray  # (B, T) bool, False on padding; real words come first
    masked_words: np.ndarray  # (B, T) bool, m_T: to be predicted, whatever stands there now
    word_targets: np.ndarray  # (B, T) int, before masking
    region_features: np.ndarray  # (B, R, D), never zeroed: also the target of MRFR
    boxes_px: np.ndarray  # (B, R, 4) x_tl, y_tl, x_br, y_br in pixels
    image_hw: np.ndarray  # (B, 2) height, width in pixels
    is_region: np.ndarray  # (B, R) bool, False on padding
    masked_regions: np.ndarray  # (B, R) bool, m_I: to be predicted
    zeroed_regions: np.ndarray  # (B, R) bool, those of m_I that are not kept
    region_labels: np.ndarray  # (B, R) int in [0, K)
    matched: np.ndarray  # (B,) bool, y of ITM
    global_features: np.ndarray | None = None  # (B, G)


@dataclass(frozen=True)
class Output:
    """Output of the Transformer."""

    text: np.ndarray  # (B, T, H)
    regions: np.ndarray  # (B, R, H)
    pooled: np.ndarray  # (B, H)


# -- bricks of BERT --------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function (section 5.1, "GELU as activation function"), with the true erf."""
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def linear(parameters: Parameters, name: str, x: np.ndarray) -> np.ndarray:
    """Fully-connected layer over the last axis."""
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def layer_norm(parameters: Parameters, name: str, x: np.ndarray) -> np.ndarray:
    """LN over the last axis: biased variance, epsilon inside the root."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + LAYER_NORM_EPS) * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax over the last axis."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def self_attention(parameters: Parameters, name: str, rows: np.ndarray, is_row: np.ndarray, heads: int) -> np.ndarray:
    """Multi-head self-attention of one layer, (B, S, H) -> (B, S, H), before its output projection."""
    pairs, length, hidden = rows.shape

    def split(projection: str) -> np.ndarray:
        projected = linear(parameters, f"{name}.{projection}", rows)
        return projected.reshape(pairs, length, heads, hidden // heads).transpose(0, 2, 1, 3)

    query, key, value = split("query"), split("key"), split("value")
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(hidden // heads)
    scores = scores + np.where(is_row, 0.0, PADDING_SCORE)[:, None, None, :]
    context = np.exp(log_softmax(scores)) @ value
    return context.transpose(0, 2, 1, 3).reshape(pairs, length, hidden)


def encoder_layer(parameters: Parameters, name: str, rows: np.ndarray, is_row: np.ndarray, heads: int) -> np.ndarray:
    """One Transformer layer as in BERT: LN after each residual sum."""
    attended = linear(parameters, f"{name}.attention_output", self_attention(parameters, name, rows, is_row, heads))
    rows = layer_norm(parameters, f"{name}.attention_norm", rows + attended)
    inner = gelu(linear(parameters, f"{name}.intermediate", rows))
    return layer_norm(parameters, f"{name}.output_norm", rows + linear(parameters, f"{name}.output", inner))


# -- section 4.1: embeddings -----------------------------------------------------------------------------------------


def location_vectors(boxes_px: np.ndarray, image_hw: np.ndarray) -> np.ndarray:
    """c^(i) of section 4.1, (B, R, 4) pixels and (B, 2) height, width -> (B, R, 5)."""
    x_tl, y_tl, x_br, y_br = np.moveaxis(boxes_px.astype(np.float64), -1, 0)
    height, width = image_hw[:, :1].astype(np.float64), image_hw[:, 1:].astype(np.float64)
    area = (x_br - x_tl) * (y_br - y_tl) / (width * height)
    return np.stack([x_tl / width, y_tl / height, x_br / width, y_br / height, area], axis=-1)


def linguistic_embedding(
    parameters: Parameters, word_ids: np.ndarray, positions: np.ndarray, segment: int
) -> np.ndarray:
    """Word + segment + sequence position, LN (section 4.1, "Linguistic embedding"); (B, T) ids -> (B, T, H)."""
    summed = parameters["word_embed"][word_ids] + parameters["segment_embed"][segment]
    return layer_norm(parameters, "text_norm", summed + parameters["position_embed"][positions])


def image_embedding(
    parameters: Parameters, projection: str, features: np.ndarray, locations: np.ndarray, dummy_position: int
) -> np.ndarray:
    """e^(i) = LN(v + s + p_img + p_seq) of section 4.1; (B, R, D) features and (B, R, 5) locations -> (B, R, H)."""
    v = linear(parameters, projection, features)
    s = parameters["segment_embed"][IMAGE_SEGMENT]
    p_img = linear(parameters, "location_embed", locations)
    p_seq = parameters["position_embed"][dummy_position]
    return layer_norm(parameters, "image_norm", v + s + p_img + p_seq)


def embed(parameters: Parameters, sizes: Sizes, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The joint sequence: [CLS] words [SEP], regions, then the global token and the final [SEP] if switched on.

    Returns:
        rows (B, S, H) and is_row (B, S) bool.
    """
    pairs, words = batch.word_ids.shape
    text = linguistic_embedding(parameters, batch.word_ids, np.arange(words), TEXT_SEGMENT)
    seen_features = np.where(batch.zeroed_regions[:, :, None], 0.0, batch.region_features)  # section 4.3, task 2
    locations = location_vectors(batch.boxes_px, batch.image_hw)
    regions = image_embedding(parameters, "image_embed", seen_features, locations, sizes.dummy_position)
    rows, is_row = [text, regions], [batch.is_word, batch.is_region]
    always = np.ones((pairs, 1), dtype=bool)
    if sizes.global_feature:
        assert batch.global_features is not None
        feature = batch.global_features[:, None, :]
        rows.append(image_embedding(parameters, "global_embed", feature, WHOLE_IMAGE, sizes.dummy_position))
        is_row.append(always)
    if sizes.final_separator is not None:
        next_position = batch.is_word.sum(axis=1, keepdims=True)
        dummy_position = np.full((pairs, 1), sizes.dummy_position)
        position = {"next": next_position, "dummy": dummy_position}[sizes.final_separator]
        rows.append(linguistic_embedding(parameters, np.full((pairs, 1), SEP), position, IMAGE_SEGMENT))
        is_row.append(always)
    return np.concatenate(rows, axis=1), np.concatenate(is_row, axis=1)


def forward(parameters: Parameters, sizes: Sizes, batch: Batch) -> Output:
    """Figure 4: embeddings, the Transformer, and the tanh pooler on [CLS] (section 4.3, task 4)."""
    rows, is_row = embed(parameters, sizes, batch)
    for layer in range(sizes.layers):
        rows = encoder_layer(parameters, f"encoder.{layer}", rows, is_row, sizes.heads)
    words, regions = batch.word_ids.shape[1], batch.region_features.shape[1]
    pooled = np.tanh(linear(parameters, "pooler", rows[:, 0]))
    return Output(text=rows[:, :words], regions=rows[:, words : words + regions], pooled=pooled)


# -- section 4.3: heads ----------------------------------------------------------------------------------------------


def mlm_logits(parameters: Parameters, text: np.ndarray) -> np.ndarray:
    """Task 1, "the same with the MLM task in BERT": dense, GELU, LN, tied decoder; (B, T, H) -> (B, T, V)."""
    transformed = layer_norm(parameters, "mlm.norm", gelu(linear(parameters, "mlm.dense", text)))
    return transformed @ parameters["word_embed"].T + parameters["mlm.bias"]


def moc_logits(parameters: Parameters, regions: np.ndarray) -> np.ndarray:
    """Task 2, "a fully-connected layer to predict the correct label"; (B, R, H) -> (B, R, K)."""
    return linear(parameters, "moc", regions)


def mrfr_features(parameters: Parameters, regions: np.ndarray) -> np.ndarray:
    """Task 3, h of L_MRFR: "a fully-connected layer" to the RoI feature's width; (B, R, H) -> (B, R, D)."""
    return linear(parameters, "mrfr", regions)


def itm_logits(parameters: Parameters, pooled: np.ndarray) -> np.ndarray:
    """Task 4: the logit whose sigmoid is s(v, w); (B, H) -> (B,)."""
    return linear(parameters, "itm", pooled)[:, 0]


# -- section 4.3: losses ---------------------------------------------------------------------------------------------


def mean_over(values: np.ndarray, counted: np.ndarray) -> float:
    """Mean of the values where `counted`; 0 where nothing counts."""
    return float(values[counted].sum() / max(int(counted.sum()), 1))


def classification_loss(logits: np.ndarray, labels: np.ndarray, counted: np.ndarray) -> float:
    """L_MLM and L_MOC: CE with hard labels, mean over the counted items; logits (..., C), labels and counted (...)."""
    log_probabilities = np.take_along_axis(log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return mean_over(-log_probabilities, counted)


def regression_loss(predicted: np.ndarray, target: np.ndarray, counted: np.ndarray, reduction: str = "mean") -> float:
    """L_MRFR: squared L2 distance, its "mean" or "sum" over dimensions, mean over the counted regions."""
    squares = (predicted - target) ** 2
    return mean_over({"mean": squares.mean(axis=-1), "sum": squares.sum(axis=-1)}[reduction], counted)


def binary_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """L_ITM (4.3) and L_BCE (4.4): y log s + (1 - y) log(1 - s), negated, mean over pairs; s = sigmoid(logit)."""
    return float((np.logaddexp(0.0, logits) - labels * logits).mean())


def pretraining_losses(
    parameters: Parameters, sizes: Sizes, batch: Batch, mrfr_reduction: str = "mean"
) -> dict[str, float]:
    """The four losses of section 4.3 and their plain sum: mlm, moc, mrfr, itm, total."""
    output = forward(parameters, sizes, batch)
    # "Conditional mask": masked losses only where image and text are related.
    words = batch.masked_words & batch.is_word & batch.matched[:, None]
    regions = batch.masked_regions & batch.is_region & batch.matched[:, None]
    features = mrfr_features(parameters, output.regions)
    losses = {
        "mlm": classification_loss(mlm_logits(parameters, output.text), batch.word_targets, words),
        "moc": classification_loss(moc_logits(parameters, output.regions), batch.region_labels, regions),
        "mrfr": regression_loss(features, batch.region_features, regions, mrfr_reduction),
        "itm": binary_loss(itm_logits(parameters, output.pooled), batch.matched),
    }
    return losses | {"total": sum(losses.values())}


# -- for comparisons -------------------------------------------------------------------------------------------------


def numerical_gradient(
    loss_fn: Callable[[Parameters], float], parameters: Parameters, name: str, index: tuple[int, ...], eps: float = 1e-5
) -> float:
    """d loss / d parameters[name][index] by central differences; `parameters` is left as it was.

    The tied `word_embed` collects what flows through the embedding and through the MLM decoder.
    """

    def loss_at(step: float) -> float:
        moved = parameters[name].copy()
        moved[index] += step
        return loss_fn(parameters | {name: moved})

    return (loss_at(eps) - loss_at(-eps)) / (2.0 * eps)


def draw_parameters(sizes: Sizes, rng: np.random.Generator) -> Parameters:
    """Random values for every parameter: no zeros, LN weights around 1."""
    hidden, inner = sizes.hidden, sizes.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "word_embed": (sizes.vocabulary, hidden),
        "segment_embed": (2, hidden),
        "position_embed": (sizes.positions, hidden),
        "mlm.bias": (sizes.vocabulary,),
    }
    linears = {"image_embed": (hidden, sizes.region_feature), "location_embed": (hidden, 5)}
    if sizes.global_feature:
        linears["global_embed"] = (hidden, sizes.global_feature)
    norms = ["text_norm", "image_norm", "mlm.norm"]
    for name in (f"encoder.{layer}" for layer in range(sizes.layers)):
        linears |= {f"{name}.{part}": (hidden, hidden) for part in ("query", "key", "value", "attention_output")}
        linears |= {f"{name}.intermediate": (inner, hidden), f"{name}.output": (hidden, inner)}
        norms += [f"{name}.attention_norm", f"{name}.output_norm"]
    linears |= {"pooler": (hidden, hidden), "mlm.dense": (hidden, hidden), "itm": (1, hidden)}
    linears |= {"moc": (sizes.object_classes, hidden), "mrfr": (sizes.region_feature, hidden)}
    for name, (outputs, inputs) in linears.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    parameters = {name: rng.normal(0.0, 0.4, shape) for name, shape in shapes.items()}
    for name in norms:
        parameters[f"{name}.weight"] = rng.normal(1.0, 0.2, hidden)
        parameters[f"{name}.bias"] = rng.normal(0.0, 0.2, hidden)
    return parameters
