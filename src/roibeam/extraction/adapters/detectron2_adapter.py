"""Adapter of detectron2 networks: any GeneralizedRCNN with a C4 or an FPN box head as a detector.

    detector = build_detectron2_detector("faster_rcnn_R_50_C4_1x.yaml", weights="model_final.pkl")
    for outcome in extract_regions(images, detector): ...

photo -> resize -> model.preprocess_image -> backbone -> proposal_generator -> region head, predictor -> select

The network is detectron2's, and so are its resize and its box arithmetic; the selection of regions is roibeam's
`SelectionPolicy`. A region head takes the maps and boxes of one photo, and gives the stored feature and the input of
the box predictor. detectron2 is imported inside functions only: this module imports without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.adapters.detectron2_network import build_detectron2_network, check_network
from roibeam.extraction.adapters.detectron2_vg import require_detectron2
from roibeam.extraction.detector import detector_line
from roibeam.extraction.network.boxes import checked_boxes, clip_boxes
from roibeam.extraction.network.config import written_settings
from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.network.rpn import Proposals
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.photos.preprocessing import MIN_INPUT_EDGE, PhotoScale, check_pixels, scale_per_axis
from roibeam.extraction.regions import (
    HostCopy,
    Regions,
    ScoredRegions,
    best_class_deltas,
    boxes_for_each,
    kept_regions,
    needs_class_boxes,
    plain_json,
    to_numpy,
)

FC6, FC7 = "fc6", "fc7"
LAYERS = (FC6, FC7)  # of fully connected heads, as Detectron calls them: detectron2's fc1 and fc2
MEAN = "mean"


class Detectron2RegionHead(Protocol):
    """
    Attributes:
        layer: the layer of the stored feature, as in a store's fingerprint.
        feature_dim: its width.
    """

    layer: str
    feature_dim: int
    map_names: Sequence[str]

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """(rows, feature_dim) and (rows, W), the input of the box predictor; rows behind the boxes mean nothing.

        Args:
            maps: (1, C, h, w) each, in the order of `map_names`.
            boxes: (R, 4) in network-input pixels, R at most `rows`.
        """


class MeanOfRes5:
    """C4: the pooled cells through res5, then their mean, which the predictor reads too."""

    layer = MEAN

    def __init__(self, model: nn.Module) -> None:
        heads: Any = model.roi_heads
        self._pooler, self._res5 = heads.pooler, heads.res5
        self.map_names: Sequence[str] = heads.in_features
        self.feature_dim = int(heads.box_predictor.cls_score.in_features)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        features = self._res5(_pooled(self._pooler, maps, boxes, rows)).mean(dim=[2, 3])
        return features, features


class FullyConnected:
    """FPN: the pooled cells of the level that fits the box, through fully connected layers, each with its ReLU.

    Args:
        layer: of `LAYERS`, whose output is kept, after its ReLU; the predictor reads the last one's.
    """

    def __init__(self, model: nn.Module, layer: str) -> None:
        heads: Any = model.roi_heads
        self._pooler, self._layers = heads.box_pooler, heads.box_head
        self.map_names: Sequence[str] = heads.box_in_features
        found = {f"fc{6 + place}": f"fc_relu{place + 1}" for place in range(len(heads.box_head.fcs))}
        if layer not in found:
            raise ValueError(f"layer {layer!r}: the box head of this network has {', '.join(found) or 'none'}")
        self.layer, self._kept = layer, found[layer]
        self.feature_dim = int(heads.box_head.fcs[LAYERS.index(layer)].out_features)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        states = _pooled(self._pooler, maps, boxes, rows)
        kept = states
        for name, layer in self._layers.named_children():
            states = layer(states)
            if name == self._kept:
                kept = states
        return kept, states


def region_head(model: nn.Module, layer: str | None) -> Detectron2RegionHead:
    """The head of a network that `check_network` takes; of an FPN network that of a layer, one of `LAYERS`, by default
    the first, which VisualBERT and Pythia keep."""
    if hasattr(model.roi_heads, "res5"):
        if layer is not None:
            raise ValueError(f"layer {layer!r}: a C4 network has one feature, the mean of res5; leave the layer out")
        return MeanOfRes5(model)
    return FullyConnected(model, layer or FC6)


def _pooled(pooler: Any, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> Tensor:
    """(rows, C, cells, cells), zeros behind the boxes."""
    from detectron2.structures import Boxes

    pooled: Tensor = pooler(list(maps), [Boxes(boxes)])
    if len(maps) > 1 and not len(boxes):  # the pooler of several levels gives its empty output without a device
        pooled = pooled.to(maps[0])
    return functional.pad(pooled, (0, 0, 0, 0, 0, 0, 0, rows - len(boxes)))


# Regions that go through res5 at once, the last chunk padded with zeros: with one shape for every chunk a feature does
# not depend, bit for bit, on how many others there are (see RoIHeads).
REGION_CHUNK = 16


@dataclass(frozen=True)
class PhotoOutputs:
    """All outputs of the network for one photo, before selection, as in `NetworkInput` and `HeadOutputs`.

    Attributes:
        feature_maps: (1, C, h, w) float32 each, the backbone maps that the head pools from: one of a C4 network.
        regions: outputs of the head; without an attribute head `attribute_logits` is (R, 1), "no attribute".
    """

    input_hw: tuple[int, int]
    image_hw: tuple[int, int]
    scale: PhotoScale
    feature_maps: tuple[Tensor, ...]
    proposals: Proposals
    regions: RegionOutputs
    given_boxes: Tensor | None = None


class Detectron2Detector:
    """A `RegionDetector` around a detectron2 model.

    Args:
        model: detectron2's GeneralizedRCNN with Res5ROIHeads or a subclass, or with StandardROIHeads and
            FastRCNNConvFCHead, weights loaded. A box predictor with `num_attributes` and `attribute_logits(features,
            class_logits)` is taken to have an attribute head, as that of detectron2_vg.py has.
        cfg: the CfgNode that `model` was built from.
        selection: None means the preset "butd-10-100".
        layer: see `region_head`.
    """

    def __init__(
        self, model: nn.Module, cfg: Any, selection: SelectionPolicy | None = None, *, layer: str | None = None
    ) -> None:
        check_network(model, cfg)
        self.model: Any = model.eval()
        self._head = region_head(model, layer)
        self.cfg = cfg
        self.selection = selection or SELECTIONS["butd-10-100"]

    def __repr__(self) -> str:
        return detector_line(self, str(self.cfg.MODEL.META_ARCHITECTURE))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def feature_dim(self) -> int:
        return self._head.feature_dim

    @property
    def num_classes(self) -> int:
        return int(self._predictor.num_classes)

    @property
    def num_attributes(self) -> int:
        """0 for a network without an attribute head."""
        return int(getattr(self._predictor, "num_attributes", 0))

    @property
    def _predictor(self) -> Any:
        return self.model.roi_heads.box_predictor

    def describe(self) -> dict[str, Any]:
        """As `Detector.describe`.

        The config is the resolved one, from any files, without settings of training, machines or paths: sections other
        than MODEL and INPUT, the weights' path, the device.
        """
        model = {key: value for key, value in self.cfg.MODEL.items() if key not in ("WEIGHTS", "DEVICE")}
        test_input = {key: self.cfg.INPUT[key] for key in ("FORMAT", "MIN_SIZE_TEST", "MAX_SIZE_TEST")}
        return {
            "config": plain_json({"MODEL": model, "INPUT": test_input}),
            "conventions": {
                "name": f"detectron2:{require_detectron2()}",
                "exif_orientation": "applied",
                "resize": "pil-bilinear",
                "region_feature": self._head.layer,
                "attribute_softmax": "foreground",
            },
            "selection": plain_json(written_settings(self.selection)),
            "weights": weights_digest(self.model.state_dict()),
            "feature_dim": self.feature_dim,
            "num_classes": self.num_classes,
            "num_attributes": self.num_attributes,
            "numerics": {"mode": "exact", "region_chunk": REGION_CHUNK},
        }

    @torch.inference_mode()
    def __call__(
        self,
        images: Sequence[np.ndarray],
        /,
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        """As `Detector.forward`: each photo by itself, in B, G, R for any INPUT.FORMAT."""
        found = []
        for image, given in zip(images, boxes_for_each(images, boxes), strict=True):
            outputs = self.head_outputs(image, boxes=given)
            regions = self.postprocess(outputs)
            found.append(replace(regions, image_feature=self.whole_image_feature(outputs)) if whole_image else regions)
        return found

    @torch.inference_mode()
    def head_outputs(self, image: np.ndarray, *, boxes: np.ndarray | None = None) -> PhotoOutputs:
        """As `Detector.head_outputs`. The result for an empty box depends on the pooler: the one cell that its corner
        touches for ROIPool, zeros for ROIAlignV2."""
        resized, scale = self.resize(image)
        given = None if boxes is None else checked_boxes(boxes).to(self.device)
        with plain_float32(self.device):
            images = self.model.preprocess_image([{"image": resized}])
            maps = self.model.backbone(images.tensor)
            feature_maps = tuple(maps[name] for name in self._head.map_names)
            input_hw = (resized.shape[1], resized.shape[2])
            if given is None:
                (found,), _ = self.model.proposal_generator(images, maps, None)
                proposals = Proposals(found.proposal_boxes.tensor, found.objectness_logits)
            else:
                given = clip_boxes(given, image.shape[:2])
                network_boxes = clip_boxes(scale.to_network(given), input_hw)
                proposals = Proposals(network_boxes, network_boxes.new_ones(len(given)))
            regions = self.describe_boxes(feature_maps, proposals.boxes)
        return PhotoOutputs(input_hw, image.shape[:2], scale, feature_maps, proposals, regions, given)

    @torch.inference_mode()
    def describe_boxes(self, feature_maps: Sequence[Tensor], boxes: Tensor) -> RegionOutputs:
        """Pooling, the region head and the linear heads, for (R, 4) boxes in network-input pixels; R may be 0."""
        chunks = [boxes[start : start + REGION_CHUNK] for start in range(0, len(boxes), REGION_CHUNK)]
        # No boxes still run one chunk of zeros, so that empty outputs have the right widths.
        parts = [self._run_chunk(feature_maps, chunk) for chunk in chunks or [boxes]]
        return RegionOutputs(*(torch.cat(rows) for rows in zip(*parts, strict=True)))

    def _run_chunk(self, feature_maps: Sequence[Tensor], boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count = len(boxes)
        features, judged = self._head(feature_maps, boxes, REGION_CHUNK)
        class_logits, deltas = self._predictor(judged)
        if self.num_attributes:
            attribute_logits = self._predictor.attribute_logits(judged, class_logits)
        else:
            attribute_logits = features.new_zeros(len(features), 1)
        # A class-agnostic network has one box for all classes.
        deltas = deltas.view(len(features), -1, 4).expand(-1, self.num_classes, -1)
        return features[:count], class_logits[:count], attribute_logits[:count], deltas[:count]

    @torch.inference_mode()
    def whole_image_feature(self, outputs: PhotoOutputs) -> np.ndarray:
        """As `Detector.whole_image_feature`."""
        height, width = outputs.input_hw
        box = outputs.feature_maps[0].new_tensor([[0.0, 0.0, width, height]])
        with plain_float32(self.device):
            return to_numpy(self.describe_boxes(outputs.feature_maps, box).features[0])

    @torch.inference_mode()
    def postprocess(self, outputs: PhotoOutputs, selection: SelectionPolicy | None = None) -> Regions:
        """As `Detector.postprocess`."""
        regions, proposals, scale = outputs.regions, outputs.proposals.boxes, outputs.scale
        probabilities = regions.class_logits.softmax(dim=1)
        best_deltas = best_class_deltas(regions.box_deltas, probabilities)
        regressed = self._predictor.box2box_transform.apply_deltas(best_deltas, proposals)
        regressed = clip_boxes(regressed, outputs.input_hw)
        policy, class_boxes = selection or self.selection, regressed[:, None][:, :0]
        if needs_class_boxes(policy):
            moved = self._predictor.box2box_transform.apply_deltas(regions.box_deltas.flatten(1), proposals)
            class_boxes = clip_boxes(moved.view(len(moved), -1, 4), outputs.input_hw)
        best = regions.attribute_logits[:, :-1].softmax(dim=1).max(dim=1) if self.num_attributes else None
        scored = ScoredRegions(
            features=regions.features,
            probabilities=probabilities,
            attribute_scores=None if best is None else best.values,
            attribute_ids=None if best is None else best.indices,
            proposal_boxes=scale.to_photo(proposals),
            regressed_boxes=scale.to_photo(regressed),
            nms_boxes=regressed,
            class_boxes=scale.to_photo(class_boxes),
            given_boxes=outputs.given_boxes,
        )
        return kept_regions(policy, HostCopy(scored), outputs.image_hw)

    def resize(self, image: np.ndarray) -> tuple[Tensor, PhotoScale]:
        """(height, width, 3) uint8 B, G, R -> (3, height', width') float32 in the network's channel order, 0..255."""
        from detectron2.data.transforms import ResizeShortestEdge, ResizeTransform

        check_pixels(image)
        height, width = image.shape[:2]
        if self.cfg.INPUT.FORMAT == "RGB":
            image = image[:, :, ::-1]
        size = (height, width)
        if self.cfg.INPUT.MIN_SIZE_TEST > 0:
            # As of the augmentation ResizeShortestEdge, without its draw from numpy's global generator.
            edges = self.cfg.INPUT.MIN_SIZE_TEST, self.cfg.INPUT.MAX_SIZE_TEST
            size = ResizeShortestEdge.get_output_shape(height, width, *edges)
        size = max(size[0], MIN_INPUT_EDGE), max(size[1], MIN_INPUT_EDGE)
        resized = ResizeTransform(height, width, *size, Image.Resampling.BILINEAR).apply_image(image)
        pixels = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1), dtype=np.float32))
        return pixels, scale_per_axis((height, width), size, self.device)


