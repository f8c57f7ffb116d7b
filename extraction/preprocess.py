"""A photo as pixels -> the network's input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from extraction.config import DetectorConfig
from extraction.conventions import Conventions

# The stem halves twice without padding its pool, so an input edge under 3 pixels leaves nothing. Only photos thinner
# than about 1:400 get there (the originals crash on them); their resized short edge is this.
MIN_INPUT_EDGE = 3


@dataclass(frozen=True)
class NetworkInput:
    """One photo as the network sees it.

    Attributes:
        pixels: (1, 3, height', width') float32, mean removed.
        image_hw: (height, width) of the photo, pixels.
        scale_xyxy: (4,) float32: photo pixels per network-input pixel for x1, y1, x2, y2.
    """

    pixels: Tensor
    image_hw: tuple[int, int]
    scale_xyxy: Tensor

    @property
    def input_hw(self) -> tuple[int, int]:
        """(height', width'), pixels."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])


def preprocess(
    image: np.ndarray, config: DetectorConfig, conventions: Conventions, device: torch.device | str = "cpu"
) -> NetworkInput:
    """Resizes a photo and removes the mean.

    Args:
        image: (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: if `image` is anything else.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.shape} {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f"an image must be a (height, width, 3) uint8 array in B, G, R order, got {got}")
    height, width = image.shape[:2]
    if height < 1 or width < 1:
        raise ValueError(f"an image of {height}x{width} pixels has nothing to detect")
    size = input_hw((height, width), config.short_edge, config.long_edge)
    pixels = torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1)[None].float()
    pixels = functional.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=False)
    mean = torch.tensor(conventions.pixel_mean, device=device).view(1, 3, 1, 1)
    std = torch.tensor(conventions.pixel_std, device=device).view(1, 3, 1, 1)
    # Divided in float32, as the original does: the quotient of the two sizes in float64 differs in the last digit.
    scale_yx = torch.tensor([height, width], dtype=torch.float32) / torch.tensor(size, dtype=torch.float32)
    return NetworkInput((pixels - mean) / std, (height, width), scale_yx[[1, 0, 1, 0]].to(device))


def input_hw(image_hw: tuple[int, int], short_edge: int, long_edge: int) -> tuple[int, int]:
    """Size a photo is resized to (detectron2 data/transforms/augmentation_impl.py::ResizeShortestEdge).

    Args:
        image_hw: (height, width), pixels.
    Returns:
        (height', width'), pixels, each at least MIN_INPUT_EDGE.
    """
    height, width = image_hw
    scale = short_edge * 1.0 / min(height, width)
    resized: tuple[float, float] = (scale * height, short_edge)
    if height < width:
        resized = (short_edge, scale * width)
    if max(resized) > long_edge:
        shrink = long_edge * 1.0 / max(resized)
        resized = (resized[0] * shrink, resized[1] * shrink)
    return max(int(resized[0] + 0.5), MIN_INPUT_EDGE), max(int(resized[1] + 0.5), MIN_INPUT_EDGE)
