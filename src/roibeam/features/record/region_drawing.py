"""Regions drawn on a photo: pixels in, pixels out, with colours, labels and the places of labels.

    picture = draw_regions(photo, boxes, labels=labels, class_ids=class_ids, scores=scores)

Colours have the order B, G, R, as `cv2.imread` and `cv2.imwrite` have them and all pixels of this project. A label
stands near its box, inside the picture, where it hides least of what is in boxes. OpenCV and Pillow are imported when
something is drawn. Arrays in, arrays out; no record's class and no store is known here.
"""

from __future__ import annotations

import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import numpy as np

from roibeam.messages import check_list, printable

if TYPE_CHECKING:
    from PIL.Image import Image

# Ten colours of two palettes for colour blindness, Martin Krzywinski's (mk.bcgsc.ca/colorblind) and Okabe and Ito's
# (jfly.uni-koeln.de/color): those of which any two stay furthest apart in every vision. A test measures by how much.
PALETTE = (
    "#e69f00", "#008df9", "#9f0162", "#00fccf", "#d55e00", "#8400cd", "#ffb2fd", "#a40122", "#f0e442", "#ff5aaf",
)  # fmt: skip


def colours_by_class(photos: Iterable[Sequence[int]]) -> dict[int, str]:
    """One colour per class for a whole page; classes of one photo get different ones while the palette lasts.

    A class has a colour of its own, by its id, and gets another one where that is taken: so most classes look alike on
    all pictures.

    Args:
        photos: class ids of each photo's regions.
    Returns:
        class id -> "#rrggbb".
    """
    neighbours: dict[int, set[int]] = {}
    drawn: dict[int, int] = {}
    for photo in photos:
        classes = set(photo)
        for class_id in classes:
            neighbours.setdefault(class_id, set()).update(classes - {class_id})
            drawn[class_id] = drawn.get(class_id, 0) + 1
    colours: dict[int, str] = {}
    uses = dict.fromkeys(PALETTE, 0)
    for class_id in sorted(drawn, key=lambda each: (-drawn[each], each)):
        taken = {colours[other] for other in neighbours[class_id] if other in colours}
        free = [colour for colour in PALETTE if colour not in taken] or list(PALETTE)
        own = PALETTE[class_id % len(PALETTE)]
        colours[class_id] = own if own in free else min(free, key=lambda colour: uses[colour])
        uses[colours[class_id]] += 1
    return colours


def text_colour_on(background: str) -> str:
    """Black or white, whichever reads better on "#rrggbb".

    The better one always has a contrast over 4.5:1, the minimum of WCAG 2.1 for text at level AA.
    """
    channels = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


Box = tuple[float, float, float, float]
_ON_A_LABEL = 100.0  # against hiding an object: two labels on each other cannot be read
_FAR = 0.004  # against hiding an object, for each place that would be nearer


@dataclass(frozen=True)
class Rectangle:
    """Its upper left corner, width and height; all in one unit."""

    x: float
    y: float
    width: float
    height: float


def place_labels(
    boxes: Sequence[Box],
    sizes: Sequence[tuple[float, float]],
    *,
    frame: Rectangle,
    line: float = 0.0,
    taken: Sequence[Rectangle] = (),
) -> list[Rectangle]:
    """A place for each label: free of the labels before it, then of what lies in boxes, as far as there is room.

    Args:
        boxes: x1, y1, x2, y2, by descending importance: earlier ones get the better places.
        sizes: width and height of each label, not larger than the frame.
        frame: no label leaves it.
        line: by how much labels stand out to the left and right of their box.
        taken: places that labels should not cover.
    """
    areas = np.array([(x1, y1, max(x2, x1 + 1e-6), max(y2, y1 + 1e-6)) for x1, y1, x2, y2 in boxes]).reshape(-1, 4)
    share = 1 / ((areas[:, 2] - areas[:, 0]) * (areas[:, 3] - areas[:, 1]))
    covered = np.empty((len(taken) + len(boxes), 4))  # the labels before each one stand in front of the free rows
    for row, other in enumerate(taken):
        covered[row] = other.x, other.y, other.x + other.width, other.y + other.height
    placed = []
    for row, (box, (width, height)) in enumerate(zip(boxes, sizes, strict=True), len(taken)):
        corners = np.array(list(_corners(box, width, height, line)))
        corners = np.maximum(np.minimum(corners, (frame.x + frame.width - width, frame.y + frame.height - height)),
                             (frame.x, frame.y))  # fmt: skip
        places = np.concatenate([corners, corners + np.array((width, height))], axis=1)
        harm = _ON_A_LABEL / (width * height) * _overlaps(places, covered[:row]).sum(1)
        # Cost: share of each object that it hides; and a label far from its box is hard to follow.
        harm += _overlaps(places, areas) @ share + _FAR * np.arange(len(places))
        best = int(harm.argmin())
        covered[row] = places[best]
        placed.append(Rectangle(float(corners[best, 0]), float(corners[best, 1]), width, height))
    return placed


