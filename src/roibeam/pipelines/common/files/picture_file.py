"""A picture that a command draws, as a PNG file: it takes the place of an older one of ours, and of nothing else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

_KEY, _MARK = "Software", "roibeam"


def check_picture_path(path: Path) -> None:
    """Raises ValueError where `write_picture` would write nothing: to be asked before long work."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture to write must end in .png")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if os.path.lexists(path) and not _is_ours(path):
        raise ValueError(f"{path}: is there already, and roibeam did not draw it; name another file")


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """Writes aside and renames.

    Args:
        path: a .png file; one that is there must be a picture of ours.
        pixels: (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: as `check_picture_path`.
    """
    check_picture_path(path)
    told = PngInfo()
    told.add_text(_KEY, _MARK)
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1])).save(content, "PNG", pnginfo=told)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(content.getvalue())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            return picture.info.get(_KEY) == _MARK
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError):
        return False
