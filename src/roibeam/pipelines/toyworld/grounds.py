"""What scenes lie on: six materials, each a texture from which every scene takes another part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cv2
import numpy as np

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
