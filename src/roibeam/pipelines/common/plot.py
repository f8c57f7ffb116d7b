"""Plots of numbers over steps as SVG that a page holds, and PNG files of plots and pictures.

matplotlib draws the plots: text stays text, colours are the page's. A plot is drawn for a phone, 360 px wide with
letters of 12 px, and scales up with the page. Its colours are CSS variables, which `PLOT_COLOURS` gives for light and
dark. The same numbers give the same text. matplotlib is imported when the first plot is drawn.

`write_picture` replaces an older picture of roibeam, and nothing else.
"""

import base64
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import escaped

WIDTH_PX = 360
_LETTERS_PX = 12
_PX = 72  # an inch: then matplotlib's points are pixels
_LEFT, _RIGHT, _ABOVE, _BELOW, _AXES_HEIGHT = 62, 10, 26, 42, 150
_LEGEND_ROW, _LEGEND_COLUMNS = 18, 3
_LETTER_WIDTH, _BESIDE_NAME = 7, 37  # px in a legend, about: of a letter, and of a name's line with the space around
_PERCENT = 100.0

# Colours that matplotlib is given stand for variables of the page. No two of them are alike, and none is black, which
# matplotlib leaves out.
_VARIABLES = {
    "#010203": "text",
    "#040506": "quiet",
    "#070809": "line",
    **{f"#0a0b{number:02x}": f"series-{number}" for number in range(6)},
}
_COLOUR_OF = {name: colour for colour, name in _VARIABLES.items()}
# Colours of a light page, for a picture of pixels.
_LIGHT = {
    "text": "#1b1f24", "quiet": "#5b6470", "line": "#d9dee4", "series-0": "#1f5fa8", "series-1": "#b8500a",
    "series-2": "#1d7a46", "series-3": "#8a3f9e", "series-4": "#a52a3a", "series-5": "#5c6a00",
}  # fmt: skip
_PNG_SCALE = 3

PLOT_COLOURS = """
:root { --series-0: #1f5fa8; --series-1: #b8500a; --series-2: #1d7a46; --series-3: #8a3f9e; --series-4: #a52a3a;
  --series-5: #5c6a00; }
@media screen and (prefers-color-scheme: dark) {
  :root { --series-0: #79b1f2; --series-1: #f0a35e; --series-2: #6fcf97; --series-3: #d29be6; --series-4: #f28b96;
    --series-5: #c9d36a; } }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 16px 20px; }
.plot { display: block; width: 100%; max-width: 460px; height: auto; }
.plot text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
"""
# Style of an SVG file of its own; a page has these from its frame.
_OWN_COLOURS = """
:root { --text: #1b1f24; --quiet: #5b6470; --line: #d9dee4; --page: #fff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --quiet: #98a2ae; --line: #2d333b; --page: #14171b; } }
"""


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: in the legend; "" leaves it out there.
        x, y: of equal length; values that are not finite are gaps.
        colour: 0..5.
        style: "line"; "faint" for values whose mean is a "line" over it; "points" for a few values, joined by a line;
            "dots" and "small dots" for values without lines.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    style: Literal["line", "faint", "points", "dots", "small dots"] = "line"


@dataclass(frozen=True)
class Level:
    """A value to compare with, such as chance: a dashed line over the whole width; colour 0..5, or that of
    quiet text."""

    name: str
    value: float
    colour: int | None = None