def _overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(N, M): the area that each of (N, 4) and each of (M, 4) rectangles x1, y1, x2, y2 cover together."""
    upper_left = np.maximum(first[:, None, :2], second[:, :2])
    lower_right = np.minimum(first[:, None, 2:], second[:, 2:])
    return np.maximum(lower_right - upper_left, 0).prod(2)


def _corners(box: Box, width: float, height: float, line: float) -> Iterator[tuple[float, float]]:
    """Upper left corners of a label, the best first: around the box, then in its corners."""
    x1, y1, x2, y2 = box
    left, right = x1 - line, x2 + line - width
    yield from ((left, y1 - height), (left, y2), (right, y1 - height), (right, y2), (x2 + line, y1))
    yield from ((left - width + line, y1), (left, y1), (right, y1), (left, y2 - height), (right, y2 - height))
    # Then down along the box, and around it: a label near its box beats one on top of another.
    for step in range(1, 9):
        below, above = y1 + step * height, y1 - (step + 1) * height
        yield from ((left, below), (right, below), (left, above), (right, above))


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

    # Enlarged pixels stay square: a smooth picture could pass for a sharp photo.
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
        label = _shortened(_ascii(text), font, width - 2 * pad)
        label_width = math.ceil(font.getlength(label)) + 2 * pad
        covered += label_width * label_height
        if not label or (texts and covered > _COVERED * height * width):
            break
        boxes.append(box)
        texts.append((label, colour))
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
    """The text in characters of Pillow's own font."""
    plain = (c for c in unicodedata.normalize("NFKD", text.replace("…", "...")) if not unicodedata.combining(c))
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def _shortened(text: str, font: object, room: float) -> str:
    """The text cut to the room, with an ellipsis; "" where not even one letter fits."""
    length = font.getlength  # type: ignore[attr-defined]
    if length(text) <= room:
        return text
    for count in range(len(text) - 1, 0, -1):
        if length(shorter := f"{text[:count].rstrip()}…") <= room:
            return shorter
    return ""


def _bgr(colour: str) -> tuple[int, int, int]:
    """BGR values of "#rrggbb"."""
    return int(colour[5:7], 16), int(colour[3:5], 16), int(colour[1:3], 16)


# `attr_thresh` of the bottom-up-attention demo notebook and of its descendants: weaker attributes are not drawn.
ATTRIBUTE_SCORE = 0.1
MAX_NAME_CHARACTERS = 34


