"""Losses of a batch: photos and their objects through the detector's own parts.

pixels -> backbone -> rpn_head -> anchor_targets ----------------------------------> objectness, proposal box losses
                               -> proposals -> region_targets -> res5 -> box_predictor -> class, box, attribute losses

`DetectorHeads` are the parts beside a region encoder, the proposal network and the heads; with the encoder a detector
is whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors, grid_anchors
from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.precision import at_least_float32
from roibeam.extraction.network.resnet import Backbone, FrozenBatchNorm, NormFactory, build_res5
from roibeam.extraction.network.roi_heads import BoxPredictor, RoIHeads, pool_regions
from roibeam.extraction.network.rpn import ProposalGenerator, choose_proposals
from roibeam.extraction.region_encoder import STAGES, RegionEncoder
from roibeam.extraction.training.batch import DetectionBatch
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.extraction.training.targets import (
    IGNORE,
    AnchorTargets,
    RegionTargets,
    anchor_targets,
    attribute_loss,
    class_loss,
    objectness_loss,
    proposal_box_loss,
    region_box_loss,
    region_targets,
)
from roibeam.extraction.weights.loading import load_weights

LOSSES = ("objectness", "proposal_boxes", "classes", "region_boxes", "attributes")
METRICS = ("object_accuracy", "attribute_accuracy", "proposal_recall")


@dataclass(frozen=True, eq=False)
class DetectionLosses:
    """Losses and metrics of a batch of B photos.

    Attributes:
        losses: for each name of `LOSSES` (B,) float32, float64 of such weights: one loss for each photo, already
            weighted. The loss to train on is the sum over the names of the mean over the photos, of all batches and
            processes of a step.
        metrics: for each name a count, and its total; scalars without gradients. "object_accuracy": sampled regions
            with an object whose class is the best, background counted; "attribute_accuracy": those with a known
            attribute whose best attribute is one of them; "proposal_recall": objects that a proposal matches.
    """

    losses: dict[str, Tensor]
    metrics: dict[str, tuple[Tensor, Tensor]]


class DetectorTraining(nn.Module):
    """The parts of a detector, to be trained; a batch in, its losses out.

    The parameters are the detector's own, under the detector's own names, so its `state_dict` is a weight file.
    Training mode matters to trainable norms only; those of frozen stages stay in evaluation mode. After training call
    `eval()` before the detector is used.

    Args:
        detector: with `ProposalGenerator` and `RoIHeads` as its parts.
        sampling: None means `SamplingRules()`. loss_rules: None means `LossRules()`.
        frozen_stages: stages without gradients: 1 stem, 2 res2, 3 res3, 4 res4, 5 res5. Bottom-up attention and
            detectron2 freeze 1 and 2 when they start from ImageNet weights.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        sampling: SamplingRules | None = None,
        loss_rules: LossRules | None = None,
        frozen_stages: Collection[int] = (),
    ) -> None:
        super().__init__()
        if unknown := sorted(set(frozen_stages) - set(STAGES)):
            raise ValueError(f"frozen_stages has {unknown}; there are {STAGES}")
        generator, heads = detector.proposal_generator, detector.roi_heads
        if not isinstance(generator, ProposalGenerator) or not isinstance(heads, RoIHeads):
            raise ValueError(
                f"a detector is trained with ProposalGenerator and RoIHeads as its parts, this one has "
                f"{type(generator).__name__} and {type(heads).__name__}"
            )
        self.config, self.conventions = detector.config, detector.conventions
        self.sampling, self.loss_rules = sampling or SamplingRules(), loss_rules or LossRules()
        self.backbone, self.proposal_generator, self.roi_heads = detector.backbone, generator, heads
        self.frozen = [STAGES[stage] for stage in sorted(set(frozen_stages))]
        for name in self.frozen:
            self.get_submodule(name).requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> DetectorTraining:
        """Sets the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self

    def forward(self, batch: DetectionBatch) -> DetectionLosses:
        """Losses of a batch on the parameters' device. Padding changes a photo's map near its right and bottom edge,
        see `RegionEncoder.forward`; anchors in the padding are left out."""
        feature_map = self.backbone(batch.pixels)
        logits, deltas = self.proposal_generator.rpn_head(feature_map)
        samples = [self._sample(logits, deltas, batch, index) for index in range(len(batch))]
        anchor_logits, anchor_deltas = self._by_anchor(logits, deltas)
        # At least float32, also under autocast: half-precision coordinates move a box by whole cells.
        boxes = [regions.boxes for _, _, regions in samples]
        pooled = pool_regions(at_least_float32(feature_map), boxes, self.conventions, cells=self.config.pooled_cells)
        features = self.roi_heads.res5(pooled).mean(dim=(2, 3))
        predictor = self.roi_heads.box_predictor
        outputs = predictor(features)
        parts = (each.split([*map(len, boxes)]) for each in (features, outputs.class_logits, outputs.box_deltas))
        rules, conventions = self.loss_rules, self.conventions
        losses: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
        hits: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in METRICS}
        for index, (of_regions, class_logits, box_deltas) in enumerate(zip(*parts, strict=True)):
            rows, anchors, regions = samples[index]
            num_objects = len(regions.deltas)
            attributes = trained_attribute_logits(predictor, of_regions[:num_objects], regions.class_ids[:num_objects])
            losses["objectness"].append(objectness_loss(anchor_logits[index, rows], anchors))
            losses["proposal_boxes"].append(
                proposal_box_loss(anchor_deltas[index, rows], anchors, conventions.proposal_delta_weights, rules)
            )
            losses["classes"].append(class_loss(class_logits, regions))
            losses["region_boxes"].append(region_box_loss(box_deltas, regions, conventions.region_delta_weights, rules))
            losses["attributes"].append(attribute_loss(attributes, regions.attribute_ids, rules))
            hits["object_accuracy"].append(_class_hits(class_logits[:num_objects], regions))
            hits["attribute_accuracy"].append(_attribute_hits(attributes, regions))
            hits["proposal_recall"].append((regions.found, regions.found.new_tensor(regions.num_objects)))
        return DetectionLosses(
            {name: torch.stack(values) for name, values in losses.items()},
            {name: (_added(values, 0), _added(values, 1)) for name, values in hits.items()},
        )

    def _by_anchor(self, logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the proposal network, in the order of `grid_anchors`: one logit of each anchor (B, n) and its
        deltas (B, n, 4). The logit of a pair is foreground minus background."""
        photos, num_anchors, map_hw = len(logits), self.config.num_anchors, logits.shape[2:]
        if self.conventions.objectness == "pair-softmax":
            logits = logits[:, num_anchors:] - logits[:, :num_anchors]
        deltas = deltas.reshape(photos, num_anchors, 4, *map_hw).permute(0, 3, 4, 1, 2)
        return logits.permute(0, 2, 3, 1).reshape(photos, -1), deltas.reshape(photos, -1, 4)

    @torch.no_grad()
    def _sample(self, logits: Tensor, deltas: Tensor, batch: DetectionBatch, index: int) -> _PhotoSample:
        """Training sample of photo `index`, drawn by its own seed. Proposals carry no gradient, as in the originals."""
        input_hw, objects = batch.input_hw[index], batch.objects[index]
        map_hw = (logits.shape[2], logits.shape[3])
        anchors = grid_anchors(self.proposal_generator.cell_anchors, map_hw, FEATURE_STRIDE)
        rows = self._rows_inside(input_hw, map_hw)
        boxes, objectness = self.proposal_generator.score_anchors(logits[index, None], deltas[index, None])
        config = dataclasses.replace(
            self.config,
            proposals_before_nms=self.sampling.proposals_before_nms,
            proposals_after_nms=self.sampling.proposals_after_nms,
        )
        proposals = choose_proposals(
            boxes[rows], objectness[rows], input_hw, batch.factors[index], config, self.conventions
        )
        generator = torch.Generator().manual_seed(batch.seeds[index])
        return _PhotoSample(
            rows,
            anchor_targets(anchors[rows], input_hw, objects, self.sampling, self.conventions, generator),
            region_targets(
                proposals.boxes, input_hw, objects, self.sampling, self.conventions, self.config.num_classes, generator
            ),
        )

    def _rows_inside(self, input_hw: tuple[int, int], map_hw: tuple[int, int]) -> Tensor:
        """(n,) int64, anchors of the cells that start inside the photo; the others see padding only."""
        device = self.proposal_generator.cell_anchors.device
        rows, columns = (
            torch.arange(cells, device=device) * FEATURE_STRIDE < edge
            for cells, edge in zip(map_hw, input_hw, strict=True)
        )
        cells = (rows[:, None] & columns[None]).flatten()
        return cells.repeat_interleave(self.config.num_anchors).nonzero().flatten()


