"""The detector: photos in, regions out.

photo -> preprocess -> backbone -> proposal_generator -> roi_heads -> select -> postprocess -> Regions
photo, given boxes -> preprocess -> backbone ---------> roi_heads -----------> postprocess -> Regions
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from roibeam.extraction.fast.cuda_device import on_side_stream, record_on_stream, wait_for
from roibeam.extraction.fast.fused_resnet import has_fused_kernels
from roibeam.extraction.fast.inference_network import (
    InferenceNetwork,
    NetworkCache,
    PhotoSize,
    best_attributes,
    region_scores,
)
from roibeam.extraction.fast.modes import bf16_instructions, mode_named
from roibeam.extraction.network.boxes import cell_anchors, checked_boxes, checked_mask, clip_boxes, grid_boxes
from roibeam.extraction.network.config import DetectorConfig, written_settings
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.network.resnet import Backbone
from roibeam.extraction.network.roi_heads import RegionOutputs, RoIHeads
from roibeam.extraction.network.rpn import NoProposals, ProposalGenerator, Proposals
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.photos.preprocessing import (
    NetworkInput,
    ResizedPhoto,
    blank_regions,
    check_pixels,
    input_size,
    network_input,
    resize_photo,
)
from roibeam.extraction.regions import (
    HostCopy,
    Regions,
    ScoredRegions,
    boxes_for_each,
    kept_regions,
    needs_class_boxes,
    plain_json,
    to_numpy,
)
from roibeam.messages import plural, short_repr

_Item = TypeVar("_Item")
_PHOTOS_IN_A_ROW = 16  # on a GPU; the first and the last of a row run alone


@dataclass(frozen=True)
class HeadOutputs:
    """All outputs of the network for one photo, before selection.

    Attributes:
        network_input: the resized photo and its scale.
        feature_map: (1, C, h, w) float32, the res4 map.
        proposals: R boxes in network-input pixels with their objectness.
        regions: features, logits and deltas of the R proposals.
        given_boxes: (R, 4) float32, the given boxes, clipped to the photo; then none is left out, and `objectness`
            is 1. None if they are proposals.
    """

    network_input: NetworkInput
    feature_map: Tensor
    proposals: Proposals
    regions: RegionOutputs
    given_boxes: Tensor | None = None

    __repr__ = short_repr


@dataclass(frozen=True)
class _PreparedPhoto:
    """A photo and its boxes on their way into the network; `pixels` are those of the input, or partly blanked."""

    network_input: NetworkInput
    pixels: Tensor
    given_boxes: Tensor | None
    network_boxes: Tensor | None


@dataclass(frozen=True)
class _MappedPhotos:
    """Photos of one input size, which all have given boxes or all have none, and their maps (N, C, h, w), once they are
    `done`; `indices` are their places in the call."""

    indices: Sequence[int]
    photos: Sequence[_PreparedPhoto]
    maps: Tensor
    done: torch.cuda.Event | None


class RegionDetector(Protocol):
    """Members of a detector that the engine needs; a fake has these five."""

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


def detector_line(detector: Any, network: str) -> str:
    """A line for people: "Detector(ResNet-26, 24 classes, 19 attributes, features of width 256, on cpu)"."""
    outputs = f"{plural(detector.num_classes, 'class', 'classes')}, {plural(detector.num_attributes, 'attribute')}"
    name, width = type(detector).__name__, detector.feature_dim
    return f"{name}({network}, {outputs}, features of width {width:,}, on {detector.device})"


class Detector(nn.Module):
    """Faster R-CNN ResNet-C4 with an attribute head.

    Args:
        conventions, selection: None means the presets "hf" and "butd-10-100".
        mode: how convolutions compute when nothing is trained, see `MODES`.
        backbone: (N, 3, H, W) -> res4 map. None means `Backbone`.
        proposal_generator: map, input size, resize factor -> Proposals. None means `ProposalGenerator`, or none at all
            for a config without classes.
        roi_heads: map, boxes -> RegionOutputs. None means `RoIHeads`.

    `repr` is a line; those of `backbone`, `proposal_generator` and `roi_heads` list their layers.

    The weights are torch's own initialisation until `load_weights`; `build_detector` does both.

    A call computes with fused copies of the weights, made anew if one has changed. Changes that torch does not see,
    such as `weight.data.copy_(...)` or through numpy, are missed: call `forget_copies` after them, or write `with
    torch.no_grad(): weight.copy_(...)`.
    """

    def __init__(
        self,
        config: DetectorConfig,
        conventions: Conventions | None = None,
        selection: SelectionPolicy | None = None,
        *,
        mode: str = "exact",
        backbone: nn.Module | None = None,
        proposal_generator: nn.Module | None = None,
        roi_heads: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.conventions = conventions or CONVENTIONS["hf"]
        self.selection = selection or SELECTIONS["butd-10-100"]
        self.mode = mode_named(mode)
        self.backbone = backbone or Backbone(config, self.conventions)
        own = ProposalGenerator(config, self.conventions) if config.num_classes else NoProposals()
        self.proposal_generator = proposal_generator or own
        self.roi_heads = roi_heads or RoIHeads(config, self.conventions)
        self._networks = NetworkCache()
        self.eval()

    def __repr__(self) -> str:
        return detector_line(self, f"ResNet-{self.config.depth}")

    def forget_copies(self) -> None:
        """Makes the next call compute with the current weights, see above."""
        self._networks = NetworkCache()

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

    @property
    def preferred_batch(self) -> int:
        """Largest useful number of photos of one `batch_key` in a call: those that share a call of the backbone, if
        any; on a GPU enough that one photo's work hides the next one's waiting."""
        return max(self.mode.photos_per_call, 1 if self.device.type == "cpu" else _PHOTOS_IN_A_ROW)

    def batch_key(self, image_hw: tuple[int, int]) -> tuple[int, int] | None:
        """Key of a photo of (height, width) pixels; photos of equal keys may share a call: their size at the backbone
        if they share a call of it, else None."""
        if self.mode.photos_per_call == 1:
            return None
        return self._input_hw(image_hw)

    def _input_hw(self, image_hw: tuple[int, int]) -> tuple[int, int]:
        return input_size(image_hw, self.config.short_edge, self.config.long_edge, self.conventions)[0]

    def prepare(self, image: np.ndarray) -> ResizedPhoto:
        """A resized photo, to be passed in its place: threads that decode can do this while the network computes."""
        return resize_photo(image, self.config, self.conventions)

    def describe(self) -> dict[str, Any]:
        """Description of this detector in a store's fingerprint; plain JSON values.

        `numerics` holds values that may differ between stores that belong together (see docs/stores.md, Fingerprint);
        all others define the meaning of the features. Hashes the weights: under a second, so call it once for a run.
        """
        config = plain_json(written_settings(self.config))
        del config["region_chunk"]
        region_chunk = self.mode.regions_at_once(self.config, self.device)
        described = {
            "config": config,
            "conventions": plain_json(written_settings(self.conventions)),
            "selection": plain_json(written_settings(self.selection)),
            "weights": weights_digest(self.state_dict()),
            "feature_dim": self.feature_dim,
            "num_classes": self.num_classes,
            "num_attributes": self.num_attributes,
            "numerics": {"mode": self.mode.name, "region_chunk": region_chunk, "kernels": self._kernels()},
        }
        generator = self.proposal_generator
        if isinstance(generator, ProposalGenerator):
            anchors = generator.cell_anchors.cpu()
            if not torch.equal(anchors, cell_anchors(self.config, self.conventions)):
                described["cell_anchors"] = anchors.tolist()  # a weight file brought its own
        return described

    def _kernels(self) -> str:
        """Name of the convolution kernels, for `numerics`."""
        if self.device.type != "cpu":
            return self.device.type
        kernels = "onednn" if has_fused_kernels(self.device, self.mode.conv_dtype) else "torch"
        return kernels if self.mode.conv_dtype == torch.float32 else f"{kernels} {bf16_instructions()}"

    @torch.inference_mode()
    def forward(
        self,
        images: Sequence[np.ndarray | ResizedPhoto],
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        """Detects on each photo by itself, so that a photo's regions do not depend on its neighbours; only in the mode
        "batched" do photos of one input size share the backbone and the proposal network.

        Args:
            images: (height, width, 3) uint8 each, channel order B, G, R, sizes free; or results of `prepare`.
            boxes: for each photo the boxes to describe instead of proposals, see `head_outputs`, or None.
            whole_image: whether to fill `Regions.image_feature`.
        """
        given = boxes_for_each(images, boxes)
        # Once a call: the check for changed weights takes a millisecond of Python.
        with self.arithmetic():
            network = self.network()
        # Each step draws from the one above it, photo by photo, and two of them look ahead: while the proposals of one
        # photo are awaited, a GPU computes the next map, and while regions are chosen here, the next regions.
        maps = self._backbone_maps(network, images, given, self._groups(images, given))
        outputs = self._run_heads(network, _lookahead(maps))
        scored = self._to_host(network, outputs, whole_image=whole_image)
        regions = {at: self._kept(self.selection, copy, one, network) for at, copy, one in _lookahead(scored)}
        return [regions[at] for at in range(len(images))]

    def _groups(
        self, images: Sequence[np.ndarray | ResizedPhoto], boxes: Sequence[np.ndarray | None]
    ) -> Iterator[list[int]]:
        """Groups of photos that share calls of backbone and proposal network: those of one input size, by the mode."""
        most, multiple = self.mode.photos_per_call, self.conventions.padding_multiple
        alike: dict[object, list[int]] = defaultdict(list)
        for at, (image, given) in enumerate(zip(images, boxes, strict=True)):
            if most == 1:
                yield [at]
                continue
            input_hw = image.input_hw if isinstance(image, ResizedPhoto) else self._input_hw(_image_hw(image))
            alike[tuple(-(-edge // multiple) for edge in input_hw), given is None].append(at)
        for rows in alike.values():
            yield from (rows[start : start + most] for start in range(0, len(rows), most))

    def network(self) -> InferenceNetwork:
        """The network for calls without training: copies of the current weights, in the form and type of the mode.

        Call it inside `arithmetic`, as `head_outputs` does.
        """
        mode_named(self.mode.name, self.device)
        dtype = next(self.parameters()).dtype
        if dtype.itemsize < 4:
            raise ValueError(
                f"a detector's weights are float32, got {dtype}; for speed make it with mode='bf16', as "
                f"build_detector(..., mode='bf16')"
            )
        return self._networks.get((self.backbone, self.proposal_generator, self.roi_heads), self.config, self.mode)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Context in which float32 follows the mode, for any settings of the caller."""
        return plain_float32(self.device, tf32=self.mode.tf32)

    @torch.inference_mode()
    def head_outputs(
        self, image: np.ndarray | ResizedPhoto, *, boxes: np.ndarray | None = None, masked: np.ndarray | None = None
    ) -> HeadOutputs:
        """Boxes of one photo and the heads' outputs for them.

        Args:
            image: (height, width, 3) uint8, channel order B, G, R, or the result of `prepare`.
            boxes: None for proposals, or (R, 4) x1 y1 x2 y2 in photo pixels: described as they are, in this order,
                after clipping to the photo. An empty box gets the pooling operator's result: RoIPool the one cell that
                its corner rounds to, zeros past the map's end; RoIAlign one cell from its corner on.
            masked: with `boxes`, (R,) bool: the pixels of these boxes are blanked for all regions (`blank_regions`).
        Raises:
            ValueError: for boxes of another shape, not finite, or with x2 < x1 or y2 < y1.
        """
        with self.arithmetic():
            network = self.network()
        ((_, outputs),) = self._run_heads(network, self._backbone_maps(network, [image], [boxes], [[0]], masked))
        return outputs

    def _prepared(
        self, image: np.ndarray | ResizedPhoto, boxes: np.ndarray | None, masked: np.ndarray | None = None
    ) -> _PreparedPhoto:
        made = network_input(
            image if isinstance(image, ResizedPhoto) else self.prepare(image), self.conventions, self.device
        )
        if boxes is None:
            if masked is not None:
                raise ValueError("masked regions need given boxes: which proposals come depends on the pixels")
            return _PreparedPhoto(made, made.pixels, None, None)
        if self.config.grid:
            raise ValueError(f"grid {self.config.grid}: the cells of a grid are its regions; it takes no boxes")
        given = clip_boxes(checked_boxes(boxes).to(self.device), made.image_hw)
        network_boxes = clip_boxes(made.scale.to_network(given), made.input_hw, last_pixel=self.conventions.last_pixel)
        pixels = made.pixels
        if masked is not None:
            pixels = blank_regions(pixels, network_boxes[checked_mask(masked, len(given)).to(self.device)])
        return _PreparedPhoto(made, pixels, given, network_boxes)

    def _backbone_maps(
        self,
        network: InferenceNetwork,
        images: Sequence[np.ndarray | ResizedPhoto],
        boxes: Sequence[np.ndarray | None],
        groups: Iterable[Sequence[int]],
        masked: np.ndarray | None = None,
    ) -> Iterator[_MappedPhotos]:
        """Maps of the photos of each group, which share the size of their input, and all have given boxes or none."""
        for group in groups:

            def work(group: Sequence[int] = group) -> tuple[list[_PreparedPhoto], Tensor]:
                photos = [self._prepared(images[at], boxes[at], masked) for at in group]
                return photos, network.feature_map(torch.cat([photo.pixels for photo in photos]))

            with self.arithmetic():
                (photos, maps), done = on_side_stream(self.device, "maps", work)
            yield _MappedPhotos(group, photos, maps, done)

    def _run_heads(
        self, network: InferenceNetwork, groups: Iterable[_MappedPhotos]
    ) -> Iterator[tuple[int, HeadOutputs]]:
        """Outputs of the network for each photo's boxes, given or proposed, with its place in the call."""
        for mapped in groups:
            described = []
            with self.arithmetic():
                work = partial(self._proposals, network, mapped)
                proposals, done = on_side_stream(self.device, "proposals", work, after=mapped.done)
                wait_for(done)
                record_on_stream(mapped.maps)
                for row, (photo, proposed) in enumerate(zip(mapped.photos, proposals, strict=True)):
                    record_on_stream(proposed.boxes, proposed.objectness, photo.network_input.scale.factors_xyxy)
                    if photo.given_boxes is not None:
                        record_on_stream(photo.given_boxes)
                    feature_map = mapped.maps[row : row + 1]
                    if self.config.grid:
                        described.append((mapped.indices[row], self._grid(network, photo, feature_map)))
                        continue
                    regions = network.regions(feature_map, proposed.boxes)
                    outputs = HeadOutputs(photo.network_input, feature_map, proposed, regions, photo.given_boxes)
                    described.append((mapped.indices[row], outputs))
            yield from described

    def _grid(self, network: InferenceNetwork, photo: _PreparedPhoto, feature_map: Tensor) -> HeadOutputs:
        """Cells of the last stage as given boxes."""
        assert isinstance(self.roi_heads, RoIHeads), "heads of another kind have no last stage"
        last, one = network.grid(feature_map), photo.network_input
        boxes = grid_boxes((last.shape[2], last.shape[3]), one.image_hw).to(self.device)
        regions = self.roi_heads.judge([last[0].flatten(1).t().contiguous()], len(boxes))
        proposals = Proposals(one.scale.to_network(boxes), boxes.new_ones(len(boxes)))
        return HeadOutputs(one, feature_map, proposals, regions, boxes)

    def _proposals(self, network: InferenceNetwork, mapped: _MappedPhotos) -> list[Proposals]:
        """Proposals of each photo of a group, or its given boxes in their place."""
        inputs = [photo.network_input for photo in mapped.photos]
        given = [photo.network_boxes for photo in mapped.photos if photo.network_boxes is not None]
        record_on_stream(mapped.maps, *given)
        if self.config.grid:  # its cells are known with the last stage
            return [Proposals(mapped.maps.new_zeros(0, 4), mapped.maps.new_zeros(0)) for _ in inputs]
        if given:
            return [Proposals(boxes, boxes.new_ones(len(boxes))) for boxes in given]
        return network.proposals(mapped.maps, [one.input_hw for one in inputs], [one.factor for one in inputs])

    def _to_host(
        self, network: InferenceNetwork, outputs: Iterable[tuple[int, HeadOutputs]], *, whole_image: bool
    ) -> Iterator[tuple[int, HostCopy, HeadOutputs]]:
        """All regions of each photo on their way to the CPU, with its place in the call."""
        for at, one in outputs:
            yield at, HostCopy(self._scores(one, self.selection, network, whole_image=whole_image)), one

    def _kept(
        self, policy: SelectionPolicy, copy: HostCopy, outputs: HeadOutputs, network: InferenceNetwork | None = None
    ) -> Regions:
        """The kept regions; their attributes anew where the conventions judge those of the kept class and box, and
        these are not the ones judged before: the best class at the proposal."""
        regions = kept_regions(policy, copy, outputs.network_input.image_hw)
        if self.conventions.attribute_class != "kept" or regions.attribute_ids is None:
            return regions
        moved = policy.kept_box == "regressed" and outputs.given_boxes is None
        judged = regions.class_probabilities[:, :-1].argmax(axis=1)
        if not moved and np.array_equal(judged, regions.class_ids):
            return regions
        assert isinstance(self.roi_heads, RoIHeads), "heads of another kind take other conventions"
        with self.arithmetic():
            network = network or self.network()
            features = torch.from_numpy(regions.features).to(self.device)
            if moved:
                boxes = outputs.network_input.scale.to_network(torch.from_numpy(regions.boxes).to(self.device))
                features = network.regions(outputs.feature_map, boxes).features
            logits = self.roi_heads.attributes(features, torch.from_numpy(regions.class_ids).to(self.device))
            scores, ids = best_attributes(logits, self.conventions)
        return replace(regions, attribute_ids=to_numpy(ids), attribute_scores=to_numpy(scores))

    @torch.inference_mode()
    def whole_image_feature(self, outputs: HeadOutputs) -> np.ndarray:
        """(D,) float32: the feature of the whole photo as one box, on the existing map."""
        with self.arithmetic():
            network = self.network()
        return to_numpy(self._whole_image(network, outputs))

    def _whole_image(self, network: InferenceNetwork, outputs: HeadOutputs) -> Tensor:
        if self.config.grid:
            return outputs.regions.features.mean(dim=0)
        height, width = outputs.network_input.input_hw
        box = outputs.feature_map.new_tensor([[0.0, 0.0, width, height]])
        box = clip_boxes(box, (height, width), last_pixel=self.conventions.last_pixel)
        with self.arithmetic():
            return network.regions(outputs.feature_map, box).features[0]

    @torch.inference_mode()
    def postprocess(self, outputs: HeadOutputs, selection: SelectionPolicy | None = None) -> Regions:
        """Logits to probabilities, selection, boxes to photo pixels, tensors to numpy.

        Args:
            outputs: of `head_outputs` of this detector.
            selection: None means the detector's own; another one re-selects without running the network again.
                Given boxes are all kept.
        """
        policy = selection or self.selection
        return self._kept(policy, HostCopy(self._scores(outputs, policy)), outputs)

    def _scores(
        self,
        outputs: HeadOutputs,
        policy: SelectionPolicy,
        network: InferenceNetwork | None = None,
        *,
        whole_image: bool = False,
    ) -> ScoredRegions:
        """Probabilities, best attributes and boxes in photo pixels; the whole photo's feature needs the network."""
        one, score = outputs.network_input, region_scores if network is None else network.scores
        boxes, factors = outputs.proposals.boxes, one.scale.factors_xyxy
        with_class_boxes = outputs.given_boxes is None and needs_class_boxes(policy)
        scores = score(
            outputs.regions, boxes, factors, PhotoSize.of(one), self.conventions, with_class_boxes=with_class_boxes
        )
        return ScoredRegions(
            **vars(scores),
            features=outputs.regions.features,
            given_boxes=outputs.given_boxes,
            image_feature=self._whole_image(network, outputs) if whole_image and network is not None else None,
        )


def _image_hw(image: np.ndarray) -> tuple[int, int]:
    check_pixels(image)
    return image.shape[0], image.shape[1]


def _lookahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """The same items, each after the next one has been drawn."""
    waiting: list[_Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting
