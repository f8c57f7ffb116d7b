"""Picture of a probe as SVG or PNG: the photo with its regions, attention between words and regions, and predictions.

A picture is a list of shapes in one column, readable on a telephone. In SVG text is text, in light and dark. One unit
is a CSS pixel where the picture is `WIDTH` of them wide; wider, all of it grows. All numbers stand as JSON beside it.
"""

from __future__ import annotations

import base64
import io
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import cv2
import numpy as np

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.record.region_drawing import PALETTE, jpeg_bytes, text_colour_on
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import escaped, printable
from roibeam.pipelines.analysis.analysis_settings import removed_on_failure
from roibeam.pipelines.analysis.probe import Guess, ProbeResult
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.data.vocabulary import Names

WIDTH = 360.0
SMALLEST_FONT = 11.0
_WIDEST_CSS_PX = 720  # on a large screen
_PNG_SCALE = 3
_PHOTO_SCALE = 3.0  # pixels of an embedded photo for each unit: sharp on dense screens
# Colours by role: on a light page, on a dark one. Any other colour is "#rrggbb", the same on both.
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
class RectangleShape:
    """`fill`, `stroke`: a name of `COLOURS` or "#rrggbb"; "" for none. Browsers display `tooltip`."""

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


Shape = RectangleShape | Label | PhotoShape


def text_width(text: str, font: float = SMALLEST_FONT) -> float:
    """About the width of a line; a little too much rather than too little."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return (0.6 * (len(text) - wide) + 1.05 * wide) * font


def svg_text(shapes: Iterable[Shape], height: float, description: str) -> str:
    """Returns an SVG file that scales to its place, in the colour scheme of the reader's system."""
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
    """Style of the window around a picture that is opened by itself."""
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


MAX_REGIONS = 14  # columns of the matrix and boxes on the photo: hidden regions, then those that words look at most
SCALE_SHARES = 3.0  # the darkest colour of the matrix is so many times the equal share
_MARGIN = 12.0
_INNER = WIDTH - 2 * _MARGIN
_MAX_PHOTO_HEIGHT = 336.0
_LINE = 15.0
_WORD_WIDTH, _CELL = 72.0, 17.0
_NAME_ANGLE = 62.0  # of the regions' names over the matrix, degrees
_PALE = 1.4  # power: colours near the equal share stay pale, the bar shows how
_BLOCK_GAP = 12.0
_FULL_BARS = (0.05, 0.1, 0.2, 0.5, 1.0)


def probe_shapes(
    result: ProbeResult,
    record: RegionRecord,
    names: Names,
    *,
    text: str,
    photo: np.ndarray | None,
    banner: Banner | None = None,
) -> tuple[list[Shape], float]:
    """The shapes of the picture, and its height.

    Args:
        photo: (height, width, 3) uint8 BGR, of the record's size; None draws the boxes on grey.
        banner: why the regions mean nothing; comes first.
    """
    drawn = regions_to_draw(result, record)
    heading, y = _heading(result, text, _MARGIN)
    warning, y = _banner(banner, y)
    boxes, y = _photo(record, drawn, y, photo, by_attention=result.attention is not None)
    matrices, y = _matrices(result, record, names, drawn, y)
    guesses, y = _guesses(result, y)
    return [*heading, *warning, *boxes, *matrices, *guesses], y + _MARGIN / 2


def regions_to_draw(result: ProbeResult, record: RegionRecord) -> list[int]:
    """Numbers of the regions to draw: all hidden ones, then those that the [MASK]s, else all words, look at most; by
    score without attention. The most looked at come first."""
    if result.attention is None:
        weight = np.asarray(record.class_scores, dtype=np.float64)
    else:
        rows = [word.position for word in result.words] or list(range(len(result.pieces)))
        weight = result.attention.weights[rows].sum(axis=0)
    hidden = {region.number for region in result.regions}
    order = [int(number) for number in np.argsort(-weight, kind="stable")]
    others = [number for number in order if number not in hidden][: max(MAX_REGIONS - len(hidden), 0)]
    drawn = hidden.union(others)
    return [number for number in order if number in drawn]


