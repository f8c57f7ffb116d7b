"""A comparison of two stores for people, as lines of text and as one HTML page: plain data in, text out.

Reads nothing; the page loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roibeam.features.store_comparison import ImageComparison, StoreComparison
from roibeam.messages import escaped, plural, printable
from roibeam.pipelines.common.charts import CANVAS_STYLE, DrawnBox, box_canvas
from roibeam.pipelines.common.page_layout import PAGE_END, PAGE_HEAD, PAGE_STYLE, Banner, banner_html

_MATCHED, _UNMATCHED = "#a1caf1", "#ff3ea5"
_NAMED = 10  # boxes of a picture with class and score beside them: more labels hide the photo
_HASH = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")


def comparison_text(found: StoreComparison) -> str:
    """Output of `roibeam store diff`; one line of figures for each of the worst images when they differ."""
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
        name: "cat 0.91", class and score; "" for a side without classes.
        moved_px: how far the furthest edge of its partner is from its own; None without a partner.
    """

    box: tuple[float, float, float, float]
    pair: int | None
    name: str
    moved_px: float | None


@dataclass(frozen=True)
class ComparedSide:
    """One side's picture: (height, width) of the record, its boxes, and the photo made small; `missing` is the reason
    for none."""

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
    found: StoreComparison,
    rows: Sequence[tuple[str, str]],
    pictures: Sequence[ComparedImage],
    banners: Sequence[Banner] = (),
) -> Iterator[str]:
    """The page, part by part.

    Args:
        rows: (what, figure), as the terminal shows them.
        pictures: of the worst images that differ, worst first.
    """
    yield PAGE_HEAD.format(title="Comparison of two stores", style=PAGE_STYLE + CANVAS_STYLE + _OWN_STYLE)
    sides = (("left", found.left.name), ("right", found.right.name))
    details = "".join(f"<div><dt>{side}</dt><dd><bdi>{escaped(name, 300)}</bdi></dd></div>" for side, name in sides)
    yield f'<header><h1>Comparison of two stores</h1>\n<dl class="details">{details}</dl></header>\n<main>\n'
    yield from _verdict(found)
    yield from map(banner_html, banners)
    body = "".join(
        f'<tr><th scope="row">{escaped(what.strip(), 60)}</th><td><bdi>{escaped(_short(figure), 400)}</bdi></td></tr>'
        for what, figure in rows
    )
    yield f'<table class="summary">{body}</table>\n'
    for note in found.notes:
        yield f'<p class="quiet remark">{escaped(_short(note), 2000)}</p>\n'
    for side in (found.left, found.right):
        if not side.bad_entries:
            continue
        total = sum(side.bad_entries.values())
        yield f"<section><h2>Entries that cannot be used <small>{total:,} of {escaped(side.name)}</small></h2>\n<ul>"
        for entry in side.first_bad_entries:
            yield f'<li class="id"><bdi>{escaped(entry, 400)}</bdi></li>'
        yield "</ul></section>\n"
    yield from _pictures(found, pictures)
    yield PAGE_END


def _short(text: str) -> str:
    """The text with the first quarter of each long hash."""
    return _HASH.sub(r"\1…", text)


def _verdict(found: StoreComparison) -> Iterator[str]:
    if found.equal:
        yield (
            '<p class="note equal"><b>Equal</b> within the tolerances: every region matched within 0.1 px, '
            f"features, scores and distributions within {found.max_error:g}.</p>\n"
        )
        return
    items = "".join(f"<li>{escaped(_short(difference), 400)}</li>" for difference in found.differences)
    yield f'<div class="note"><b>They differ.</b><ul>{items}</ul></div>\n'


def _pictures(found: StoreComparison, pictures: Sequence[ComparedImage]) -> Iterator[str]:
    if not pictures:
        if found.num_common:
            yield f'<p class="quiet remark">No picture is shown: {_all_alike(found)}.</p>\n'
        return
    yield (
        f"<section><h2>Worst images <small>{len(pictures):,} of {found.num_common:,}, worst first</small></h2>\n"
        f'<p class="quiet legend"><i class="key" style="background:{_MATCHED}"></i> a pair, with its number &nbsp; '
        f'<i class="key" style="background:{_UNMATCHED}"></i> no partner of IoU &ge; 0.5</p>\n'
    )
    names = (found.left.name, found.right.name)
    for picture in pictures:
        figures = picture.figures
        other_id = f" / {escaped(figures.right_id, 80)}" if figures.right_id != figures.image_id else ""
        sides = zip(("left", "right"), names, (picture.left, picture.right), strict=True)
        yield (
            f'<figure class="pair"><figcaption><bdi class="id">{escaped(figures.image_id, 80)}{other_id}</bdi>'
            f"{''.join(f'<span>{escaped(fact)}</span>' for fact in _facts(figures))}</figcaption>"
            f'<div class="canvases">{"".join(_side(*side) for side in sides)}</div>{_regions(picture)}</figure>\n'
        )
    yield "</section>\n"


