"""Network of a detector for calls without training: its parts in fused form, in the detector's mode.

pixels -> feature_map -> rpn -> proposals -> regions -> region_scores: probabilities, boxes in photo pixels
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.fast.cuda_device import RecordedCalls
from roibeam.extraction.fast.fused_resnet import (
    AlignedStage,
    BinnedStage,
    FusedStage,
    aligned_stage,
    fused_backbone,
    fused_conv,
    fused_stage,
)
from roibeam.extraction.fast.modes import Mode
from roibeam.extraction.network.boxes import clip_boxes, move_boxes
from roibeam.extraction.network.config import FEATURE_STRIDE, DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.roi_heads import RegionOutputs, RoIHeads, features_of, mean_over_cells
from roibeam.extraction.network.rpn import (
    NoProposals,
    ProposalGenerator,
    Proposals,
    RankedAnchors,
    RPNHead,
    smallest_side,
)
from roibeam.extraction.photos.preprocessing import NetworkInput, PhotoScale
from roibeam.extraction.regions import RegionScores, best_class_deltas


@dataclass(frozen=True)
class PhotoSize:
    """Sizes of a photo for its scores, beside tensors.

    Attributes:
        image_hw: (height, width) of the photo, pixels; input_hw: of the resized photo.
        divides: as of `PhotoScale`.
    """

    image_hw: tuple[int, int]
    input_hw: tuple[int, int]
    divides: bool

    @staticmethod
    def of(one: NetworkInput) -> PhotoSize:
        return PhotoSize(one.image_hw, one.input_hw, one.scale.divides)


def region_scores(
    outputs: RegionOutputs,
    boxes: Tensor,
    factors_xyxy: Tensor,
    size: PhotoSize,
    conventions: Conventions,
    *,
    with_class_boxes: bool = False,
) -> RegionScores:
    """Logits of the heads to probabilities, deltas to boxes, for (R, 4) boxes in network-input pixels and the factors
    of their `PhotoScale`; a GPU is never waited for."""
    probabilities = outputs.class_logits.softmax(dim=1)
    best_deltas = best_class_deltas(outputs.box_deltas, probabilities)
    scale = PhotoScale(factors_xyxy, size.divides)
    boxes_photo = scale.to_photo(boxes)
    in_photo = conventions.regression_pixels == "photo"
    start, hw = (boxes_photo, size.image_hw) if in_photo else (boxes, size.input_hw)
    regressed = _regress(start, best_deltas, hw, conventions)
    regressed_photo = regressed if in_photo else scale.to_photo(regressed)
    class_photo = boxes.new_zeros(len(boxes), 0, 4)
    if with_class_boxes:
        class_boxes = _regress(start[:, None], outputs.box_deltas, hw, conventions)
        class_photo = class_boxes if in_photo else scale.to_photo(class_boxes)
    attributes = best_attributes(outputs.attribute_logits, conventions)
    return RegionScores(probabilities, boxes_photo, regressed_photo, regressed, class_photo, *attributes)


def _regress(boxes: Tensor, deltas: Tensor, hw: tuple[int, int], conventions: Conventions) -> Tensor:
    """Boxes moved by their deltas and clipped, all in the same pixels."""
    moved = move_boxes(boxes, deltas, conventions, weights=conventions.region_delta_weights)
    return clip_boxes(moved, hw, last_pixel=conventions.last_pixel)


def best_attributes(logits: Tensor, conventions: Conventions) -> tuple[Tensor, ...]:
    """(R,) float32 probability and (R,) int64 id of the best attribute, "no attribute", the last, left out of the
    choice; nothing without a head."""
    if not logits.shape[1]:
        return ()
    if conventions.attribute_softmax == "all":
        best = logits.softmax(dim=1)[:, :-1].max(dim=1)
    else:
        best = logits[:, :-1].softmax(dim=1).max(dim=1)
    return best.values, best.indices


class InferenceNetwork:
    """Computes from copies of the weights: folded, laid out for the kernels, in the type of the mode.

    Parts, as of `Detector`, are called unchanged if they are of other classes. Weights are laid out for the config.
    Raises ValueError if the mode rounds and a part is of another class, or has norms that cannot be folded."""

    def __init__(
        self,
        backbone: nn.Module,
        proposal_generator: nn.Module,
        roi_heads: nn.Module,
        config: DetectorConfig,
        mode: Mode,
    ) -> None:
        self.mode, self._config = mode, config
        edge, cells = config.short_edge, config.pooled_cells
        input_hw = (edge, min(edge * 4 // 3, config.long_edge))  # of most photos
        map_cells = (input_hw[0] // FEATURE_STRIDE, input_hw[1] // FEATURE_STRIDE)
        self._backbone = fused_backbone(backbone, mode, input_hw)
        self._generator, self._heads = proposal_generator, roi_heads
        self._rpn: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        self._rank: Callable[..., RankedAnchors] | None = None
        if isinstance(proposal_generator, ProposalGenerator):
            self._rpn = FusedRPNHead(proposal_generator.rpn_head, mode, map_cells)
            self._rank = proposal_generator.rank
        self._res5: Callable[[Tensor], Tensor] | None = None
        self._all_regions: RecordedCalls | None = None
        self._scores: RecordedCalls | None = None
        self._describe_chunk: Callable[[Tensor], Tensor] | None = None
        self._map_stage: AlignedStage | BinnedStage | None = None
        if isinstance(roi_heads, RoIHeads):
            self._res5 = fused_stage(roi_heads.res5, mode, map_cells if config.grid else (cells, cells))
            self._map_stage = aligned_stage(roi_heads.res5, mode, roi_heads.conventions, cells)
            if isinstance(self._res5, FusedStage) and BinnedStage.takes(self._res5, roi_heads.conventions):
                self._map_stage = BinnedStage(self._res5, mode, cells)
            self._describe_chunk = features_of(self._res5)
        parts = (self._backbone, self._res5, *([] if isinstance(proposal_generator, NoProposals) else [self._rpn]))
        as_they_are = [part for part in parts if isinstance(part, nn.Module | None)]
        if as_they_are and mode.conv_dtype != torch.float32:
            raise ValueError(
                f"mode {mode.name!r} takes the detector's own parts with fixed batch norms; one of these is of another "
                f"kind: {', '.join(type(part).__name__ for part in (backbone, proposal_generator, roi_heads))}"
            )
        if next(backbone.parameters()).device.type == "cuda":
            self._record()
            torch.cuda.synchronize()  # the copies are used in more than one stream

    def _record(self) -> None:
        """Records roibeam's own parts from now on, for shapes that repeat."""
        if not isinstance(self._backbone, nn.Module):
            self._backbone = _recorded(self._backbone)
        if self._rpn is not None:
            self._rpn = RecordedCalls(self._rpn)
        if isinstance(self._generator, ProposalGenerator):
            ranking = RecordedCalls(_tensors_of(self._generator.rank))
            self._rank = lambda *inputs, **fixed: RankedAnchors(*ranking(*inputs, **fixed))
        if self._describe_chunk is not None and not isinstance(self._res5, nn.Module):
            describe_chunk = self._describe_chunk
            self._all_regions = RecordedCalls(
                _tensors_of(lambda feature_map, boxes: self._regions(feature_map, boxes, describe_chunk))
            )
            self._describe_chunk = _recorded(describe_chunk)
        self._scores = RecordedCalls(_scores_of_tensors)

    def feature_map(self, pixels: Tensor) -> Tensor:
        """(N, 3, H, W) float32 -> (N, C, h, w) float32."""
        return self._backbone(pixels)

    def proposals(
        self, maps: Tensor, input_hws: Sequence[tuple[int, int]], factors: Sequence[float]
    ) -> list[Proposals]:
        """Proposals of each of the N maps; sizes and factors as of `ProposalGenerator.forward`."""
        generator, sizes = self._generator, list(zip(input_hws, factors, strict=True))
        if self._rpn is None or self._rank is None or not isinstance(generator, ProposalGenerator):
            return [generator(maps[i : i + 1], *size) for i, size in enumerate(sizes)]
        logits, deltas = self._rpn(maps)
        found = []
        for i, (input_hw, factor) in enumerate(sizes):
            outputs, min_side = (logits[i : i + 1], deltas[i : i + 1]), smallest_side(generator.conventions, factor)
            found.append(generator.choose(self._rank(*outputs, input_hw=input_hw, min_side=min_side)))
        return found

    def rpn(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the proposal network for each map: logits (N, A or 2A, h, w), deltas (N, 4A, h, w), float32."""
        assert self._rpn is not None, "a proposal generator of another kind has no such numbers"
        logits, deltas = self._rpn(maps)
        return logits, deltas

    def grid(self, feature_map: Tensor) -> Tensor:
        """(1, C, h, w) float32 -> (1, D, rows, columns) float32: the last stage on the whole map, by `config.grid`."""
        assert self._res5 is not None, "heads of another kind have no last stage"
        last = self._res5(feature_map.to(self.mode.conv_dtype)).float()
        cells = self._config.grid_cells
        return last if cells is None else functional.adaptive_avg_pool2d(last, cells)

    def regions(self, feature_map: Tensor, boxes: Tensor) -> RegionOutputs:
        """See `RoIHeads.forward`."""
        if self._describe_chunk is None or not isinstance(self._heads, RoIHeads):
            return self._heads(feature_map, boxes)
        if self._all_regions is not None and self._is_usual(boxes):
            return RegionOutputs(*self._all_regions(feature_map, boxes))
        return self._regions(feature_map, boxes, self._describe_chunk)

    def _is_usual(self, boxes: Tensor) -> bool:
        """Whether this number of boxes is that of the proposals: numbers of given boxes vary."""
        return len(boxes) == self._config.proposals_after_nms

    def _regions(self, feature_map: Tensor, boxes: Tensor, describe_chunk: Callable[[Tensor], Tensor]) -> RegionOutputs:
        assert isinstance(self._heads, RoIHeads)
        chunk = self.mode.regions_at_once(self._config, feature_map.device)
        if self._map_stage is not None:
            described = (mean_over_cells(maps) for maps in self._map_stage(feature_map, boxes, chunk))
            return self._heads.judge(described, len(boxes))
        return self._heads.describe(feature_map.to(self.mode.conv_dtype), boxes, describe_chunk, chunk)

    def scores(
        self,
        outputs: RegionOutputs,
        boxes: Tensor,
        factors_xyxy: Tensor,
        size: PhotoSize,
        conventions: Conventions,
        *,
        with_class_boxes: bool = False,
    ) -> RegionScores:
        """See `region_scores`."""
        fixed: dict[str, Any] = {"size": size, "conventions": conventions, "with_class_boxes": with_class_boxes}
        if self._scores is None or not self._is_usual(boxes):
            return region_scores(outputs, boxes, factors_xyxy, **fixed)
        tensors = (getattr(outputs, field.name) for field in fields(RegionOutputs))
        return RegionScores(*self._scores(boxes, factors_xyxy, *tensors, **fixed))


def _tensors_of(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    """The function with the fields of the dataclass that it returns, those that are not None, as a tuple."""

    def called(*inputs: Tensor, **fixed: Hashable) -> tuple[Tensor, ...]:
        found = function(*inputs, **fixed)
        values = (getattr(found, field.name) for field in fields(found))
        return tuple(value for value in values if value is not None)

    return called


def _scores_of_tensors(boxes: Tensor, factors_xyxy: Tensor, *tensors: Tensor, **fixed: Any) -> tuple[Tensor, ...]:
    return _tensors_of(region_scores)(RegionOutputs(*tensors), boxes, factors_xyxy, **fixed)


def _recorded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    calls = RecordedCalls(lambda x: (function(x),))
    return lambda x: calls(x)[0]


class FusedRPNHead:
    """See `RPNHead`. Its last layers are small and decide the order of proposals, so they are float32 in bf16 too."""

    def __init__(self, head: RPNHead, mode: Mode, cells: tuple[int, int]) -> None:
        self.dtype, last = mode.conv_dtype, replace(mode, bf16=False)
        self.conv = fused_conv(head.conv, mode, cells, relu=True)
        self.objectness_logits = fused_conv(head.objectness_logits, last, cells)
        self.anchor_deltas = fused_conv(head.anchor_deltas, last, cells)

    def __call__(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        x = maps.to(self.dtype, memory_format=torch.channels_last)
        hidden = self.conv(x).float()
        return self.objectness_logits(hidden).contiguous(), self.anchor_deltas(hidden).contiguous()


class NetworkCache:
    """The one `InferenceNetwork` of a detector, made on first use and anew after a weight has changed.

    A change is seen if it is made in torch's own ways (an optimizer's step, `load_state_dict`, `copy_`, `to`), not if
    it is made through `.data`. A copy of a detector makes its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: object = None
        self._network: InferenceNetwork | None = None

    def __deepcopy__(self, memo: object) -> NetworkCache:
        return NetworkCache()

    def __reduce__(self) -> tuple[type[NetworkCache], tuple[()]]:
        return NetworkCache, ()

    def get(
        self, parts: tuple[nn.Module, nn.Module, nn.Module], config: DetectorConfig, mode: Mode
    ) -> InferenceNetwork:
        """The network of backbone, proposal generator and RoI heads."""
        key = (config, mode, [_versions(part) for part in parts])
        with self._lock:
            if self._network is None or key != self._key:
                self._network, self._key = InferenceNetwork(*parts, config, mode), key
            return self._network


def _versions(part: nn.Module) -> list[object]:
    """Versions that are equal as long as the part computes with the same tensors, which hold the same numbers."""
    tensors = [*part.parameters(), *part.buffers()]
    modes = [module.training for module in part.modules()]
    return [
        id(part),
        modes,
        *((tensor.data_ptr(), tensor.device, None if tensor.is_inference() else tensor._version) for tensor in tensors),
    ]
