"""A page of pictures with boxes and captions, to look at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import cv2
import numpy as np

from roibeam.features.record.drawing.region_drawing import draw_regions
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.world import CATEGORIES

_COLUMNS = 3
_WIDTH, _GAP, _MARGIN = 1280, 20, 24  # pixels, of the sheet, between pictures, and around them
_TALLEST = 440
_FONT, _TITLE_FONT, _LABEL_FONT = 14, 24, 15
_LINE = 19
_LETTERS_PER_PX = 0.145  # of Pillow's own font at `_FONT`
_INK, _QUIET = (31, 27, 36), (112, 100, 91)
_CATEGORIES = list(CATEGORIES)


def write_contact_sheet(
    path: Path, entries: Sequence[tuple[Picture, np.ndarray]], *, title: str = "Toy world", jpeg_quality: int = 80
) -> None:
    """Writes a JPEG: three pictures in a row, as high as each other, their boxes with category, and below each its data
    set, split, file and captions.

    Args:
        entries: pictures with their (height, width, 3) uint8 BGR pixels.
        title: over the sheet.
    """
    rows = [_row(entries[start : start + _COLUMNS]) for start in range(0, len(entries), _COLUMNS)]
    sheet = np.vstack([_title(title), *rows])
    done, data = cv2.imencode(".jpg", sheet, [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality])
    if not done:
        raise OSError(f"cannot encode {path}")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data.tobytes())
    os.replace(temporary, path)


def _title(title: str) -> np.ndarray:
    strip = np.full((_MARGIN + _TITLE_FONT + 20, _WIDTH, 3), 255, np.uint8)
    return _written(strip, [(_MARGIN, _MARGIN, title, _TITLE_FONT, _INK)])


def _row(entries: Sequence[tuple[Picture, np.ndarray]]) -> np.ndarray:
    """Pictures of one height, as wide together as the sheet."""
    room = _WIDTH - 2 * _MARGIN - _GAP * (len(entries) - 1)
    height = min(int(room / sum(pixels.shape[1] / pixels.shape[0] for _, pixels in entries)), _TALLEST)
    texts: list[tuple[int, int, str, int, tuple[int, int, int]]] = []
    left, lowest, drawn = _MARGIN, 0, []
    for picture, pixels in entries:
        width = max(round(pixels.shape[1] * height / pixels.shape[0]), 1)
        drawn.append((left, _with_boxes(picture, pixels, (height, width))))
        y = height + 6
        for line, colour in _told(picture, width):
            texts.append((left, y, line, _FONT, colour))
            y += _LINE
        left, lowest = left + width + _GAP, max(lowest, y)
    cell = np.full((lowest + _GAP, _WIDTH, 3), 255, np.uint8)
    for x, shown in drawn:
        cell[:height, x : x + shown.shape[1]] = shown
    return _written(cell, texts)


def _told(picture: Picture, width: int) -> list[tuple[str, tuple[int, int, int]]]:
    """Lines below a picture."""
    letters = max(int(width * _LETTERS_PER_PX), 12)
    place = f"{picture.place.dataset}, {picture.place.split}: {Path(picture.file_name).name}"
    lines = [(line, _QUIET) for line in wrap(place, letters)]
    return lines + [(line, _INK) for each in picture.captions for line in wrap(f"- {each.text}", letters)]


def _written(pixels: np.ndarray, texts: Sequence[tuple[int, int, str, int, tuple[int, int, int]]]) -> np.ndarray:
    """With lines of text: left, top, text, size in pixels, colour (B, G, R)."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(pixels)  # Pillow does not care what the three channels are
    draw = ImageDraw.Draw(image)
    for x, y, text, size, colour in texts:
        draw.text((x, y), text, font=ImageFont.load_default(size), fill=colour)
    return np.array(image)


def _with_boxes(picture: Picture, pixels: np.ndarray, image_hw: tuple[int, int]) -> np.ndarray:
    things = picture.scene.objects
    height, width = image_hw
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    scale_x, scale_y = width / pixels.shape[1], height / pixels.shape[0]
    corners = [
        (x * scale_x, y * scale_y, (x + across) * scale_x, (y + down) * scale_y)
        for x, y, across, down in (thing.box for thing in things)
    ]
    return draw_regions(
        resized,
        np.array(corners, np.float32).reshape(-1, 4),
        labels=[f"{thing.category}{' (ignored)' if thing.ignored else ''}" for thing in things],
        class_ids=np.array([_CATEGORIES.index(thing.category) for thing in things], np.int64),
        scores=np.zeros(len(things)),
        max_regions=len(things),
        smallest_font_px=_LABEL_FONT,
    )
