"""The detector: photos in, regions out.

photo -> preprocess -> backbone -> proposal_generator -> roi_heads -> select -> postprocess -> Regions
photo, given boxes -> preprocess -> backbone ---------> roi_heads -----------> postprocess -> Regions
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from extraction.anchors import cell_anchors
from extraction.blanking import blank_regions
from extraction.boxes import checked_boxes, clip_boxes, decode_deltas
from extraction.config import DetectorConfig
from extraction.conventions import CONVENTIONS, Conventions
from extraction.precision import plain_float32
from extraction.preprocess import NetworkInput, preprocess
from extraction.resnet import Backbone
from extraction.roi_heads import RegionOutputs, RoIHeads
from extraction.rpn import ProposalGenerator, Proposals
from extraction.selection import SELECTIONS, Selected, SelectionPolicy, select_regions
from extraction.state import weights_digest


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one photo, in the order of the selection or of the given boxes; K may be 0.

    Attributes:
        boxes: (K, 4) float32, x1 y1 x2 y2 in photo pixels, 0 <= x1 <= x2 <= width, 0 <= y1 <= y2 <= height: the
            proposal or the regressed box, as the policy says, or the given box.
        features: (K, D) float32, of the proposal or the given box.
        class_ids: (K,) int64, best foreground class, 0-based.
        class_scores: (K,) float32, its probability among all classes and background.
        attribute_ids: (K,) int64, best attribute, 0-based; None without an attribute head.
        attribute_scores: (K,) float32; None without an attribute head.
        class_probabilities: (K, C + 1) float32, foreground first, background last.
        proposal_ids: (K,) int64, row of the region among the proposals, which are by descending objectness, or among
            the given boxes.
        proposal_boxes: (K, 4) float32, as `boxes`: what the features were pooled from.
        regressed_boxes: (K, 4) float32, as `boxes`: the same moved by the best class.
        image_feature: (D,) float32, the whole photo as one box; None unless asked for.
    """

    boxes: np.ndarray
    features: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    attribute_ids: np.ndarray | None
    attribute_scores: np.ndarray | None
    class_probabilities: np.ndarray
    proposal_ids: np.ndarray
    proposal_boxes: np.ndarray | None = None
    regressed_boxes: np.ndarray | None = None
    image_feature: np.ndarray | None = None


@dataclass(frozen=True)
class HeadOutputs:
    """Everything the network says of one photo, before selection.

    Attributes:
        network_input: the resized photo and its scale.
        feature_map: (1, C, h, w) float32, the res4 map.
        proposals: R boxes in network-input pixels with their objectness.
        regions: features, logits and deltas of the R proposals.
        given_boxes: (R, 4) float32, the boxes that were handed in, clipped to the photo; then none is left out, and
            `objectness` is 1. None where they are proposals.
    """

    network_input: NetworkInput
    feature_map: Tensor
    proposals: Proposals
    regions: RegionOutputs
    given_boxes: Tensor | None = None


class RegionDetector(Protocol):
    """What the engine needs of a detector; a fake has these five."""

    @property
    def feature_dim(self) -> int: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def num_attributes(self) -> int: ...

    def describe(self) -> dict[str, Any]: ...

    def __call__(
        self,
        images: Sequence[np.ndarray],
        /,
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]: ...


