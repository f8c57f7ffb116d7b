"""A region is a box and a vector: `ModelDetector` takes both of one model, `BackboneDetector` the vector of another.

    photo -> DetectionModel -> Detections -> selection -> Regions with the model's own vectors
    photo -> any RegionDetector, or given boxes -> Regions -> RegionBackbone -> the same regions, other vectors

One photo a call, so that no feature depends on its neighbours. Boxes are x1 y1 x2 y2 in pixels of the photo, as it was
decoded with its EXIF orientation; how a model resizes or pads it is the model's matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Unpack, cast

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import roi_align

from roibeam.extraction.detector import Detector, RegionDetector, detector_line
from roibeam.extraction.network.boxes import checked_boxes, clip_boxes
from roibeam.extraction.network.config import DetectorConfig, written_settings
from roibeam.extraction.network.conventions import DETECTIONS, SELECTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.photos.preprocessing import check_pixels
from roibeam.extraction.regions import HostCopy, Regions, ScoredRegions, boxes_for_each, kept_regions, plain_json
from roibeam.extraction.weights.detector_choice import named
from roibeam.extraction.weights.loading import build_detector as build_network
from roibeam.extraction.weights.named_model import MODES, NamedModel, OtherModels, is_named_model, read_queries

POOLED_CELLS = 7  # of RoIAlign on a backbone's map, a side
CROPS_AT_ONCE = 4  # of a CPU; one shape for every pass: no vector depends, bit for bit, on how many boxes there are


@dataclass(frozen=True)
class Detections:
    """Detections of a model on a photo, after its post-processing, in its order.

    Attributes:
        boxes: (R, 4) float32, photo pixels.
        scores: (R,) float32, 0..1.
        class_ids: (R,) int64, rows of the model's names.
        vectors: (R, D) float32, the model's own; a function of rows where others cost time; None if it has none.
        probabilities: (R, C + 1) float32, of the classes and, last, of none of them; None if it has no distribution.
    """

    boxes: Tensor
    scores: Tensor
    class_ids: Tensor
    vectors: Tensor | Callable[[Tensor], Tensor] | None = None
    probabilities: Tensor | None = None


class DetectionModel(Protocol):
    """A detector of another library.

    Attributes:
        num_classes: without background and placeholders.
        feature_dim: width of its own vectors; 0 if it has none.
        has_distribution: whether `Detections.probabilities` is given.
        describes_boxes: whether it has vectors of given boxes; then it has `describe_boxes(photo, boxes) -> Detections`
            with a row for each box, in order.
    """

    num_classes: int
    feature_dim: int
    has_distribution: bool
    describes_boxes: bool

    def describe(self) -> dict[str, Any]:
        """All that decides boxes, classes and vectors: name, digest of weights, sizes, thresholds, queries; JSON."""
        ...

    def __call__(self, photo: np.ndarray) -> Detections:
        """(height, width, 3) uint8, R, G, B."""
        ...


@dataclass(frozen=True)
class FeatureMap:
    """A map of a photo.

    Attributes:
        values: (1, C, h, w) float32.
        scale: cells for a pixel of the photo, x and y.
        offset: the photo's upper left corner in cells, x and y, where it was padded.
    """

    values: Tensor
    scale: tuple[float, float]
    offset: tuple[float, float] = (0.0, 0.0)

    def cells_of(self, boxes: Tensor) -> Tensor:
        """(K, 4) boxes in photo pixels -> in cells, of which cell i covers i..i+1."""
        return boxes * boxes.new_tensor(self.scale * 2) + boxes.new_tensor(self.offset * 2)


class VisionNetwork(Protocol):
    """A backbone of another library.

    Attributes:
        feature_dim: width of its vectors, and channels of its map.
        pools: those of `named_model.POOLS` that it can do, the usual one first.
    """

    feature_dim: int
    pools: tuple[str, ...]

    def describe(self, pool: str) -> dict[str, Any]:
        """All that decides the numbers: name, layer, digest of the weights, size and coordinate rule; JSON."""
        ...

    def feature_map(self, photo: np.ndarray) -> FeatureMap:
        """Map of a (height, width, 3) uint8 photo, R, G, B; the whole photo, nothing cut off."""
        ...

    def crop_vectors(self, crops: Sequence[np.ndarray]) -> Tensor:
        """(n, D) float32 of n pictures, each as a whole."""
        ...


@contextlib.contextmanager
def arithmetic(device: torch.device, mode: str) -> Iterator[None]:
    """Context in which networks of other libraries compute: float32, or TF32 or bfloat16 where the mode says so."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: a network of another library computes in one of {', '.join(MODES)}")
    half = torch.autocast(device.type, torch.bfloat16) if mode == "bf16" else contextlib.nullcontext()
    with torch.inference_mode(), plain_float32(device, tf32=mode == "tf32"), half:
        yield


