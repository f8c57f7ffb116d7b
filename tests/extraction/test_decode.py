"""Decoding: pixels as cv2.imread gives them, and a true reason for everything that is refused."""

import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from roibeam.extraction.photos.decode import DecodeError, decode_image

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF")
AWKWARD_REASONS = {
    "html_404_named.jpg": "not an image",
    "text_named.jpg": "not an image",
    "truncated.jpg": "truncated",
    "zero_bytes.jpg": "empty file",
}


def refusal(data: bytes, words: str | None = None, **options: Any) -> str:
    """The reason for which these bytes are refused, in these words."""
    with pytest.raises(DecodeError, match=words) as error:
        decode_image(data, **options)
    return error.value.reason


def test_awkward_files_decode_as_cv2_imread_or_give_a_reason(shared_data: Path) -> None:
    folder = shared_data / "images" / "awkward"
    refused = {}
    for entry in json.loads((folder / "index.json").read_text()):
        data = (folder / entry["file"]).read_bytes()
        if not entry["decodes"]:
            refused[entry["file"]] = refusal(data)
            continue
        expected = cv2.imread(str(folder / entry["file"]))
        assert expected is not None
        difference = np.abs(decode_image(data).astype(int) - expected.astype(int))
        assert difference.max() <= 1, entry["file"]
    assert refused == AWKWARD_REASONS


def test_exif_orientation_is_applied_or_ignored(shared_data: Path) -> None:
    folder = shared_data / "images" / "awkward"
    for name, upright_hw, quarter_turns in (
        ("exif_orientation_6.jpg", (640, 407), 3),
        ("exif_orientation_3.jpg", (391, 408), 2),
    ):
        data = (folder / name).read_bytes()
        applied, stored = decode_image(data), decode_image(data, exif_orientation="ignored")
        assert applied.shape[:2] == upright_hw
        np.testing.assert_array_equal(np.rot90(stored, quarter_turns), applied)
        with Image.open(folder / name) as opened:  # what the extractors that ignore the tag decode with
            pixels = np.asarray(opened.convert("RGB"))[:, :, ::-1]
        assert np.abs(stored.astype(int) - pixels.astype(int)).max() <= 1


def test_exif_orientation_of_other_formats_is_ignored_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for format_ in ("PNG", "WEBP"):
        data = picture(format_, exif=exif)
        assert decode_image(data).shape == (60, 40, 3)
        assert decode_image(data, exif_orientation="ignored").shape == (40, 60, 3)
    with pytest.raises(ValueError, match="'turned': choose one of applied, ignored"):
        decode_image(b"", exif_orientation="turned")


def png_chunk(kind: bytes, body: bytes, *, is_damaged: bool = False) -> bytes:
    checksum = zlib.crc32(kind + body) ^ is_damaged
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def insert(data: bytes, position: int, extra: bytes) -> bytes:
    return data[:position] + extra + data[position:]


def picture(format_: str, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format_, **options)
    return file.getvalue()


@pytest.mark.parametrize("is_progressive, format_", [(True, "JPEG"), *((False, kind) for kind in FORMATS)])
def test_every_cut_of_a_file_is_refused_with_a_reason(format_: str, is_progressive: bool) -> None:
    data = picture(format_, progressive=is_progressive)
    assert decode_image(data).shape == (40, 60, 3)
    for share in (0.02, 0.1, 0.3, 0.6, 0.9, 0.97):
        assert refusal(data[: int(len(data) * share)]) in ("truncated", "not an image", "undecodable")


def test_end_marker_of_an_embedded_thumbnail_does_not_hide_a_truncation() -> None:
    file = io.BytesIO()
    whole = picture("JPEG")
    Image.open(io.BytesIO(whole)).save(file, "JPEG", comment=b"thumbnail \xff\xd9 inside a header")
    data = file.getvalue()
    assert decode_image(data).shape == (40, 60, 3)
    assert refusal(data[:-200], "end marker") == "truncated"


def test_bytes_after_the_end_are_no_reason_to_refuse() -> None:
    assert decode_image(picture("JPEG") + b"\0" * 100).shape == (40, 60, 3)


def test_avif_is_decoded_as_cv2_imread_decodes_it(tmp_path: Path) -> None:
    (tmp_path / "a.avif").write_bytes(picture("AVIF"))
    np.testing.assert_array_equal(decode_image(picture("AVIF")), cv2.imread(str(tmp_path / "a.avif")))