class Detector(nn.Module):
    """Faster R-CNN ResNet-C4 with an attribute head.

    Args:
        config: sizes.
        conventions: None means the preset "hf".
        selection: None means the preset "butd-10-100".
        backbone: (1, 3, H, W) -> res4 map. None means `Backbone`.
        proposal_generator: map, input size, resize factor -> Proposals. None means `ProposalGenerator`.
        roi_heads: map, boxes -> RegionOutputs. None means `RoIHeads`.

    The weights are torch's own initialisation until `load_weights`; `build_detector` does both.
    """

    def __init__(
        self,
        config: DetectorConfig,
        conventions: Conventions | None = None,
        selection: SelectionPolicy | None = None,
        *,
        backbone: nn.Module | None = None,
        proposal_generator: nn.Module | None = None,
        roi_heads: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.conventions = conventions or CONVENTIONS["hf"]
        self.selection = selection or SELECTIONS["butd-10-100"]
        self.backbone = backbone or Backbone(config, self.conventions)
        self.proposal_generator = proposal_generator or ProposalGenerator(config, self.conventions)
        self.roi_heads = roi_heads or RoIHeads(config, self.conventions)
        self.eval()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def feature_dim(self) -> int:
        return self.config.feature_dim

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def num_attributes(self) -> int:
        return self.config.num_attributes

    def describe(self) -> dict[str, Any]:
        """What a store's fingerprint records of this detector; plain JSON values.

        `numerics` holds what may differ between stores that belong together (see docs/architecture.md, fingerprint);
        everything else says what the features mean. Hashes the weights: under a second, so call it once for a run.
        """
        config = _plain(asdict(self.config))
        region_chunk = config.pop("region_chunk")
        described = {
            "config": config,
            "conventions": _plain(asdict(self.conventions)),
            "selection": _plain(asdict(self.selection)),
            "weights": weights_digest(self.state_dict()),
            "feature_dim": self.feature_dim,
            "num_classes": self.num_classes,
            "num_attributes": self.num_attributes,
            "numerics": {"mode": "exact", "region_chunk": region_chunk},
        }
        generator = self.proposal_generator
        if isinstance(generator, ProposalGenerator):
            anchors = generator.cell_anchors.cpu()
            if not torch.equal(anchors, cell_anchors(self.config, self.conventions)):
                described["cell_anchors"] = anchors.tolist()  # a weight file brought its own
        return described

    @torch.inference_mode()
    def forward(
        self,
        images: Sequence[np.ndarray],
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        """Detects on each photo by itself, so that a photo's regions do not depend on its neighbours.

        Args:
            images: (height, width, 3) uint8 each, channel order B, G, R, sizes free.
            boxes: for each photo the boxes to describe instead of proposals, see `head_outputs`, or None.
            whole_image: whether to fill `Regions.image_feature`.
        """
        results = []
        for image, given in zip(images, boxes or [None] * len(images), strict=True):
            outputs = self.head_outputs(image, boxes=given)
            regions = self.postprocess(outputs)
            if whole_image:
                regions = replace(regions, image_feature=self.whole_image_feature(outputs))
            results.append(regions)
        return results

    @torch.inference_mode()
    def head_outputs(
        self, image: np.ndarray, *, boxes: np.ndarray | None = None, masked: np.ndarray | None = None
    ) -> HeadOutputs:
        """Boxes of one photo and what the heads say of each.

        Args:
            image: (height, width, 3) uint8, channel order B, G, R.
            boxes: None for proposals, or (R, 4) x1 y1 x2 y2 in photo pixels: described as they are, in this order,
                after clipping to the photo. An empty box gets what the pooling operator gives it: RoIPool the one
                cell that its corner rounds to, zeros past the map's end; RoIAlign one cell from its corner on.
            masked: with `boxes`, (R,) bool: the pixels of these boxes are blanked for all regions (`blank_regions`).
        Raises:
            ValueError: for boxes of another shape, not finite, or with x2 < x1 or y2 < y1.
        """
        with plain_float32(self.device):
            network_input = preprocess(image, self.config, self.conventions, self.device)
            given = None
            if boxes is not None:
                given = clip_boxes(checked_boxes(boxes).to(self.device), network_input.image_hw)
            network_boxes = None if given is None else self._to_network(given, network_input)
            pixels = network_input.pixels
            if masked is not None:
                pixels = blank_regions(pixels, _masked_rows(network_boxes, masked))
            feature_map = self.backbone(pixels)
            if network_boxes is None:
                proposals = self.proposal_generator(feature_map, network_input.input_hw, network_input.factor)
            else:
                proposals = Proposals(network_boxes, network_boxes.new_ones(len(network_boxes)))
            regions = self.roi_heads(feature_map, proposals.boxes)
        return HeadOutputs(network_input, feature_map, proposals, regions, given)

    @torch.inference_mode()
    def whole_image_feature(self, outputs: HeadOutputs) -> np.ndarray:
        """(D,) float32: the feature of the whole photo as one box, on the map that is already there."""
        height, width = outputs.network_input.input_hw
        box = outputs.feature_map.new_tensor([[0.0, 0.0, width, height]])
        box = clip_boxes(box, (height, width), last_pixel=self._last_pixel)
        with plain_float32(self.device):
            return _numpy(self.roi_heads(outputs.feature_map, box).features[0])

    @torch.inference_mode()
    def postprocess(self, outputs: HeadOutputs, selection: SelectionPolicy | None = None) -> Regions:
        """Logits to probabilities, selection, boxes to photo pixels, tensors to numpy.

        Args:
            outputs: of `head_outputs` of this detector.
            selection: None means the detector's own; another one re-selects without running the network again. Given
                boxes are all kept.
        """
        network_input, regions, proposals = outputs.network_input, outputs.regions, outputs.proposals.boxes
        probabilities = regions.class_logits.softmax(dim=1)
        class_scores, class_ids = probabilities[:, :-1].max(dim=1)
        attribute_scores, attribute_ids = self._attributes(regions.attribute_logits)
        best_deltas = regions.box_deltas[torch.arange(len(class_ids), device=class_ids.device), class_ids]
        scale, photo_hw = network_input.scale, network_input.image_hw
        proposals_photo = scale.to_photo(proposals)
        if self.conventions.regression_pixels == "photo":
            regressed = regressed_photo = self._regress(proposals_photo, best_deltas, photo_hw)
        else:
            regressed = self._regress(proposals, best_deltas, network_input.input_hw)
            regressed_photo = scale.to_photo(regressed)
        if outputs.given_boxes is not None:
            selected = Selected(torch.arange(len(proposals), device=proposals.device), outputs.given_boxes)
        else:
            selected = select_regions(
                selection or self.selection,
                class_scores=probabilities[:, :-1],
                proposal_boxes=proposals_photo,
                regressed_boxes=regressed_photo,
                nms_boxes=regressed,
            )
        keep = selected.proposal_ids
        # The far edge times the scale may round to just outside the photo.
        return Regions(
            boxes=_numpy(clip_boxes(selected.boxes, photo_hw)),
            features=_numpy(regions.features[keep]),
            class_ids=_numpy(class_ids[keep]),
            class_scores=_numpy(class_scores[keep]),
            attribute_ids=_numpy(attribute_ids[keep]),
            attribute_scores=_numpy(attribute_scores[keep]),
            class_probabilities=_numpy(probabilities[keep]),
            proposal_ids=_numpy(keep),
            proposal_boxes=_numpy(clip_boxes(proposals_photo[keep], photo_hw)),
            regressed_boxes=_numpy(clip_boxes(regressed_photo[keep], photo_hw)),
        )

    @property
    def _last_pixel(self) -> bool:
        return self.conventions.box_clip == "last-pixel"

    def _regress(self, boxes: Tensor, deltas: Tensor, hw: tuple[int, int]) -> Tensor:
        """Boxes moved by their deltas and clipped, all in the same pixels."""
        moved = decode_deltas(
            boxes,
            deltas,
            weights=self.conventions.region_delta_weights,
            delta_cap=self.conventions.delta_cap,
            plus_one_sides=self.conventions.box_sides == "x2-x1+1",
        )
        return clip_boxes(moved, hw, last_pixel=self._last_pixel)

    def _attributes(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probability and id of the best attribute, "no attribute" left out of the choice."""
        if self.conventions.attribute_softmax == "all":
            scores, ids = logits.softmax(dim=1)[:, :-1].max(dim=1)
        else:
            scores, ids = logits[:, :-1].softmax(dim=1).max(dim=1)
        return scores, ids

    def _to_network(self, boxes: Tensor, network_input: NetworkInput) -> Tensor:
        scaled = network_input.scale.to_network(boxes)
        return clip_boxes(scaled, network_input.input_hw, last_pixel=self._last_pixel)


def _masked_rows(given: Tensor | None, masked: np.ndarray) -> Tensor:
    if given is None:
        raise ValueError("masked regions need given boxes: which proposals come depends on the pixels")
    masked = np.asarray(masked)
    if masked.dtype != bool or masked.shape != (len(given),):
        raise ValueError(f"masked must be ({len(given)},) bool, one for each box; got {masked.shape} {masked.dtype}")
    return given[torch.from_numpy(masked).to(given.device)]


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().cpu().numpy()


def _plain(value: Any) -> Any:
    """Tuples as lists, so that a dict equals itself after a trip through JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