class RegionBackbone:
    """Vectors of boxes by a network: RoIAlign on its map, or a pass for each box.

    Args:
        pool: see `NamedModel.pool`.
    Raises:
        ValueError: for a pool that the network cannot do.
    """

    def __init__(self, network: VisionNetwork, pool: str, name: str, crops_at_once: int = CROPS_AT_ONCE) -> None:
        self.network, self.pool, self._at_once = network, pool or network.pools[0], crops_at_once
        if self.pool not in network.pools:
            raise ValueError(f"--pool {pool}: {name} gives no map of the photo; take --pool {network.pools[0]}")
        self.feature_dim = network.feature_dim
        self.cell: tuple[float, float] | None = None  # width and height in pixels of the last photo, of its map

    def describe(self) -> dict[str, Any]:
        cells = {"pool": "roi", "cells": POOLED_CELLS} if self.pool == "roi" else {"pool": "crop"}
        return {**self.network.describe(self.pool), **cells}

    def __call__(self, photo: np.ndarray, boxes: Tensor) -> Tensor:
        """(K, D) float32 of (K, 4) boxes inside the (height, width, 3) uint8 R, G, B photo; K may be 0."""
        if not len(boxes):
            return boxes.new_zeros(0, self.feature_dim)
        if self.pool == "roi":
            found = self.network.feature_map(photo)
            values = found.values.float()
            self.cell = (1 / found.scale[0], 1 / found.scale[1])
            cells = found.cells_of(boxes.to(values.device))
            pooled = roi_align(values, [cells], POOLED_CELLS, sampling_ratio=-1, aligned=True)
            return pooled.mean(dim=(2, 3)).cpu()
        crops, parts = [cut_out(photo, box) for box in boxes.tolist()], list[Tensor]()
        for start in range(0, len(crops), self._at_once):
            group = crops[start : start + self._at_once]
            filled = group + group[-1:] * (self._at_once - len(group))
            parts.append(self.network.crop_vectors(filled)[: len(group)].float().cpu())
        return torch.cat(parts)


def cut_out(photo: np.ndarray, box: Sequence[float]) -> np.ndarray:
    """The photo's pixels that a box touches, at least one."""
    height, width = photo.shape[:2]
    left, top = min(int(box[0]), width - 1), min(int(box[1]), height - 1)
    right, bottom = max(int(np.ceil(box[2])), left + 1), max(int(np.ceil(box[3])), top + 1)
    return np.ascontiguousarray(photo[top:bottom, left:right])