@pytest.mark.parametrize(
    ("before", "stray"),
    [
        (b"\xff\xda", b"\0\0"),  # before the scan
        (b"\xff\xda", b"\x12\x34"),
        (b"\xff\xda", b"\xff\0\x11"),  # an escaped FF is no marker
        (b"\xff\xdb", b"\0\0\0\0"),  # before a quantisation table
    ],
)
def test_stray_bytes_between_jpeg_segments_are_skipped_as_libjpeg_does(before: bytes, stray: bytes) -> None:
    whole = picture("JPEG")
    data = insert(whole, whole.index(before), stray)
    np.testing.assert_array_equal(decode_image(data), decode_image(whole))
    assert refusal(data[:-200], "end marker") == "truncated"


def test_end_marker_before_any_scan_does_not_make_a_jpeg_complete() -> None:
    whole = picture("JPEG")
    assert refusal(insert(whole, whole.index(b"\xff\xda"), b"\xff\xd9"), "ends within its headers") == "truncated"


def test_cut_scan_with_an_end_marker_appended_is_not_detected() -> None:
    # Stated in the module's docstring: libjpeg repairs it with a warning, so cv2 and Pillow both hand out the picture.
    assert decode_image(picture("JPEG")[:-200] + b"\xff\xd9").shape == (40, 60, 3)


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"eXIf", b"gAMA", b"abCd"])
def test_png_with_a_damaged_ancillary_chunk_decodes(kind: bytes) -> None:
    whole = picture("PNG")
    damaged = png_chunk(kind, b"a\0hello", is_damaged=True)
    for position in (33, len(whole) - 12):  # after IHDR, before IEND
        data = insert(whole, position, damaged)
        np.testing.assert_array_equal(decode_image(data), decode_image(whole))
        assert refusal(data[:-10], "PNG ends within its chunks") == "truncated"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda png: png[:29] + bytes([png[29] ^ 1]) + png[30:], "wrong checksum in its IHDR chunk at byte 8"),
        (lambda png: png[:60] + bytes([png[60] ^ 1]) + png[61:], "wrong checksum in its IDAT chunk at byte 33"),
        (lambda png: insert(png, 33, b"\0\0"), "no chunk where one should start, at byte 33"),
        (lambda png: png[:8] + png[33:], "does not start with its IHDR"),
    ],
)
def test_png_with_a_damaged_critical_chunk_is_corrupt(make: Callable[[bytes], bytes], words: str) -> None:
    assert refusal(make(picture("PNG")), words) == "corrupt"


def test_png_that_lost_image_data_inside_intact_chunks_is_refused() -> None:
    header = struct.pack(">IIBBBBB", 60, 40, 8, 2, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(bytes(3000)))  # of 40 x 181 bytes
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")
    assert refusal(png) == "undecodable"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_odd_colour_profile_changes_no_pixel_and_prints_no_line(capfd: Any, is_damaged: bool) -> None:
    plain = picture("PNG")
    odd = insert(plain, 33, png_chunk(b"iCCP", b"odd\0\0" + zlib.compress(b"no profile" * 20), is_damaged=is_damaged))
    expected = cv2.imdecode(np.frombuffer(odd, np.uint8), cv2.IMREAD_COLOR)
    assert "libpng warning: iCCP" in capfd.readouterr().err  # what is kept from the user's terminal
    np.testing.assert_array_equal(decode_image(odd), expected)
    np.testing.assert_array_equal(expected, decode_image(plain))
    assert capfd.readouterr().err == ""