@dataclass(frozen=True)
class Plot:
    """A plot of curves.

    Attributes:
        x_label, y_label: names of the axes, with the unit: "step", "loss (nats)".
        series: at least one.
        percent: whether the y values are shares, 0..1, displayed in percent.
        y_range: lowest and highest of the y axis; None takes them from the values: 0 belongs to it, and a spike among
            many values does not flatten them.
        marks: (x, name) of places on the x axis, such as where a stage begins.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    percent: bool = False
    y_range: tuple[float, float] | None = None
    marks: Sequence[tuple[float, str]] = ()


def plot_svg(plot: Plot, key: str) -> str:
    """Draws the plot as an `<svg>` element for a page that has the style `PLOT_COLOURS`; no two of a page have one
    `key`."""
    with _settings(_COLOUR_OF):
        text = io.StringIO()
        hidden = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        _drawn(plot, _COLOUR_OF).savefig(text, format="svg", metadata=hidden)
        return _element(text.getvalue(), key, label=f"{plot.title}: {plot.y_label} over {plot.x_label}")


def png_file(plots: Sequence[Plot]) -> bytes:
    """Draws plots in one PNG picture, light, three pixels a unit; the same bytes for the same numbers and library."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawn = []
    with _settings(_LIGHT):
        for plot in plots:
            figure = _drawn(plot, _LIGHT)
            figure.set_dpi(_PX * _PNG_SCALE)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            drawn.append(Image.fromarray(np.asarray(canvas.buffer_rgba())))
    columns = max(min(3, len(drawn)), 1)
    rows = [drawn[start : start + columns] for start in range(0, len(drawn), columns)]
    heights = [max(each.height for each in row) for row in rows]
    page = Image.new("RGB", (columns * WIDTH_PX * _PNG_SCALE, sum(heights)), "white")
    for top, row in zip(np.cumsum([0, *heights[:-1]]).tolist(), rows, strict=True):
        for column, each in enumerate(row):
            page.paste(each, (column * WIDTH_PX * _PNG_SCALE, top), each)
    content = io.BytesIO()
    page.save(content, "PNG")
    return content.getvalue()


def _drawn(plot: Plot, colours: Mapping[str, str]) -> Any:
    named = [name for name in (*(each.name for each in plot.series), *(each.name for each in plot.levels)) if name]
    columns = _legend_columns(named)
    rows = -(-len(named) // columns)
    height = _ABOVE + rows * _LEGEND_ROW + _AXES_HEIGHT + _BELOW
    figure = _figure(height)
    figure.text(6 / WIDTH_PX, 1 - 16 / height, plot.title, fontweight="bold", va="baseline")
    size = (WIDTH_PX - _LEFT - _RIGHT) / WIDTH_PX, _AXES_HEIGHT / height
    axes = figure.add_axes((_LEFT / WIDTH_PX, _BELOW / height, *size))
    _axes_look(axes, colours)
    scale = _PERCENT if plot.percent else 1.0
    _draw_series(axes, plot, scale, colours)
    low, high = plot.y_range or _y_range(plot)
    axes.set_ylim(low * scale, high * scale)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.yaxis.set_label_coords(-(_LEFT - 17) / (WIDTH_PX - _LEFT - _RIGHT), 0.5)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
    axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=5, integer=True)
    if rows:
        axes.legend(
            loc="lower left", bbox_to_anchor=(-(_LEFT - 6) / (WIDTH_PX - _LEFT - _RIGHT), 1.0), frameon=False,
            ncols=min(len(named), columns), borderaxespad=0, handlelength=1.4, handletextpad=0.5,
            columnspacing=1.2, labelspacing=0.3, borderpad=0.3, labelcolor=colours["text"],
        )  # fmt: skip
    return figure


def svg_file(plots: Sequence[str], *, columns: int = 3) -> str:
    """Joins plots of `plot_svg` in one SVG file that stands for itself, light or dark as its reader has it."""
    heights = [float(_attribute(plot, "viewBox").split()[3]) for plot in plots]
    columns = max(min(columns, len(plots)), 1)
    rows = [range(start, min(start + columns, len(plots))) for start in range(0, len(plots), columns)]
    top, parts = 0.0, []
    for row in rows:
        for column, place in enumerate(row):
            element = plots[place].replace("<svg ", f'<svg x="{column * WIDTH_PX}" y="{top:g}" width="{WIDTH_PX}" ', 1)
            parts.append(element.replace("<svg ", f'<svg height="{heights[place]:g}" ', 1))
        top += max(heights[place] for place in row)
    width = columns * WIDTH_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {top:g}" width="{width}" height="{top:g}">\n'
        f"<style>{_OWN_COLOURS}{PLOT_COLOURS}</style>\n"
        f'<rect width="{width}" height="{top:g}" style="fill: var(--page)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