class ModelDetector:
    """A `RegionDetector` of another library's detector: its boxes, classes and vectors.

    Args:
        selection: which of its detections are kept.
    """

    def __init__(self, model: DetectionModel, selection: SelectionPolicy, *, device: str, mode: str) -> None:
        self.model, self.selection, self.mode, self.device = model, selection, mode, torch.device(device)
        self.feature_dim, self.num_classes = model.feature_dim, model.num_classes
        self.num_attributes = 0
        self.has_distribution, self.describes_boxes = model.has_distribution, model.describes_boxes

    def __repr__(self) -> str:
        return detector_line(self, type(self.model).__name__)

    def describe(self) -> dict[str, Any]:
        """As `Detector.describe`."""
        return {
            **plain_json(self.model.describe()),
            "selection": plain_json(written_settings(self.selection)),
            "feature_dim": self.feature_dim,
            "num_classes": self.num_classes,
            "num_attributes": 0,
            "numerics": {"mode": self.mode},
        }

    def __call__(
        self,
        images: Sequence[np.ndarray],
        /,
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        """As `Detector.forward`: (height, width, 3) uint8 B, G, R, each photo by itself."""
        found = []
        for image, given in zip(images, boxes_for_each(images, boxes), strict=True):
            check_pixels(image)
            photo = np.ascontiguousarray(image[:, :, ::-1])
            with arithmetic(self.device, self.mode):
                found.append(self._one(photo, given, whole_image=whole_image))
        return found

    def _one(self, photo: np.ndarray, given: np.ndarray | None, *, whole_image: bool) -> Regions:
        image_hw = photo.shape[:2]
        boxes = None if given is None else clip_boxes(checked_boxes(given), image_hw)
        describer: Any = self.model
        if not self.describes_boxes and (boxes is not None or whole_image):
            raise ValueError("this detector has no vectors of given boxes; name a --backbone that makes them")
        found = self.model(photo) if boxes is None else describer.describe_boxes(photo, boxes)
        regions = kept_regions(self.selection, HostCopy(self._scored(found, boxes)), image_hw)
        rows, nothing = torch.from_numpy(regions.proposal_ids), torch.zeros(len(found.boxes), 0)
        odds: Any = nothing if found.probabilities is None else found.probabilities
        vectors: Any = nothing if found.vectors is None else found.vectors
        own = (vectors(rows) if callable(vectors) else vectors[rows]).float().cpu().numpy()
        regions = replace(regions, features=own, class_probabilities=odds[rows].float().cpu().numpy())
        if not whole_image:
            return regions
        whole = torch.tensor([[0.0, 0.0, image_hw[1], image_hw[0]]])
        return replace(regions, image_feature=describer.describe_boxes(photo, whole).vectors[0].float().cpu().numpy())

    def _scored(self, found: Detections, given: Tensor | None) -> ScoredRegions:
        boxes, rows = found.boxes.float().cpu(), torch.arange(len(found.boxes))
        # The score that decided at its class; selections compare these.
        scores = torch.zeros(len(boxes), self.num_classes + 1)
        scores[rows, found.class_ids.cpu()] = found.scores.float().cpu()
        return ScoredRegions(
            features=torch.zeros(len(boxes), 0),  # comes for the kept
            probabilities=scores,
            proposal_boxes=boxes,
            regressed_boxes=boxes,
            nms_boxes=boxes,
            class_boxes=boxes[:, None].expand(-1, self.num_classes, -1),
            given_boxes=given,
        )


class BackboneDetector:
    """A `RegionDetector` whose vectors are a backbone's: of the regions of another detector, or of given boxes.

    Args:
        detector: gives boxes and classes, also of given boxes; None for given boxes alone, which then have no classes.
        backbone: gives the vectors.
    """

    def __init__(self, detector: RegionDetector | None, backbone: RegionBackbone, *, device: str, mode: str) -> None:
        self.detector, self.backbone, self.mode, self.device = detector, backbone, mode, torch.device(device)
        self.feature_dim = backbone.feature_dim
        self.num_classes = 0 if detector is None else detector.num_classes
        self.num_attributes = 0 if detector is None else detector.num_attributes
        self.has_distribution = bool(getattr(detector, "has_distribution", detector is not None))

    def __repr__(self) -> str:
        boxes = "given boxes" if self.detector is None else f"boxes of {self.detector!r}"
        return detector_line(self, f"{type(self.backbone).__name__}, {boxes}")

    @property
    def conventions(self) -> Conventions | None:
        """Those of the detector, for the treatment of the EXIF orientation."""
        found: Conventions | None = getattr(self.detector, "conventions", None)
        return found

    def describe(self) -> dict[str, Any]:
        """As `Detector.describe`, with what makes the vector under "backbone", and the detector under "boxes"."""
        boxes: dict[str, Any] = {"num_classes": 0, "num_attributes": 0}
        if self.detector is not None:
            boxes = self.detector.describe()
        numerics: dict[str, Any] = boxes.pop("numerics", {})
        selection = boxes.pop("selection", None)
        turned = "applied" if self.conventions is None else self.conventions.exif_orientation  # what the backbone sees
        exif = {} if turned == "applied" else {"exif_orientation": turned}
        return {
            "backbone": plain_json(self.backbone.describe()) | {"feature_dim": self.feature_dim, **exif},
            "boxes": {name: value for name, value in boxes.items() if name != "feature_dim"},
            "selection": selection,
            "numerics": {**numerics, "mode": self.mode},
        }

    def __call__(
        self,
        images: Sequence[np.ndarray],
        /,
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        """As `ModelDetector.__call__`."""
        found = []
        for image, given in zip(images, boxes_for_each(images, boxes), strict=True):
            check_pixels(image)
            regions = self._boxes_of(image, given)
            photo = np.ascontiguousarray(image[:, :, ::-1])
            wanted = torch.from_numpy(regions.boxes)
            if whole_image:
                wanted = torch.cat([wanted, torch.tensor([[0.0, 0.0, *photo.shape[1::-1]]])])
            with arithmetic(self.device, self.mode):
                vectors = self.backbone(photo, wanted).numpy()
            whole = vectors[-1].copy() if whole_image else None
            found.append(replace(regions, features=vectors[: len(regions.boxes)], image_feature=whole))
        return found

    def _boxes_of(self, image: np.ndarray, given: np.ndarray | None) -> Regions:
        if self.detector is not None:
            (regions,) = self.detector([image], boxes=[given])
            return regions
        if given is None:
            raise ValueError("a backbone alone finds no boxes: name a detector, or give boxes")
        boxes = clip_boxes(checked_boxes(given), image.shape[:2]).numpy()
        rows, nothing = np.arange(len(boxes)), np.zeros((len(boxes), 0), np.float32)
        return Regions(boxes, nothing, 0 * rows, np.zeros(len(boxes), np.float32), None, None, nothing, rows)


def build_any_detector(
    detector: RegionDetector | NamedModel | None,
    backbone: NamedModel | None,
    selection: SelectionPolicy,
    *,
    device: str = "cpu",
    mode: str = "exact",
) -> ModelDetector | BackboneDetector:
    """The detector of opened names, with their weights.

    Args:
        detector: None beside a backbone: given boxes are described.
        backbone: None: the detector's own vectors.
    Raises:
        ValueError: for a model that does not fit, or a detector without vectors of its own and no backbone.
    """
    if isinstance(detector, NamedModel):
        model = detector.detector(device, mode)
        if backbone is None and not model.feature_dim:
            words = "add a --backbone, such as torchvision:resnet50@layer4 or hf:facebook/dinov2-base#tokens"
            raise ValueError(f"--detector {detector.name} has no vectors of its own; {words}")
        detector = ModelDetector(model, selection, device=device, mode=mode)
    if backbone is None:
        assert isinstance(detector, ModelDetector)
        return detector
    at_once = CROPS_AT_ONCE * (1 if torch.device(device).type == "cpu" else 2)
    region_backbone = RegionBackbone(backbone.backbone(device, mode), backbone.pool, backbone.name, at_once)
    return BackboneDetector(detector, region_backbone, device=device, mode=mode)


def build_detector(
    detector: str | Path | DetectorConfig | None = None,
    *,
    preset: str | None = None,
    weights: str | Path | None = None,
    conventions: str | Conventions | None = None,
    selection: str | SelectionPolicy | None = None,
    device: str | torch.device = "cpu",
    mode: str = "exact",
    given_boxes: bool = False,
    **others: Unpack[OtherModels],
) -> Detector:
    """A detector ready to run: `build_detector("toy")`, `build_detector(preset="lxmert", weights="detector.pth")`,
    `build_detector("torchvision:fasterrcnn_resnet50_fpn", weights="default", backbone="hf:facebook/dinov2-base")`.

    With a detector or a backbone of another library it is another `RegionDetector`: a `ModelDetector` or a
    `BackboneDetector`, which has no more members than the protocol.

    Args:
        detector, preset, conventions, selection: as `roibeam extract` takes them under these names, see
            `choose_detector`: a shipped detector, a detector's folder, a published extractor ("butd-10-100" by
            default) and its differing parts, or a name of another library, see `NamedModel`.
        weights: see `load_weights` and `NamedModel`; None means those of the folder.
        device: device of the computation, such as "cpu" or "cuda:0".
        mode: "exact", or a faster one that rounds more: "batched", "tf32" (CUDA), "bf16"; see `MODES`.
        given_boxes: whether it will describe given boxes alone. Then the file of a ResNet alone will do, such as
            torchvision's; the network has no classes and no attributes. With a backbone, no detector is needed.
        others: see `OtherModels`.
    Raises:
        ValueError: for an unknown name, a mode that the device does not have, or weights that are missing or do not
            fit.
    """
    given = {"preset": preset, "weights": weights, "conventions": conventions, "selection": selection}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    known |= {"device": str(device), "mode": mode}
    if not others and not is_named_model(detector):
        return build_network(detector, given_boxes=given_boxes, **known)
    return cast(Detector, _with_others(detector, known, others, given_boxes=given_boxes))


def _with_others(detector: Any, known: dict[str, Any], others: OtherModels, *, given_boxes: bool) -> object:
    takes = {"weights", "queries"} if is_named_model(detector) else {"preset", "weights", "conventions"}
    takes |= {"device", "mode", "selection"} | (
        set(OtherModels.__annotations__) - {"queries"} if "backbone" in others else set()
    )
    if wrong := sorted({*known, *others} - takes):
        raise ValueError(f"{', '.join(wrong)}: {detector or 'the detector'} takes no such argument; leave it out")
    selection, backbone = named("selection", known.get("selection", DETECTIONS), SELECTIONS), None
    if "backbone" in others:
        weights, pool = others.get("backbone_weights", ""), others.get("pool", "")
        backbone = NamedModel(others["backbone"], weights, pool=pool).opened()
    own: RegionDetector | NamedModel | None = None
    if is_named_model(detector):
        texts = read_queries(others["queries"]) if "queries" in others else ()
        own = NamedModel(detector, str(known.get("weights", "")), texts).opened()
    elif detector or known.keys() & {"preset", "weights", "conventions"} or not given_boxes:
        own = build_network(detector, given_boxes=given_boxes, **known)
    return build_any_detector(own, backbone, selection, device=known["device"], mode=known["mode"])
