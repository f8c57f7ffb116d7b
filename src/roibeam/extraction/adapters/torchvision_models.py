"""Detectors and classification networks of torchvision: `torchvision:NAME` and `torchvision:NAME@LAYER`.

A detector is torchvision's own, with its resize and its post-processing. Those with a region head (Faster, Mask and
Keypoint R-CNN) have vectors: the output of `box_head` at a box, pooled from the level that their pooler chooses. A
backbone is a node of the network's graph. Weights are "default", torchvision's, a file of a `state_dict`, or
"random:SEED": torchvision's initialisation under that seed.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.transform import resize_boxes
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names
from torchvision.models.vision_transformer import interpolate_embeddings
from torchvision.ops import FrozenBatchNorm2d, clip_boxes_to_image

from roibeam.extraction.adapters.any_detector import Detections, FeatureMap
from roibeam.extraction.network.state import random_seed, weights_digest
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.extraction.weights.sources import container_of, fetch_weights
from roibeam.features.folders.durable_files import sha256_of
from roibeam.messages import name_hint, printable

DETECTORS = tuple(list_models(module=torchvision.models.detection))
NETWORKS = tuple(list_models(module=torchvision.models))
_LONGEST_SIDE = 800  # of a photo in a convolutional network
_PLACEHOLDERS = ("__background__", "no person", "N/A")
# What torchvision's builders change for weights: each a fact of the function of that name.
_ARGUMENTS: dict[str, dict[str, bool]] = {
    name: {"aux_logits": True, "transform_input": True, "init_weights": False} for name in ("googlenet", "inception_v3")
}
_NO_EPSILON = tuple(f"{name}_resnet50_fpn" for name in ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet"))
# Weights whose first side is classes, times anchors.
_CLASS_HEADS = (
    "roi_heads.box_predictor.cls_score.weight",
    *(f"head.classification_head.{name}.weight" for name in ("cls_logits", "module_list.0", "module_list.0.1")),
)


def open_model(model: NamedModel) -> NamedModel:
    """See `NamedModel.opened`: "default" becomes a URL, weights are fetched, and layers are looked up."""
    if model.target not in DETECTORS + NETWORKS:
        hint = name_hint(model.target, DETECTORS + NETWORKS)
        raise ValueError(f"{model.name}: torchvision has no detector or classification network of that name; {hint}")
    if model.target in NETWORKS:
        _check_layer(model)
    elif model.part:
        raise ValueError(f"{model.name}: a detector takes no layer; write torchvision:{model.target}")
    if not model.weights:
        raise ValueError(f"{model.name}: name its weights: default (torchvision's, are fetched), FILE, or random:SEED")
    if model.weights == "default":
        model = replace(model, weights=_entry(model).url)
    if random_seed(model.weights) is None:
        container_of(_weight_file(model))
    return model


def class_names(model: NamedModel) -> tuple[str, ...] | None:
    """See `NamedModel.names`."""
    skeleton = _skeleton(_checked_detector(model))
    is_own = random_seed(model.weights) is not None or model.weights == _entry(model).url
    state = skeleton.state_dict() if is_own else _file_tensors(model)
    return _classes(model, _num_classes(model.target, state), skeleton)[1]


def load_detector(model: NamedModel, device: str, _mode: str) -> TorchvisionDetector:
    """See `NamedModel.detector`."""
    _checked_detector(model)
    network, digest = _network(model)
    kind = RegionHeadDetector if isinstance(network, GeneralizedRCNN) else TorchvisionDetector
    return kind(model, network.to(device), digest)


def load_backbone(model: NamedModel, device: str, _mode: str) -> TorchvisionBackbone:
    """See `NamedModel.backbone`."""
    if model.target not in NETWORKS:
        raise ValueError(f"{model.name} is no classification network; a backbone is one such as resnet50@layer4")
    return TorchvisionBackbone(model, *_network(model), device)


class TorchvisionDetector:
    """A `DetectionModel` without vectors: RetinaNet, FCOS, SSD."""

    feature_dim = 0
    has_distribution = False
    describes_boxes = False

    def __init__(self, model: NamedModel, network: Any, digest: str) -> None:
        self._network, self._name, self._digest = network, model.name, digest
        self._device = next(network.parameters()).device
        self._num_outputs = _num_classes(model.target, network.state_dict())
        self._labels, _ = _classes(model, self._num_outputs, network)
        self.num_classes = len(self._labels)
        self._ids = torch.full((self._num_outputs,), -1, device=self._device)
        self._ids[self._labels] = torch.arange(self.num_classes, device=self._device)
        transform = network.transform
        if model.longest_side and transform.fixed_size:
            raise ValueError(f"{model.name} takes photos of {transform.fixed_size[0]} pixels; leave longest_side out")
        if model.longest_side:
            transform.min_size, transform.max_size = (model.longest_side,), model.longest_side
        # Below autocast, torchvision would make anchors and boxes of bfloat16, pixels apart.
        for name, part in network.named_modules():
            if name in ("backbone", "head", "rpn.head", "roi_heads.box_predictor"):
                part.register_forward_hook(lambda _module, _inputs, output: tree_map(Tensor.float, output))

    def describe(self) -> dict[str, Any]:
        transform = self._network.transform
        rules = getattr(self._network, "roi_heads", self._network)
        thresholds = ("score_thresh", "nms_thresh", "topk_candidates", "detections_per_img")
        sides = {"shortest_side": transform.min_size[-1], "longest_side": transform.max_size}
        epsilons = {getattr(module, "eps", None) for module in self._network.modules()} - {None}
        return {
            "detector": self._name,
            "weights": self._digest,
            "norm_epsilons": sorted(epsilons),
            "input": {"square": transform.fixed_size[0]} if transform.fixed_size else sides,
            "pixels": {"mean": list(transform.image_mean), "std": list(transform.image_std), "resize": "bilinear"},
            "thresholds": {name: getattr(rules, name) for name in thresholds if hasattr(rules, name)},
            "classes": {"outputs": self._num_outputs, "kept": self._labels},
        }

    def __call__(self, photo: np.ndarray) -> Detections:
        (found,) = self._network([self._pixels(photo)])
        return self._kept(Detections(found["boxes"], found["scores"], found["labels"]))

    def _pixels(self, photo: np.ndarray) -> Tensor:
        return torch.from_numpy(photo).to(self._device).permute(2, 0, 1).float() / 255

    def _kept(self, found: Detections) -> Detections:
        """Without detections of placeholders; labels become ids."""
        ids = self._ids[found.class_ids]
        rows = ids >= 0
        odds = None if found.probabilities is None else found.probabilities[rows]
        return Detections(found.boxes[rows], found.scores[rows], ids[rows], None, odds)


class RegionHeadDetector(TorchvisionDetector):
    """A `DetectionModel` of Faster, Mask or Keypoint R-CNN; masks and keypoints are not computed."""

    has_distribution = True
    describes_boxes = True

    def __init__(self, model: NamedModel, network: Any, digest: str) -> None:
        super().__init__(model, network, digest)
        self.feature_dim = network.roi_heads.box_predictor.cls_score.in_features

    def __call__(self, photo: np.ndarray) -> Detections:
        heads = self._network.roi_heads
        images, maps = self._maps(photo)
        proposals, _ = self._network.rpn(images, maps)
        logits, shifts = heads.box_predictor(self._vectors(images, maps, proposals[0]))
        found = heads.postprocess_detections(logits, shifts, proposals, images.image_sizes)
        boxes, scores, labels = (parts[0] for parts in found)
        # The proposal of a detection is that with its box and score.
        odds = logits.softmax(-1)
        moved = clip_boxes_to_image(heads.box_coder.decode(shifts, proposals), images.image_sizes[0])
        same = (scores[:, None] == odds[:, labels].T) & (moved[:, labels].transpose(0, 1) == boxes[:, None]).all(-1)
        kept = self._kept(Detections(boxes, scores, labels, None, self._distribution(odds[same.int().argmax(1)])))
        boxes = resize_boxes(kept.boxes, images.image_sizes[0], photo.shape[:2])
        return replace(kept, boxes=boxes, vectors=lambda rows: self._vectors(images, maps, kept.boxes[rows]))

    def describe_boxes(self, photo: np.ndarray, boxes: Tensor) -> Detections:
        """Vector, class and score of each box of the photo."""
        images, maps = self._maps(photo)
        resized = resize_boxes(boxes.to(self._device, torch.float32), photo.shape[:2], images.image_sizes[0])
        vectors = self._vectors(images, maps, resized)
        odds = self._distribution(self._network.roi_heads.box_predictor(vectors)[0].softmax(-1))
        scores, ids = odds[:, :-1].max(dim=1)
        return Detections(boxes, scores, ids, vectors, odds)

    def _maps(self, photo: np.ndarray) -> tuple[Any, dict[str, Tensor]]:
        images, _ = self._network.transform([self._pixels(photo)])
        # torchvision's pooler keeps the scales of the first photo, which a narrow one gets wrong for all after it.
        self._network.roi_heads.box_roi_pool.scales = None
        return images, self._network.backbone(images.tensors)

    def _vectors(self, images: Any, maps: dict[str, Tensor], boxes: Tensor) -> Tensor:
        heads = self._network.roi_heads
        vectors: Tensor = heads.box_head(heads.box_roi_pool(maps, [boxes], images.image_sizes))
        return vectors.float()

    def _distribution(self, odds: Tensor) -> Tensor:
        """Background and placeholders come last, as one."""
        rest = [label for label in range(self._num_outputs) if label not in self._labels]
        return torch.cat([odds[:, self._labels], odds[:, rest].sum(dim=1, keepdim=True)], dim=1)


class _Layer(NamedTuple):
    kind: str  # "nchw", "nhwc", "tokens" or "vector"
    width: int  # numbers of a vector, or channels
    stride: int = 1  # pixels of a cell
    offset: float = 0.0  # cells; a network without padding has a smaller map, in the middle of the photo
    square: int = 0  # the one size of input, pixels a side; 0 for any
    before: int = 0  # tokens before those of the map


class TorchvisionBackbone:
    """A `VisionNetwork`: a layer of a classification network."""

    def __init__(self, model: NamedModel, network: nn.Module, digest: str, device: str) -> None:
        transforms = _entry(model).transforms()
        self._name, self._digest = model.name, digest
        image_size = getattr(network, "image_size", None)  # of ViT
        crop = image_size or transforms.crop_size[0]
        sizes = {"image_size": image_size} if image_size else {}
        self._layer = _layer(crop, _skeleton(model.target, **sizes), model.part)
        if self._layer.square and model.longest_side not in (0, self._layer.square):
            raise ValueError(f"{model.name} takes pictures of {self._layer.square} pixels; leave longest_side out")
        self._longest_side = model.longest_side or _LONGEST_SIDE
        self._square = self._layer.square or model.longest_side or crop
        self._resample = transforms.interpolation.value
        self._scaling = {"mean": list(transforms.mean), "std": list(transforms.std)}
        self._mean, self._std = (torch.tensor(row)[:, None, None] for row in self._scaling.values())
        self._network = _extractor(network, model.part).to(device)
        self._device = torch.device(device)
        self.feature_dim = self._layer.width
        self.pools = ("crop",) if self._layer.kind == "vector" else ("roi", "crop")

    def describe(self, pool: str) -> dict[str, Any]:
        is_square = pool == "crop" or self._layer.square
        described = {
            "backbone": self._name,
            "weights": self._digest,
            "input": {"square": self._square} if is_square else {"longest_side": self._longest_side},
            "pixels": {**self._scaling, "resize": f"Pillow {self._resample}"},
        }
        coordinates = {"stride": self._layer.stride, "offset": self._layer.offset}
        return described if pool == "crop" else {**described, "coordinates": coordinates}

    def feature_map(self, photo: np.ndarray) -> FeatureMap:
        height, width = photo.shape[:2]
        ratio = self._longest_side / max(height, width)
        resized_wh = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        if self._layer.square:
            resized_wh = (self._square, self._square)
        values = self._output([self._pixels(photo, resized_wh)])
        # By the stride, not by the width of the map: its last cells may reach beyond the photo.
        across, down = resized_wh[0] / width / self._layer.stride, resized_wh[1] / height / self._layer.stride
        return FeatureMap(values, (across, down), (self._layer.offset, self._layer.offset))

    def crop_vectors(self, crops: Sequence[np.ndarray]) -> Tensor:
        found = self._output([self._pixels(crop, (self._square, self._square)) for crop in crops])
        return found if self._layer.kind == "vector" else found.mean(dim=(2, 3))

    def _pixels(self, picture: np.ndarray, size_wh: tuple[int, int]) -> Tensor:
        resized = Image.fromarray(picture).resize(size_wh, Image.Resampling[self._resample.upper()])
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255
        return (pixels - self._mean) / self._std

    def _output(self, pictures: list[Tensor]) -> Tensor:
        found: Tensor = self._network(torch.stack(pictures).to(self._device))["layer"].float()
        if self._layer.kind == "vector":
            return found.flatten(1)
        if self._layer.kind == "nhwc":
            return found.permute(0, 3, 1, 2)
        if self._layer.kind == "tokens":
            side = self._layer.square // self._layer.stride
            return found[:, self._layer.before :].transpose(1, 2).unflatten(2, (side, side))
        return found


def _checked_detector(model: NamedModel) -> str:
    if model.target not in DETECTORS:
        raise ValueError(f"{model.name} is no detector of torchvision; there are {', '.join(DETECTORS)}")
    return model.target


def _entry(model: NamedModel) -> Any:
    """torchvision's description of the weights: of its own by their URL, else of its default ones."""
    known = get_model_weights(model.target)
    return next((entry for entry in known if entry.url == model.weights), known.DEFAULT)


