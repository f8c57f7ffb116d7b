"""What a worker does: pictures of some scenes into their folders. Imports little, so that processes start quickly."""

from __future__ import annotations

from pathlib import Path

import cv2

from pipelines.toyworld.files import write_text
from pipelines.toyworld.picture import describe
from pipelines.toyworld.render import render
from pipelines.toyworld.scene import generate


def draw_chunk(part: Path, out: Path, seed: int, first: int, last: int) -> int:
    """Writes the pictures first to last - 1 below `out`, then their scene graphs to `part`; returns their number."""
    lines = []
    for index in range(first, last):
        drawing = generate(seed, index)
        picture = describe(drawing)
        pixels, quality = render(drawing)
        path = out / picture.place.dataset / picture.file_name
        done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if not done:
            raise OSError(f"cannot encode {path}")
        path.write_bytes(data.tobytes())
        lines.append(picture.to_line())
    write_text(part, "".join(lines))
    return last - first
