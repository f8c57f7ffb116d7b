"""Small pictures that the project draws itself, with captions that are true of them: something to run on.

Coloured shapes on a textured ground. Picture `index` depends on (seed, index) only.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

_COLOURS_BGR = {
    "red": (40, 40, 210),
    "green": (60, 160, 50),
    "blue": (200, 90, 40),
    "yellow": (50, 200, 230),
    "purple": (160, 60, 130),
    "white": (240, 240, 240),
}
_SHAPES = ("circle", "square", "triangle")
_WHERE = ("at the top left", "at the top right", "at the bottom left", "at the bottom right")


@dataclass(frozen=True)
class SamplePicture:
    """A drawn picture: (height, width, 3) uint8 BGR pixels, and one caption."""

    pixels: np.ndarray
    caption: str


def draw_picture(seed: int, index: int) -> SamplePicture:
    """Two or three shapes, one to a quarter of the picture; 200 to 320 pixels a side."""
    rng = np.random.default_rng([seed, index])
    height, width = (int(edge) for edge in rng.integers(200, 321, 2))
    ground = rng.integers(70, 190, 3)
    coarse = rng.normal(0, 18, (height // 16 + 1, width // 16 + 1, 3)).astype(np.float32)
    texture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels = np.clip(ground + texture + rng.normal(0, 4, (height, width, 3)), 0, 255).astype(np.uint8)
    phrases = []
    for quarter in sorted(rng.permutation(4)[: int(rng.integers(2, 4))].tolist()):
        colour = str(rng.choice(list(_COLOURS_BGR)))
        shape = str(rng.choice(_SHAPES))
        centre = (
            int(width * (0.25 + 0.5 * (quarter % 2)) + rng.integers(-8, 9)),
            int(height * (0.25 + 0.5 * (quarter // 2)) + rng.integers(-8, 9)),
        )
        _draw_shape(pixels, shape, centre, int(min(height, width) * rng.uniform(0.12, 0.2)), _COLOURS_BGR[colour])
        phrases.append(f"a {colour} {shape} {_WHERE[quarter]}")
    return SamplePicture(pixels, " and ".join(phrases))


def write_samples(folder: Path, *, count: int, seed: int = 0) -> Path:
    """Writes `count` JPEGs to folder/images and their captions, in COCO's format, to folder/captions.json.

    Returns:
        The path of captions.json.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        picture = draw_picture(seed, index)
        name = f"sample_{index:05d}.jpg"
        if not cv2.imwrite(os.fspath(folder / "images" / name), picture.pixels, [cv2.IMWRITE_JPEG_QUALITY, 92]):
            raise OSError(f"cannot write {folder / 'images' / name}")
        height, width = picture.pixels.shape[:2]
        images.append({"id": index, "file_name": name, "height": height, "width": width})
        annotations.append({"id": index, "image_id": index, "caption": picture.caption})
    path = folder / "captions.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}), encoding="utf-8")
    return path


def _draw_shape(
    pixels: np.ndarray, shape: str, centre: tuple[int, int], radius: int, colour: tuple[int, int, int]
) -> None:
    x, y = centre
    if shape == "circle":
        cv2.circle(pixels, centre, radius, colour, thickness=-1, lineType=cv2.LINE_AA)
    elif shape == "square":
        cv2.rectangle(pixels, (x - radius, y - radius), (x + radius, y + radius), colour, thickness=-1)
    else:
        corners = np.array([[x, y - radius], [x - radius, y + radius], [x + radius, y + radius]], np.int32)
        cv2.fillPoly(pixels, [corners], colour, lineType=cv2.LINE_AA)
