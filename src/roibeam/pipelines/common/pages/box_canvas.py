"""A photo with boxes on it that fills the width it is given, on a telephone and on a desk."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from roibeam.features.printable import escaped, printable
from roibeam.features.record.drawing.label_places import Box, Rectangle, place_labels
from roibeam.features.record.drawing.palette import text_colour_on
from roibeam.pipelines.common.pages.charts import text_width_em

_NARROWEST_CSS_PX = 330.0  # letters have 11 px on a canvas of this width, and more on wider ones
_TALLEST_CSS_PX = 560.0
_FONT_CSS_PX = 11.0
CANVAS_STYLE = """
.canvas { display: block; width: 100%; max-width: 480px; height: auto; max-height: 560px;
  background: var(--frame); }
.canvas text { font-family: Arial, "Liberation Sans", "Helvetica Neue", "DejaVu Sans", sans-serif; }
.canvas .under, .canvas .box { vector-effect: non-scaling-stroke; }
.canvas .under { fill: none; stroke-opacity: .55; stroke-width: 3.5px; }
.canvas .empty { fill: var(--frame); stroke: var(--line); vector-effect: non-scaling-stroke; }
.canvases { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 12px;
  align-items: start; }
"""


@dataclass(frozen=True)
class DrawnBox:
    """One box as it is drawn.

    Attributes:
        box: x1, y1, x2, y2 in photo pixels.
        colour: "#rrggbb", of its line and the ground of its label.
        label: text beside it; "" for none.
        tooltip: what a pointer over it shows.
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
) -> str:
    """The markup; a page that has it needs `CANVAS_STYLE`.

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
    for each in reversed(boxes):
        parts.append(_box(each))
    unit = 1 / min(_NARROWEST_CSS_PX / width, _TALLEST_CSS_PX / height)  # photo pixels for a CSS pixel
    labelled = [each for each in boxes if each.label]
    # A label never leaves the picture: on a very narrow one it is pressed.
    sizes = [(min(_label_width(each.label) * unit, width), min(14 * unit, height)) for each in labelled]
    frame = Rectangle(0, 0, width, height)
    places = place_labels([each.box for each in labelled], sizes, frame=frame, line=unit)
    for each, place in reversed(list(zip(labelled, places, strict=True))):
        parts.append(_label(each, place, unit))
    return "".join([*parts, "</svg>"])


def _box(each: DrawnBox) -> str:
    x1, y1, x2, y2 = each.box
    place = f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1, 0):.1f}" height="{max(y2 - y1, 0):.1f}"'
    fill = f'fill="{each.colour}" fill-opacity="0.35"' if each.is_filled else 'fill="none"'
    box = f'<rect class="box" {place} {fill} stroke="{each.colour}" stroke-width="{each.line:g}px"/>'
    if each.is_quiet:
        return box
    under = f'<rect class="under" {place} stroke="{text_colour_on(each.colour)}"/>'
    return f"<g><title>{escaped(each.tooltip or each.label)}</title>{under}{box}</g>"


def _label_width(text: str) -> float:
    return text_width_em(printable(text, 40)) * _FONT_CSS_PX + 7


def _label(each: DrawnBox, place: Rectangle, unit: float) -> str:
    return (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" '
        f'fill="{each.colour}"/><text x="{place.x + 3.5 * unit:.1f}" y="{place.y + 10.8 * unit:.1f}" '
        f'font-size="{_FONT_CSS_PX * unit:.2f}" textLength="{max(place.width - 7 * unit, unit):.1f}" '
        f'lengthAdjust="spacingAndGlyphs" fill="{text_colour_on(each.colour)}">{escaped(each.label, 40)}</text>'
    )