class NamedRegions(Protocol):
    """Fields of a `RegionRecord` that a picture needs."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def boxes(self) -> np.ndarray: ...
    @property
    def class_ids(self) -> np.ndarray: ...
    @property
    def class_scores(self) -> np.ndarray: ...
    @property
    def attribute_ids(self) -> np.ndarray | None: ...
    @property
    def attribute_scores(self) -> np.ndarray | None: ...


def name_of(number: int, names: Sequence[str] | None, kind: str) -> str:
    """ "cat", or "class 7" where there is no such name; `kind` is "class" or "attribute"."""
    return names[number] if names is not None and number < len(names) else f"{kind} {number}"


def region_name(
    regions: NamedRegions, region: int, classes: Sequence[str] | None, attributes: Sequence[str] | None
) -> str:
    """ "red car" for one region; its attribute only where it has a name and the detector is fairly sure of it."""
    name = name_of(int(regions.class_ids[region]), classes, "class")
    ids, scores = regions.attribute_ids, regions.attribute_scores
    if attributes and ids is not None and scores is not None and scores[region] >= ATTRIBUTE_SCORE:
        name = f"{name_of(int(ids[region]), attributes, 'attribute')} {name}"
    return name


def label_of(name: str, score: float | None) -> str:
    """ "red car 0.93"; of a long name the middle is left out."""
    return printable(name, MAX_NAME_CHARACTERS) + ("" if score is None else f" {score:.2f}")


def region_labels(
    regions: NamedRegions, classes: Sequence[str] | None = None, attributes: Sequence[str] | None = None
) -> list[str]:
    """ "red car 0.93" for each region."""
    check_list(classes, "classes")
    check_list(attributes, "attributes")
    return [
        label_of(region_name(regions, region, classes, attributes), float(regions.class_scores[region]))
        for region in range(len(regions.class_ids))
    ]


_Photo = str | os.PathLike[str] | bytes | np.ndarray
PhotoLike: TypeAlias = "_Photo | Image"


def photo_pixels(
    photo: PhotoLike, image_hw: tuple[int, int], image_id: str = "", *, exif_orientation: str | None = None
) -> np.ndarray:
    """The photo in the size of its record.

    Args:
        photo: path or content of an image file, an image of Pillow, which is not turned, or pixels: (height, width, 3)
            uint8 in the order B, G, R, as `cv2.imread` gives them, or (height, width) uint8 for a grey photo.
        image_hw: height and width of the record.
        image_id: of the record, for messages.
        exif_orientation: "applied" or "ignored", as the record's photo was turned; None for what gives this size,
            "applied" if both do.
    Returns:
        (height, width, 3) uint8, channel order B, G, R.
    Raises:
        ValueError: for a photo of another size, an array of another kind, or a file that is no image.
        OSError: for a file that cannot be read.
    """
    photo = _without_pillow(photo)
    if isinstance(photo, np.ndarray):
        found, name = [_three_channels(photo)], "the photo"
    else:
        name = "the photo" if isinstance(photo, bytes) else printable(os.fspath(photo), 200)
        data = photo if isinstance(photo, bytes) else Path(photo).read_bytes()
        orientations = ("applied", "ignored") if exif_orientation is None else (exif_orientation,)
        found = [_decoded(data, name, orientation) for orientation in orientations]
    for pixels in found:
        if pixels.shape[:2] == image_hw:
            return pixels
    height, width = found[0].shape[:2]
    whose = f"the record {image_id!r}" if image_id else "the record"
    raise ValueError(
        f"{name} has {width} x {height} pixels, {whose} is of a photo of {image_hw[1]} x {image_hw[0]}; hand over the "
        f"photo in the size that it was extracted in"
    )


def _without_pillow(photo: PhotoLike) -> _Photo:
    """An image of Pillow as pixels. A caller that has one has imported Pillow."""
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(photo, pillow.Image):
        return np.asarray(photo.convert("RGB"))[:, :, ::-1]
    return cast("_Photo", photo)


def _three_channels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype == np.uint8 and pixels.size and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    raise ValueError(
        f"a photo as an array is (height, width, 3) uint8 in the order B, G, R, or (height, width) uint8; got "
        f"{pixels.shape} {pixels.dtype}"
    )


def _decoded(data: bytes, name: str, orientation: str) -> np.ndarray:
    import cv2

    flags = cv2.IMREAD_COLOR | (cv2.IMREAD_IGNORE_ORIENTATION if orientation == "ignored" else 0)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    except cv2.error as error:
        raise ValueError(f"{name} cannot be decoded: {str(error).strip().splitlines()[-1]}") from None
    if pixels is None:
        raise ValueError(f"{name} is no image that OpenCV reads ({len(data):,} bytes)")
    return np.asarray(pixels)
