"""Picture of a probe as SVG or PNG: the photo with its regions, attention between words and regions, and predictions.

matplotlib draws pictures in one column, readable on a telephone; in SVG text is text, in light and dark. One unit is a
CSS pixel where the picture is `WIDTH` of them wide; wider, all of it grows. All numbers stand as JSON beside it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import cv2
import numpy as np

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.record.region_drawing import PALETTE, text_colour_on
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import printable
from roibeam.pipelines.analysis.analysis_settings import removed_on_failure
from roibeam.pipelines.analysis.probe import Guess, ProbeResult
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.common.plot import WIDTH_PX, picture_png, picture_svg
from roibeam.pipelines.data.vocabulary import Names

MARGIN = 12.0
INNER = WIDTH_PX - 2 * MARGIN
FONT = 11.0  # the smallest
CELL = 17.0
_LETTER = 0.6  # width of a letter, about, as a share of its font
_UNIT = 72.0  # an inch: matplotlib's points are units
_TALLEST = 40_000.0
_PHOTO_SCALE = 2.0  # pixels of a photo for each unit


def colour_of(place: int) -> str:
    """Colour of the region or group of regions at a place among those that are drawn."""
    return PALETTE[place % len(PALETTE)]


class Sheet:
    """A figure in one column, filled from the top.

    Args:
        colours: by role, of plot.py.
    """

    def __init__(self, colours: Mapping[str, str]) -> None:
        from matplotlib.figure import Figure

        self.colours, self.y = colours, MARGIN
        self.figure: Any = Figure(figsize=(WIDTH_PX / _UNIT, _TALLEST / _UNIT), dpi=_UNIT)
        self.figure.patch.set_visible(False)

    @property
    def part(self) -> Any:
        """The part of the figure that is filled, in inches."""
        from matplotlib.transforms import Bbox

        below = math.ceil(self.y + MARGIN / 2)
        return Bbox([[0, (_TALLEST - below) / _UNIT], [WIDTH_PX / _UNIT, _TALLEST / _UNIT]])

    def label(self, x: float, y: float, text: str, size: float = FONT, colour: str = "text", **look: Any) -> None:
        """One line of text on the base line y."""
        place, look = (x / WIDTH_PX, 1 - y / _TALLEST), {"va": "baseline", "zorder": -1, **look}  # read before axes
        self.figure.text(*place, text, fontsize=size, color=self.colours[colour], **look)

    def text(self, text: str, size: float = FONT, colour: str = "quiet", inset: float = 0.0, **look: Any) -> None:
        """Text over the whole width, broken into lines."""
        letters = int((INNER - 2 * inset) / (_LETTER * size))
        for line in wrap(printable(text, 1000), letters) or [""]:
            self.label(MARGIN + inset, self.y + size, line, size, colour, **look)
            self.y += 1.35 * size

    def axes(self, left: float, width: float, height: float) -> Any:
        """Empty axes from y on, (0, 0) at their upper left."""
        place = left / WIDTH_PX, 1 - (self.y + height) / _TALLEST, width / WIDTH_PX, height / _TALLEST
        axes: Any = self.figure.add_axes(place)
        axes.patch.set_visible(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=FONT)
        axes.set(xticks=[], yticks=[])
        self.y += height
        return axes

    def photo(
        self, record: RegionRecord, photo: np.ndarray | None, regions: Sequence[tuple[int, str]], most_height: float
    ) -> Any:
        """The photo with boxes; returns its axes, in pixels of the photo.

        Args:
            photo: (height, width, 3) uint8 BGR, of the record's size; None draws the boxes on grey.
            regions: number and colour of each, the lowest first.
        """
        from matplotlib.patches import Rectangle

        scale = min(INNER / record.width, most_height / record.height)
        width, height = record.width * scale, record.height * scale
        axes = self.axes((WIDTH_PX - width) / 2, width, height)
        if photo is None:
            axes.add_patch(Rectangle((0, 0), record.width, record.height, facecolor=self.colours["line"]))
        else:
            size = max(round(_PHOTO_SCALE * width), 1), max(round(_PHOTO_SCALE * height), 1)
            pixels = cv2.resize(photo, size, interpolation=cv2.INTER_AREA)[:, :, ::-1]
            axes.imshow(pixels, extent=(0, record.width, record.height, 0), aspect="auto", interpolation="none")
        for region, colour in regions:
            x1, y1, x2, y2 = map(float, record.boxes[region])
            for edge, line, opacity in ((text_colour_on(colour), 2.5, 0.5), (colour, 1.25, 1.0)):
                axes.add_patch(
                    Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=edge, linewidth=line, alpha=opacity)
                )
        axes.set(xlim=(0, record.width), ylim=(record.height, 0), xticks=[], yticks=[])
        return axes

    def heat(self, axes: Any, values: np.ndarray, largest: float, power: float = 1.0) -> None:
        """Fills axes with cells; (rows, columns) values from 0, the darkest at `largest` and above."""
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb

        rgb = to_rgb(self.colours["series-0"])
        shades = LinearSegmentedColormap.from_list("heat", [(*rgb, 0.04), (*rgb, 1.0)])
        rows, columns = values.shape
        axes.pcolormesh(
            np.nan_to_num(values), cmap=shades, norm=PowerNorm(power, 0, max(largest, 1e-12), clip=True),
            edgecolors=self.colours["line"], linewidth=0.5,
        )  # fmt: skip
        axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])


def tag(axes: Any, x: float, y: float, number: int, colour: str, **look: Any) -> None:
    box = {"facecolor": colour, "edgecolor": "none", "boxstyle": "square,pad=0.15"}
    axes.text(x, y, str(number), color=text_colour_on(colour), fontsize=FONT, bbox=box, **look)


MAX_REGIONS = 14  # columns of the matrix and boxes on the photo: hidden regions, then those that words look at most
SCALE_SHARES = 3.0  # the darkest colour of the matrix is so many times the equal share
_PALE = 1.4  # power: colours near the equal share stay pale, the bar shows how
_MAX_PHOTO_HEIGHT = 336.0
_WORD_WIDTH = 72.0
_NAME_ANGLE = 62.0  # of the regions' names over the matrix, degrees
_BLOCK_GAP = 12.0
_FULL_BARS = (0.05, 0.1, 0.2, 0.5, 1.0)


def draw_probe(
    result: ProbeResult,
    record: RegionRecord,
    names: Names,
    colours: Mapping[str, str],
    *,
    text: str,
    photo: np.ndarray | None,
    banner: Banner | None = None,
) -> Sheet:
    """The picture.

    Args:
        photo: of `Sheet.photo`.
        banner: why the regions mean nothing; comes first.
    """
    drawn, sheet = regions_to_draw(result, record), Sheet(colours)
    sheet.text(text, 15, "text", fontweight="bold")
    sheet.y += 2
    sheet.text("no match head" if result.match is None else f"text and image match: {100 * result.match:.1f} %", 12)
    sheet.y += 6
    if banner is not None:
        sheet.text(banner.title, 12, "series-1", fontweight="bold")
        sheet.text(banner.text, colour="text")
        sheet.y += 8
    _draw_photo(sheet, result, record, drawn, photo)
    if result.attention is not None:
        _draw_attention(sheet, result, record, names, drawn)
    _draw_guesses(sheet, result)
    return sheet


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


def _draw_photo(
    sheet: Sheet, result: ProbeResult, record: RegionRecord, drawn: Sequence[int], photo: np.ndarray | None
) -> None:
    """The photo; the regions that are most looked at lie on top."""
    regions = [(number, colour_of(place)) for place, number in reversed(list(enumerate(drawn)))]
    axes = sheet.photo(record, photo, regions, _MAX_PHOTO_HEIGHT)
    for number, colour in regions:
        x, y = map(float, record.boxes[number, :2])
        side = "right" if x > 0.92 * record.width else "left"
        tag(axes, x, min(y, 0.95 * record.height), number, colour, ha=side, va="top")
    sheet.y += 4
    which = "the best" if result.attention is None else "those that words attend to most"
    if len(drawn) < record.num_regions:
        sheet.text(f"{len(drawn)} of {record.num_regions} regions: the hidden ones, and {which}.")
    if photo is None:
        sheet.text("The photo is missing: none was named.")
    sheet.y += 10


def _draw_attention(
    sheet: Sheet, result: ProbeResult, record: RegionRecord, names: Names, drawn: Sequence[int]
) -> None:
    """Matrices of attention from words to regions, as many as the regions need, and a colour bar."""
    looks = result.attention
    assert looks is not None
    heads = "mean of all heads" if len(looks.heads) > 1 else f"head {looks.heads[0]} of {looks.num_heads}"
    sheet.text("Which word attends to which region", 13, "text", fontweight="bold")
    sheet.text(f"attention, layer {looks.layer} of {looks.num_layers}, {heads}")
    largest, masks = SCALE_SHARES * looks.equal_share, {word.position for word in result.words}
    for start in range(0, len(drawn), MAX_REGIONS):
        numbers = list(drawn[start : start + MAX_REGIONS])
        called = [printable(names.of_detector(int(record.class_ids[number])), 13) for number in numbers]
        sheet.y += 30 + _LETTER * FONT * max(map(len, called)) * math.sin(math.radians(_NAME_ANGLE))
        axes = sheet.axes(MARGIN + _WORD_WIDTH, CELL * len(numbers), CELL * len(result.pieces))
        sheet.heat(axes, looks.weights[:, numbers], largest, _PALE)
        words = axes.set_yticks(
            np.arange(len(result.pieces)) + 0.5, labels=[printable(piece, 11) for piece in result.pieces]
        )
        for row in masks:
            words[row].label1.set_fontweight("bold")
        axes.xaxis.tick_top()
        axes.tick_params(axis="x", pad=18)
        axes.set_xticks(
            np.arange(len(numbers)) + 0.5, labels=called, rotation=_NAME_ANGLE, ha="left", rotation_mode="anchor"
        )
        for column, number in enumerate(numbers):
            tag(axes, column + 0.5, -0.55, number, colour_of(start + column), ha="center", va="center")
    sheet.y += 12
    bar = sheet.axes(MARGIN, INNER, 12)
    sheet.heat(bar, (np.arange(42)[None] + 0.5) / 42, 1.0, _PALE)
    equal = 42 / SCALE_SHARES
    bar.axvline(equal, -0.3, 1.3, color=sheet.colours["text"], clip_on=False)
    shares = (0.0, looks.equal_share, largest)
    ends = bar.set_xticks([0, equal, 42], labels=[f"{100 * share:.1f} %" for share in shares])
    ends[0].label1.set_ha("left")
    ends[-1].label1.set_ha("right")
    sheet.y += 22
    highest = float(looks.weights[:, list(drawn)].max())
    sheet.text(
        f"Share of a word's attention. Mark: {100 * looks.equal_share:.1f} %, the equal share: that of each region of "
        f"a model that prefers none. The bar ends at three times that; the highest here is {100 * highest:.1f} %."
    )
    sheet.y += 10


def _draw_guesses(sheet: Sheet, result: ProbeResult) -> None:
    """Guesses of words and hidden regions, two blocks beside each other."""
    blocks = list(_guesses(result))
    if not blocks:
        return
    best = max((guess.probability for _, guesses in blocks for guess in guesses), default=1.0)
    full = next((each for each in _FULL_BARS if best <= each), 1.0)
    sheet.text("Guesses", 13, "text", fontweight="bold")
    sheet.text(f"A bar over the whole column is {100 * full:.0f} %.")
    width = (INNER - _BLOCK_GAP) / 2
    letters = int(width / (_LETTER * FONT))
    for start in range(0, len(blocks), 2):
        top = sheet.y + 6
        ends = []
        for column, (title, guesses) in enumerate(blocks[start : start + 2]):
            sheet.y, left = top, MARGIN + column * (width + _BLOCK_GAP)
            sheet.label(left, sheet.y + FONT, printable(title, letters - 2), fontweight="bold")
            sheet.y += 16
            axes = sheet.axes(left, width, CELL * len(guesses))
            rows = np.arange(len(guesses))
            axes.barh(rows, 1, 0.88, color=sheet.colours["line"], alpha=0.5)
            shares = [guess.probability / full for guess in guesses]
            axes.barh(rows, np.clip(shares, 0.01, 1), 0.88, color=sheet.colours["series-0"], alpha=0.4)
            for row, guess in enumerate(guesses):
                axes.text(0.02, row, printable(guess.name, letters - 9), va="center", fontsize=FONT)
                axes.text(0.98, row, f"{100 * guess.probability:.1f} %", ha="right", va="center", fontsize=FONT)
            axes.set(xlim=(0, 1), ylim=(len(guesses) - 0.5, -0.5), xticks=[], yticks=[])
            ends.append(sheet.y)
        sheet.y = max(ends)


def _guesses(result: ProbeResult) -> Iterator[tuple[str, tuple[Guess, ...]]]:
    for number, word in enumerate(result.words, start=1):
        yield ("[MASK]" if len(result.words) == 1 else f"[MASK] number {number}"), word.guesses
    for region in result.regions:
        yield f"region {region.number} hidden ({printable(region.seen_as, 60)})", region.guesses


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
        photo, banner: as of `draw_probe`.
    """

    draw = partial(draw_probe, result, record, names, text=text, photo=photo, banner=banner)
    numbers = {**probe_numbers(result, record, names, text=text, banner=banner), "notes": list(notes)}
    with removed_on_failure(out, out.with_suffix(".json")):
        if out.suffix == ".png":
            out.write_bytes(picture_png(draw))
        else:
            out.write_text(picture_svg(draw, label=f"Probe of {record.image_id}: {text}"), "utf-8")
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