def _weight_file(model: NamedModel) -> Path:
    path = fetch_weights(model.weights)
    named = re.search(r"-([0-9a-f]{8,64})\.pth$", model.weights)
    if named and model.weights == _entry(model).url:
        digest = sha256_of(path)
        if not digest.startswith(named[1]):
            problem = f"SHA-256 is {digest}, torchvision names {named[1]}"
            raise ValueError(f"weights {model.weights}: {problem}; remove {path} and fetch it again")
    return path


def _file_tensors(model: NamedModel) -> dict[str, Any]:
    """Under the names of today: torchvision's files of DenseNet have older ones, which no network loads."""
    found = read_tensors(_weight_file(model))
    return {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", name): found[name] for name in found}


def _build(name: str, *, seed: int = 0, **arguments: Any) -> Any:
    if name in DETECTORS:
        arguments["weights_backbone"] = None
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of GoogLeNet and Inception, about their initialisation
        torch.manual_seed(seed)
        return get_model(name, weights=None, **_ARGUMENTS.get(name, {}), **arguments).eval()


def _skeleton(name: str, **arguments: Any) -> Any:
    """The network without numbers."""
    try:
        with torch.device("meta"):
            return _build(name, **arguments)
    except NotImplementedError:  # RegNet computes its widths with tensors
        return _build(name, **arguments).to("meta")


def _num_classes(name: str, state: dict[str, Any]) -> int:
    """Classes of a network as its tensors have them, background included; the default where they do not fit."""
    known = _skeleton(name).state_dict()
    default = len(get_model_weights(name).DEFAULT.meta["categories"])
    last = [entry for entry in known if entry.endswith(".weight")][-1]
    head = next((entry for entry in _CLASS_HEADS if entry in known), last)
    shape = known[head].shape
    found = getattr(state.get(head), "shape", shape)
    # The other sides must fit: a small file must not make a network of a million classes.
    return max(1, found[0] // (shape[0] // default)) if found[1:] == shape[1:] else default


def _classes(model: NamedModel, outputs: int, network: nn.Module) -> tuple[list[int], tuple[str, ...] | None]:
    """Outputs that are classes, in id order, and their names."""
    # The first output of a softmax is background; with sigmoids, it is if it is called so.
    every = list(range(0 if isinstance(network, RetinaNet | FCOS) else 1, outputs))
    known = _entry(model).meta["categories"]
    named = [label for label in every if known[label] not in _PLACEHOLDERS] if len(known) == outputs else every
    if model.class_names is None:
        return named, tuple(known[label] for label in named) if len(known) == outputs else None
    for labels in (named, every, list(range(1, outputs))):
        if len(labels) == len(model.class_names):
            return labels, model.class_names
    raise ValueError(f"{model.name}: {len(model.class_names)} class names for a network of {len(named)} classes")


def _network(model: NamedModel) -> tuple[Any, str]:
    """The network with its weights, and their digest."""
    name, seed = model.target, random_seed(model.weights)
    patch = getattr(_skeleton(name), "patch_size", 0)  # of ViT, whose positions are for one size
    if patch and model.longest_side % patch:
        raise ValueError(f"{model.name}: longest_side {model.longest_side} is no multiple of its patch, {patch}")
    if seed is not None:
        sizes = {"image_size": model.longest_side} if patch and model.longest_side else {}
        network = _build(name, seed=seed, **sizes)
        if name in DETECTORS:
            _balance(network)
        return network, weights_digest(network.state_dict())
    found = _file_tensors(model)
    arguments = {"num_classes": _num_classes(name, found)}
    shape = tuple(getattr(found.get("encoder.pos_embedding"), "shape", ()))
    if patch and len(shape) == 3:
        arguments["image_size"] = patch * math.isqrt(max(1, shape[1] - 1))
    state = _checked(model, found, _skeleton(name, **arguments))
    digest = weights_digest(state)
    if patch and model.longest_side not in (0, arguments["image_size"]):
        arguments["image_size"] = model.longest_side
        state = interpolate_embeddings(model.longest_side, patch, OrderedDict(state))
    network = _build(name, **arguments)
    if name in DETECTORS and not any(entry.endswith("num_batches_tracked") for entry in found):
        _freeze(network, 0.0 if name in _NO_EPSILON else 1e-5)
    for entry in [entry for entry, value in state.items() if not value.is_floating_point()]:
        del state[entry]  # indices are the network's own
    network.load_state_dict(state, strict=False)
    return network, digest


def _checked(model: NamedModel, found: dict[str, Any], skeleton: nn.Module) -> dict[str, Tensor]:
    """The tensors of a file under today's names, if they are exactly those of the network, and finite."""
    state = OrderedDict(found)
    # MNASNet asks for the version of its layout, which is no tensor; those of others are known by their names.
    state._metadata = {"": {"version": getattr(skeleton, "_version", None)}}  # type: ignore[attr-defined]
    try:
        skeleton.load_state_dict(state, assign=True)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        problem = printable(" ".join(str(error).split()), 500)
        raise ValueError(f"weights {model.weights} do not fit {model.name}: {problem}") from None
    loaded = skeleton.state_dict()
    for name, value in loaded.items():
        if value.layout is not torch.strided or not bool(torch.isfinite(value).all()):
            raise ValueError(f"weights {model.weights}: {printable(name)} has NaN or infinity, or is no plain tensor")
    return loaded


def _freeze(network: nn.Module, epsilon: float) -> None:
    """Norms as torchvision's builders make them for trained weights: such files have no counters of batches."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, FrozenBatchNorm2d(child.num_features, epsilon))


def _balance(network: Any) -> None:
    """Scales random weights by powers of two, which are equal on every machine, so that activations stay in range,
    scores differ, and boxes are neither the photo nor nothing."""
    hooks: dict[nn.Module, Any] = {}

    def scale(module: Any, inputs: Any, output: Tensor, *, spread: float) -> Tensor:
        hooks.pop(module).remove()
        if spread != 1 and module.weight.shape[1] > 1:  # so that positive inputs do not make all scores alike
            module.weight.sub_(module.weight.double().mean(dim=1, keepdim=True).float())
            output = module(*inputs)
        module.weight.mul_(2.0 ** round(math.log2(spread / max(float(output.std()), 1e-6))))
        again: Tensor = module(*inputs)
        return again

    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            kinds = {"cls_": 2.0, "classification_head.module_list": 2.0, "bbox_": 0.3, "regression_head.module": 0.3}
            spread = next((value for part, value in kinds.items() if part in name), 1.0)
            hooks[module] = module.register_forward_hook(functools.partial(scale, spread=spread))
    if isinstance(network, FCOS):
        network.head.regression_head.bbox_reg.bias.data.fill_(2.0)  # distances to the sides, in strides
    transform = network.transform
    sides = transform.min_size, transform.max_size
    transform.min_size, transform.max_size = (256,), 256
    with torch.no_grad():
        coarse = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
        network([coarse.repeat_interleave(16, 1).repeat_interleave(16, 2)])
    transform.min_size, transform.max_size = sides
    for hook in hooks.values():  # of masks where nothing was found
        hook.remove()


def _extractor(network: nn.Module, layer: str) -> nn.Module:
    found: nn.Module = create_feature_extractor(network, {layer: "layer"}, suppress_diff_warning=True).eval()
    return found


def _check_layer(model: NamedModel) -> None:
    skeleton, crop = _skeleton(model.target), _entry(model).transforms().crop_size[0]
    nodes = get_graph_node_names(skeleton, suppress_diff_warning=True)[1]
    if model.part and any(f"{node}.".startswith(f"{model.part}.") for node in nodes):
        _layer(getattr(skeleton, "image_size", crop), skeleton, model.part)
        return
    parts = [node.split(".") for node in nodes[1:]]  # the first is the input
    layers = list(dict.fromkeys(".".join(part[:2] if part[0] == "features" else part[:1]) for part in parts))
    layers = [layer for layer in layers if hasattr(skeleton, layer.partition(".")[0])]  # modules, no operations
    fits = next(layer for layer in reversed(layers) if _layer(crop, skeleton, layer).kind != "vector")
    problem = f"has no layer {printable(model.part)!r}" if model.part else "is a backbone only with a layer"
    raise ValueError(f"{model.name} {problem}; write torchvision:{model.target}@{fits}; it has {', '.join(layers)}")


def _layer(crop: int, skeleton: nn.Module, name: str) -> _Layer:
    """Output of a layer, from its shapes for pictures; one of `crop` pixels a side surely fits."""
    extractor = _extractor(skeleton, name)

    def shape(height: int, width: int) -> tuple[int, ...]:
        return tuple(extractor(torch.empty(1, 3, height, width, device="meta"))["layer"].shape)

    try:
        square = shape(crop, crop)
    except AttributeError:
        raise ValueError(f"layer {name} gives no tensor; name the layer after it") from None
    try:
        skeleton(torch.empty(1, 3, 1024, 2048, device="meta"))
        wide, tall = shape(1024, 2048), shape(2048, 1024)
    except (RuntimeError, AssertionError):
        wide, tall = (), ()  # it takes one size
    if len(square) == 2 or (len(square) == 4 and wide == tall != ()):
        return _Layer("vector", math.prod(square[1:]))
    if len(square) == 4:
        kind, at = ("nchw", 2) if square[2] == square[3] else ("nhwc", 1)
        if not wide:
            return _Layer(kind, square[3 - at], crop // square[at], square=crop)
        stride = 1024 // (wide[at + 1] - wide[at])
        return _Layer(kind, square[1 if at == 2 else 3], stride, (wide[at + 1] - 2048 / stride) / 2)
    patch = getattr(skeleton, "patch_size", 0)
    before = square[1] - (crop // patch) ** 2 if patch and len(square) == 3 else -1
    if before < 0 or square[2] != skeleton.hidden_dim:
        raise ValueError(f"layer {name} gives {square[1:]}, which is no map, no tokens and no vector; name another")
    return _Layer("tokens", square[2], patch, square=crop, before=before)
