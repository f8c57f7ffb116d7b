"""A scene graph to pixels: ground, clutter, objects with texture and light, blur, noise.

8-bit whole numbers nearly throughout, so that pixels are the same for the same versions of numpy and OpenCV on x86-64.
The numbers that pixels hang on come from a stream of their own: another way of drawing leaves all labels as they are.
"""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np

from roibeam.pipelines.toyworld import world
from roibeam.pipelines.toyworld.grounds import COLOURS_BGR, texture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.raster import SUBPIXEL
from roibeam.pipelines.toyworld.scene import Drawing, Layer, SceneObject
from roibeam.pipelines.toyworld.shapes import DARK, SHAPES

_PURPOSE = 2
_NOISE_BYTES = 1 << 21
_SHIFT = 3  # cv2's name for eighths of a pixel.
_COLOURS = tuple(world.COLOURS.values())
_BGR = tuple[int, int, int]


def render(drawing: Drawing) -> tuple[np.ndarray, int]:
    """Returns (height, width, 3) uint8 BGR, and the JPEG quality (55 to 95) that this picture is to be saved with."""
    scene = drawing.scene
    stream = IntegerStream(scene.seed, _PURPOSE, scene.index)
    canvas = _ground(scene.ground, scene.height, scene.width, stream)
    _clutter(canvas, stream, stream.between(6, 22))
    for thing, layer in zip(scene.objects, drawing.layers, strict=True):
        _draw_object(canvas, thing, layer, stream)
    _twigs(canvas, stream)
    return _camera(canvas, stream), stream.between(55, 95)


def _ground(ground: str, height: int, width: int, stream: IntegerStream) -> np.ndarray:
    tile = texture(ground)
    top, left = stream.below(tile.shape[0] - height + 1), stream.below(tile.shape[1] - width + 1)
    part = tile[top : top + height, left : left + width]
    if stream.percent(50):
        part = cv2.flip(part, 1)
    # A table of 256 values for each channel: contrast and colour of this scene's ground.
    contrast = stream.between(70, 135)
    steps = (np.arange(256)[:, None, None] - 128) * contrast // 100
    shade = stream.between(-22, 22)
    tints = [value + shade + stream.between(-16, 16) for value in COLOURS_BGR[ground]]
    table = np.clip(steps + tints, 0, 255).astype(np.uint8)
    return cv2.applyColorMap(part, table)


def _clutter(canvas: np.ndarray, stream: IntegerStream, count: int) -> None:
    """Small scraps that are no objects: at most 16 pixels, so smaller than any box."""
    height, width = canvas.shape[:2]
    for _ in range(count):
        x, y = stream.below(width), stream.below(height)
        colour = _jittered(stream.pick(_COLOURS), stream, 40)
        kind = stream.below(3)
        if kind == 0:
            cv2.circle(canvas, (x, y), stream.between(2, 7), colour, -1, cv2.LINE_AA)
        elif kind == 1:
            corners = [(x + stream.between(-8, 8), y + stream.between(-8, 8)) for _ in range(3)]
            cv2.fillPoly(canvas, [np.array(corners, np.int32)], colour, cv2.LINE_AA)
        else:
            end = (x + stream.between(-8, 8), y + stream.between(-8, 8))
            cv2.line(canvas, (x, y), end, colour, stream.between(1, 3), cv2.LINE_AA)


def _twigs(canvas: np.ndarray, stream: IntegerStream) -> None:
    """Thin lines before everything: too thin to count as covering."""
    height, width = canvas.shape[:2]
    for _ in range(stream.below(4)):
        x, y = stream.below(width), stream.below(height)
        end = (x + stream.between(-60, 60), y + stream.between(-60, 60))
        grey = stream.between(20, 200)
        cv2.line(canvas, (x, y), end, (grey, grey + stream.below(30), grey), 1, cv2.LINE_AA)


def _jittered(red_green_blue: tuple[int, int, int], stream: IntegerStream, strength: int) -> _BGR:
    red, green, blue = (min(max(value + stream.between(-strength, strength), 0), 255) for value in red_green_blue)
    return blue, green, red


def _tones(colour: str, body: _BGR) -> tuple[_BGR, _BGR, _BGR]:
    """Dark and light tone for details, and the colour of the rim."""
    if colour == "black":
        return _mixed(body, (150, 150, 150), 55), _mixed(body, (255, 255, 255), 72), (112, 112, 112)
    light = _mixed(body, (255, 255, 255), 62) if colour != "white" else (186, 178, 170)
    return _mixed(body, (12, 12, 16), 52), light, _mixed(body, (8, 8, 8), 72)


