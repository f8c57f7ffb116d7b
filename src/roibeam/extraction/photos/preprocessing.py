"""Preprocessing: a photo as pixels becomes the network's input; regions hidden in it get the mean colour.

The mean colour is zero after normalising.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions

# The stem halves twice without padding its pool, so an input edge under 3 pixels leaves nothing. Only photos thinner
# than about 1:400 get there (the originals crash on them); their resized short edge is this.
MIN_INPUT_EDGE = 3


@dataclass(frozen=True)
class PhotoScale:
    """Scale between photo pixels and network-input pixels.

    Attributes:
        factors_xyxy: (4,) float32.
        divides: whether a box goes to the photo by dividing by the factors (Caffe's one factor), else by multiplying:
            the last digits of a box depend on it.
    """

    factors_xyxy: Tensor
    divides: bool

    def to_photo(self, boxes: Tensor) -> Tensor:
        """(..., 4) network-input pixels -> photo pixels."""
        return boxes / self.factors_xyxy if self.divides else boxes * self.factors_xyxy

    def to_network(self, boxes: Tensor) -> Tensor:
        """(..., 4) photo pixels -> network-input pixels."""
        return boxes * self.factors_xyxy if self.divides else boxes / self.factors_xyxy


@dataclass(frozen=True)
class NetworkInput:
    """One photo as the network sees it.

    Attributes:
        pixels: (1, 3, H, W) float32, mean removed, zeros at the right and bottom if the conventions pad.
        input_hw: (height', width') of the resized photo, without padding, pixels.
        image_hw: (height, width) of the photo, pixels.
        factor: network-input pixels per photo pixel, before the edges were rounded.
        scale: boxes to the photo and back.
    """

    pixels: Tensor
    input_hw: tuple[int, int]
    image_hw: tuple[int, int]
    factor: float
    scale: PhotoScale


@dataclass(frozen=True, eq=False)
class ResizedPhoto:
    """A photo after the work of decoding threads: without torch, whose threads would get in the way of the network's.

    Attributes:
        pixels: (h, w, 3) uint8 or float32 in the network's channel order, of the size of the network's input; of
            the photo if the conventions resize on the device.
        image_hw, input_hw, factor: as of `NetworkInput`.
    """

    pixels: np.ndarray
    image_hw: tuple[int, int]
    input_hw: tuple[int, int]
    factor: float


def preprocess(
    image: np.ndarray, config: DetectorConfig, conventions: Conventions, device: torch.device | str = "cpu"
) -> NetworkInput:
    """Resizes a photo, (height, width, 3) uint8 in B, G, R order, and removes the mean."""
    return network_input(resize_photo(image, config, conventions), conventions, device)


def resize_photo(image: np.ndarray, config: DetectorConfig, conventions: Conventions) -> ResizedPhoto:
    """The first half of `preprocess`."""
    check_pixels(image)
    image_hw = (image.shape[0], image.shape[1])
    if conventions.channel_order == "rgb":
        image = image[:, :, ::-1]
    size, factor = input_size(image_hw, config.short_edge, config.long_edge, conventions)
    if conventions.resize_mean == "before":
        image = _subtract_mean(image, conventions)
    return ResizedPhoto(np.ascontiguousarray(_resize(image, size, factor, conventions)), image_hw, size, factor)


def network_input(photo: ResizedPhoto, conventions: Conventions, device: torch.device | str = "cpu") -> NetworkInput:
    """The second half of `preprocess`, on the device."""
    pixels = on_device(torch.from_numpy(photo.pixels), device).permute(2, 0, 1)[None].float()
    if conventions.resize == "float-bilinear":
        pixels = functional.interpolate(pixels, photo.input_hw, mode="bilinear", align_corners=False, antialias=False)
    mean, std = (_channels(values, str(pixels.device)) for values in (conventions.pixel_mean, conventions.pixel_std))
    pixels = pixels / std if conventions.resize_mean == "before" else (pixels - mean) / std
    below, right = (-edge % conventions.padding_multiple for edge in photo.input_hw)
    if below or right:
        pixels = functional.pad(pixels, (0, right, 0, below))
    if conventions.box_scale == "one-factor":
        scale = PhotoScale(torch.full((4,), photo.factor, dtype=torch.float32, device=device), divides=True)
    else:
        scale = scale_per_axis(photo.image_hw, photo.input_hw, device)
    return NetworkInput(pixels, photo.input_hw, photo.image_hw, photo.factor, scale)


def check_pixels(image: object) -> None:
    """Raises ValueError if `image` is not a (height, width, 3) uint8 array of at least one pixel."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.shape} {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f"an image must be a (height, width, 3) uint8 array in B, G, R order, got {got}")
    if 0 in image.shape:
        raise ValueError(f"an image of {image.shape[0]}x{image.shape[1]} pixels is empty")


def input_size(
    image_hw: tuple[int, int], short_edge: int, long_edge: int, conventions: Conventions
) -> tuple[tuple[int, int], float]:
    """Size that a photo is resized to, (height', width'), each at least MIN_INPUT_EDGE; and the factor before rounding.

    Args:
        short_edge: wanted short edge, pixels; long_edge: limit of the other.
    """
    shorter, longer = min(image_hw), max(image_hw)
    if conventions.long_edge_rule.startswith("short-"):
        # jackroos/VL-BERT pretrain/data/transforms/transforms.py; maskrcnn_benchmark/data/transforms/transforms.py
        whole_short = int if conventions.long_edge_rule == "short-truncated" else round
        short = whole_short(long_edge * shorter / longer) if longer / shorter * short_edge > long_edge else short_edge
        edges: tuple[float, float] = (short * image_hw[0] / shorter, short * image_hw[1] / shorter)
        factor = short / shorter
    elif conventions.long_edge_rule == "rounded":  # py-faster-rcnn lib/fast_rcnn/test.py::_get_image_blob
        factor = short_edge / shorter
        if round(factor * longer) > long_edge:
            factor = long_edge / longer
        edges = (image_hw[0] * factor, image_hw[1] * factor)
    else:  # detectron2 data/transforms/augmentation_impl.py::ResizeShortestEdge
        factor = short_edge * 1.0 / shorter
        # The short edge is the requested one itself: factor * shorter could miss it by the last digit.
        edges = (short_edge, factor * image_hw[1]) if image_hw[0] < image_hw[1] else (factor * image_hw[0], short_edge)
        if max(edges) > long_edge:
            shrink = long_edge * 1.0 / max(edges)
            edges, factor = (edges[0] * shrink, edges[1] * shrink), factor * shrink
    rounding: dict[str, Callable[[float], int]] = {
        "half-up": lambda v: int(v + 0.5),
        "half-to-even": round,
        "truncate": int,
    }
    whole = rounding[conventions.resized_edge_rounding]
    return (max(whole(edges[0]), MIN_INPUT_EDGE), max(whole(edges[1]), MIN_INPUT_EDGE)), factor


def _subtract_mean(image: np.ndarray, conventions: Conventions) -> np.ndarray:
    """(height, width, 3) uint8 -> float32, each difference rounded once; by table, to save a float64 image."""
    differences = np.arange(256)[:, None] - np.asarray(conventions.pixel_mean)[None]
    table = differences.astype(np.float32)
    return np.stack([table[image[:, :, channel], channel] for channel in range(3)], axis=2)


def _resize(image: np.ndarray, size: tuple[int, int], factor: float, conventions: Conventions) -> np.ndarray:
    """(height, width, 3) uint8 or float32 -> (height', width', 3), or unchanged if it is resized on the device."""
    height, width = size
    if conventions.resize == "float-bilinear":
        return image
    if conventions.resize == "pil-bilinear":
        photo = Image.fromarray(np.ascontiguousarray(image))
        return np.array(photo.resize((width, height), Image.Resampling.BILINEAR))
    floats = np.ascontiguousarray(image, dtype=np.float32)
    if (round(image.shape[0] * factor), round(image.shape[1] * factor)) == size:
        # By factor, as the original: cv2 then samples in steps of 1 / factor, not of the quotient of the rounded sizes.
        return cv2.resize(floats, None, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
    # MIN_INPUT_EDGE or another rounding rule decides an edge; by factor cv2 would refuse to leave no pixels.
    return cv2.resize(floats, (width, height), interpolation=cv2.INTER_LINEAR)


def scale_per_axis(image_hw: tuple[int, int], input_hw: tuple[int, int], device: torch.device | str) -> PhotoScale:
    """Divided in float32, as the originals do: the quotient of the two sizes in float64 differs in the last digit."""
    scale_yx = torch.tensor(image_hw, dtype=torch.float32) / torch.tensor(input_hw, dtype=torch.float32)
    return PhotoScale(on_device(scale_yx[[1, 0, 1, 0]], device), divides=False)


def on_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on the device, without waiting for a GPU's queued work, unlike a plain copy."""
    if torch.device(device).type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@functools.cache
def _channels(values: tuple[float, ...], device: str) -> Tensor:
    """(1, 3, 1, 1) float32, made once: each transfer of numbers waits for a GPU."""
    with torch.inference_mode(False):  # training may use it too
        return torch.tensor(values, dtype=torch.float32, device=device).view(1, 3, 1, 1)


def blank_regions(pixels: Tensor, boxes: Tensor) -> Tensor:
    """A copy of one network input with the given boxes blanked.

    jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py: rows int(y1) to int(y2) and columns int(x1) to
    int(x2), last ones included. Other regions that overlap a blanked box lose the same pixels.

    Args:
        pixels: (3, H, W) or (1, 3, H, W) float32, mean removed.
        boxes: (n, 4), x1 y1 x2 y2 in pixels of the input; parts outside are left out.
    """
    blanked = pixels.clone()
    for box in boxes.tolist():
        blanked[..., *_pixels_of(box)] = 0
    return blanked


def blank_photo(photo: np.ndarray, boxes: np.ndarray, conventions: Conventions) -> np.ndarray:
    """A copy of a photo with the given boxes in the mean colour, rounded to whole levels.

    Before the resize, so that no content of a box gets mixed into the pixels beside it. The box itself is not exactly
    zero then: the network's input is blanked as well.

    Args:
        photo: (height, width, 3) uint8, channel order B, G, R.
        boxes: (n, 4), x1 y1 x2 y2 in its pixels; rows and columns as in `blank_regions`.
    """
    mean = np.rint(conventions.pixel_mean).astype(np.uint8)
    blanked = photo.copy()
    for box in boxes.tolist():
        blanked[_pixels_of(box)] = mean[::-1] if conventions.channel_order == "rgb" else mean
    return blanked


def _pixels_of(box: list[float]) -> tuple[slice, slice]:
    """Rows and columns of the pixels of a box."""
    x1, y1, x2, y2 = (max(int(edge), -1) for edge in box)
    return slice(max(y1, 0), y2 + 1), slice(max(x1, 0), x2 + 1)