def test_decoding_threads_leave_the_warning_filters_alone_and_print_no_warning() -> None:
    # In a process of its own: pytest has filters too, and drops those that are set while it collects.
    script = """
import io, sys, warnings
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from roibeam.extraction.photos.decode import decode_image

class Swapped(Exception): pass
def swap(*args, **options): raise Swapped
file = io.BytesIO()
Image.new("RGB", (60, 40)).save(file, "JPEG")
Image.MAX_IMAGE_PIXELS = 2000  # so that Pillow warns of these 2400 pixels
before = list(warnings.filters)
warnings.catch_warnings = swap
with ThreadPoolExecutor(4) as pool:
    shapes = set(image.shape for image in pool.map(decode_image, [file.getvalue()] * 50))
assert shapes == {(40, 60, 3)}, shapes
assert list(warnings.filters) == before
warnings.warn("of others is still shown")
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "DecompressionBombWarning" not in done.stderr and "of others is still shown" in done.stderr


def test_pixel_limit_is_checked_on_the_header() -> None:
    assert refusal(picture("PNG"), "60x40 is over the limit of 2399", max_pixels=2399) == "too many pixels"
    assert decode_image(picture("PNG"), max_pixels=2400).shape == (40, 60, 3)
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    bmp = bytearray(picture("BMP"))
    bmp[18:26] = struct.pack("<ii", 20_000, 20_000)
    assert refusal(png, "20000x20000 is over the limit") == "too many pixels"
    assert refusal(bytes(bmp), "decompression bomb") == "too many pixels"


def progressive(scans: int, mode: str = "RGB") -> bytes:
    """A small progressive JPEG whose last scan is there so often that it has `scans` in all."""
    stream = io.BytesIO()
    Image.new(mode, (16, 16), 90).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:last] + data[last:end] * (scans - data.count(b"\xff\xda") + 1) + data[end:]


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded() -> None:
    assert decode_image(progressive(100)).shape == (16, 16, 3)
    for bomb in (progressive(101), progressive(3000)):
        assert refusal(bomb, "over 100 scans") == "too many scans"


def test_scans_behind_reserved_markers_are_counted_as_libjpeg_decodes_them() -> None:
    data = progressive(101)
    last = data.rindex(b"\xff\xda")
    for marker in (0x02, 0x5A, 0xBF, 0x01, 0xD3):  # libjpeg skips these two bytes alone where it waits for a restart
        hiding = data[:last] + bytes([0xFF, marker, 0xF0, 0xF0]) + data[last:]
        assert refusal(hiding, "over 100 scans") == "too many scans"
    comment = b"\xff\xfe" + (2 + 4 * 101).to_bytes(2, "big") + b"\xff\xda\x00\x02" * 101
    once = progressive(12)
    assert decode_image(insert(once, once.rindex(b"\xff\xda"), comment)).shape == decode_image(once).shape


@pytest.mark.parametrize(
    "kind, mode, weight",
    [("JPEG", "RGB", 1), ("PNG", "RGBA", 1), *((kind, "RGB", 2) for kind in ("WEBP", "JPEG2000", "AVIF")),
     ("AVIF", "RGBA", 3)],
)  # fmt: skip
def test_a_pixel_counts_by_the_memory_that_its_format_takes(kind: str, mode: str, weight: int) -> None:
    file = io.BytesIO()
    Image.new(mode, (40, 30)).save(file, kind)
    assert decode_image(file.getvalue(), max_pixels=1200 * weight).shape == (30, 40, 3)
    assert refusal(file.getvalue(), "limit of", max_pixels=1200 * weight - 1) == "too many pixels"


def test_pictures_behind_the_first_one_hide_no_scans_and_add_none() -> None:
    stream = io.BytesIO()
    one = Image.new("RGB", (16, 16), 90)
    one.save(stream, "MPO", save_all=True, append_images=[one], progressive=True)
    assert decode_image(stream.getvalue()).shape == (16, 16, 3)
    data = stream.getvalue()
    bomb = progressive(200)  # the first picture of an MPO is decoded twice
    bomb = data[: data.index(b"\xff\xda")] + bomb[bomb.index(b"\xff\xda") :]
    assert refusal(bomb, "over 100 scans") == "too many scans"
    # What a camera puts behind the end is no scan.
    assert decode_image(progressive(20) + b"\xff\xda" * 500).shape == (16, 16, 3)


@pytest.mark.slow
def test_memory_that_runs_out_is_no_fault_of_the_image() -> None:
    child = """
import io, resource
import numpy as np
from PIL import Image
from roibeam.extraction.photos.decode import DecodeError, decode_image
files, picture = {}, Image.new("RGB", (4000, 4000), 90)
for name, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("BMP", {})):
    stream = io.BytesIO()
    picture.save(stream, name, **options)
    files[name, *options] = stream.getvalue()
del picture
decode_image(files["JPEG",])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 20 * 2**20, -1))
for name, data in files.items():
    try:
        decode_image(data)
    except MemoryError:
        print("memory")
"""
    run = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert run.stdout.split() == ["memory"] * 4, run.stderr


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"root:x:0:0:root:/root:/bin/sh\n", "no known image format"),
        (b" \n<!DOCTYPE html><title>404</title>", "no known image format; it looks like an HTML page"),
        (b"PK\x03\x04secret", "no known image format; it looks like a zip archive"),
        (b"\0\0\0\x18ftypheic", "no known image format; it looks like a film or a HEIC photo"),
    ],
)
def test_what_is_no_image_is_told_without_its_bytes(data: bytes, words: str) -> None:
    """A link among the photos may lead to any file of the machine, and dead letters are passed on."""
    with pytest.raises(DecodeError) as error:
        decode_image(data)
    assert str(error.value) == words


def test_postscript_is_not_handed_to_an_interpreter() -> None:
    assert refusal(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n") == "not an image"