def _all_alike(found: StoreComparison) -> str:
    if found.equal:
        return f"the {plural(found.num_common, 'image')} of both sides are equal within the tolerances"
    return "the images of both sides that were looked at are equal within the tolerances"


def _facts(figures: ImageComparison) -> list[str]:
    (left_height, left_width), (right_height, right_width) = figures.left_hw, figures.right_hw
    pixels = f"{left_width} x {left_height} px"
    if figures.left_hw != figures.right_hw:
        pixels += f" against {right_width} x {right_height} px"
    facts = [
        pixels,
        f"{figures.num_left:,} and {plural(figures.num_right, 'region')}, {plural(figures.num_matched, 'pair')}",
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


def _side(which: str, name: str, side: ComparedSide) -> str:
    """The picture of one side with its caption."""
    # Drawn on top with a label: pairs in their order, so that both sides name the same ones; then unmatched regions.
    pairs = sorted((box for box in side.boxes if box.pair is not None), key=lambda box: box.pair or 0)
    alone = [box for box in side.boxes if box.pair is None]
    half = max(_NAMED // 2, _NAMED - len(alone))
    named = {*map(id, pairs[:half]), *map(id, alone[: _NAMED - min(half, len(pairs))])}
    drawn = [_drawn(box, is_named=id(box) in named) for box in (*alone, *pairs)]
    drawn.sort(key=lambda box: not box.label)
    canvas = box_canvas(
        drawn, side.image_hw, side.thumbnail_jpeg, description=f"{which}: {plural(len(side.boxes), 'region')}"
    )
    missing = f'<p class="quiet"><bdi>{escaped(side.missing)}</bdi></p>' if side.missing else ""
    caption = f"<b>{which}</b> <bdi>{escaped(name, 200)}</bdi>, {plural(len(side.boxes), 'region')}"
    return f'<div class="side"><p class="which">{caption}</p>{canvas}{missing}</div>'


def _drawn(box: ComparedBox, *, is_named: bool) -> DrawnBox:
    label = f"{'' if box.pair is None else box.pair} {box.name}".strip() if is_named else ""
    tooltip = f"{'no partner' if box.pair is None else f'pair {box.pair}'}: {box.name or 'region'}"
    if box.moved_px is not None:
        tooltip += f"; the other is {box.moved_px:.2f} px away"
    return DrawnBox(box.box, _UNMATCHED if box.pair is None else _MATCHED, label, tooltip)


def _regions(picture: ComparedImage) -> str:
    """Every region of both sides with class and score, pairs first, to be unfolded."""
    sides = (picture.left, picture.right)
    of_pair = [{box.pair: box for box in side.boxes if box.pair is not None} for side in sides]
    lines = []
    for number in sorted(of_pair[0]):
        left, right = of_pair[0][number], of_pair[1].get(number)
        moved = "" if left.moved_px is None else f"{left.moved_px:.2f}"
        lines.append((f"{number}", left.name, "" if right is None else right.name, moved))
    for place, side in enumerate(sides):
        for box in side.boxes:
            if box.pair is None:
                lines.append(("", *(("", box.name) if place else (box.name, "")), ""))
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell, 60)}</td>' for cell in line)}</tr>" for line in lines)
    return (
        f"<details><summary>all regions: {plural(len(of_pair[0]), 'pair')}, "
        f"{len(lines) - len(of_pair[0]):,} without a partner</summary><table class='regions'>"
        "<thead><tr><th>pair</th><th>left</th><th>right</th><th>moved, px</th></tr></thead>"
        f"<tbody>{body}</tbody></table></details>"
    )


_OWN_STYLE = """
.summary { margin-top: 16px; font-size: 13px; }
.summary th { width: 180px; padding: 3px 16px 3px 0; color: var(--quiet); vertical-align: top; }
.summary td { padding: 3px 0; overflow-wrap: anywhere; }
.remark { margin-top: 12px; overflow-wrap: anywhere; }
.note ul { margin: 4px 0 0; padding-left: 20px; }
.note li { overflow-wrap: anywhere; }
.note.equal { background: var(--frame); border-left-color: var(--bar); }
.key { display: inline-block; width: 12px; height: 12px; vertical-align: -1px; border: 1px solid var(--quiet); }
.legend { margin-bottom: 12px; }
.pair { margin-bottom: 28px; }
.pair > figcaption { padding: 0 0 6px; }
.side { min-width: 0; }
.which { margin-bottom: 4px; font-size: 13px; overflow-wrap: anywhere; }
details { margin-top: 8px; font-size: 13px; }
summary { color: var(--quiet); cursor: pointer; }
.regions { margin-top: 6px; max-width: 640px; }
.regions th { color: var(--quiet); }
.regions th, .regions td { padding: 1px 12px 1px 0; text-align: left; overflow-wrap: anywhere; }
@media (max-width: 640px) { .summary th { width: 120px; } }
"""
