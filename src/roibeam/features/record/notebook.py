"""Notebook view of a record, a store or a comparison: one small piece of HTML.

No style sheet and no colours of its own for text, so it reads on a light page and on a dark one, and loads nothing. All
text is escaped here.
"""

import base64
from collections.abc import Sequence

import numpy as np

from roibeam.features.record.region_drawing import (
    NamedRegions,
    colours_by_class,
    draw_regions,
    jpeg_bytes,
    looking_scale,
    png_bytes,
    region_labels,
    region_name,
    sheet,
    strongest,
)
from roibeam.messages import escaped, plural

LISTED_REGIONS = 10
_PICTURE_PX = 480  # of the longer side
_LINE = "rgba(128,128,128,.45)"
_CELL = f"padding:1px 12px 1px 0;border:0;border-bottom:1px solid {_LINE};text-align:left;vertical-align:top"
_WORDS = "overflow-wrap:anywhere;max-width:34em;"


def notebook_html(
    title: str, *, facts: Sequence[tuple[str, str]] = (), picture: str = "", table: str = "", note: str = ""
) -> str:
    """A title, a picture, and beside or below it names with their facts, a table and a remark.

    Args:
        title, facts, note: plain text, escaped here.
        picture, table: trusted markup, as `image_html` and `table_html` give it.
    """
    beside = (table_html((), facts) if facts else "") + table
    if note:
        beside += f'<div style="margin-top:6px;opacity:.75;overflow-wrap:anywhere">{escaped(note, 400)}</div>'
    # Two columns where there is room, else one below the other.
    sides = "".join(f'<div style="min-width:0;max-width:100%">{part}</div>' for part in (picture, beside) if part)
    return (
        '<div style="font-size:13px;line-height:1.45;font-variant-numeric:tabular-nums">'
        f'<div style="font-weight:600;margin-bottom:6px;overflow-wrap:anywhere">{escaped(title, 400)}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start">{sides}</div></div>'
    )


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]], *, colours: Sequence[str] = ()) -> str:
    """A table of plain text, escaped here.

    Args:
        heads: of its columns; none for a table without a head.
        colours: "#rrggbb" for each row, displayed before its first column.
    """
    lines = []
    if heads:
        cells = "".join(f'<th style="{_CELL};font-weight:400;opacity:.75">{escaped(head, 40)}</th>' for head in heads)
        lines.append(f"<tr>{cells}</tr>")
    for number, row in enumerate(rows):
        mark = (
            f'<span style="display:inline-block;width:.8em;height:.8em;margin-right:.5em;background:{colours[number]}">'
            "</span>"
            if number < len(colours)
            else ""
        )
        cells = "".join(
            f'<td style="{_WORDS}{_CELL}">{mark if place == 0 else ""}{escaped(each, 500)}</td>'
            for place, each in enumerate(row)
        )
        lines.append(f'<tr style="background:none">{cells}</tr>')
    style = "border-collapse:collapse;margin:0 0 10px;font-size:inherit;color:inherit"
    return f'<table style="{style}">{"".join(lines)}</table>'


def image_html(data: bytes, kind: str, description: str) -> str:
    """An image inside the page.

    Args:
        data: of a file of this kind, "png" or "jpeg".
        description: read out in place of the picture.
    """
    encoded = base64.b64encode(data).decode("ascii")
    return (
        f'<img alt="{escaped(description, 200)}" style="display:block;max-width:100%;height:auto;margin:0" '
        f'src="data:image/{kind};base64,{encoded}">'
    )


def regions_png(regions: NamedRegions) -> bytes:
    """The regions on a grey sheet of the photo's proportions, as a PNG file."""
    return png_bytes(_picture(regions, region_labels(regions), None))


def regions_html(
    title: str,
    regions: NamedRegions,
    *,
    classes: Sequence[str] | None = None,
    attributes: Sequence[str] | None = None,
    photo: np.ndarray | None = None,
    note: str = "",
) -> str:
    """The regions on their photo, and the best of them in a table.

    Args:
        photo: (height, width, 3) uint8, B, G, R; None draws on a grey sheet of the photo's proportions.
    """
    labels = region_labels(regions, classes, attributes)
    picture = _picture(regions, labels, photo)
    data, kind = (png_bytes(picture), "png") if photo is None else (jpeg_bytes(picture), "jpeg")
    best = strongest(regions.class_scores, LISTED_REGIONS)
    rows = [
        (
            region_name(regions, region, classes, attributes),
            f"{float(regions.class_scores[region]):.3f}",
            " ".join(f"{float(edge):.1f}" for edge in regions.boxes[region]),
        )
        for region in best
    ]
    class_ids = regions.class_ids[best].tolist()
    colours = colours_by_class([class_ids])
    heads = ("class", "score", "box: x1 y1 x2 y2, pixels")
    table = table_html(heads, rows, colours=[colours[each] for each in class_ids]) if rows else ""
    if len(labels) > len(rows):
        note = f"The best {len(rows)} of {plural(len(labels), 'region')}. {note}".strip()
    return notebook_html(title, picture=image_html(data, kind, f"{title}, drawn"), table=table, note=note)


def _picture(regions: NamedRegions, labels: Sequence[str], photo: np.ndarray | None) -> np.ndarray:
    image_hw = (regions.height, regions.width)
    return draw_regions(
        sheet(image_hw) if photo is None else photo,
        regions.boxes,
        labels=labels,
        class_ids=regions.class_ids,
        scores=regions.class_scores,
        max_regions=LISTED_REGIONS,
        scale=looking_scale(image_hw, smallest=_PICTURE_PX, largest=_PICTURE_PX),
    )
