"""Cheap statistics of a picture's file and pixels: what tells photos from logos, charts and screenshots. All ours."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

_EDGE = 192  # pixels are looked at in this size at most
_FLAT = 4  # grey levels within 3x3 pixels
NAMES = (
    "log bytes a pixel", "aspect", "log pixels", "is jpeg", "is png", "jpeg table", "has alpha", "colours",
    "commonest colour", "four commonest colours", "flat area", "edges", "strong edges", "straight edges", "saturation",
    "bright area", "brightness spread", "entropy", "noise", "even border", "two-toned blocks",
)  # fmt: skip
_UNDECODABLE = "cannot be decoded"


def picture_statistics(data: bytes) -> np.ndarray:
    """(21,) float64, in the order of `NAMES`.

    Raises:
        ValueError: for what is no picture, or one of more pixels than PIL opens without a warning.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height > (Image.MAX_IMAGE_PIXELS or 0):
                raise ValueError(f"{_UNDECODABLE}: {width:,} x {height:,} pixels")
            kind, tables = image.format, getattr(image, "quantization", None)
            alpha = image.mode in ("RGBA", "LA") or "transparency" in image.info
            if kind == "JPEG":
                image.draft("RGB", (2 * _EDGE, 2 * _EDGE))
            scale = min(1.0, _EDGE / max(image.size))
            size = (max(round(image.size[0] * scale), 8), max(round(image.size[1] * scale), 8))
            # Nearest pixels: a mean of neighbours would make every flat picture look like a photo.
            pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.NEAREST))
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{_UNDECODABLE}: {error}") from None
    table = float(np.mean(next(iter(tables.values())))) if tables else 0.0
    head = [
        np.log(len(data) / (width * height)), max(width, height) / min(width, height), np.log(width * height),
        kind == "JPEG", kind == "PNG", table, alpha,
    ]  # fmt: skip
    return np.array([*head, *_of_pixels(pixels)], np.float64)


def _of_pixels(pixels: np.ndarray) -> list[float]:
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    coarse = (pixels >> 4).astype(np.int64)
    counts = np.sort(np.bincount(((coarse[..., 0] << 8) | (coarse[..., 1] << 4) | coarse[..., 2]).ravel()))[::-1]
    kernel = np.ones((3, 3), np.uint8)
    reach = cv2.dilate(grey, kernel).astype(np.int16) - cv2.erode(grey, kernel)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    strength = np.hypot(across, down)
    edges = strength > 80
    straight = edges & (np.minimum(abs(across), abs(down)) < 0.1 * np.maximum(abs(across), abs(down)))
    saturation = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)[..., 1]
    levels = np.bincount(grey.ravel(), minlength=256) / grey.size
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    return [
        float((counts > 0).sum()), counts[0] / grey.size, counts[:4].sum() / grey.size, float((reach <= _FLAT).mean()),
        float(edges.mean()), float((strength > 400).mean()), straight.sum() / max(edges.sum(), 1),
        float(saturation.mean()), float((grey > 225).mean()), float(grey.std()),
        float(-(levels[levels > 0] * np.log2(levels[levels > 0])).sum()),
        float(np.median(np.abs(cv2.Laplacian(grey, cv2.CV_32F)))),
        float((abs(border.astype(np.int16) - int(np.median(border))) <= _FLAT).mean()), _two_toned(grey),
    ]  # fmt: skip


def _two_toned(grey: np.ndarray) -> float:
    """Share of blocks of 8x8 pixels that are nearly all dark or light, and both: letters on a ground."""
    height, width = (edge // 8 * 8 for edge in grey.shape)
    blocks = (
        grey[:height, :width].reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2).reshape(-1, 64).astype(np.int16)
    )
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    near = np.minimum(blocks - low, high - blocks) <= (high - low) // 8
    return float(((near.mean(axis=1) > 0.8) & ((high - low)[:, 0] > 90)).mean())
