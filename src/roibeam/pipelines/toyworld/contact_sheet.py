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
from roibeam.pipelines.toyworld.scene import MAX_EDGE
from roibeam.pipelines.toyworld.world import CATEGORIES

_COLUMNS = 4
_TEXT_HEIGHT = 128
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_LINE_CHARACTERS = 60
_MAX_LINES = 9
_CATEGORIES = list(CATEGORIES)


def write_contact_sheet(path: Path, entries: Sequence[tuple[Picture, np.ndarray]], *, jpeg_quality: int = 80) -> None:
    """Writes a JPEG with four pictures in a row, their boxes with category, and captions below.

    Args:
        entries: pictures with their (height, width, 3) uint8 BGR pixels.
    """
    cells = [_cell(picture, pixels) for picture, pixels in entries]
    blank = np.full_like(cells[0], 255)
    cells += [blank] * (-len(cells) % _COLUMNS)
    rows = [np.hstack(cells[start : start + _COLUMNS]) for start in range(0, len(cells), _COLUMNS)]
    done, data = cv2.imencode(".jpg", np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality])
    if not done:
        raise OSError(f"cannot encode {path}")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data.tobytes())
    os.replace(temporary, path)


def _cell(picture: Picture, pixels: np.ndarray) -> np.ndarray:
    cell = np.full((MAX_EDGE + _TEXT_HEIGHT, MAX_EDGE + 8, 3), 255, np.uint8)
    height, width = pixels.shape[:2]
    cell[:height, :width] = _with_boxes(picture, pixels)
    lines = [line for caption in picture.captions for line in wrap(f"- {caption.text}", _LINE_CHARACTERS)]
    for place, line in enumerate(lines[:_MAX_LINES]):
        cv2.putText(cell, line, (2, height + 13 + 14 * place), _FONT, 0.36, (0, 0, 0), 1, cv2.LINE_AA)
    return cell


def _with_boxes(picture: Picture, pixels: np.ndarray) -> np.ndarray:
    things = picture.scene.objects
    corners = [(x, y, x + width, y + height) for x, y, width, height in (thing.box for thing in things)]
    return draw_regions(
        pixels,
        np.array(corners, np.float32).reshape(-1, 4),
        labels=[f"{thing.category}{' (ignored)' if thing.ignored else ''}" for thing in things],
        class_ids=np.array([_CATEGORIES.index(thing.category) for thing in things], np.int64),
        scores=np.zeros(len(things)),
        max_regions=len(things),
    )