def _lines(
    text: str, y: float, *, font: float = SMALLEST_FONT, fill: str = "quiet", bold: bool = False, inset: float = 0.0
) -> tuple[list[Shape], float]:
    """Text over the whole width, broken into lines."""
    letters = int((_INNER - 2 * inset) / (0.6 * font))
    lines = wrap(printable(text, 1000), letters) or [""]
    step = 1.35 * font
    shapes: list[Shape] = [
        Label(_MARGIN + inset, y + font + row * step, line, font, fill, bold=bold) for row, line in enumerate(lines)
    ]
    return shapes, y + step * len(lines)


def _heading(result: ProbeResult, text: str, y: float) -> tuple[list[Shape], float]:
    shapes, y = _lines(text, y, font=15, fill="text", bold=True)
    match = "no match head" if result.match is None else f"text and image match: {100 * result.match:.1f} %"
    more, y = _lines(match, y + 2, font=12)
    return shapes + more, y + 6


def _banner(banner: Banner | None, y: float) -> tuple[list[Shape], float]:
    if banner is None:
        return [], y
    lines, end = _lines(f"{banner.title} {banner.text}", y + 5, fill="text", inset=8)
    return [RectangleShape(_MARGIN, y, _INNER, end + 6 - y, fill="note"), *lines], end + 14


def _photo(
    record: RegionRecord, drawn: Sequence[int], top: float, photo: np.ndarray | None, *, by_attention: bool
) -> tuple[list[Shape], float]:
    scale = min(_INNER / record.width, _MAX_PHOTO_HEIGHT / record.height)
    width, height = record.width * scale, record.height * scale
    left = (WIDTH - width) / 2
    shapes: list[Shape] = [
        RectangleShape(left, top, width, height, fill="frame")
        if photo is None
        else PhotoShape(left, top, width, height, photo)
    ]
    for place in reversed(range(len(drawn))):  # the most looked at on top
        x1, y1, x2, y2 = (float(value) * scale for value in record.boxes[drawn[place]])
        colour = PALETTE[place % len(PALETTE)]
        box = (left + x1, top + y1, max(x2 - x1, 0.5), max(y2 - y1, 0.5))
        shapes.append(RectangleShape(*box, stroke=text_colour_on(colour), line=2.5, opacity=0.5))
        shapes.append(RectangleShape(*box, stroke=colour, line=1.25))
    for place in reversed(range(len(drawn))):
        x1, y1 = (float(value) * scale for value in record.boxes[drawn[place], :2])
        x = min(left + x1, left + width - _tag_width(drawn[place]))
        shapes += _tag(x, min(top + y1, top + height - 13), drawn[place], PALETTE[place % len(PALETTE)])
    which = "the hidden ones, and those that words look at most" if by_attention else "the hidden ones, and the best"
    note = f"{len(drawn)} of {record.num_regions} regions: {which}." if len(drawn) < record.num_regions else ""
    if photo is None:
        note = f"{note} The photo is missing: none was named.".strip()
    more, y = _lines(note, top + height + 4) if note else ([], top + height)
    return shapes + more, y + 10


def _tag_width(number: int) -> float:
    return 4 + 6.8 * len(str(number))


def _tag(x: float, y: float, number: int, colour: str) -> list[Shape]:
    width = _tag_width(number)
    label = Label(x + width / 2, y + 10.2, str(number), SMALLEST_FONT, text_colour_on(colour), "middle")
    return [RectangleShape(x, y, width, 13, fill=colour), label]


def _matrices(
    result: ProbeResult, record: RegionRecord, names: Names, drawn: Sequence[int], y: float
) -> tuple[list[Shape], float]:
    """Matrices of attention from words to regions, as many as the regions need, and a colour bar."""
    looks = result.attention
    if looks is None:
        return [], y
    heads = "mean of all heads" if len(looks.heads) > 1 else f"head {looks.heads[0]} of {looks.num_heads}"
    shapes, y = _lines("Which word looks at which region", y + 4, font=13, fill="text", bold=True)
    more, y = _lines(f"attention, layer {looks.layer} of {looks.num_layers}, {heads}", y)
    shapes += more
    places = list(enumerate(drawn))
    for start in range(0, len(places), MAX_REGIONS):
        columns = places[start : start + MAX_REGIONS]
        called = [printable(names.of_detector(int(record.class_ids[number])), 13) for _, number in columns]
        header = 26 + max(map(text_width, called)) * math.sin(math.radians(_NAME_ANGLE))
        shapes += _matrix(result, columns, called, y + 4 + header)
        y += 4 + header + len(result.pieces) * _CELL
    more, y = _colour_bar(looks.equal_share, float(looks.weights[:, list(drawn)].max()), y + 12)
    return shapes + more, y + 10