class Drawn(Protocol):
    """A picture: the figure, and the part of it that is filled, a `Bbox` in inches."""

    figure: Any

    @property
    def part(self) -> Any: ...


def picture_svg(draw: Callable[[Mapping[str, str]], Drawn], *, label: str) -> str:
    """Draws a picture as an SVG file that stands for itself, light or dark, and grows with its place.

    Args:
        draw: colours by role -> the picture.
    """
    with _settings(_COLOUR_OF):
        element = _element(_saved(draw(_COLOUR_OF), "svg").decode(), "picture", label=label)
    style = f"{_OWN_COLOURS}{PLOT_COLOURS}".replace(":root", ".picture")
    start, _, rest = element.partition(">")
    start = start.replace('class="plot"', 'class="plot picture" width="100%" xmlns="http://www.w3.org/2000/svg"')
    start = start.replace('style="', 'style="max-width: 720px; margin: 0 auto; background: var(--page); ')
    own = f"{start}><style>{style}</style>{rest}\n"
    return re.sub(r'(<image [^>]*href=")data:image/png;base64,([^"]+)', _as_jpeg, own)


def picture_png(draw: Callable[[Mapping[str, str]], Drawn]) -> bytes:
    """Draws a picture, see `picture_svg`, as PNG, light, three pixels a unit."""
    with _settings(_LIGHT):
        return _saved(draw(_LIGHT), "png", facecolor="white", dpi=_PX * _PNG_SCALE, metadata={_KEY: _MARK})


def _saved(picture: Drawn, kind: str, **look: Any) -> bytes:
    content = io.BytesIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a browser has fonts of its own
        picture.figure.savefig(content, format=kind, bbox_inches=picture.part, **{"metadata": metadata, **look})
    return content.getvalue()


def _as_jpeg(found: re.Match[str]) -> str:
    """A photo of an SVG file in a tenth of the bytes."""
    content = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(found[2]))).convert("RGB").save(content, "JPEG", quality=90)
    return f"{found[1]}data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _settings(colours: Mapping[str, str]) -> Any:
    """Context of matplotlib's own defaults, without a user's file, but for these settings."""
    import matplotlib

    return matplotlib.rc_context(
        {
            **{name: value for name, value in matplotlib.rcParamsDefault.items() if name.startswith(_OWN_SETTINGS)},
            "svg.fonttype": "none",
            "svg.hashsalt": "roibeam",
            "text.parse_math": False,
            "font.size": _LETTERS_PX,
            "text.color": colours["text"],
            "axes.labelcolor": colours["text"],
            "axes.edgecolor": colours["quiet"],
            "xtick.color": colours["quiet"],
            "ytick.color": colours["quiet"],
            "xtick.labelcolor": colours["text"],
            "ytick.labelcolor": colours["text"],
        }
    )


_OWN_SETTINGS = tuple("axes figure font grid legend lines path patch savefig svg text xtick ytick".split())


def _figure(height: float) -> Any:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / _PX, height / _PX), dpi=_PX)
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    return figure


def _axes_look(axes: Any, colours: Mapping[str, str]) -> None:
    axes.patch.set_visible(False)
    axes.grid(visible=True, axis="y", color=colours["line"], linewidth=1)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=3)


def _legend_columns(named: Sequence[str]) -> int:
    """Returns as many columns as there is room for. matplotlib fills them one by one, the first ones with one more."""
    for columns in range(_LEGEND_COLUMNS, 1, -1):
        widest = [max(map(len, part), default=0) for part in np.array_split(np.array(named, object), columns)]
        if _LETTER_WIDTH * sum(widest) + _BESIDE_NAME * columns <= WIDTH_PX:
            return columns
    return 1


