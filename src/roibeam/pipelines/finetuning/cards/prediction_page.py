"""A page of predictions: the best, the worst and the most confidently wrong, each beside its photos with boxes; of rows
whose right answer is not known the surest, the least sure and the first ones.

Of labels the boxes are the regions of the store that have the best scores; of choices those that the texts name; of
regions what was chosen, what is right, and the next best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.printable import escaped
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.pages.banner import Banner, banner_html
from roibeam.pipelines.common.pages.box_canvas import CANVAS_STYLE, DrawnBox, box_canvas
from roibeam.pipelines.common.pages.frame import PAGE_END, folded, note, page_start, table
from roibeam.pipelines.data.region_names import Names
from roibeam.pipelines.data.shown_photos import Shown, stored_photos
from roibeam.pipelines.finetuning.cards.told_rows import BEST, CONFIDENT, FIRST, SUREST, UNSURE, WORST, sections

_SAID, _RIGHT, _QUIET, _NAMED = "#f3a800", "#2f9e5f", "#aeb6c2", "#4a7ab5"
_MOST_BYTES = 1_900_000  # of the rows of a page
_REGIONS = 6  # of a photo
_LEGENDS = {
    "regions": "Boxes: what was said, what is right where that is known, and the next best candidates.",
    "named": "Boxes: those that the texts name, with their numbers.",
    "best": "Boxes: the regions of the store that have the best scores.",
}
_TITLES = {
    BEST: ("Best", "right, and surest of it"),
    WORST: ("Worst", "wrong, with the least on what is right"),
    CONFIDENT: ("Most confidently wrong", "wrong, with the most on what was said"),
    SUREST: ("Surest", "right answer not known, with the most on what was said; of numbers the highest"),
    UNSURE: ("Least sure", "right answer not known, with the least on what was said; of numbers the lowest"),
    FIRST: ("Others", "right answer not known, in the order of the file"),
}


def write_prediction_page(
    path: Path,
    title: str,
    summary: str,
    told: Mapping[str, Any],
    store: FeatureStore | None,
    *,
    facts: Sequence[tuple[str, str]] = (),
    remarks: Sequence[str] = (),
    banner: Banner | None = None,
) -> None:
    """Writes the page, whole or not at all; it stays below 2 MB.

    Args:
        title, summary: plain texts.
        told: of `joined_parts`.
        store: that has the images; it tells where photos lie. None of a task of texts alone.
        facts: of the card, name and value.
        remarks: what a reader must not miss, such as images that were trained on.
        banner: why the regions mean nothing.
    """
    page = "".join(_page(title, summary, told, store, facts, remarks, banner))
    write_bytes_atomically(path, page.encode("utf-8"))


def _page(
    title: str,
    summary: str,
    told: Mapping[str, Any],
    store: FeatureStore | None,
    facts: Sequence[tuple[str, str]],
    remarks: Sequence[str],
    banner: Banner | None,
) -> Iterator[str]:
    chosen = sections(told)
    photos = stored_photos(
        [] if store is None else [store],
        dict.fromkeys(image for rows in chosen.values() for r in rows for image in r["images"]),
    )
    yield page_start(title, summary, style=CANVAS_STYLE + _STYLE) + banner_html(banner)
    for remark in remarks:
        yield note("Note:", remark)
    kinds = dict.fromkeys(_kind(row) for rows in chosen.values() for row in rows if row["images"])
    yield f'<p class="quiet">{" ".join(_LEGENDS[kind] for kind in kinds)}</p>\n'
    room = _MOST_BYTES
    for name, rows in chosen.items():
        heading, words = _TITLES[name]
        yield f"<section><h2>{heading} <small>{words}</small></h2>\n"
        if not rows:
            yield '<p class="quiet">none</p>\n'
        for place, row in enumerate(rows):
            images = "" if store is None else "".join(_images(row, store, photos))
            markup = "".join(_row(row, images))
            room -= len(markup.encode("utf-8"))
            if room < 0:
                left = counted(len(rows) - place, "row")
                yield f'<p class="quiet">{left} left out: the page would be too large.</p>\n'
                break
            yield markup
        yield "</section>\n"
    lines = [[escaped(name), escaped(value, 1000)] for name, value in facts]
    yield f"<section><h2>The card</h2>\n{folded('How this was made', table(['what', 'value'], lines))}</section>\n"
    yield PAGE_END


def _kind(row: Mapping[str, Any]) -> str:
    """Which boxes are drawn, of `_LEGENDS`."""
    return "regions" if row["boxes"] is not None else "named" if row["tags"] else "best"


def _row(row: Mapping[str, Any], images: str) -> Iterator[str]:
    texts = "".join(f"<p class='asked'><bdi>{escaped(text, 600)}</bdi></p>" for text in row["text"])
    yield f'<article class="told"><div>{texts}<p class="quiet id">{escaped(row["id"], 80)}</p>\n'
    yield f"<p><b>said</b> <bdi>{escaped(row['said'], 300) or 'nothing'}</bdi></p>\n"
    if row["value"] is not None:
        right = escaped(row["right"], 300) or "none of what can be said"
        yield f"<p><b>right</b> <bdi>{right}</bdi></p>\n<p><b>worth</b> {100 * row['value']:.0f} %</p>\n"
    lines = [
        [f"<bdi>{escaped(words, 200)}</bdi>{' <b>right</b>' if is_right else ''}", f"{100 * share:.1f} %"]
        for words, share, is_right in row["top"]
    ]
    yield (table(["choices", "share"], lines, numbers=[1]) if lines else "") + "</div>\n"
    yield f'<div class="canvases">{images}</div></article>\n'


def _images(row: Mapping[str, Any], store: FeatureStore, photos: Mapping[str, Shown]) -> Iterator[str]:
    for number, image_id in enumerate(row["images"]):
        record = store.get(image_id, copy=False, check=True)
        jpeg, why = photos.get(image_id, (None, "the store has no such image"))
        if _kind(row) == "regions":
            boxes = _chosen_boxes(row)
        elif _kind(row) == "named":
            boxes = list(_named_boxes(row["tags"], record))
        else:
            boxes = list(_best_boxes(record, Names(store.vocabulary["classes"] or ())))
        described = f"image {number + 1} of {row['id']}, with {counted(len(boxes), 'box', 'boxes')}"
        canvas = box_canvas(boxes, (record.height, record.width), jpeg, description=described)
        unseen = f'<p class="quiet">Photo not shown: <bdi>{escaped(why, 400)}</bdi></p>' if jpeg is None else ""
        yield f'<div>{canvas}<p class="quiet id">{escaped(image_id, 200)}</p>{unseen}</div>'


def _chosen_boxes(row: Mapping[str, Any]) -> list[DrawnBox]:
    boxes, found = row["boxes"], []
    for place, box in enumerate(boxes["candidates"]):
        words, share, _ = row["top"][place]
        label = f"said, {100 * share:.0f} %" if place == 0 else ""
        colour = _SAID if place == 0 else _QUIET
        found.append(
            DrawnBox(
                tuple(box),
                colour,
                label,
                f"{words}: {100 * share:.1f} %",
                is_quiet=place > 0,
                line=2.5 if not place else 1.25,
            )
        )
    if boxes["right"]:
        found.insert(1, DrawnBox(tuple(boxes["right"]), _RIGHT, "right", "what is meant", line=2.5))
    return found


def _named_boxes(tags: Mapping[str, str], record: RegionRecord) -> Iterator[DrawnBox]:
    for tag, word in tags.items():
        if int(tag) < record.num_regions:
            yield DrawnBox(_corners(record, int(tag)), _NAMED, f"{word} ({tag})", f"box {tag}: {word}", line=2.0)


def _best_boxes(record: RegionRecord, names: Names) -> Iterator[DrawnBox]:
    for region in (-record.class_scores).argsort(kind="stable")[:_REGIONS].tolist():
        name = names.of_detector(int(record.class_ids[region]))
        yield DrawnBox(_corners(record, region), _NAMED, name, f"{name}, {float(record.class_scores[region]):.2f}")


def _corners(record: RegionRecord, region: int) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = record.boxes[region].tolist()
    return x1, y1, x2, y2


_STYLE = """
.told { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 8px 24px; padding: 14px 0;
  border-top: 1px solid var(--line); break-inside: avoid; }
.told:first-of-type { border-top: 0; }
.told p { overflow-wrap: anywhere; }
.told .asked { font-size: 15px; font-weight: 600; }
.told b { font-weight: 400; color: var(--quiet); margin-right: 6px; }
.told .table { margin-top: 8px; } .told .table b { margin: 0 0 0 6px; color: var(--series-2); font-weight: 600; }
.told .canvases { grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)); }
@media (max-width: 640px) { .told { grid-template-columns: minmax(0, 1fr); } }
"""