def _matrix(
    result: ProbeResult, columns: Sequence[tuple[int, int]], called: Sequence[str], body: float
) -> Iterator[Shape]:
    """Args:
    columns: (place among the drawn ones, number) of each region; `called`: their names.
    body: top of the first row; names and numbers stand above.
    """
    assert result.attention is not None
    weights, largest = result.attention.weights, SCALE_SHARES * result.attention.equal_share
    first = _MARGIN + _WORD_WIDTH
    for column, ((place, number), name) in enumerate(zip(columns, called, strict=True)):
        x = first + column * _CELL
        yield from _tag(x + (_CELL - 1 - _tag_width(number)) / 2, body - 16, number, PALETTE[place % len(PALETTE)])
        yield Label(x + _CELL / 2 + 3, body - 20, name, angle=_NAME_ANGLE)
    masks = {word.position for word in result.words}
    for row, piece in enumerate(result.pieces):
        y = body + row * _CELL
        yield Label(first - 6, y + 12.5, printable(piece, 11), anchor="end", bold=row in masks)
        for column, (_, number) in enumerate(columns):
            value = float(weights[row, number])
            tip = f"{printable(piece)} to region {number}: {100 * value:.1f} %"
            cell = (first + column * _CELL, y, _CELL - 1, _CELL - 1)
            yield RectangleShape(*cell, fill="frame", tooltip=tip)
            yield RectangleShape(*cell, fill="heat", opacity=heat(value / largest), tooltip=tip)


def heat(fraction: float) -> float:
    """Opacity of a cell, 0 to 1, for a share of the scale."""
    return min(max(fraction, 0.0), 1.0) ** _PALE if math.isfinite(fraction) else 0.0


def _colour_bar(equal_share: float, highest: float, top: float) -> tuple[list[Shape], float]:
    """Legend of the colours, with a mark at the equal share of all regions."""
    left, width, steps = _MARGIN, _INNER, 42
    step = width / steps
    shapes: list[Shape] = [RectangleShape(left, top, width, 12, fill="frame")]
    shapes += [
        RectangleShape(left + each * step, top, step + 0.15, 12, fill="heat", opacity=heat((each + 0.5) / steps))
        for each in range(steps)
    ]
    mark = left + width / SCALE_SHARES
    shapes.append(RectangleShape(mark - 0.75, top - 4, 1.5, 20, fill="text"))
    for x, share, anchor in ((left, 0.0, "start"), (mark, 1.0, "middle"), (left + width, SCALE_SHARES, "end")):
        shapes.append(Label(x, top + 27, f"{100 * share * equal_share:.1f} %", anchor=anchor))
    note = (
        f"Share of a word's attention. Mark: {100 * equal_share:.1f} %, the equal share: that of each region of a "
        f"model that prefers none. The bar ends at three times that; the highest here is {100 * highest:.1f} %."
    )
    more, y = _lines(note, top + 32)
    return shapes + more, y


def _guesses(result: ProbeResult, y: float) -> tuple[list[Shape], float]:
    """Guesses of words and hidden regions, two blocks beside each other."""
    blocks = [*_word_blocks(result), *_region_blocks(result)]
    if not blocks:
        return [], y
    best = max((guess.probability for _, guesses in blocks for guess in guesses), default=1.0)
    full = next((each for each in _FULL_BARS if best <= each), 1.0)
    shapes, y = _lines("Guesses", y + 4, font=13, fill="text", bold=True)
    more, y = _lines(f"A bar over the whole column is {100 * full:.0f} %.", y)
    shapes += more
    width = (_INNER - _BLOCK_GAP) / 2
    for start in range(0, len(blocks), 2):
        heights = [0.0]
        for column, (title, guesses) in enumerate(blocks[start : start + 2]):
            drawn, height = _guess_block(title, guesses, _MARGIN + column * (width + _BLOCK_GAP), y + 6, width, full)
            shapes += drawn
            heights.append(height)
        y += 6 + max(heights)
    return shapes, y


