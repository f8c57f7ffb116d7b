"""Images whose name cannot be a key of a store: each becomes a dead letter, so that one name ends no crawl.

They are planned like others. Their location begins with one of the words below, and whoever reads it gets the reason:

name-not-utf8:/photos/a\\xff.jpg     a file name that is not UTF-8: bytes that are none as \\xHH, a backslash as two
id-too-long:/photos/...             an id of over 511 bytes, which is cut and has the start of its SHA-256 behind it
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.photos.photo_file import PhotoReadError
from roibeam.features.record.region_record import MAX_IMAGE_ID_BYTES
from roibeam.pipelines.common.files.image_ids import is_utf8

_NOT_UTF8, _TOO_LONG = "name-not-utf8:", "id-too-long:"
_ELLIPSIS, _DIGEST_LETTERS = "...", 16


def with_usable_name(image: ImageRef) -> ImageRef:
    """The image as it is, or one with an id that can be planned, which gives a dead letter when it is read."""
    location = image.location
    if image.image_id.isascii() and location.isascii() and len(image.image_id) <= MAX_IMAGE_ID_BYTES:
        return image
    if not (is_utf8(image.image_id) and is_utf8(location)):
        location = _NOT_UTF8 + escaped_name(location)
        image = replace(image, image_id=escaped_name(image.image_id))
    data = image.image_id.encode("utf-8")
    if len(data) > MAX_IMAGE_ID_BYTES:
        location = location if location.startswith(_NOT_UTF8) else _TOO_LONG + location
        end = _ELLIPSIS + hashlib.sha256(data).hexdigest()[:_DIGEST_LETTERS]
        start = data[: MAX_IMAGE_ID_BYTES - len(end)].decode("utf-8", "ignore")
        image = replace(image, image_id=start + end)
    return image if location == image.location else replace(image, location=location)


def check_usable(location: str) -> None:
    """Raises PhotoReadError, with the reason of the dead letter, for the location of an image with no usable name."""
    if location.startswith(_NOT_UTF8):
        raise PhotoReadError("name not UTF-8", "the file's name is not UTF-8; rename it and run the same command")
    if location.startswith(_TOO_LONG):
        raise PhotoReadError(
            "id too long",
            f"an id has at most {MAX_IMAGE_ID_BYTES} bytes; give the file a shorter path and run the same command",
        )


def escaped_name(name: str) -> str:
    r"""A name as text: where it is not UTF-8, "a\b" with the byte FF behind it -> "a\\b\xff", so that its bytes can be
    told from the text; a UTF-8 name as it is."""
    if is_utf8(name):
        return name
    return "".join(map(_escaped, name))


def _escaped(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # how Python writes a byte that is no UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else letter