def _mixed(first: _BGR, second: _BGR, percent: int) -> _BGR:
    blue, green, red = ((a * (100 - percent) + b * percent) // 100 for a, b in zip(first, second, strict=True))
    return blue, green, red


def _draw_object(canvas: np.ndarray, thing: SceneObject, layer: Layer, stream: IntegerStream) -> None:
    height, width = layer.mask.shape
    # cv2 counts from the middle of the first pixel, we from its corner.
    outlines, details = SHAPES[thing.category].parts((layer.points - SUBPIXEL // 2).astype(np.int32))
    body = _jittered(world.COLOURS[thing.colour], stream, 14)
    dark, light, rim = _tones(thing.colour, body)
    patch = np.empty((height, width, 3), np.uint8)
    cv2.rectangle(patch, (0, 0), (width, height), body, -1)
    _pattern(patch, thing, light if stream.percent(70) and thing.colour != "white" else dark, stream)
    for detail, contour in zip(SHAPES[thing.category].details, details, strict=True):
        cv2.fillPoly(patch, [contour], dark if detail.tone == DARK else light, cv2.LINE_AA, _SHIFT)
    middle = (width // 2, height // 2)
    if "cracked" in thing.attributes:
        _crack(patch, middle, rim, stream)
    if "shiny" in thing.attributes:
        spot = (middle[0] - width // 5, middle[1] - height // 5)
        size = (max(width // 9, 3), max(height // 14, 2))
        cv2.ellipse(patch, spot, size, -40, 0, 360, (255, 255, 255), -1, cv2.LINE_AA)
        cv2.circle(patch, (spot[0] + width // 5, spot[1] - height // 12), max(width // 26, 1), (255, 255, 255), -1)
    rim_width = 2 if min(height, width) > 48 else 1
    cv2.polylines(patch, outlines, True, rim, rim_width, cv2.LINE_AA, _SHIFT)
    _paste(canvas, patch, layer)


def _paste(canvas: np.ndarray, patch: np.ndarray, layer: Layer) -> None:
    """Puts the pixels of the mask on the canvas, and a shadow beside them."""
    mask = layer.mask.view(np.uint8)
    for offset, source in ((3, None), (0, patch)):
        top, left = max(layer.top + offset, 0), max(layer.left + offset, 0)
        bottom = min(layer.top + offset + mask.shape[0], canvas.shape[0])
        right = min(layer.left + offset + mask.shape[1], canvas.shape[1])
        rows = slice(top - layer.top - offset, bottom - layer.top - offset)
        columns = slice(left - layer.left - offset, right - layer.left - offset)
        region = canvas[top:bottom, left:right]
        pixels = (region >> 1) + (region >> 3) if source is None else source[rows, columns]
        cv2.copyTo(pixels, mask[rows, columns], region)


def _pattern(patch: np.ndarray, thing: SceneObject, colour: _BGR, stream: IntegerStream) -> None:
    pattern = next((name for name in world.PATTERNS if name in thing.attributes), None)
    if pattern is None:
        return
    height, width = patch.shape[:2]
    step = max(max(height, width) * stream.between(14, 19) // 100, 6)
    start = stream.below(step)
    if pattern == "striped":
        lean = stream.pick((-width // 2, 0, 0, width // 2))
        for x in range(start - width, 2 * width, 2 * step):
            corners = [(x, 0), (x + step, 0), (x + step + lean, height), (x + lean, height)]
            cv2.fillPoly(patch, [np.array(corners, np.int32)], colour, cv2.LINE_AA)
    elif pattern == "dotted":
        for row, y in enumerate(range(start - step, height + step, step * 3 // 2)):
            for x in range(start - step + (row % 2) * step * 3 // 4, width + step, step * 3 // 2):
                cv2.circle(patch, (x, y), max(step * 2 // 5, 2), colour, -1, cv2.LINE_AA)
    else:
        for row, y in enumerate(range(start - step, height, step)):
            for x in range(start - step + (row % 2) * step, width, 2 * step):
                cv2.rectangle(patch, (x, y), (x + step - 1, y + step - 1), colour, -1)


def _crack(patch: np.ndarray, middle: tuple[int, int], colour: _BGR, stream: IntegerStream) -> None:
    """A jagged line from edge to edge."""
    height, width = patch.shape[:2]
    points = []
    for step in range(7):
        jag = width // 9 if step % 2 else -width // 9
        points.append((middle[0] + jag + stream.between(-2, 2) + (step - 3) * width // 14, height * step // 6))
    cv2.polylines(patch, [np.array(points, np.int32)], False, colour, 2 + (min(height, width) > 60), cv2.LINE_AA)


def _camera(canvas: np.ndarray, stream: IntegerStream) -> np.ndarray:
    """Uneven light, a little blur, noise."""
    height, width = canvas.shape[:2]
    exposure = stream.between(110, 142)
    corners = [exposure + stream.between(-16, 16) for _ in range(4)]
    light = cv2.resize(np.array(corners, np.uint8).reshape(2, 2), (width, height), interpolation=cv2.INTER_LINEAR_EXACT)
    # 128 leaves the brightness as it is.
    picture = cv2.multiply(canvas, cv2.cvtColor(light, cv2.COLOR_GRAY2BGR), scale=1 / 128)
    blur = stream.below(10)
    if blur < 9:
        width_of_blur, tenths = ((3, 5), (3, 8), (5, 12))[blur // 3]
        picture = cv2.GaussianBlur(picture, (width_of_blur, width_of_blur), tenths / 10)
    return _noisy(picture, stream)


def _noisy(picture: np.ndarray, stream: IntegerStream) -> np.ndarray:
    """Adds the difference of two random numbers from 0 to 3, 7 or 15 to each value."""
    brighter, darker = _noise(stream.between(2, 4))
    start = stream.below(len(brighter) - picture.size)
    part = slice(start, start + picture.size)
    picture = cv2.add(picture, brighter[part].reshape(picture.shape), dst=picture)
    return cv2.subtract(picture, darker[part].reshape(picture.shape), dst=picture)


@cache
def _noise(num_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A store of noise, of which every picture takes another piece: (2**21,) uint8 twice, from 0 to 2**num_bits - 1."""
    raw = np.random.PCG64(num_bits).random_raw(_NOISE_BYTES // 8).view(np.uint8)
    below = np.uint8((1 << num_bits) - 1)
    return raw & below, (raw >> 4) & below
