"""Decoder of image files: bytes to BGR pixels, exactly as `cv2.imread` gives them, or a reason why not.

The published extractors decode with `cv2.imread`, so its rules are the convention: alpha dropped, grey and palette
expanded, CMYK converted, 16 bits cut to 8, first frame of an animation. EXIF orientation is applied, or ignored
(`IMREAD_IGNORE_ORIENTATION`) for the extractors that used Pillow. cv2 refuses nothing: it paints the missing part of a
truncated JPEG grey, allocates any size that a header states, and passes over the picture once a JPEG scan. All
three are checked here before it decodes.

Not detected, because libjpeg only warns of it: damage inside a JPEG's scan data, which gives pixels that are partly
wrong or grey. Damage in a PNG's ancillary chunks (text, gamma, EXIF) is passed over as cv2 does: it drops the chunk,
orientation included.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

# Formats that both libraries read without starting another program (Pillow's EPS would start ghostscript). PNG is
# checked here instead: Pillow calls one with a damaged text chunk no image at all.
_PILLOW_FORMATS = ("JPEG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "PPM", "JPEG2000")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEFAULT_MAX_PIXELS = 120_000_000
LARGEST_MAX_PIXELS = 178_956_970  # beyond this Pillow itself refuses: 2 x 1 GiB / 4 / 3
# Bytes of decoding for a pixel: JPEG 6 to 12, GIF 9, TIFF up to 13, others less; WebP 16 to 19, JPEG 2000 14 to 22,
# AVIF 17 to 20, with alpha 34. So a limit on pixels bounds the memory of all of them alike.
_PIXEL_WEIGHTS = {"WEBP": 2, "AVIF": 2, "JPEG2000": 2}
# Photos have 1 scan, progressive ones about 10. Each costs a pass over all pixels: thousands fit into a megabyte.
MAX_JPEG_SCANS = 100
# Those that end a scan, or have a length. Of others libjpeg skips the two bytes alone: restarts, and the reserved FF 01
# to FF BF, which it meets where it waits for a restart (jdmarker.c::jpeg_resync_to_restart) or ends with an error.
_JPEG_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
_MEMORY_PER_PIXEL = 12  # bytes that decoders take, at most: coefficients of a progressive JPEG, pixels, a turned copy
_IMREAD_FLAGS = {"applied": cv2.IMREAD_COLOR, "ignored": cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION}

# Pillow warns of large and odd files on standard error; the limits here decide instead. Set once, for Pillow's modules
# alone: warnings.catch_warnings swaps the filters of the whole process, which decoding threads would do at once.
warnings.filterwarnings("ignore", module=r"PIL\.")


class DecodeError(ValueError):
    """An unusable image. `reason` is a short word for counting, the message one line for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def decode_image(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, exif_orientation: str = "applied") -> np.ndarray:
    """Decodes one image file.

    Args:
        max_pixels: largest height x width that is decoded; checked on the header, before any pixel memory is taken.
            A pixel counts by the memory that its format takes: as 1 of a JPEG, as 2 of WebP, AVIF and JPEG 2000, as 3
            of AVIF with alpha; as 1 of all with `LARGEST_MAX_PIXELS`.
        exif_orientation: "applied", or "ignored": the pixels as they are stored (`Conventions.exif_orientation`).
    Returns:
        (height, width, 3) uint8, channel order B, G, R; equal to `cv2.imread` of the file with the flag that belongs to
        `exif_orientation`.
    Raises:
        DecodeError: with reason "empty file", "not an image", "too many pixels", "too many scans",
            "truncated", "corrupt" or "undecodable".
        MemoryError: if memory runs out, which is not the image's fault.
        ValueError: if `exif_orientation` is another word.
    """
    if exif_orientation not in _IMREAD_FLAGS:
        raise ValueError(f"exif_orientation {exif_orientation!r}: choose one of {', '.join(_IMREAD_FLAGS)}")
    check_encoded(data, max_pixels=max_pixels)
    try:
        image = cv2.imdecode(np.frombuffer(_without_profile(data), np.uint8), _IMREAD_FLAGS[exif_orientation])
    except cv2.error as error:
        if "Insufficient memory" in str(error):
            raise MemoryError("decoding this image takes more than there is") from None
        raise DecodeError("undecodable", f"OpenCV: {str(error).strip().splitlines()[-1]}") from None
    if image is None:
        _check_memory(_header_pixels(data, max_pixels))  # cv2 only returns None if its libraries got too little
        raise DecodeError("undecodable", "OpenCV could not decode it although its header looks right")
    return np.asarray(image)


