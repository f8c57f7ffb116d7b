"""Charts of pages: histograms, and photos with their regions or boxes drawn on. Plain data in, SVG and HTML out.

Nothing here needs a script, a font file or the network. Every text is escaped where it becomes markup. A photo with
boxes fills its width, on a phone and on a desk.
"""

import base64
import html
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from roibeam.features.record.region_drawing import Box, Rectangle, label_of, place_labels, text_colour_on
from roibeam.messages import escaped, plural, printable

_FRAME_ASPECT = 4 / 3
_FRAME_WIDTH_CSS_PX = 332  # the least that a photo gets on a page: there the letters have their 11 px
_LARGEST_MAGNIFICATION = 8  # beyond it a 1x1 image would fill its frame with one colour
_LABEL_HEIGHT_CSS_PX = 15.0
_LABEL_FONT_CSS_PX = 11.0


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: `count` values with `low <= value < high` (the last bar of a chart includes its end)."""

    low: float
    high: float
    count: int
    text: str


@dataclass(frozen=True)
class DrawnRegion:
    """One region as it is drawn: x1, y1, x2, y2 in photo pixels, its class, which decides the colour, "red car" or a
    substitute, and its score, 0..1; None for one that was not scored."""

    box: tuple[float, float, float, float]
    class_id: int
    name: str
    score: float | None


def bars_of_integers(counts: Mapping[int, int], *, min_bars: int = 11, max_bars: int = 36) -> list[Bar]:
    """Groups counted integers >= 0 (value -> how often) into `min_bars` to `max_bars` bars of one round width.

    A few values get empty bars around them, so that they are no single block the size of the chart.
    """
    if not counts:
        return []
    smallest, largest = min(counts), max(counts)
    spare = min_bars - (largest - smallest + 1)
    if spare > 0:
        smallest = max(smallest - spare // 2, 0)
        largest = smallest + min_bars - 1
    width = next(
        step * 10**power
        for power in range(20)
        for step in (1, 2, 5)
        if largest // (step * 10**power) - smallest // (step * 10**power) < max_bars
    )
    first, last = smallest // width, largest // width
    heights = [0] * (last - first + 1)
    for value, count in counts.items():
        heights[value // width - first] += count
    bars = []
    for position, count in enumerate(heights):
        low = (first + position) * width
        bars.append(Bar(low, low + width, count, f"{low:,}" if width == 1 else f"{low:,} to {low + width - 1:,}"))
    return bars


def histogram(bars: Sequence[Bar], *, noun: str, ticks: Sequence[tuple[float, str]], label: str, title: str) -> Markup:
    """A histogram of bars of equal width that keeps its height and its letters at every page width.

    Args:
        noun: what is counted ("image"), for the tooltips and the upright axis.
        ticks: (fraction of the width 0..1, text), left to right.
        label: read out in place of the picture.
        title: of the level axis, with its unit.
    """
    highest = max(max(bar.count for bar in bars), 1)
    rects = []
    for position, bar in enumerate(bars):
        # A bar of 1 among millions stays visible.
        height = max(100 * bar.count / highest, 1.0) if bar.count else 0.0
        rects.append(
            f"<g><title>{escaped(bar.text)}: {escaped(plural(bar.count, noun))}</title>"
            f'<rect class="hit" x="{position}" y="0" width="1" height="100"/>'
            f'<rect class="bar" x="{position + 0.06:.2f}" y="{_number(100 - height)}" width="0.88" '
            f'height="{_number(height)}"/></g>'
        )
    tick_marks = "".join(
        f'<span class="{"first" if fraction <= 0 else "last" if fraction >= 1 else "inner"}" '
        f'style="left:{_number(100 * fraction)}%">{escaped(text)}</span>'
        for fraction, text in ticks
    )
    return Markup(
        f'<div class="histogram"><div class="highest"><span>{escaped(noun)}s, up to {highest:,}</span></div>'
        f'<svg viewBox="0 0 {len(bars)} 100" preserveAspectRatio="none" role="img" aria-label="{escaped(label)}">'
        f'{"".join(rects)}</svg><div class="ticks">{tick_marks}</div>'
        f'<div class="axis">{escaped(title)}</div></div>'
    )


def photo_with_regions(
    thumbnail_jpeg: bytes,
    regions: Sequence[DrawnRegion],
    *,
    image_hw: tuple[int, int],
    colours: Mapping[int, str],
    label: str,
) -> Markup:
    """A photo in a 4:3 frame with its regions and their names; all coordinates are pixels of the photo.

    The frame is larger than a photo of another shape, and labels may stand beside the photo: so they keep one size
    over the page, and those of a 4000x200 panorama have room.

    Args:
        thumbnail_jpeg: the whole photo, at any size.
        regions: by descending importance: earlier ones are drawn on top and get the better places for their labels.
        image_hw: (height, width) of the photo, pixels.
        colours: class id -> "#rrggbb".
        label: read out in place of the picture.
    """
    height, width = image_hw
    frame_width = max(width, height * _FRAME_ASPECT, _FRAME_WIDTH_CSS_PX / _LARGEST_MAGNIFICATION)
    frame_height = frame_width / _FRAME_ASPECT
    frame = Rectangle((width - frame_width) / 2, (height - frame_height) / 2, frame_width, frame_height)
    pixel = frame_width / _FRAME_WIDTH_CSS_PX
    jpeg = base64.b64encode(thumbnail_jpeg).decode("ascii")
    enlarged = ' class="enlarged"' if pixel < 0.25 else ""
    parts = [
        f'<svg class="photo" viewBox="{_number(frame.x)} {_number(frame.y)} {_number(frame_width)} '
        f'{_number(frame_height)}" role="img" aria-label="{escaped(label, 600)}">',
        f'<image{enlarged} width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="data:image/jpeg;base64,{jpeg}"/>',
    ]
    for region in reversed(regions):
        x1, y1, x2, y2 = _clipped(region.box, width, height)
        place = f'x="{_number(x1)}" y="{_number(y1)}" width="{_number(x2 - x1)}" height="{_number(y2 - y1)}"'
        colour = colours[region.class_id]
        # A line of the opposite lightness under the coloured one keeps it visible on a photo of its own colour.
        parts.append(
            f'<rect class="under" {place} stroke="{text_colour_on(colour)}"/>'
            f'<rect class="box" {place} stroke="{colour}"/>'
        )
    for region, text, place_at in _placed_labels(regions, frame=frame, image_hw=image_hw, pixel=pixel):
        parts.append(_label(region, text, place_at, colour=colours[region.class_id], pixel=pixel))
    return Markup("".join([*parts, "</svg>"]))


def _placed_labels(
    regions: Sequence[DrawnRegion], *, frame: Rectangle, image_hw: tuple[int, int], pixel: float
) -> list[tuple[DrawnRegion, str, Rectangle]]:
    height, width = image_hw
    label_height = _LABEL_HEIGHT_CSS_PX * pixel
    # A thin or tiny photo would vanish under its labels: they go beside it.
    taken = [Rectangle(0, 0, width, height)] if min(height, width) < 4 * label_height else []
    texts = [label_of(region.name, region.score) for region in regions]
    sizes = [
        (min(text_width_em(text) * _LABEL_FONT_CSS_PX * pixel + 7 * pixel, frame.width), label_height) for text in texts
    ]
    boxes = [_clipped(region.box, width, height) for region in regions]
    places = place_labels(boxes, sizes, frame=frame, line=pixel, taken=taken)
    return list(zip(regions, texts, places, strict=True))


def _label(region: DrawnRegion, text: str, place: Rectangle, *, colour: str, pixel: float) -> str:
    x1, y1, x2, y2 = region.box
    score = "" if region.score is None else f", score {region.score:.3f}"
    tooltip = f"{printable(region.name, 200)}{score}, box {x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}"
    return (
        f"<g><title>{escaped(tooltip, 400)}</title>"
        f'<rect x="{_number(place.x)}" y="{_number(place.y)}" width="{_number(place.width)}" '
        f'height="{_number(place.height)}" rx="{_number(2 * pixel)}" fill="{colour}"/>'
        # textLength: whatever font there is, the text is as wide as its ground.
        f'<text x="{_number(place.x + 3.5 * pixel)}" y="{_number(place.y + 11.2 * pixel)}" '
        f'font-size="{_number(_LABEL_FONT_CSS_PX * pixel)}" textLength="{_number(place.width - 7 * pixel)}" '
        f'lengthAdjust="spacingAndGlyphs" fill="{text_colour_on(colour)}">{html.escape(text)}</text></g>'
    )


def text_width_em(text: str) -> float:
    """About the width of `text` in a sans-serif font, in units of its size."""
    width = 0.0
    for character in text:
        if unicodedata.combining(character):
            continue
        if character in "ijl.,:;|!'":
            width += 0.27
        elif character in "frt()[]-/ ":
            width += 0.35
        elif unicodedata.east_asian_width(character) in "WF":
            width += 1.0
        elif character in "mwMW…@%":
            width += 0.88
        elif character.isupper():
            width += 0.68
        else:
            width += 0.56
    return width


def _clipped(box: tuple[float, float, float, float], width: int, height: int) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box
    return min(max(x1, 0), width), min(max(y1, 0), height), min(max(x2, 0), width), min(max(y2, 0), height)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


_NARROWEST_CSS_PX = 330.0  # letters have 11 px on a canvas of this width, and more on wider ones
_TALLEST_CSS_PX = 560.0
_FONT_CSS_PX = 11.0


@dataclass(frozen=True)
class DrawnBox:
    """One box as it is drawn.

    Attributes:
        box: x1, y1, x2, y2 in photo pixels.
        colour: "#rrggbb", of its line and the ground of its label.
        label: text beside it; "" for none.
        tooltip: text of a pointer over it.
        is_filled: whether the box is tinted.
        is_quiet: a thin line and no more, for one of many that matter less.
        line: width of its line, CSS pixels.
    """

    box: Box
    colour: str
    label: str = ""
    tooltip: str = ""
    is_filled: bool = False
    is_quiet: bool = False
    line: float = 1.75


def box_canvas(
    boxes: Sequence[DrawnBox], image_hw: tuple[float, float], thumbnail_jpeg: bytes | None, *, description: str
) -> Markup:
    """Returns the markup of a photo with boxes.

    Args:
        boxes: by descending importance: earlier ones are drawn on top and get the better places for their labels.
        image_hw: (height, width) of the photo, pixels.
        thumbnail_jpeg: the whole photo at any size; None draws on an empty ground.
        description: read out in place of the picture.
    """
    height, width = max(image_hw[0], 1.0), max(image_hw[1], 1.0)
    parts = [
        f'<svg class="canvas" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escaped(description, 600)}">'
    ]
    if thumbnail_jpeg is None:
        parts.append(f'<rect class="empty" width="{width:g}" height="{height:g}"/>')
    else:
        data = base64.b64encode(thumbnail_jpeg).decode("ascii")
        parts.append(
            f'<image width="{width:g}" height="{height:g}" preserveAspectRatio="none" '
            f'href="data:image/jpeg;base64,{data}"/>'
        )
    parts += map(_box, reversed(boxes))
    unit = 1 / min(_NARROWEST_CSS_PX / width, _TALLEST_CSS_PX / height)  # photo pixels for a CSS pixel
    labelled = [each for each in boxes if each.label]
    # A label never leaves the picture: on a very narrow one it is pressed.
    widths = [text_width_em(printable(each.label, 40)) * _FONT_CSS_PX + 7 for each in labelled]
    sizes = [(min(label_width * unit, width), min(14 * unit, height)) for label_width in widths]
    frame = Rectangle(0, 0, width, height)
    places = place_labels([each.box for each in labelled], sizes, frame=frame, line=unit)
    for each, place in reversed(list(zip(labelled, places, strict=True))):
        parts.append(
            f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" '
            f'fill="{each.colour}"/><text x="{place.x + 3.5 * unit:.1f}" y="{place.y + 10.8 * unit:.1f}" '
            f'font-size="{_FONT_CSS_PX * unit:.2f}" textLength="{max(place.width - 7 * unit, unit):.1f}" '
            f'lengthAdjust="spacingAndGlyphs" fill="{text_colour_on(each.colour)}">{escaped(each.label, 40)}</text>'
        )
    return Markup("".join([*parts, "</svg>"]))


def _box(each: DrawnBox) -> str:
    x1, y1, x2, y2 = each.box
    place = f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1, 0):.1f}" height="{max(y2 - y1, 0):.1f}"'
    fill = f'fill="{each.colour}" fill-opacity="0.35"' if each.is_filled else 'fill="none"'
    box = f'<rect class="box" {place} {fill} stroke="{each.colour}" stroke-width="{each.line:g}px"/>'
    if each.is_quiet:
        return box
    under = f'<rect class="under" {place} stroke="{text_colour_on(each.colour)}"/>'
    return f"<g><title>{escaped(each.tooltip or each.label)}</title>{under}{box}</g>"
