"""Regions drawn on a photo: one function, pixels in, pixels out.

    picture = draw_regions(photo, boxes, labels=labels, class_ids=class_ids, scores=scores)

Colours have the order B, G, R, as `cv2.imread` and `cv2.imwrite` have them and all pixels of this project.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from roibeam.features.record.drawing.label_places import Rectangle, place_labels
from roibeam.features.record.drawing.palette import colours_by_class, text_colour_on

MAX_REGIONS = 20
MAX_PIXELS = 400_000_000  # of a picture: beyond it a scale is a slip
_SHEET = 226  # grey of the sheet that stands for a photo
SMALLEST_FONT_PX = 11.0
_FONT_SHARE, _LINE_SHARE = 1 / 42, 1 / 220  # of the square root of the picture's area
_CASING_OPACITY = 0.55
_COVERED = 1 / 3  # of the picture: labels beyond it are left out, the weakest first


def draw_regions(
    photo: np.ndarray,
    boxes: np.ndarray,
    *,
    labels: Sequence[str],
    class_ids: np.ndarray,
    scores: np.ndarray,
    max_regions: int = MAX_REGIONS,
    scale: float = 1.0,
    smallest_font_px: float = SMALLEST_FONT_PX,
) -> np.ndarray:
    """Draws boxes with their labels; lines and letters grow with the picture.

    The strongest regions lie on top and get the best places for their labels. A line lies inside its box, its outer
    edge on the box. No label leaves the picture or all of them together hide it: on a small one labels are shortened,
    and those of the weaker regions left out. Letters that Pillow's own font lacks lose their accents or become "?".

    Args:
        photo: (height, width, 3) uint8, B, G, R; stays as it is.
        boxes: (K, 4), x1 y1 x2 y2 in pixels of the photo; cut at its edges.
        labels: K texts; "" for none.
        class_ids: (K,) integers; regions of one class have one colour.
        scores: (K,), by which regions are ordered; equal ones keep their order.
        max_regions: at most so many, the strongest.
        scale: of the picture against the photo; for photos that are too small or too large to look at.
        smallest_font_px: of the labels, pixels of the picture; they are larger on a large picture.
    Returns:
        (round(scale * height), round(scale * width), 3) uint8, B, G, R.
    Raises:
        ValueError: for a negative `max_regions`, or a scale of 0 or of far too many pixels.
    """
    if max_regions < 0:
        raise ValueError(f"max_regions must be at least 0, got {max_regions}")
    picture = _scaled(photo, scale)
    height, width = picture.shape[:2]
    order = strongest(scores, max_regions)
    colours = colours_by_class([class_ids[order].tolist()])
    edge = math.sqrt(height * width)
    line = max(round(edge * _LINE_SHARE), 1)
    places = [_edges(boxes[region], scale, (height, width)) for region in order]
    for region, place in reversed(list(zip(order, places, strict=True))):
        _frame(picture, place, line, colours[int(class_ids[region])])
    named = [(p, labels[each], colours[int(class_ids[each])]) for each, p in zip(order, places, strict=True)]
    return _with_labels(picture, [each for each in named if each[1]], line, max(edge * _FONT_SHARE, smallest_font_px))


def strongest(scores: np.ndarray, max_regions: int) -> list[int]:
    """Numbers of the regions with the best scores, best first; equal ones keep their order."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")[:max_regions].tolist()


def sheet(image_hw: tuple[int, int]) -> np.ndarray:
    """A grey picture, (height, width, 3) uint8, in place of a photo that is not there; takes no memory."""
    return np.broadcast_to(np.uint8(_SHEET), (*image_hw, 3))


