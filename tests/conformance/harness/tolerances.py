"""The tolerances, as the README beside each family's reference arrays states them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Closeness:
    """|a - b| <= max_rel * max|b| + rtol * |b|, b being the reference."""

    max_rel: float
    rtol: float


@dataclass(frozen=True)
class Allclose:
    """|a - b| <= allowed * (1 + |b|), b being the reference: the same tolerance, absolute and relative."""

    allowed: float


@dataclass(frozen=True)
class DetectorTolerances:
    """Of the detector family (goldens/detector/README.md, "Tolerances").

    The reference in float32 differs from itself in float64 by at most 3e-6 of the maximum, with identical proposals:
    `values` leaves thirty times that for another library's kernels and stays far below the smallest mistake listed
    there (9e-2, the epsilon of the batch norms).
    """

    values: Closeness = Closeness(max_rel=1e-4, rtol=1e-3)  # of maps, logits, deltas, features and probabilities
    scaled: Closeness = Closeness(max_rel=1e-6, rtol=0.0)  # of one float32 multiplication: boxes and ratios of a resize
    input_sum: float = 1e-6  # of a checksum over a network input, as a share of the sum of absolute values
    weight_sum: float = 1e-9  # the same over a weight tensor, computed in float64 from equal float32 numbers
    proposal_px: float = 0.05  # a proposal is found within that many pixels
    proposals_missed: float = 0.01  # share of them that may not be found
    # A detection is found when its class is equal, its box within photo pixels and its score within that much.
    detection_px: float = 0.1
    detection_score: float = 1e-3
    detections_missed: float = 0.15  # share of all that may be missed; none of the stable ones may
    # Of a region's best class score after NMS, absolute: the reference leaves classes out that never pass that.
    best_class_score: float = 1e-4
    # Scores that close are a tie, and order among tied regions is free: three times the float32 noise of a probability.
    # NMS may decide otherwise for each of them.
    tied_score: float = 2e-5
    # Share of the given boxes that the file may declare unstable, and of the best class scores that ties may make
    # another one; with more the case would prove nothing.
    unstable: float = 0.5


@dataclass(frozen=True)
class ModelTolerances:
    """Of the families of models (the line above the cases in goldens/vilbert/README.md)."""

    values: Allclose = Allclose(1e-4)  # of outputs, losses, attention weights and gradients
    gradient_norm: float = 1e-3  # of the norm of all gradients together, relative


@dataclass(frozen=True)
class VLBertTolerances:
    """Of the family vlbert (goldens/vlbert/README.md, "Tolerances")."""

    values: float = 1e-4  # of embeddings, layers, logits, features and maps, absolute
    loss: float = 2e-5  # of a loss: this or the next, the larger of the two
    loss_relative: float = 1e-5
    gradients: Closeness = Closeness(max_rel=1e-3, rtol=0.0)  # of a gradient's elements
    norm: float = 1e-5  # of the norm of one parameter's gradient: this or the next, the larger of the two
    norm_relative: float = 1e-3
    grey_levels: float = 1.0  # of a network input, for other resampling libraries
    optimiser: float = 1e-6  # of parameters, rates and norms after each step, and of single losses beside the optimiser


@dataclass(frozen=True)
class MetricTolerances:
    """Of the families of metrics (the READMEs beside their cases). Numbers: the share of the reference by which ours
    may differ. Texts, hits, ranks and refusals are equal; of what a code printed, half a unit of its last decimal is
    allowed beside."""

    exact: float = 1e-9  # of what float64 codes compute
    targets: float = 1e-6  # of soft training targets
    float32: float = 1e-6  # of overlaps that float32 codes compute
    box_accuracies: float = 1e-12  # of the accuracies of referring expressions
    overlaps: float = 1e-12  # of overlaps that float64 codes compute
    shares_of_one: float = 1e-5  # of an upper bound that adds up 1/n in float32


@dataclass(frozen=True)
class FinetuningTolerances:
    """Of the families of fine-tuning (the READMEs beside their cases, "Tolerance")."""

    relative: Closeness = Closeness(max_rel=1e-10, rtol=1e-8)  # of losses, rates and the norm of all gradients together
    # Of norms of one parameter's gradient and change: some gradients are 0 in exact arithmetic.
    parameters: Closeness = Closeness(max_rel=1e-9, rtol=1e-8)
    weights: float = 1e-8  # of weights at the end, absolute
    start: Closeness = Closeness(max_rel=1e-6, rtol=0.0)  # of weights that fine-tuning starts from: means of float32


DETECTOR = DetectorTolerances()
FINETUNING = FinetuningTolerances()
METRICS = MetricTolerances()
MODELS = ModelTolerances()
VLBERT = VLBertTolerances()
