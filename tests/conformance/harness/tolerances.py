"""The tolerances, as the README beside each family's reference arrays states them."""

from __future__ import annotations

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

    Attributes:
        values: of maps, logits, deltas, features and probabilities.
        scaled: of what one float32 multiplication gives: boxes and ratios of a resize.
        input_sum: error of a checksum over a network input, as a share of the sum of absolute values.
        weight_sum: the same for a checksum over a weight tensor, computed in float64 from equal float32 numbers.
        proposal_px, proposals_missed: a proposal is found within that many pixels; at most that share is not.
        detection_px, detection_score: a detection is found when its class is equal, its box within that many photo
            pixels and its score within that much.
        detections_missed: share of all detections that may be missed; none of the stable ones may.
        best_class_score: of a region's best class score after NMS, absolute: the reference leaves classes out that
            never pass 1e-4.
        tied_score: scores that close are a tie, and order among tied regions is free: three times the float32 noise
            of a probability. NMS may decide otherwise for each of them.
        unstable: share of the given boxes that the file may declare unstable, and of the best class scores that ties
            may make another one; with more the case would prove nothing.
    """

    values: Closeness = Closeness(max_rel=1e-4, rtol=1e-3)
    scaled: Closeness = Closeness(max_rel=1e-6, rtol=0.0)
    input_sum: float = 1e-6
    weight_sum: float = 1e-9
    proposal_px: float = 0.05
    proposals_missed: float = 0.01
    detection_px: float = 0.1
    detection_score: float = 1e-3
    detections_missed: float = 0.15
    best_class_score: float = 1e-4
    tied_score: float = 2e-5
    unstable: float = 0.5


@dataclass(frozen=True)
class ModelTolerances:
    """Of the families of models (the line above the cases in goldens/vilbert/README.md).

    Attributes:
        values: of outputs, losses, attention weights and gradients.
        gradient_norm: of the norm of all gradients together, relative.
    """

    values: Allclose = Allclose(1e-4)
    gradient_norm: float = 1e-3


@dataclass(frozen=True)
class VLBertTolerances:
    """Of the family vlbert (goldens/vlbert/README.md, "Tolerances").

    Attributes:
        values: of embeddings, layers, logits, features and maps, absolute.
        loss, loss_relative: of a loss: the larger of the two.
        gradients: of a gradient's elements.
        norm, norm_relative: of the norm of one parameter's gradient: the larger of the two.
        grey_levels: of a network input, for other resampling libraries.
        optimiser: of parameters, rates and norms after each step, and of single losses beside the optimiser.
    """

    values: float = 1e-4
    loss: float = 2e-5
    loss_relative: float = 1e-5
    gradients: Closeness = Closeness(max_rel=1e-3, rtol=0.0)
    norm: float = 1e-5
    norm_relative: float = 1e-3
    grey_levels: float = 1.0
    optimiser: float = 1e-6


@dataclass(frozen=True)
class MetricTolerances:
    """Of the families of metrics (the READMEs beside their cases). Numbers: the share of the reference by which ours
    may differ. Texts, hits, ranks and refusals are equal; of what a code printed, half a unit of its last decimal is
    allowed beside.

    Attributes:
        exact: of what float64 codes compute.
        targets: of soft training targets.
        float32: of overlaps that float32 codes compute.
        box_accuracies: of the accuracies of referring expressions.
        overlaps: of overlaps that float64 codes compute.
        shares_of_one: of an upper bound that adds up 1/n in float32.
    """

    exact: float = 1e-9
    targets: float = 1e-6
    float32: float = 1e-6
    box_accuracies: float = 1e-12
    overlaps: float = 1e-12
    shares_of_one: float = 1e-5


@dataclass(frozen=True)
class FinetuningTolerances:
    """Of the families of fine-tuning (the READMEs beside their cases, "Tolerance").

    Attributes:
        relative: of losses, rates and the norm of all gradients together.
        parameters: of norms of one parameter's gradient and change: some gradients are 0 in exact arithmetic.
        weights: of weights at the end, absolute.
        start: of weights that fine-tuning starts from: means of float32 numbers.
    """

    relative: Closeness = Closeness(max_rel=1e-10, rtol=1e-8)
    parameters: Closeness = Closeness(max_rel=1e-9, rtol=1e-8)
    weights: float = 1e-8
    start: Closeness = Closeness(max_rel=1e-6, rtol=0.0)


DETECTOR = DetectorTolerances()
FINETUNING = FinetuningTolerances()
METRICS = MetricTolerances()
MODELS = ModelTolerances()
VLBERT = VLBertTolerances()