def looking_scale(image_hw: tuple[int, int], *, smallest: int = 480, largest: int | None = None) -> float:
    """The scale at which a photo is looked at: small ones grow by a whole number until their longer side has `smallest`
    pixels, those longer than `largest` shrink to it."""
    longer = max(image_hw)
    if largest is not None and longer > largest:
        return largest / longer
    return float(max(smallest // longer, 1))


def png_bytes(picture: np.ndarray) -> bytes:
    """(height, width, 3) uint8, B, G, R, as a PNG file."""
    import cv2

    done, data = cv2.imencode(".png", picture)
    assert done, "OpenCV writes PNG"
    return data.tobytes()


def jpeg_bytes(picture: np.ndarray, *, quality: int = 80) -> bytes:
    """(height, width, 3) uint8, B, G, R, as a JPEG file."""
    import cv2

    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done, "OpenCV writes JPEG"
    return data.tobytes()


def _scaled(photo: np.ndarray, scale: float) -> np.ndarray:
    """A writable copy in the scale."""
    height, width = photo.shape[:2]
    if not (scale > 0 and height * width * scale * scale <= MAX_PIXELS):
        raise ValueError(
            f"scale {scale:g}: a photo of {width} x {height} gives a picture of 1 to {MAX_PIXELS:,} pixels"
        )
    size = (max(round(scale * width), 1), max(round(scale * height), 1))
    if size == (width, height):
        return np.array(photo)
    import cv2

    # Enlarged pixels stay what they are: nobody should take a smooth picture for a sharp photo.
    how = cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA
    return np.array(cv2.resize(np.ascontiguousarray(photo), size, interpolation=how))


def _edges(box: np.ndarray, scale: float, image_hw: tuple[int, int]) -> tuple[int, int, int, int]:
    """Columns x1 to x2 and rows y1 to y2 that a box covers, ends not included; at least one of each."""
    height, width = image_hw
    x1, y1, x2, y2 = (round(float(edge) * scale) for edge in box)
    x1, y1 = min(max(x1, 0), width - 1), min(max(y1, 0), height - 1)
    return x1, y1, min(max(x2, x1 + 1), width), min(max(y2, y1 + 1), height)


def _frame(picture: np.ndarray, place: tuple[int, int, int, int], line: int, colour: str) -> None:
    """The line of one box. A line of the opposite lightness beneath shows it on a photo of its own colour."""
    x1, y1, x2, y2 = place
    casing = max(line // 2, 1)
    under = _bgr(text_colour_on(colour))
    for rows, columns in _sides((x1 - casing, y1 - casing, x2 + casing, y2 + casing), line + 2 * casing, picture):
        part = picture[rows, columns]
        part[:] = np.rint(part * (1 - _CASING_OPACITY) + np.array(under) * _CASING_OPACITY)
    for rows, columns in _sides(place, line, picture):
        picture[rows, columns] = _bgr(colour)


def _sides(place: tuple[int, int, int, int], line: int, picture: np.ndarray) -> list[tuple[slice, slice]]:
    """Rows and columns of the four sides, each pixel once, those outside the picture left out."""
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = place
    inner_top, inner_bottom = min(y1 + line, y2), max(y2 - line, min(y1 + line, y2))
    inner_left, inner_right = min(x1 + line, x2), max(x2 - line, min(x1 + line, x2))
    whole = [(y1, inner_top, x1, x2), (inner_bottom, y2, x1, x2)]
    whole += [(inner_top, inner_bottom, x1, inner_left), (inner_top, inner_bottom, inner_right, x2)]
    cut = [(max(top, 0), min(bottom, height), max(left, 0), min(right, width)) for top, bottom, left, right in whole]
    return [(slice(a, b), slice(c, d)) for a, b, c, d in cut if a < b and c < d]


def _with_labels(
    picture: np.ndarray, named: Sequence[tuple[tuple[int, int, int, int], str, str]], line: int, font_px: float
) -> np.ndarray:
    """The picture with labels of (box, text, colour), the most important first and on top."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = picture.shape[:2]
    font = ImageFont.load_default(font_px)
    top, bottom = font.getbbox("Ag|")[1::2]
    pad = max(round(font_px / 5), 2)
    label_height = math.ceil(bottom - top) + 2 * pad
    if label_height * 2 > height or not named:
        return picture
    boxes: list[tuple[int, int, int, int]] = []
    texts: list[tuple[str, str]] = []
    sizes: list[tuple[float, float]] = []
    covered = 0
    for box, text, colour in named:
        shown = _shortened(_ascii(text), font, width - 2 * pad)
        label_width = math.ceil(font.getlength(shown)) + 2 * pad
        covered += label_width * label_height
        if not shown or (texts and covered > _COVERED * height * width):
            break
        boxes.append(box)
        texts.append((shown, colour))
        sizes.append((label_width, label_height))
    frame = Rectangle(0, 0, width, height)
    places = place_labels(boxes, sizes, frame=frame, line=line)
    image = Image.fromarray(picture)  # Pillow does not care what the three channels are
    draw = ImageDraw.Draw(image)
    for (text, colour), place in reversed(list(zip(texts, places, strict=True))):
        x, y = round(place.x), round(place.y)
        draw.rectangle((x, y, x + place.width - 1, y + place.height - 1), fill=_bgr(colour))
        draw.text((x + pad, y + pad - top), text, font=font, fill=_bgr(text_colour_on(colour)))
    return np.array(image)


def _ascii(text: str) -> str:
    """What Pillow's own font can write."""
    plain = (c for c in unicodedata.normalize("NFKD", text.replace("…", "...")) if not unicodedata.combining(c))
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def _shortened(text: str, font: object, room: float) -> str:
    """As much of the text as there is room for, with an ellipsis; "" where not even one letter fits."""
    length = font.getlength  # type: ignore[attr-defined]
    if length(text) <= room:
        return text
    for count in range(len(text) - 1, 0, -1):
        if length(shorter := f"{text[:count].rstrip()}…") <= room:
            return shorter
    return ""


def _bgr(colour: str) -> tuple[int, int, int]:
    """Of "#rrggbb"."""
    return int(colour[5:7], 16), int(colour[3:5], 16), int(colour[1:3], 16)
