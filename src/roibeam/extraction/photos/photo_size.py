"""The size that a photo will have when it is decoded, from its header alone."""

from __future__ import annotations

import stat
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from roibeam.extraction.photos.decode import DecodeError

_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height change places
_TELLING = ("JPEG", "MPO", "PNG", "GIF", "BMP", "PPM", "WEBP")  # formats whose header has the size of the pixels


def header_hw(path: str, *, exif_orientation: str) -> tuple[int, int] | None:
    """Height and width in pixels, as `decode_image` will give them.

    Args:
        path: of a local file; a few kilobytes of it are read.
        exif_orientation: "applied" or "ignored", as of `decode_image`.
    Returns:
        None where only decoding tells.
    Raises:
        DecodeError: for what is no photo.
        OSError: if it cannot be read.
    """
    # A pipe would be waited for until somebody writes into it.
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError("not a regular file")
    try:
        with Image.open(path) as header:
            kind, (width, height), has_exif = header.format, header.size, "exif" in header.info
            if kind not in _TELLING or (has_exif and kind not in ("JPEG", "MPO")):
                return None
            turned = has_exif and exif_orientation == "applied" and header.getexif().get(_ORIENTATION, 1) >= 5
    except UnidentifiedImageError:
        raise DecodeError("not an image", "no known image format") from None
    except OSError:
        raise
    except Exception as error:  # Pillow raises whatever its parsers meet
        raise DecodeError("corrupt", f"no size in its header: {error}") from None
    return (width, height) if turned else (height, width)