def check_encoded(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> str:
    """Checks before `decode_image`: known format, pixel limit, completeness.

    Returns:
        The format as Pillow calls it: "JPEG", "MPO" (a JPEG with further pictures behind it), "PNG", "GIF", "WEBP",
        "AVIF", "BMP", "TIFF", "PPM" or "JPEG2000".
    Raises:
        DecodeError: as `decode_image`, but for "undecodable".
        MemoryError: as `decode_image`.
    """
    if not data:
        raise DecodeError("empty file", "the file holds 0 bytes")
    if data.startswith(_PNG_SIGNATURE):
        _check_png(data, max_pixels)
        return "PNG"
    return _check_with_pillow(data, max_pixels)


def image_sides(data: bytes) -> tuple[int, int]:
    """(width, height) by the header, before any rotation by EXIF; of data that passed `check_encoded`.

    Raises:
        DecodeError: "undecodable", if Pillow reads no header.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", *_PILLOW_FORMATS)) as header:
            return header.size
    except Exception as error:  # as in `_check_with_pillow`
        raise DecodeError("undecodable", f"no sides in its header: {error}") from None


def _check_with_pillow(data: bytes, max_pixels: int) -> str:
    num_pixels = 0
    try:
        header = Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS)
        _check_num_pixels(*header.size, max_pixels, _pixel_weight(header))
        num_pixels = header.width * header.height
        if header.format in ("JPEG", "MPO"):
            _check_jpeg_scans(data)
        if header.format != "JPEG":
            header.load()
        return str(header.format)
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise DecodeError("not an image", f"no known image format{_likeness(data)}") from None
    except Image.DecompressionBombError:
        raise DecodeError("too many pixels", f"over {LARGEST_MAX_PIXELS} pixels: a decompression bomb?") from None
    except Exception as error:  # Pillow raises any error of its parsers: OSError, SyntaxError, struct.error, ...
        _check_memory(num_pixels)
        raise DecodeError("truncated", f"broken or incomplete file: {error}") from None


# Beginnings of files that are no photos, in small letters. Their own bytes are never displayed: a link among the
# photos may lead to any file of this machine.
_OTHER_KINDS = (
    (b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"), (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML file"), (b"%!ps", "PostScript"), (b"%pdf", "a PDF"), (b"pk\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file"), (b"version https://git-lfs", "a pointer of Git LFS"),
)  # fmt: skip


def _likeness(data: bytes) -> str:
    start = data[:64].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    found = next((kind for prefix, kind in _OTHER_KINDS if start.startswith(prefix)), None)
    if found is None and data[4:8] == b"ftyp":
        found = "a film or a HEIC photo"
    return "" if found is None else f"; it looks like {found}"


def _pixel_weight(header: Image.Image) -> int:
    """Memory of a pixel of the format, relative to JPEG's."""
    weight = _PIXEL_WEIGHTS.get(str(header.format), 1)
    return weight + (header.format == "AVIF" and "A" in header.mode)  # its alpha is a picture of its own


def _check_num_pixels(width: int, height: int, max_pixels: int, weight: int = 1) -> None:
    if width * height > max_pixels:
        raise DecodeError("too many pixels", f"{width}x{height} is over the limit of {max_pixels} (--max-pixels)")
    if width * height * weight > max_pixels < LARGEST_MAX_PIXELS:
        raise DecodeError(
            "too many pixels",
            f"{width}x{height} is over the limit of {max_pixels} (--max-pixels): a pixel of its format counts as "
            f"{weight}",
        )


def _header_pixels(data: bytes, max_pixels: int) -> int:
    """The number of pixels by the header of a checked file; `max_pixels` if Pillow reads no header."""
    try:
        width, height = Image.open(io.BytesIO(data)).size
    except Exception:  # a PNG with an odd chunk, which the own check takes
        return max_pixels
    return int(width * height)


def _check_memory(num_pixels: int) -> None:
    """Raises MemoryError if memory for decoding so many pixels is missing. It requests the memory and touches none."""
    try:
        np.empty(_MEMORY_PER_PIXEL * num_pixels, np.uint8)
    except MemoryError:
        raise MemoryError(f"decoding this image of {num_pixels} pixels takes more than there is") from None


def _check_png(data: bytes, max_pixels: int) -> None:
    """Walks the chunks: each whole, the critical ones (upper-case first letter) with the right checksum, IEND last.

    Pixels are not decoded here: libpng refuses image data that is short or damaged inside intact chunks.
    """
    position = len(_PNG_SIGNATURE)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if not kind.isalpha():
            raise DecodeError("corrupt", f"PNG with no chunk where one should start, at byte {position}")
        body_end = position + 8 + length
        if body_end + 4 > len(data):
            break
        is_first = position == len(_PNG_SIGNATURE)
        if is_first and (kind != b"IHDR" or length != 13):
            raise DecodeError("corrupt", "PNG that does not start with its IHDR chunk")
        if kind == b"IEND":
            return
        is_critical = kind[:1].isupper()
        if is_critical and zlib.crc32(memoryview(data)[position + 4 : body_end]) != _big_endian(data, body_end, 4):
            raise DecodeError("corrupt", f"PNG with a wrong checksum in its {kind.decode()} chunk at byte {position}")
        if is_first:
            width, height = struct.unpack_from(">II", data, position + 8)
            _check_num_pixels(width, height, max_pixels)
        position = body_end + 4
    raise DecodeError("truncated", f"PNG ends within its chunks after {len(data)} bytes")


def _without_profile(data: bytes) -> bytes:
    """A PNG without its colour profile, anything else unchanged.

    cv2 makes no use of the profile, and libpng prints a line to standard error about each of the many odd ones.
    """
    if not data.startswith(_PNG_SIGNATURE) or b"iCCP" not in data:
        return data
    kept, position = [_PNG_SIGNATURE], len(_PNG_SIGNATURE)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":  # no profile stands behind it
            break
        end = position + 12 + length
        if kind != b"iCCP":
            kept.append(data[position:end])
        position = end
    return b"".join([*kept, data[position:]])


def _check_jpeg_scans(data: bytes) -> None:
    """A complete JPEG has an end marker after its first scan; inside one FF D9 cannot occur (ISO 10918-1, B.1.1.5)."""
    first = _first_jpeg_scan(data)
    if data.find(b"\xff\xd9", first) < 0:
        raise DecodeError("truncated", f"JPEG without an end marker after {len(data)} bytes")
    # Few scans for sure, or bytes to check one by one: films and pictures behind the end have FF DA too.
    if data.count(b"\xff\xda", first) > MAX_JPEG_SCANS and _has_too_many_scans(data, first):
        raise DecodeError("too many scans", f"a JPEG of over {MAX_JPEG_SCANS} scans; photos have about 10 at most")


def _has_too_many_scans(data: bytes, first: int) -> bool:
    """Goes from marker to marker as libjpeg does, up to the end marker."""
    position = first
    for _ in range(MAX_JPEG_SCANS):
        position += 2 + _big_endian(data, position + 2, 2)
        while (found := _JPEG_MARKER.search(data, position)) and found[0] not in (b"\xff\xd9", b"\xff\xda"):
            position = found.start() + 2 + max(_big_endian(data, found.start() + 2, 2), 2)
        if found is None or found[0] == b"\xff\xd9":
            return False
        position = found.start()
    return True


def _first_jpeg_scan(data: bytes) -> int:
    """Position of the first scan's marker.

    Thumbnails inside EXIF have markers of their own, so the search walks over the headers. Stray bytes between header
    segments are skipped as libjpeg skips them ("extraneous bytes before marker", jdmarker.c::next_marker).
    """
    position = 2
    while (position := data.find(b"\xff", position)) >= 0 and position + 4 <= len(data):
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD7:  # an escaped FF among stray bytes; no length follows
            position += 2
        elif marker == 0xD9:  # the end, before any scan
            break
        elif marker == 0xDA:  # start of scan
            return position
        else:
            position += 2 + _big_endian(data, position + 2, 2)
    raise DecodeError("truncated", f"JPEG ends within its headers after {len(data)} bytes")


def _big_endian(data: bytes, position: int, num_bytes: int) -> int:
    return int.from_bytes(data[position : position + num_bytes], "big")


_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height change places
_TELLING = ("JPEG", "MPO", "PNG", "GIF", "BMP", "PPM", "WEBP")  # formats whose header has the size of the pixels


def header_hw(path: str, *, exif_orientation: str) -> tuple[int, int] | None:
    """Height and width in pixels, as from `decode_image`. Raises DecodeError for anything but a photo.

    Args:
        path: of a local file; a few kilobytes of it are read.
        exif_orientation: "applied" or "ignored", as of `decode_image`.
    Returns:
        None if only decoding determines them.
    Raises:
        OSError: if it cannot be read.
    """
    # A pipe would block until another process writes into it.
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
    except Exception as error:  # Pillow raises any error of its parsers
        raise DecodeError("corrupt", f"no size in its header: {error}") from None
    return (width, height) if turned else (height, width)