class _PhotoSample(NamedTuple):
    """Training sample of one photo of a batch."""

    anchor_rows: Tensor  # (n,) int64, the photo's own anchors among those of the map
    anchors: AnchorTargets
    regions: RegionTargets


def trained_attribute_logits(predictor: BoxPredictor, features: Tensor, class_ids: Tensor) -> Tensor:
    """Attribute logits beside the embedding of the true class, as attributes are trained; `BoxPredictor.forward` takes
    the best class instead, since the true one is then unknown.

    Args:
        features: (P, D).
        class_ids: (P,) int64, 0-based, the number of classes for background.
    Returns:
        (P, A + 1), "no attribute" last; (P, 0) without an attribute head.
    """
    classes = predictor.cls_score.out_features
    return predictor.attribute_logits(features, (class_ids + 1) % classes if predictor.background_first else class_ids)


def build_trainable_detector(
    config: DetectorConfig,
    conventions: Conventions | None = None,
    selection: SelectionPolicy | None = None,
    *,
    norm: NormFactory = FrozenBatchNorm,
) -> Detector:
    """A detector whose ResNet has the given norm; its use depends on the norm.

    `FrozenBatchNorm`: load weights, then train. `nn.BatchNorm2d`: `initialise`, then train; the weights fit a frozen
    detector for extraction. `group_norm` the same, but the weights only fit a network with it.

    Args:
        config, conventions, selection: as of `Detector`.
        norm: channels and epsilon -> a norm.
    """
    conventions = conventions or CONVENTIONS["hf"]
    heads = RoIHeads(config, conventions)
    heads.res5 = build_res5(config, conventions, norm=norm)
    return Detector(config, conventions, selection, backbone=Backbone(config, conventions, norm=norm), roi_heads=heads)