def build_detectron2_detector(
    config: str | Path | Any,
    *,
    weights: str,
    selection: str | SelectionPolicy = "butd-10-100",
    device: str | torch.device = "cpu",
    layer: str | None = None,
) -> Detectron2Detector:
    """A detectron2 network with its weights, ready to run.

    Args:
        config: a name of `vg.PUBLISHED`, a YAML file (read as `read_detectron2_config` does) or a detectron2
            CfgNode, such as that of `roibeam.extraction.adapters.detectron2_vg.vg_config`.
        weights: a file as `fetch_weights` takes it, of detectron2, Detectron or maskrcnn-benchmark, or `random:<seed>`
            for load tests. Read by our reader, which executes nothing, never by detectron2's checkpointer.
        selection: a preset's name or one's own policy.
        device: device of the computation; MODEL.DEVICE and MODEL.WEIGHTS of the config are ignored.
        layer: of an FPN network "fc6" (VisualBERT on NLVR2, Pythia) or "fc7"; None for fc6, or for a C4 network.
    Raises:
        ValueError: without detectron2, for a config that gives another network, or weights that do not fit.
        OSError: if the weights cannot be fetched.
    """
    if isinstance(selection, str) and selection not in SELECTIONS:
        raise ValueError(f"selection {selection!r} is unknown; there are {', '.join(SELECTIONS)}")
    policy = SELECTIONS[selection] if isinstance(selection, str) else selection
    network, cfg = build_detectron2_network(config, weights)
    return Detectron2Detector(network.to(device), cfg, policy, layer=layer)
