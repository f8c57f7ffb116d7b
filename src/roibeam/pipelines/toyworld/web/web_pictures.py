"""The pictures of pages: scenes of the toy world in any size, and what is no photo at all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import cv2
import numpy as np

from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.rendering import render
from roibeam.pipelines.toyworld.scene import Drawing

SMALLEST_EDGE, LARGEST_EDGE = 100, 800
RULE_PX = 300  # the paper keeps what has more both ways
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WORDS = ("Summer", "Total", "Save", "Open", "North", "Menu", "Value", "Point", "Series", "Result", "Daily", "Index")


def natural_size(stream: IntegerStream, height: int, width: int, *, small: bool) -> tuple[int, int]:
    """(height, width) of 100 to 800 pixels in about the shape of the scene; more than 300 both ways, or, if `small`,
    at most 300 one way or both."""
    shorter = stream.between(SMALLEST_EDGE, RULE_PX) if small else stream.between(RULE_PX + 1, 540)
    longer = max(height, width) * shorter // min(height, width)
    longer = min(max(longer, shorter), LARGEST_EDGE)
    return (shorter, longer) if height <= width else (longer, shorter)


def natural_picture(drawing: Drawing, size_hw: tuple[int, int]) -> np.ndarray:
    """(height, width, 3) uint8 BGR: the scene as the toy world draws it, resized."""
    pixels, _ = render(drawing)
    height, width = size_hw
    way = cv2.INTER_AREA if height < pixels.shape[0] else cv2.INTER_CUBIC
    return cv2.resize(pixels, (width, height), interpolation=way)


def unnatural_picture(sort: str, stream: IntegerStream, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8 BGR.

    Args:
        sort: "logo", "chart", "screenshot", "banner" or "diagram".
    """
    canvas = np.full((height, width, 3), _light(stream), np.uint8)
    _DRAW[sort](canvas, stream)
    return _scanned(canvas, stream) if stream.percent(50) else canvas


def _scanned(canvas: np.ndarray, stream: IntegerStream) -> np.ndarray:
    """As from paper: a little blurred, noisy, unevenly lit. Else a single glance at the noise would tell photos."""
    height, width = canvas.shape[:2]
    light = np.array([stream.between(200, 255) for _ in range(4)], np.uint8).reshape(2, 2)
    shade = cv2.cvtColor(cv2.resize(light, (width, height), interpolation=cv2.INTER_LINEAR), cv2.COLOR_GRAY2BGR)
    picture = cv2.GaussianBlur(cv2.multiply(canvas, shade, scale=1 / 255), (3, 3), 0.7)
    noise = np.random.PCG64(stream.below(1 << 30)).random_raw(-(-picture.size // 8)).view(np.uint8)[: picture.size]
    strength = stream.between(3, 5)  # bits to lose: 2 to 31 grey levels
    return cv2.add(picture, (noise >> strength).reshape(picture.shape))


def encoded(pixels: np.ndarray, extension: str, quality: int) -> bytes:
    """The file's bytes; `quality` is JPEG's."""
    done, data = cv2.imencode(extension, pixels, [cv2.IMWRITE_JPEG_QUALITY, quality] if extension == ".jpg" else [])
    if not done:
        raise OSError(f"cannot encode a picture of {pixels.shape} as {extension}")
    return data.tobytes()


def _light(stream: IntegerStream) -> tuple[int, int, int]:
    grey = stream.between(215, 255)
    return grey, grey - stream.below(12), grey - stream.below(12)


def _strong(stream: IntegerStream) -> tuple[int, int, int]:
    return stream.between(10, 200), stream.between(10, 200), stream.between(10, 200)


def _word(canvas: np.ndarray, stream: IntegerStream, left: int, bottom: int, scale: float) -> None:
    cv2.putText(canvas, stream.pick(_WORDS), (left, bottom), _FONT, scale, _strong(stream), 1 + int(scale), cv2.LINE_AA)


def _logo(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    radius = min(height, width) // stream.between(4, 6)
    cv2.circle(canvas, (width // 2, height // 3), radius, _strong(stream), -1, cv2.LINE_AA)
    cv2.circle(canvas, (width // 2, height // 3), radius * 2 // 3, _light(stream), -1, cv2.LINE_AA)
    points = [(width // 2 + stream.between(-radius, radius) // 2, height // 3 + stream.between(-radius, radius) // 2)]
    cv2.circle(canvas, points[0], radius // 3, _strong(stream), -1, cv2.LINE_AA)
    _word(canvas, stream, width // 5, height * 4 // 5, width / 220)


def _chart(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    count, colour = stream.between(4, 12), _strong(stream)
    floor, step = height - 40, (width - 60) // count
    for row in range(5):
        level = floor - row * (floor - 40) // 5
        cv2.line(canvas, (45, level), (width - 10, level), (200, 200, 200), 1)
        cv2.putText(canvas, str(row * 20), (8, level), _FONT, 0.45, (60, 60, 60), 1, cv2.LINE_AA)
    for bar in range(count):
        top = floor - stream.between(20, max(floor - 50, 21))
        cv2.rectangle(canvas, (50 + bar * step, top), (50 + bar * step + step * 2 // 3, floor), colour, -1)
    cv2.line(canvas, (45, floor), (width - 10, floor), (30, 30, 30), 2)
    _word(canvas, stream, width // 3, 28, 0.8)


def _screenshot(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    cv2.rectangle(canvas, (0, 0), (width, 26), _strong(stream), -1)
    for line in range(44, height - 20, 22):
        if stream.percent(85):
            words = " ".join(stream.pick(_WORDS).lower() for _ in range(stream.between(2, max(width // 70, 3))))
            cv2.putText(canvas, words, (14, line), _FONT, 0.45, (40, 40, 40), 1, cv2.LINE_AA)
    for button in range(stream.between(1, 3)):
        left = width - 110 * (button + 1)
        cv2.rectangle(canvas, (left, height - 34), (left + 96, height - 8), _strong(stream), 1)
        _word(canvas, stream, left + 8, height - 15, 0.5)


def _banner(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    first, last = np.array(_strong(stream)), np.array(_strong(stream))
    share = np.arange(width)[None, :, None] * 256 // width
    canvas[...] = (first * (256 - share) + last * share) // 256
    for row in range(stream.between(2, 4)):
        words = f"{stream.pick(_WORDS)} {stream.pick(_WORDS)}"
        bottom = height * (row + 1) // 5
        cv2.putText(canvas, words, (width // 14, bottom), _FONT, width / 330, (250, 250, 250), 3, cv2.LINE_AA)


def _diagram(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    middles = [
        (width * (1 + column) // 4, height * (1 + row) // 4) for row in range(3) for column in range(3)
        if stream.percent(65)
    ]  # fmt: skip
    for start, end in pairwise(middles):
        cv2.arrowedLine(canvas, start, end, (60, 60, 60), 2, cv2.LINE_AA, tipLength=0.08)
    for x, y in middles:
        cv2.rectangle(canvas, (x - width // 11, y - 18), (x + width // 11, y + 18), _light(stream), -1)
        cv2.rectangle(canvas, (x - width // 11, y - 18), (x + width // 11, y + 18), _strong(stream), 2)
        _word(canvas, stream, x - width // 12, y + 6, 0.5)


_DRAW: dict[str, Callable[[np.ndarray, IntegerStream], None]] = {
    "logo": _logo, "chart": _chart, "screenshot": _screenshot, "banner": _banner, "diagram": _diagram,
}  # fmt: skip
SORTS = tuple(_DRAW)
