"""Bytes of an image file -> BGR pixels, exactly as `cv2.imread` gives them, or a reason why not.

The published extractors decode with `cv2.imread`, so its rules are the convention: EXIF orientation applied, alpha
dropped, grey and palette expanded, CMYK converted, 16 bits cut to 8, first frame of an animation. What `cv2` does not
do is refuse: it paints the missing part of a truncated JPEG grey and allocates whatever a header asks for. Both are
checked here before it decodes.
"""

from __future__ import annotations

import io
import warnings

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

# Formats that both libraries read without starting another program (Pillow's EPS would start ghostscript).
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000")
DEFAULT_MAX_PIXELS = 120_000_000
LARGEST_MAX_PIXELS = 178_956_970  # beyond this Pillow refuses on its own account: 2 x 1 GiB / 4 / 3


class DecodeError(ValueError):
    """An image that cannot be used. `reason` is a short word for counting, the message one line for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def decode_image(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> np.ndarray:
    """Decodes one image file.

    Args:
        data: the whole file.
        max_pixels: largest height x width that is decoded; checked on the header, before any pixel memory is taken.
    Returns:
        (height, width, 3) uint8, channel order B, G, R, EXIF orientation applied; equal to `cv2.imread` of the file.
    Raises:
        DecodeError: with reason "empty file", "not an image", "too many pixels", "truncated" or "undecodable".
    """
    if not data:
        raise DecodeError("empty file", "the file holds 0 bytes")
    with warnings.catch_warnings():
        # Pillow warns of large and odd files on standard error; the limits here decide instead.
        warnings.simplefilter("ignore")
        _check_header(data, max_pixels)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise DecodeError("undecodable", f"OpenCV: {str(error).strip().splitlines()[-1]}") from None
    if image is None:
        raise DecodeError("undecodable", "OpenCV could not decode it although its header looks right")
    return np.asarray(image)


def _check_header(data: bytes, max_pixels: int) -> None:
    try:
        header = Image.open(io.BytesIO(data), formats=_FORMATS)
        width, height = header.size
        if width * height > max_pixels:
            raise DecodeError("too many pixels", f"{width}x{height} is over the limit of {max_pixels} (--max-pixels)")
        if header.format == "JPEG":
            _check_jpeg_end(data)
        elif header.format == "PNG":
            header.verify()  # walks the chunks and their checksums, decodes nothing
        else:
            header.load()
    except DecodeError:
        raise
    except UnidentifiedImageError:
        starts_with = data[:16].decode("latin-1").encode("unicode_escape").decode("ascii")
        raise DecodeError("not an image", f"no known image format; it starts with '{starts_with}'") from None
    except Image.DecompressionBombError:
        raise DecodeError("too many pixels", f"over {LARGEST_MAX_PIXELS} pixels: a decompression bomb?") from None
    except Exception as error:  # Pillow raises whatever its parsers meet: OSError, SyntaxError, struct.error, ...
        raise DecodeError("truncated", f"broken or incomplete file: {error}") from None


def _check_jpeg_end(data: bytes) -> None:
    """A complete JPEG has an end marker after its first scan; inside a scan FF D9 cannot occur (ISO 10918-1, B.1.1.5).

    Thumbnails inside EXIF have end markers of their own, so the search starts behind the headers.
    """
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker == 0xDA:  # start of scan
            if data.find(b"\xff\xd9", position) < 0:
                raise DecodeError("truncated", f"JPEG without an end marker after {len(data)} bytes")
            return
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # markers without a length
            position += 2
            continue
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    raise DecodeError("truncated", f"JPEG ends within its headers after {len(data)} bytes")
