"""Pictures into files: what a worker does with the scenes of a chunk, and a few pictures without a world around them.

Imports little, so that processes start quickly.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2

from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.picture import describe
from roibeam.pipelines.toyworld.rendering import render
from roibeam.pipelines.toyworld.scene import Drawing, generate


def draw_chunk(part: Path, out: Path, seed: int, first: int, last: int) -> int:
    """Writes the pictures first to last - 1 below `out`, then their scene graphs to `part`; returns their number."""
    lines = []
    for index in range(first, last):
        drawing = generate(seed, index)
        picture = describe(drawing)
        _write_jpeg(out / picture.place.dataset / picture.file_name, drawing)
        lines.append(picture.to_line())
    write_text(part, "".join(lines))
    return last - first


def draw_samples(folder: Path, *, count: int, seed: int = 0) -> Path:
    """Writes the pictures of scenes 0 to count - 1 to folder/images and a caption of each, in COCO's format, to
    folder/captions.json.

    Returns:
        The path of captions.json.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        drawing = generate(seed, index)
        name = f"sample_{index:05d}.jpg"
        _write_jpeg(folder / "images" / name, drawing)
        images.append({"id": index, "file_name": name, "height": drawing.scene.height, "width": drawing.scene.width})
        caption = describe(drawing).captions[0].text
        annotations.append({"id": index, "image_id": index, "caption": caption})
    path = folder / "captions.json"
    write_text(path, json.dumps({"images": images, "annotations": annotations}))
    return path


def _write_jpeg(path: Path, drawing: Drawing) -> None:
    pixels, quality = render(drawing)
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise OSError(f"cannot encode {path}")
    path.write_bytes(data.tobytes())
