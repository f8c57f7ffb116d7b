"""A probe as one SVG file: the photo with its regions, which word looks at which of them, and the guesses."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from roibeam.features.printable import escaped
from roibeam.features.record.drawing.palette import PALETTE, text_colour_on
from roibeam.features.record.drawing.region_drawing import jpeg_bytes
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.analysis.probing.probe import Guess, ProbeResult
from roibeam.pipelines.inputs.region_names import Names

MAX_REGIONS = 16  # columns of the matrix and boxes on the photo: those that words look at most
_PHOTO_WIDTH, _MAX_PHOTO_HEIGHT = 520.0, 560.0
_CELL, _WORD_WIDTH, _MARGIN, _HEADER = 26.0, 110.0, 24.0, 150.0
_LINE = 19.0
_COLOUR_BAR = 40.0  # height below the matrix


def probe_svg(result: ProbeResult, record: RegionRecord, names: Names, *, text: str, photo: np.ndarray | None) -> str:
    """
    Args:
        photo: (height, width, 3) uint8 BGR, of the record's size; None draws the boxes on grey.
    """
    shown = _shown_regions(result, record)
    scale = min(_PHOTO_WIDTH / record.width, _MAX_PHOTO_HEIGHT / record.height)
    photo_height = record.height * scale
    top = 64.0
    matrix_left = _MARGIN * 2 + _PHOTO_WIDTH
    rows = len(result.pieces)
    matrix_height = _HEADER + rows * _CELL + _COLOUR_BAR if result.attention is not None else 0.0
    guesses_top = top + max(photo_height, matrix_height) + 40
    blocks = [*_word_blocks(result), *_region_blocks(result)]
    block_rows = -(-len(blocks) // 4)
    block_height = 30 + _LINE * max((len(guesses) for _, guesses in blocks), default=0)
    width = max(matrix_left + _WORD_WIDTH + len(shown) * _CELL + 60, 4 * 240 + 2 * _MARGIN)
    height = guesses_top + max(block_rows, 1) * block_height + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: 100%; height: auto" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="30" font-size="17" font-weight="600">{escaped(text, 120)}</text>',
        f'<text x="{_MARGIN}" y="50" fill="#555555">{escaped(_subtitle(result))}</text>',
        *_photo(record, shown, scale, top, photo),
        *_matrix(result, record, names, shown, matrix_left, top),
    ]
    for number, (title, guesses) in enumerate(blocks):
        left = _MARGIN + (number % 4) * 240
        parts += _guess_block(title, guesses, left, guesses_top + (number // 4) * block_height)
    return "\n".join([*parts, "</svg>", ""])


def _subtitle(result: ProbeResult) -> str:
    match = "no match head" if result.match is None else f"match {100 * result.match:.1f} %"
    looks = result.attention
    if looks is None:
        return match
    heads = "mean of all heads" if len(looks.heads) > 1 else f"head {looks.heads[0]} of {looks.num_heads}"
    return f"{match}; attention of words to regions, layer {looks.layer} of {looks.num_layers}, {heads}"


def _shown_regions(result: ProbeResult, record: RegionRecord) -> list[int]:
    """Numbers in the record: those that the [MASK]s, else all words, look at most; by score without attention."""
    if result.attention is None:
        weight = np.asarray(record.class_scores, dtype=np.float64)
    else:
        rows = [word.position for word in result.words] or list(range(len(result.pieces)))
        weight = result.attention.weights[rows].sum(axis=0)
    hidden = {region.number for region in result.regions}
    order = [int(number) for number in np.argsort(-weight, kind="stable")]
    best = order[:MAX_REGIONS]
    # Regions with guesses of their own below are always on the photo.
    extra = [number for number in order[MAX_REGIONS:] if number in hidden]
    return best[: MAX_REGIONS - len(extra)] + extra


def _photo(
    record: RegionRecord, shown: Sequence[int], scale: float, top: float, photo: np.ndarray | None
) -> Iterator[str]:
    width, height = record.width * scale, record.height * scale
    left = _MARGIN
    if photo is None:
        yield f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" fill="#e8e8e8"/>'
    else:
        dense = 1.5  # sharp on dense screens, and small enough for a notebook
        target = (max(round(dense * width), 1), max(round(dense * height), 1))
        small = photo if photo.shape[1] <= target[0] else cv2.resize(photo, target, interpolation=cv2.INTER_AREA)
        data = base64.b64encode(jpeg_bytes(small)).decode("ascii")
        yield (
            f'<image x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none" '
            f'href="data:image/jpeg;base64,{data}"/>'
        )
    for place in reversed(range(len(shown))):  # the most looked at on top
        x1, y1, x2, y2 = (float(value) * scale for value in record.boxes[shown[place]])
        colour = PALETTE[place % len(PALETTE)]
        box = f'x="{left + x1:.1f}" y="{top + y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}" fill="none"'
        yield f'<rect {box} stroke="{text_colour_on(colour)}" stroke-width="3.5" opacity="0.5"/>'
        yield f'<rect {box} stroke="{colour}" stroke-width="2"/>'
    for place in reversed(range(len(shown))):
        x1, y1 = (float(value) * scale for value in record.boxes[shown[place], :2])
        yield from _tag(left + x1, top + y1, shown[place], PALETTE[place % len(PALETTE)])


def _tag(x: float, y: float, number: int, colour: str) -> Iterator[str]:
    width = 8 + 8 * len(str(number))
    yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width}" height="16" fill="{colour}"/>'
    yield (
        f'<text x="{x + width / 2:.1f}" y="{y + 12:.1f}" font-size="12" text-anchor="middle" '
        f'fill="{text_colour_on(colour)}">{number}</text>'
    )


def _matrix(
    result: ProbeResult, record: RegionRecord, names: Names, shown: Sequence[int], left: float, top: float
) -> Iterator[str]:
    looks = result.attention
    if looks is None:
        return
    # A scale to the largest weight alone would paint a model without any preference dark all over.
    equal_share = float(looks.weights.mean())
    darkest = max(float(looks.weights[:, list(shown)].max()), 3 * equal_share, 1e-9)
    first, body = left + _WORD_WIDTH, top + _HEADER
    for column, number in enumerate(shown):
        x = first + column * _CELL + _CELL / 2
        name = names.of_detector(int(record.class_ids[number]))
        yield from _tag(x - (8 + 8 * len(str(number))) / 2, body - 20, number, PALETTE[column % len(PALETTE)])
        yield (
            f'<text transform="translate({x + 4:.1f},{body - 26:.1f}) rotate(-60)" font-size="12">'
            f"{escaped(name, 20)}</text>"
        )
    masks = {word.position for word in result.words}
    for row, piece in enumerate(result.pieces):
        y = body + row * _CELL
        weight = ' font-weight="700"' if row in masks else ""
        yield f'<text x="{first - 8:.1f}" y="{y + 17:.1f}" text-anchor="end"{weight}>{escaped(piece, 16)}</text>'
        for column, number in enumerate(shown):
            value = float(looks.weights[row, number])
            percent = 100 * value
            yield (
                f'<rect x="{first + column * _CELL:.1f}" y="{y:.1f}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'fill="{_heat(value / darkest)}"><title>{escaped(piece)} to region {number}: {percent:.1f} %</title>'
                f"</rect>"
            )
    yield from _colour_bar(first, body + len(result.pieces) * _CELL + 14, equal_share, darkest)


def _colour_bar(left: float, top: float, equal_share: float, darkest: float) -> Iterator[str]:
    """What the colours of the matrix mean, with a mark at the share that every region would have if all were alike."""
    width, steps = 160.0, 32
    for step in range(steps):
        yield (
            f'<rect x="{left + step * width / steps:.1f}" y="{top:.1f}" width="{width / steps + 0.3:.1f}" height="10" '
            f'fill="{_heat((step + 0.5) / steps)}"/>'
        )
    mark = left + width * equal_share / darkest
    yield f'<rect x="{mark - 0.75:.1f}" y="{top - 3:.1f}" width="1.5" height="16" fill="#000000"/>'
    yield f'<text x="{left + width + 8:.1f}" y="{top + 10:.1f}" font-size="12">{100 * darkest:.1f} %</text>'
    for row, words in enumerate(("of a word's attention", f"mark: {100 * equal_share:.1f} %, an equal share")):
        yield f'<text x="{left:.1f}" y="{top + 28 + 16 * row:.1f}" font-size="12" fill="#555555">{words}</text>'


def _heat(fraction: float) -> str:
    """White to dark blue."""
    fraction = min(max(fraction, 0.0), 1.0)
    low, high = np.array([247, 250, 253]), np.array([8, 64, 129])
    red, green, blue = (int(value) for value in np.rint(low + (high - low) * fraction))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _word_blocks(result: ProbeResult) -> Iterator[tuple[str, tuple[Guess, ...]]]:
    for number, word in enumerate(result.words, start=1):
        which = "[MASK]" if len(result.words) == 1 else f"[MASK] number {number}"
        yield which, word.guesses


def _region_blocks(result: ProbeResult) -> Iterator[tuple[str, tuple[Guess, ...]]]:
    for region in result.regions:
        yield f"region {region.number} hidden ({region.seen_as})", region.guesses


def _guess_block(title: str, guesses: Sequence[Guess], left: float, top: float) -> Iterator[str]:
    yield f'<text x="{left:.1f}" y="{top + 14:.1f}" font-weight="600">{escaped(title, 34)}</text>'
    for number, guess in enumerate(guesses):
        y = top + 22 + number * _LINE
        width = max(60 * guess.probability, 1)
        yield f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="14" fill="#9ecae1"/>'
        yield (
            f'<text x="{left + 100:.1f}" y="{y + 11.5:.1f}" font-size="12" text-anchor="end">'
            f"{100 * guess.probability:.1f} %</text>"
            f'<text x="{left + 110:.1f}" y="{y + 11.5:.1f}" font-size="12">{escaped(guess.name, 18)}</text>'
        )
