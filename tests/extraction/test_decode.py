"""Decoding: pixels as cv2.imread gives them, and a true reason for everything that is refused."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from extraction.decode import DecodeError, decode_image

AWKWARD_REASONS = {
    "html_404_named.jpg": "not an image",
    "text_named.jpg": "not an image",
    "truncated.jpg": "truncated",
    "zero_bytes.jpg": "empty file",
}


def test_awkward_files_decode_as_cv2_imread_or_give_a_reason(shared_data: Path) -> None:
    folder = shared_data / "images" / "awkward"
    refused = {}
    for entry in json.loads((folder / "index.json").read_text()):
        data = (folder / entry["file"]).read_bytes()
        if not entry["decodes"]:
            with pytest.raises(DecodeError) as error:
                decode_image(data)
            refused[entry["file"]] = error.value.reason
            continue
        expected = cv2.imread(str(folder / entry["file"]))
        assert expected is not None
        difference = np.abs(decode_image(data).astype(int) - expected.astype(int))
        assert difference.max() <= 1, entry["file"]
    assert refused == AWKWARD_REASONS


def test_exif_orientation_is_applied(shared_data: Path) -> None:
    folder = shared_data / "images" / "awkward"
    assert decode_image((folder / "exif_orientation_6.jpg").read_bytes()).shape == (640, 407, 3)


def picture(format_: str, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format_, **options)
    return file.getvalue()


FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("GIF", {}),
    ("WEBP", {}),
    ("BMP", {}),
    ("TIFF", {}),
]


@pytest.mark.parametrize(("format_", "options"), FORMATS)
def test_every_cut_of_a_file_is_refused_with_a_reason(format_: str, options: dict[str, object]) -> None:
    data = picture(format_, **options)
    assert decode_image(data).shape == (40, 60, 3)
    for share in (0.02, 0.1, 0.3, 0.6, 0.9, 0.97):
        with pytest.raises(DecodeError) as error:
            decode_image(data[: int(len(data) * share)])
        assert error.value.reason in ("truncated", "not an image", "undecodable")


def test_end_marker_of_an_embedded_thumbnail_does_not_hide_a_truncation() -> None:
    file = io.BytesIO()
    whole = picture("JPEG")
    Image.open(io.BytesIO(whole)).save(file, "JPEG", comment=b"thumbnail \xff\xd9 inside a header")
    data = file.getvalue()
    assert decode_image(data).shape == (40, 60, 3)
    with pytest.raises(DecodeError, match="end marker"):
        decode_image(data[:-200])


def test_bytes_after_the_end_are_no_reason_to_refuse() -> None:
    assert decode_image(picture("JPEG") + b"\0" * 100).shape == (40, 60, 3)


def test_pixel_limit_is_checked_on_the_header() -> None:
    with pytest.raises(DecodeError, match="60x40 is over the limit of 2399") as error:
        decode_image(picture("PNG"), max_pixels=2399)
    assert error.value.reason == "too many pixels"
    assert decode_image(picture("PNG"), max_pixels=2400).shape == (40, 60, 3)
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    )
    with pytest.raises(DecodeError, match="decompression bomb") as error:
        decode_image(bomb)
    assert error.value.reason == "too many pixels"


def test_postscript_is_not_handed_to_an_interpreter() -> None:
    with pytest.raises(DecodeError) as error:
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    assert error.value.reason == "not an image"
