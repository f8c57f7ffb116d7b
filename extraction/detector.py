"""The detector: photos in, regions out.

photo -> preprocess -> backbone -> proposal_generator -> roi_heads -> select -> postprocess -> Regions
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from extraction.boxes import clip_boxes, decode_deltas
from extraction.config import DetectorConfig
from extraction.conventions import CONVENTIONS, Conventions
from extraction.preprocess import NetworkInput, preprocess
from extraction.resnet import Backbone
from extraction.roi_heads import RegionOutputs, RoIHeads
from extraction.rpn import ProposalGenerator, Proposals
from extraction.selection import SELECTIONS, SelectionPolicy, select_regions
from extraction.state import weights_digest


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one photo, in the order of the selection; K may be 0.

    Attributes:
        boxes: (K, 4) float32, x1 y1 x2 y2 in photo pixels, 0 <= x1 <= x2 <= width, 0 <= y1 <= y2 <= height.
        features: (K, D) float32.
        class_ids: (K,) int64, best foreground class, 0-based.
        class_scores: (K,) float32, its probability among all classes and background.
        attribute_ids: (K,) int64, best attribute, 0-based; None without an attribute head.
        attribute_scores: (K,) float32; None without an attribute head.
        class_probabilities: (K, C + 1) float32, foreground first, background last.
        proposal_ids: (K,) int64, row of the region among the proposals, which are by descending objectness.
    """

    boxes: np.ndarray
    features: np.ndarray
    class_ids: np.ndarray
    class_scores: np.ndarray
    attribute_ids: np.ndarray | None
    attribute_scores: np.ndarray | None
    class_probabilities: np.ndarray
    proposal_ids: np.ndarray


@dataclass(frozen=True)
class HeadOutputs:
    """Everything the network says of one photo, before selection.

    Attributes:
        network_input: the resized photo and its scale.
        proposals: R boxes in network-input pixels with their logits.
        regions: features, logits and deltas of the R proposals.
    """

    network_input: NetworkInput
    proposals: Proposals
    regions: RegionOutputs


class RegionDetector(Protocol):
    """What the engine needs of a detector; a fake has these five."""

    @property
    def feature_dim(self) -> int: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def num_attributes(self) -> int: ...

    def describe(self) -> dict[str, Any]: ...

    def __call__(self, images: Sequence[np.ndarray], /) -> list[Regions]: ...


class Detector(nn.Module):
    """Faster R-CNN ResNet-C4 with an attribute head.

    Args:
        config: sizes.
        conventions: None means the preset "hf".
        selection: None means the preset "butd-10-100".
        backbone: (1, 3, H, W) -> res4 map. None means `Backbone`.
        proposal_generator: map, input size -> Proposals. None means `ProposalGenerator`.
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
        return {
            "config": config,
            "conventions": _plain(asdict(self.conventions)),
            "selection": _plain(asdict(self.selection)),
            "weights": weights_digest(self.state_dict()),
            "feature_dim": self.feature_dim,
            "num_classes": self.num_classes,
            "num_attributes": self.num_attributes,
            "numerics": {"mode": "exact", "region_chunk": region_chunk},
        }

    @torch.inference_mode()
    def forward(self, images: Sequence[np.ndarray]) -> list[Regions]:
        """Detects on each photo by itself, so that a photo's regions do not depend on its neighbours.

        Args:
            images: (height, width, 3) uint8 each, channel order B, G, R, sizes free.
        """
        return [self.postprocess(self.head_outputs(image)) for image in images]

    @torch.inference_mode()
    def head_outputs(self, image: np.ndarray) -> HeadOutputs:
        """Proposals of one photo and what the heads say of each.

        Args:
            image: (height, width, 3) uint8, channel order B, G, R.
        """
        with plain_float32(self.device):
            network_input = preprocess(image, self.config, self.conventions, self.device)
            feature_map = self.backbone(network_input.pixels)
            proposals = self.proposal_generator(feature_map, network_input.input_hw)
            regions = self.roi_heads(feature_map, proposals.boxes)
        return HeadOutputs(network_input, proposals, regions)

    @torch.inference_mode()
    def postprocess(self, outputs: HeadOutputs, selection: SelectionPolicy | None = None) -> Regions:
        """Logits to probabilities, selection, boxes to photo pixels, tensors to numpy.

        Args:
            outputs: of `head_outputs` of this detector.
            selection: None means the detector's own; another one re-selects without running the network again.
        """
        network_input, regions = outputs.network_input, outputs.regions
        probabilities = regions.class_logits.softmax(dim=1)
        class_scores, class_ids = probabilities[:, :-1].max(dim=1)
        attribute_scores, attribute_ids = regions.attribute_logits[:, :-1].softmax(dim=1).max(dim=1)
        best_deltas = regions.box_deltas[torch.arange(len(class_ids), device=class_ids.device), class_ids]
        regressed = decode_deltas(
            outputs.proposals.boxes,
            best_deltas,
            weights=self.conventions.region_delta_weights,
            delta_cap=self.conventions.delta_cap,
        )
        selected = select_regions(
            selection or self.selection,
            class_scores=probabilities[:, :-1],
            proposal_boxes=outputs.proposals.boxes,
            regressed_boxes=clip_boxes(regressed, network_input.input_hw),
            scale_xyxy=network_input.scale_xyxy,
        )
        keep = selected.proposal_ids
        return Regions(
            # The far edge times the scale may round to just outside the photo.
            boxes=_numpy(clip_boxes(selected.boxes, network_input.image_hw)),
            features=_numpy(regions.features[keep]),
            class_ids=_numpy(class_ids[keep]),
            class_scores=_numpy(class_scores[keep]),
            attribute_ids=_numpy(attribute_ids[keep]),
            attribute_scores=_numpy(attribute_scores[keep]),
            class_probabilities=_numpy(probabilities[keep]),
            proposal_ids=_numpy(keep),
        )


@contextlib.contextmanager
def plain_float32(device: torch.device) -> Iterator[None]:
    """Inside, arithmetic is float32 on every device, whatever the caller has switched on.

    torch lets CUDA convolutions round to TF32 by default, `set_float32_matmul_precision` does so to matrix products (to
    bfloat16 on CPUs), and a surrounding autocast halves everything; all change features unsaid. The switches are global
    to the process, so the caller's values come back at the end.
    """
    backends: Any = torch.backends
    precisions = (backends.cudnn.conv, backends.cuda.matmul, backends.mkldnn.conv, backends.mkldnn.matmul)
    exact: list[tuple[Any, str, Any]] = [
        (part, "fp32_precision", "ieee") for part in precisions if part.fp32_precision not in ("none", "ieee")
    ]
    exact += [(backends.cudnn, "benchmark", False), (backends.cudnn, "deterministic", True)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        for part, name, value in exact:
            stack.callback(setattr, part, name, getattr(part, name))
            setattr(part, name, value)
        yield


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().cpu().numpy()


def _plain(value: Any) -> Any:
    """Tuples as lists, so that a dict equals itself after a trip through JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
