"""Rendering of a scene graph to pixels and picture files: ground, clutter, objects with texture and light, blur, noise.

8-bit whole numbers nearly throughout, so that pixels are the same for the same versions of numpy and OpenCV on x86-64.
The numbers that pixels depend on come from a stream of their own: another way of drawing leaves all labels as they are.
Grounds are six materials, each a texture from which every scene takes another part. Workers draw chunks of scenes; this
file imports little, so that processes start quickly.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from roibeam.pipelines.toyworld import world
from roibeam.pipelines.toyworld.picture import describe
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import Drawing, Layer, SceneObject, generate
from roibeam.pipelines.toyworld.shapes import DARK, SHAPES, SUBPIXEL
from roibeam.pipelines.toyworld.world_files import write_text

_TILE = 768

# Blue, green, red: cv2's order.
COLOURS_BGR = {
    "grass": (62, 118, 82),
    "sand": (138, 182, 206),
    "water": (158, 124, 72),
    "tiles": (196, 194, 186),
    "wood": (88, 132, 172),
    "bricks": (84, 96, 158),
}


@cache
def texture(ground: str) -> np.ndarray:
    """(768, 768) uint8, 128 where the material has its own brightness. The same for all scenes of all worlds."""
    tile = np.full((_TILE, _TILE), 128, np.uint8)
    _DRAW[ground](tile, np.random.PCG64(sorted(_DRAW).index(ground)))
    tile.setflags(write=False)
    return tile


def _numbers(bits: np.random.PCG64, count: int, below: int) -> np.ndarray:
    # Raw bits: numpy keeps a generator's stream of bits between versions, not that of its distributions.
    return (bits.random_raw(count) >> np.uint64(33)).astype(np.int64) % below


def _grass(tile: np.ndarray, bits: np.random.PCG64) -> None:
    rows = _numbers(bits, 5 * 9000, _TILE).reshape(-1, 5).tolist()
    for x, y, lean, length, grey in rows:
        cv2.line(tile, (x, y), (x + lean % 7 - 3, y - 5 - length % 9), 92 + grey % 78, 1)


def _sand(tile: np.ndarray, bits: np.random.PCG64) -> None:
    for x, y, grey in _numbers(bits, 3 * 16000, _TILE).reshape(-1, 3).tolist():
        cv2.circle(tile, (x, y), grey % 2, 102 + grey % 54, -1)
    _speckle(tile, bits, 10)


def _water(tile: np.ndarray, bits: np.random.PCG64) -> None:
    for x, y, length, grey in _numbers(bits, 4 * 1500, _TILE).reshape(-1, 4).tolist():
        wave = [(x + step * (6 + length % 5), y + (0, -4, 0, 4)[step % 4]) for step in range(3 + length % 6)]
        cv2.polylines(tile, [np.array(wave, np.int32)], False, 104 + grey % 64, 2)


def _tiles(tile: np.ndarray, bits: np.random.PCG64) -> None:
    for y in range(0, _TILE, 48):
        for x, grey in zip(range(0, _TILE, 48), _numbers(bits, _TILE // 48, 24).tolist(), strict=True):
            cv2.rectangle(tile, (x, y), (x + 47, y + 47), 124 + grey, -1)
            cv2.rectangle(tile, (x, y), (x + 47, y + 47), 84, 2)
    _speckle(tile, bits, 6)


def _wood(tile: np.ndarray, bits: np.random.PCG64) -> None:
    for y in range(0, _TILE, 42):
        cv2.rectangle(tile, (0, y), (_TILE, y + 41), 116 + int(_numbers(bits, 1, 28)[0]), -1)
        for start, offset, length in _numbers(bits, 3 * 60, _TILE).reshape(-1, 3).tolist():
            row = y + 3 + offset % 37
            cv2.line(tile, (start, row), (start + 20 + length % 120, row), 106 + length % 20, 1)
        cv2.line(tile, (0, y), (_TILE, y), 74, 2)


def _bricks(tile: np.ndarray, bits: np.random.PCG64) -> None:
    tile[...] = 176
    for row, y in enumerate(range(0, _TILE, 26)):
        greys = _numbers(bits, 16, 40).tolist()
        for x, grey in zip(range(-26 * (row % 2), _TILE, 52), greys, strict=False):
            cv2.rectangle(tile, (x + 2, y + 2), (x + 50, y + 24), 104 + grey, -1)
    _speckle(tile, bits, 12)


def _speckle(tile: np.ndarray, bits: np.random.PCG64, strength: int) -> None:
    grains = _numbers(bits, tile.size, 2 * strength + 1).reshape(tile.shape) - strength
    tile[...] = np.clip(tile + grains, 0, 255).astype(np.uint8)


_DRAW: dict[str, Callable[[np.ndarray, np.random.PCG64], None]] = {
    "grass": _grass,
    "sand": _sand,
    "water": _water,
    "tiles": _tiles,
    "wood": _wood,
    "bricks": _bricks,
}


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
    # cv2 counts from the middle of the first pixel, this code from its corner.
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
    """Adds uneven light, a little blur, and noise."""
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


def draw_chunk(part: Path, out: Path, seed: int, first: int, last: int) -> int:
    """Writes the pictures first to last - 1 below `out`, then their scene graphs to `part`; returns their number."""
    lines = []
    for index in range(first, last):
        drawing = generate(seed, index)
        picture = describe(drawing)
        _write_jpeg(out / picture.place.dataset / picture.file_name, drawing)
        lines.append(picture.to_line())
    write_text(part, "".join(lines))
    return last - first


def draw_samples(folder: Path, *, count: int, seed: int = 0) -> Path:
    """Writes the pictures of scenes 0 to count - 1 to folder/images and a caption of each, in COCO's format, to
    folder/captions.json.

    Returns:
        The path of captions.json.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        drawing = generate(seed, index)
        name = f"sample_{index:05d}.jpg"
        _write_jpeg(folder / "images" / name, drawing)
        images.append({"id": index, "file_name": name, "height": drawing.scene.height, "width": drawing.scene.width})
        caption = describe(drawing).captions[0].text
        annotations.append({"id": index, "image_id": index, "caption": caption})
    path = folder / "captions.json"
    write_text(path, json.dumps({"images": images, "annotations": annotations}))
    return path


def _write_jpeg(path: Path, drawing: Drawing) -> None:
    pixels, quality = render(drawing)
    path.write_bytes(encoded(pixels, ".jpg", quality))


def encoded(pixels: np.ndarray, extension: str, quality: int) -> bytes:
    """Returns the file's bytes; `quality` is JPEG's."""
    done, data = cv2.imencode(extension, pixels, [cv2.IMWRITE_JPEG_QUALITY, quality] if extension == ".jpg" else [])
    if not done:
        raise OSError(f"cannot encode a picture of {pixels.shape} as {extension}")
    return data.tobytes()