def _word_blocks(result: ProbeResult) -> Iterator[tuple[str, tuple[Guess, ...]]]:
    for number, word in enumerate(result.words, start=1):
        yield ("[MASK]" if len(result.words) == 1 else f"[MASK] number {number}"), word.guesses


def _region_blocks(result: ProbeResult) -> Iterator[tuple[str, tuple[Guess, ...]]]:
    for region in result.regions:
        yield f"region {region.number} hidden ({printable(region.seen_as, 60)})", region.guesses


def _guess_block(
    title: str, guesses: Sequence[Guess], left: float, top: float, width: float, full: float
) -> tuple[list[Shape], float]:
    room = int(width / (0.56 * SMALLEST_FONT))
    shapes: list[Shape] = [Label(left, top + 11, printable(title, room), bold=True)]
    for number, guess in enumerate(guesses):
        y = top + 16 + number * (_LINE + 2)
        percent = f"{100 * guess.probability:.1f} %"
        name = printable(guess.name, int((width - 8 - text_width(percent)) / (0.56 * SMALLEST_FONT)))
        shapes.append(RectangleShape(left, y, width, _LINE, fill="frame"))
        shapes.append(RectangleShape(left, y, max(width * min(guess.probability / full, 1), 2), _LINE, fill="bar"))
        shapes.append(Label(left + 4, y + 11.2, name))
        shapes.append(Label(left + width - 4, y + 11.2, percent, anchor="end"))
    return shapes, 20 + len(guesses) * (_LINE + 2)


def write_probe_files(
    out: Path,
    result: ProbeResult,
    record: RegionRecord,
    names: Names,
    *,
    text: str,
    photo: np.ndarray | None,
    banner: Banner | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the picture, and beside it the numbers that are returned.

    Args:
        out: an .svg or .png file.
        photo, banner: as of `probe_shapes`.
        notes: on the regions, for the numbers.
    """
    shapes, height = probe_shapes(result, record, names, text=text, photo=photo, banner=banner)
    numbers = {**probe_numbers(result, record, names, text=text, banner=banner), "notes": list(notes)}
    with removed_on_failure(out, out.with_suffix(".json")):
        if out.suffix == ".png":
            out.write_bytes(png_of(shapes, height))
        else:
            out.write_text(svg_text(shapes, height, f"Probe of {record.image_id}: {text}"), "utf-8")
        out.with_suffix(".json").write_bytes(json_bytes(numbers))
    return numbers


def probe_numbers(
    result: ProbeResult, record: RegionRecord, names: Names, *, text: str, banner: Banner | None = None
) -> dict[str, Any]:
    """All numbers of a probe, for machines. `regions` are the hidden ones, `seen` are those of the detector."""
    looks = result.attention
    return {
        "image_id": record.image_id,
        "text": text,
        "warning": None if banner is None else banner.line,
        "pieces": result.pieces,
        "words": [asdict(word) for word in result.words],
        "regions": [asdict(region) for region in result.regions],
        "regions_remark": result.regions_remark,
        "match": result.match,
        "attention": None
        if looks is None
        else {
            "weights": [[round(float(value), 6) for value in row] for row in looks.weights],
            "layer": looks.layer,
            "num_layers": looks.num_layers,
            "heads": looks.heads,
            "num_heads": looks.num_heads,
            "equal_share": round(looks.equal_share, 6),
            "scale": [0.0, round(SCALE_SHARES * looks.equal_share, 6)],
        },
        "seen": [
            {
                "box": [round(float(edge), 2) for edge in record.boxes[number]],
                "class": names.of_detector(int(record.class_ids[number])),
                "score": round(float(record.class_scores[number]), 4),
            }
            for number in range(record.num_regions)
        ],
        "drawn": regions_to_draw(result, record),
    }
