"""A comparison of two stores for people, as lines of text and as one HTML page: plain data in, text out.

Reads nothing; the page loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from roibeam.features.comparison_result import ImageComparison, StoreComparison
from roibeam.messages import plural, printable
from roibeam.pipelines.common.charts import DrawnBox, box_canvas
from roibeam.pipelines.common.page_layout import Banner, rendered

_Line = tuple[str, str, str, str]
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
) -> str:
    """Returns the page.

    Args:
        rows: (what, figure), as the terminal shows them.
        pictures: of the worst images that differ, worst first.
    """
    return rendered(
        "comparison.html", title="Comparison of two stores", found=found, rows=rows, pictures=pictures,
        banners=banners, facts=_facts, canvas=_canvas, regions=_regions, short_hashes=_short_hashes, matched=_MATCHED,
        unmatched=_UNMATCHED,
    )  # fmt: skip


def _short_hashes(text: str) -> str:
    """The text with the first quarter of each long hash."""
    return _HASH.sub(r"\1…", text)


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


def _canvas(which: str, side: ComparedSide) -> Markup:
    """The picture of one side."""
    # Drawn on top with a label: pairs in their order, so that both sides name the same ones; then unmatched regions.
    pairs = sorted((box for box in side.boxes if box.pair is not None), key=lambda box: box.pair or 0)
    alone = [box for box in side.boxes if box.pair is None]
    half = max(_NAMED // 2, _NAMED - len(alone))
    named = {*map(id, pairs[:half]), *map(id, alone[: _NAMED - min(half, len(pairs))])}
    drawn = [_drawn(box, is_named=id(box) in named) for box in (*alone, *pairs)]
    drawn.sort(key=lambda box: not box.label)
    return box_canvas(
        drawn, side.image_hw, side.thumbnail_jpeg, description=f"{which}: {plural(len(side.boxes), 'region')}"
    )


def _drawn(box: ComparedBox, *, is_named: bool) -> DrawnBox:
    label = f"{'' if box.pair is None else box.pair} {box.name}".strip() if is_named else ""
    tooltip = f"{'no partner' if box.pair is None else f'pair {box.pair}'}: {box.name or 'region'}"
    if box.moved_px is not None:
        tooltip += f"; the other is {box.moved_px:.2f} px away"
    return DrawnBox(box.box, _UNMATCHED if box.pair is None else _MATCHED, label, tooltip)


def _regions(picture: ComparedImage) -> tuple[list[_Line], list[_Line]]:
    """Every region of both sides with class and score: pairs, and those without a partner."""
    sides = (picture.left, picture.right)
    of_pair = [{box.pair: box for box in side.boxes if box.pair is not None} for side in sides]
    pairs = list[_Line]()
    for number in sorted(of_pair[0]):
        left, right = of_pair[0][number], of_pair[1].get(number)
        moved = "" if left.moved_px is None else f"{left.moved_px:.2f}"
        pairs.append((f"{number}", left.name, "" if right is None else right.name, moved))
    alone = [
        ("", "" if place else box.name, box.name if place else "", "")
        for place, side in enumerate(sides)
        for box in side.boxes
        if box.pair is None
    ]
    return pairs, alone