@torch.no_grad()
def initialise(detector: Detector, generator: torch.Generator) -> None:
    """Draws initial weights for training from scratch.

    Convolutions of the ResNet: normal, variance 2 / (out channels * cells), for a ReLU behind each (He et al.,
    arXiv:1502.01852). The layers of the heads: normal, deviation 0.01, and 0.001 for box regression, bias 0
    (train.prototxt of bottom-up attention, its weight_fillers; detectron2 modeling/roi_heads/fast_rcnn.py). Norms stay
    as they were made.

    Args:
        generator: on the CPU.
    """
    for name, weight in detector.named_parameters():
        layer, _, kind = name.rpartition(".")
        if layer.endswith(".norm"):
            continue
        if kind == "bias":
            weight.zero_()
            continue
        if weight.ndim == 4 and "rpn_head" not in name:
            deviation = (2.0 / (weight.shape[0] * weight.shape[2] * weight.shape[3])) ** 0.5
        else:
            deviation = 0.001 if layer.endswith("bbox_pred") else 0.01
        weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)


def _class_hits(logits: Tensor, regions: RegionTargets) -> tuple[Tensor, Tensor]:
    hits = logits.argmax(dim=1) == regions.class_ids[: len(logits)]
    return hits.sum(), hits.new_tensor(len(logits), dtype=torch.int64)


def _attribute_hits(logits: Tensor, regions: RegionTargets) -> tuple[Tensor, Tensor]:
    if not logits.shape[1]:
        return logits.new_zeros((), dtype=torch.int64), logits.new_zeros((), dtype=torch.int64)
    best = logits[:, :-1].argmax(dim=1)
    named = (regions.attribute_ids != IGNORE) & (regions.attribute_ids != logits.shape[1] - 1)
    hits = ((regions.attribute_ids == best[:, None]) & named).any(dim=1)
    return hits.sum(), named.any(dim=1).sum()


def _added(pairs: list[tuple[Tensor, Tensor]], which: int) -> Tensor:
    return torch.stack([pair[which] for pair in pairs]).sum()


class DetectorHeads(nn.Module):
    """Parameters have the names they have in a `Detector`, so that they and those of the encoder are one."""

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.proposal_generator = ProposalGenerator(config, conventions)
        self.roi_heads = nn.ModuleDict({"box_predictor": BoxPredictor(config, conventions)})

    def detector(self, encoder: RegionEncoder) -> Detector:
        """The whole detector around an encoder, in evaluation mode. Nothing is copied: they share weights."""
        with torch.device("meta"):  # nothing is drawn or allocated for the discarded last stage
            heads = RoIHeads(self.config, self.conventions)
        res5, predictor = encoder.roi_heads["res5"], self.roi_heads["box_predictor"]
        assert isinstance(res5, nn.Sequential) and isinstance(predictor, BoxPredictor)
        heads.res5, heads.box_predictor = res5, predictor
        return Detector(
            self.config,
            self.conventions,
            backbone=encoder.backbone,
            proposal_generator=self.proposal_generator,
            roi_heads=heads,
        )

    def check_anchors(self) -> None:
        """Raises ValueError if a weight file has anchors that the conventions do not compute: a checkpoint holds the
        conventions alone."""
        if not torch.equal(self.proposal_generator.cell_anchors.cpu(), cell_anchors(self.config, self.conventions)):
            raise ValueError(
                "the detector's file has anchors of its own, other than its conventions compute; choose the "
                "conventions of that file (--conventions caffe, milvlg, hf or d2)"
            )


def load_heads(spec: str, config: DetectorConfig, conventions: Conventions) -> DetectorHeads:
    """The heads of a whole detector's file. Raises ValueError or OSError as `load_weights`, and for anchors that the
    conventions do not compute."""
    detector = Detector(config, conventions)
    load_weights(spec, detector)
    heads = heads_of(detector)
    heads.check_anchors()
    return heads


def new_heads(config: DetectorConfig, conventions: Conventions, *, seed: int) -> DetectorHeads:
    """Heads to train from scratch, see `initialise`."""
    detector = build_trainable_detector(config, conventions)
    initialise(detector, torch.Generator().manual_seed(seed))
    return heads_of(detector)


def heads_of(detector: Detector) -> DetectorHeads:
    """Heads of a detector; they share its parameters."""
    with torch.device("meta"):
        heads = DetectorHeads(detector.config, detector.conventions)
    generator, own = detector.proposal_generator, detector.roi_heads
    assert isinstance(generator, ProposalGenerator) and isinstance(own, RoIHeads)
    heads.proposal_generator, heads.roi_heads["box_predictor"] = generator, own.box_predictor
    return heads