def _draw_series(axes: Any, plot: Plot, scale: float, colours: Mapping[str, str]) -> None:
    looks: dict[str, dict[str, Any]] = {
        "line": {"linewidth": 2},
        "faint": {"linewidth": 1, "alpha": 0.4},
        "points": {"linewidth": 1.5, "marker": "o", "markersize": 4},
        "dots": {"linewidth": 0, "marker": "o", "markersize": 6},
        "small dots": {"linewidth": 0, "marker": "o", "markersize": 3, "alpha": 0.5},
    }
    for each in plot.series:
        look = looks[each.style]
        if len(each.x) == 1 and not each.style.endswith("dots"):
            look = {**look, "marker": "o", "markersize": 4, "alpha": 1}
        values = [scale * value for value in each.y]
        axes.plot(each.x, values, color=colours[f"series-{each.colour}"], label=each.name or None, **look)
    for level in plot.levels:
        colour = colours["quiet" if level.colour is None else f"series-{level.colour}"]
        axes.axhline(level.value * scale, color=colour, linewidth=1.5, linestyle=(0, (4, 3)), label=level.name)
    for x, name in plot.marks:
        axes.axvline(x, color=colours["quiet"], linewidth=1)
        axes.text(x, 0.03, f" {name}", transform=axes.get_xaxis_transform(), color=colours["quiet"])


def _y_range(plot: Plot) -> tuple[float, float]:
    values = sorted(value for each in plot.series for value in each.y if math.isfinite(value))
    levels = [level.value for level in plot.levels if math.isfinite(level.value)]
    if not values:
        return 0.0, 1.0
    highest = max([values[math.ceil(0.995 * (len(values) - 1))], *levels])
    lowest = min(values[0], 0.0, *levels)
    if plot.percent:
        highest = min(highest, 1.0)
    room = 0.06 * (highest - lowest) or 1.0
    return lowest - (room if lowest < 0 else 0.0), highest + room


def _element(markup: str, key: str, *, label: str) -> str:
    """Returns the picture of an SVG file as an element of a page: names within it are of this plot alone."""
    view_box = _attribute(markup, "viewBox")
    inner = markup[markup.index("<g id=") : markup.rindex("</svg>")]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', inner))

    def of_page(tag: re.Match[str]) -> str:
        own = re.sub(r' id="([^"]+)"', lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "", tag[0])
        own = re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", own)
        # The letters are the page's; matplotlib names a dozen of its own.
        own = re.sub(r" font-family: [^;\"]+;?", "", own)
        own = re.sub(r"\bfont: (\w+) (\w+) [^;\"]+", r"font-weight: \1; font-size: \2", own)
        own = re.sub(r' transform="rotate\(-0 [^"]*"', "", own)
        for colour, name in _VARIABLES.items():
            own = re.sub(rf"{colour}\b", f"var(--{name})", own)
        return own

    inner = re.sub(r"<[^>]+>", of_page, inner)  # tags alone: texts are other people's
    inner = re.sub(r"\s*\n\s*", " ", inner)
    return (
        f'<svg class="plot" viewBox="{view_box}" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escaped(label, 300)}" style="stroke-linejoin: round; stroke-linecap: butt">{inner}</svg>'
    )


def _attribute(markup: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', markup)
    assert found is not None, name
    return found[1]


_KEY, _MARK = "Software", "roibeam"


def check_picture_path(path: Path) -> None:
    """Raises ValueError where `write_picture` would write nothing; to be called before long work."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture to write must end in .png")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if os.path.lexists(path) and not _is_roibeam_picture(path):
        raise ValueError(f"{path}: is there already, and roibeam did not draw it; name another file")


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """Writes a .png file whole or not at all; `pixels` is (height, width, 3) uint8, channel order B, G, R."""
    check_picture_path(path)
    info = PngInfo()
    info.add_text(_KEY, _MARK)
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1])).save(content, "PNG", pnginfo=info)
    write_bytes_atomically(path, content.getvalue())


def _is_roibeam_picture(path: Path) -> bool:
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            return picture.info.get(_KEY) == _MARK
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError):
        return False
