"""A comparison of two stores for people, as lines of text and as one HTML page: plain data in, text out.

Reads nothing; the page asks for nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roibeam.features.comparison.store_comparison import ImageComparison, StoreComparison
from roibeam.features.counted import counted
from roibeam.features.printable import escaped, printable
from roibeam.features.record.drawing.palette import text_colour_on
from roibeam.pipelines.foundation.pages.page import PAGE_HEAD, PAGE_STYLE

_MATCHED, _UNMATCHED = "#a1caf1", "#ff3ea5"
_CANVAS_WIDTH_CSS_PX = 600  # about what a picture gets on the page; the size of the numbers is chosen for it
_NUMBER_FONT_CSS_PX = 11.0


def comparison_text(found: StoreComparison) -> str:
    """What `roibeam store diff` prints; one line of figures for each of the worst images when they differ."""
    lines = [f"{what:<22} {printable(figure, 300)}" for what, figure in found.rows()]
    for side in (found.left, found.right):
        lines += [f"unusable: {printable(line, 300)}" for line in side.first_bad_entries]
    lines += [f"note: {printable(note, 600)}" for note in found.notes]
    if found.worst and not found.equal:
        lines.append(
            f"{'regions':>13} {'pairs':>6} {'0.1 px':>6} {'cosine':>8} {'error':>8} {'class':>6}  worst images"
        )
        for image in found.worst:
            cosine = f"{image.cosine_min:8.4f}" if image.cosine_min is not None else f"{'-':>8}"
            error = f"{image.feature_error:8.1e}" if image.feature_error is not None else f"{'-':>8}"
            same_class = "-" if image.num_same_class is None else image.num_same_class
            counts = f"{image.num_left:>6,} {image.num_right:>6,} {image.num_matched:>6,} {image.num_same_box:>6,}"
            lines.append(f"{counts} {cosine} {error} {same_class:>6}  {printable(image.image_id, 100)}")
    lines += [f"different: {printable(difference, 300)}" for difference in found.differences]
    if found.equal:
        lines.append(f"equal: boxes within 0.1 px, features, scores and distributions within {found.max_error:g}")
    return "\n".join(lines)


@dataclass(frozen=True)
class ComparedBox:
    """One region as it is drawn.

    Attributes:
        box: x1, y1, x2, y2 in photo pixels.
        pair: number of its pair, the same on both sides; None when it has no partner.
        text: tooltip.
    """

    box: tuple[float, float, float, float]
    pair: int | None
    text: str


@dataclass(frozen=True)
class ComparedSide:
    """One side's picture: (height, width) of the record, its boxes, and the photo made small; `missing` says why there
    is none (empty when none was asked for)."""

    image_hw: tuple[int, int]
    boxes: tuple[ComparedBox, ...]
    thumbnail_jpeg: bytes | None
    missing: str


@dataclass(frozen=True)
class ComparedImage:
    """One image: its figures, and both sides."""

    figures: ImageComparison
    left: ComparedSide
    right: ComparedSide


def comparison_html(
    found: StoreComparison, rows: Sequence[tuple[str, str]], pictures: Sequence[ComparedImage]
) -> Iterator[str]:
    """The page, part by part.

    Args:
        rows: (what, figure): the summary as the terminal shows it.
        pictures: of the worst images, worst first.
    """
    yield PAGE_HEAD.format(title="Comparison of two stores", style=PAGE_STYLE + _OWN_STYLE)
    yield "<header><h1>Comparison of two stores</h1></header>\n<main>\n"
    yield from _verdict(found)
    body = "".join(
        f'<tr><th scope="row">{escaped(what.strip(), 60)}</th><td><bdi>{escaped(figure, 400)}</bdi></td></tr>'
        for what, figure in rows
    )
    yield f'<table class="summary">{body}</table>\n'
    for note in found.notes:
        yield f'<p class="quiet">{escaped(note)}</p>\n'
    yield from _bad_entries(found)
    yield from _pictures(found, pictures)
    yield "</main>\n</body>\n</html>\n"


def _verdict(found: StoreComparison) -> Iterator[str]:
    if found.equal:
        yield (
            '<p class="note equal"><b>Equal</b> within the tolerances: every region matched within 0.1 px, '
            f"features, scores and distributions within {found.max_error:g}.</p>\n"
        )
        return
    items = "".join(f"<li>{escaped(difference, 400)}</li>" for difference in found.differences)
    yield f'<div class="note"><b>They differ.</b><ul>{items}</ul></div>\n'


def _bad_entries(found: StoreComparison) -> Iterator[str]:
    for side in (found.left, found.right):
        if not side.bad_entries:
            continue
        total = sum(side.bad_entries.values())
        yield f"<section><h2>Entries that cannot be used <small>{total:,} of {escaped(side.name)}</small></h2>\n<ul>"
        for entry in side.first_bad_entries:
            yield f'<li class="id"><bdi>{escaped(entry, 400)}</bdi></li>'
        yield "</ul></section>\n"


def _pictures(found: StoreComparison, pictures: Sequence[ComparedImage]) -> Iterator[str]:
    if not pictures:
        return
    yield (
        f"<section><h2>Worst images <small>{len(pictures):,} of {found.num_common:,}; worst first; left, then right; "
        f'<i class="key" style="background:{_MATCHED}"></i> matched, numbered by pair, '
        f'<i class="key" style="background:{_UNMATCHED}"></i> no partner of IoU &ge; 0.5</small></h2>\n'
    )
    for picture in pictures:
        figures = picture.figures
        other_id = f" / {escaped(figures.right_id, 80)}" if figures.right_id != figures.image_id else ""
        yield (
            f'<figure class="pair"><figcaption><bdi class="id">{escaped(figures.image_id, 80)}{other_id}</bdi>'
            f"{''.join(f'<span>{escaped(fact)}</span>' for fact in _facts(figures))}</figcaption>"
            f'<div class="sides">{_canvas(picture.left, "left")}{_canvas(picture.right, "right")}</div></figure>\n'
        )
    yield "</section>\n"


def _facts(figures: ImageComparison) -> list[str]:
    (left_height, left_width), (right_height, right_width) = figures.left_hw, figures.right_hw
    pixels = f"{left_width} x {left_height} px"
    if figures.left_hw != figures.right_hw:
        pixels += f" against {right_width} x {right_height} px"
    facts = [
        pixels,
        f"{figures.num_left:,} and {counted(figures.num_right, 'region')}, {counted(figures.num_matched, 'pair')}",
        f"{figures.num_same_box} within 0.1 px",
    ]
    if figures.cosine_mean is not None and figures.cosine_min is not None:
        facts.append(f"cosine mean {figures.cosine_mean:.4f}, smallest {figures.cosine_min:.4f}")
    if figures.feature_error is not None:
        facts.append(f"feature error {figures.feature_error:.1e}")
    if figures.num_same_class is not None:
        facts.append(f"{figures.num_same_class} same class")
    if figures.num_same_attribute is not None:
        facts.append(f"{figures.num_same_attribute} same attribute")
    for what, error in (
        ("class score", figures.score_error),
        ("attribute score", figures.attribute_score_error),
        ("distribution", figures.distribution_error),
        ("image feature", figures.image_feature_error),
    ):
        if error:
            facts.append(f"{what} error {error:.1e}")
    return facts


def _canvas(side: ComparedSide, which: str) -> str:
    height, width = side.image_hw
    pixel = max(width, height * 4 / 3) / _CANVAS_WIDTH_CSS_PX
    parts = [
        f'<svg class="photo compared" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="boxes of the {which} side, {len(side.boxes):,} of them">'
    ]
    if side.thumbnail_jpeg is not None:
        jpeg = base64.b64encode(side.thumbnail_jpeg).decode("ascii")
        parts.append(
            f'<image width="{width}" height="{height}" preserveAspectRatio="none" '
            f'href="data:image/jpeg;base64,{jpeg}"/>'
        )
    else:
        parts.append(f'<rect class="empty" width="{width}" height="{height}"/>')
        if side.missing:
            parts.append(f"<title>{escaped(side.missing)}</title>")
    for box in sorted(side.boxes, key=lambda box: box.pair is None):  # those without a partner are drawn on top
        x1, y1, x2, y2 = box.box
        colour = _MATCHED if box.pair is not None else _UNMATCHED
        place = f'x="{x1:.2f}" y="{y1:.2f}" width="{x2 - x1:.2f}" height="{y2 - y1:.2f}"'
        parts.append(
            f"<g><title>{escaped(box.text)}</title>"
            f'<rect class="under" {place} stroke="{text_colour_on(colour)}"/>'
            f'<rect class="box" {place} stroke="{colour}"/>{_number(box, pixel, colour)}</g>'
        )
    parts.append("</svg>")
    missing = f'<figcaption class="quiet"><bdi>{escaped(side.missing)}</bdi></figcaption>' if side.missing else ""
    return f"<div>{''.join(parts)}{missing}</div>"


def _number(box: ComparedBox, pixel: float, colour: str) -> str:
    """The number of the pair on a ground of its colour, inside the upper left corner."""
    if box.pair is None:
        return ""
    text = str(box.pair)
    font = _NUMBER_FONT_CSS_PX * pixel
    return (
        f'<rect x="{box.box[0]:.2f}" y="{box.box[1]:.2f}" width="{(0.62 * len(text) + 0.3) * font:.2f}" '
        f'height="{1.15 * font:.2f}" fill="{colour}"/>'
        f'<text x="{box.box[0] + 0.15 * font:.2f}" y="{box.box[1] + 0.95 * font:.2f}" font-size="{font:.2f}" '
        f'fill="{text_colour_on(colour)}">{text}</text>'
    )


_OWN_STYLE = """
.summary { margin-top: 16px; font-size: 13px; }
.summary th { width: 180px; padding: 3px 16px 3px 0; color: var(--quiet); vertical-align: top; white-space: nowrap; }
.summary td { padding: 3px 0; overflow-wrap: anywhere; }
.note ul { margin: 4px 0 0; padding-left: 20px; }
.note.equal { background: var(--frame); border-left-color: var(--bar); }
.key { display: inline-block; width: 12px; height: 12px; vertical-align: -1px; border: 1px solid var(--quiet); }
.pair { margin-bottom: 28px; }
.pair > figcaption { padding: 0 0 6px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; align-items: start; }
.photo.compared { aspect-ratio: auto; height: auto; max-height: 640px; }
.empty { fill: none; stroke: var(--line); vector-effect: non-scaling-stroke; }
"""
