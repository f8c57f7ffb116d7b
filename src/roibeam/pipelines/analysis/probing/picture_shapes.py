"""A picture as a list of shapes, written as SVG (text is text, light and dark) or as PNG.

One unit is a CSS pixel where the picture is shown `WIDTH` of them wide; shown wider, all of it grows.
"""

from __future__ import annotations

import base64
import io
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from roibeam.features.printable import escaped, printable
from roibeam.features.record.drawing.region_drawing import jpeg_bytes

WIDTH = 360.0
SMALLEST_FONT = 11.0
_WIDEST_CSS_PX = 720  # on a large screen
_PNG_SCALE = 3
_PHOTO_SCALE = 3.0  # pixels of an embedded photo for each unit: sharp on dense screens
# What a colour is for: on a light page, on a dark one. Any other colour is "#rrggbb", the same on both.
COLOURS = {
    "page": ("#ffffff", "#14171b"),
    "text": ("#1b1f24", "#e4e8ec"),
    "quiet": ("#5b6470", "#98a2ae"),
    "line": ("#d9dee4", "#2d333b"),
    "frame": ("#eef1f4", "#1f242a"),
    "heat": ("#084081", "#8cc4ff"),
    "bar": ("#a9cbe8", "#2c5a86"),
    "note": ("#fff4d6", "#332a10"),
}


@dataclass(frozen=True)
class Rectangle:
    """`fill`, `stroke`: a name of `COLOURS` or "#rrggbb"; "" for none. `tooltip` is shown by browsers."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    stroke: str = ""
    line: float = 1.0
    opacity: float = 1.0
    tooltip: str = ""


@dataclass(frozen=True)
class Label:
    """One line of text; (x, y) is on its base line at its `anchor`. `angle` in degrees, counter-clockwise."""

    x: float
    y: float
    text: str
    font: float = SMALLEST_FONT
    fill: str = "text"
    anchor: str = "start"
    bold: bool = False
    angle: float = 0.0


@dataclass(frozen=True, eq=False)
class PhotoShape:
    """`pixels`: (height, width, 3) uint8, channel order B, G, R."""

    x: float
    y: float
    width: float
    height: float
    pixels: np.ndarray


Shape = Rectangle | Label | PhotoShape


def text_width(text: str, font: float = SMALLEST_FONT) -> float:
    """About the width of a line; a little too much rather than too little."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return (0.6 * (len(text) - wide) + 1.05 * wide) * font


def svg_text(shapes: Iterable[Shape], height: float, description: str) -> str:
    """A file that scales to its place, in the colours that the reader's system asks for."""
    light = "".join(_rules(name, colours[0]) for name, colours in COLOURS.items())
    dark = "".join(_rules(name, colours[1]) for name, colours in COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="rp" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="100%" '
            f'style="display:block;max-width:{_WIDEST_CSS_PX}px;height:auto;margin:0 auto" role="img" '
            f'aria-label="{escaped(description, 300)}" font-family="system-ui, sans-serif">',
            f"<style>{light}{_ground(0)}@media (prefers-color-scheme: dark) {{{dark}{_ground(1)}}}</style>",
            f'<rect class="f-page" width="{WIDTH:.0f}" height="{height:.0f}"/>',
            *map(_markup, shapes),
            "</svg>",
            "",
        ]
    )


def png_of(shapes: Sequence[Shape], height: float) -> bytes:
    """The picture on a light page, three pixels a unit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inch = 72.0  # a unit is a point
    figure = Figure(figsize=(WIDTH / inch, height / inch), dpi=inch * _PNG_SCALE, facecolor=COLOURS["page"][0])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for place, shape in enumerate(shapes):
        _draw(axes, shape, place)
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content, metadata={"Software": "roibeam"})
    return content.getvalue()


def _rules(name: str, colour: str) -> str:
    return f".rp .f-{name}{{fill:{colour}}}.rp .s-{name}{{stroke:{colour}}}"


def _ground(which: int) -> str:
    """Of the window around a picture that is opened by itself."""
    return f"svg:root{{background:{COLOURS['page'][which]}}}"


def _paint(fill: str, stroke: str = "") -> str:
    """Attributes for a fill and a stroke."""
    classes = " ".join(f"{kind}-{name}" for kind, name in (("f", fill), ("s", stroke)) if name in COLOURS)
    found = f' class="{classes}"' if classes else ""
    found += "" if fill in COLOURS else f' fill="{fill or "none"}"'
    return found if not stroke or stroke in COLOURS else f'{found} stroke="{stroke}"'


def _markup(shape: Shape) -> str:
    if isinstance(shape, PhotoShape):
        target = (max(round(_PHOTO_SCALE * shape.width), 1), max(round(_PHOTO_SCALE * shape.height), 1))
        is_small = shape.pixels.shape[1] <= target[0]
        pixels = shape.pixels if is_small else cv2.resize(shape.pixels, target, interpolation=cv2.INTER_AREA)
        data = base64.b64encode(jpeg_bytes(pixels)).decode("ascii")
        return (
            f'<image x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
            f'preserveAspectRatio="none" href="data:image/jpeg;base64,{data}"/>'
        )
    if isinstance(shape, Label):
        turned = f' transform="rotate({-shape.angle:.0f} {shape.x:.1f} {shape.y:.1f})"' if shape.angle else ""
        anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
        weight = ' font-weight="650"' if shape.bold else ""
        return (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.font:g}"{_paint(shape.fill)}{anchor}{weight}'
            f"{turned}>{escaped(shape.text, 400)}</text>"
        )
    line = f' stroke-width="{shape.line:g}"' if shape.stroke else ""
    opacity = f' opacity="{shape.opacity:.3f}"' if shape.opacity < 1 else ""
    tooltip = f"<title>{escaped(shape.tooltip)}</title>" if shape.tooltip else ""
    return (
        f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        f"{_paint(shape.fill, shape.stroke)}{line}{opacity}>{tooltip}</rect>"
    )


def _light(colour: str) -> str:
    return COLOURS[colour][0] if colour in COLOURS else colour or "none"


def _draw(axes: object, shape: Shape, place: int) -> None:
    from matplotlib.patches import Rectangle as Patch

    if isinstance(shape, PhotoShape):
        extent = (shape.x, shape.x + shape.width, shape.y + shape.height, shape.y)
        axes.imshow(shape.pixels[:, :, ::-1], extent=extent, aspect="auto", zorder=place)  # type: ignore[attr-defined]
    elif isinstance(shape, Label):
        where = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        axes.text(  # type: ignore[attr-defined]
            shape.x, shape.y, printable(shape.text, 400), fontsize=0.92 * shape.font, color=_light(shape.fill),
            ha=where, va="baseline", weight="bold" if shape.bold else "normal", rotation=shape.angle,
            rotation_mode="anchor", zorder=place, parse_math=False,
        )  # fmt: skip
    else:
        axes.add_patch(  # type: ignore[attr-defined]
            Patch(
                (shape.x, shape.y), shape.width, shape.height, facecolor=_light(shape.fill),
                edgecolor=_light(shape.stroke), linewidth=shape.line if shape.stroke else 0, alpha=shape.opacity,
                zorder=place,
            )
        )  # fmt: skip
