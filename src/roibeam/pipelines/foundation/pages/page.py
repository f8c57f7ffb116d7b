"""The report as one HTML page: plain data in, text out. Reads nothing, and the page asks for nothing either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.counted import counted
from roibeam.features.printable import escaped
from roibeam.features.record.drawing.palette import colours_by_class
from roibeam.pipelines.foundation.pages.banner import Banner, banner_html
from roibeam.pipelines.foundation.pages.charts import Bar, DrawnRegion, bars_of_integers, histogram, photo_with_regions


@dataclass(frozen=True)
class ReportFacts:
    """What the page states about the run; plain data.

    Attributes:
        store_name: the title.
        num_images: images that were to be extracted; each should have become a record or a failure.
        num_records, num_regions, num_failures: of the whole store.
        seconds: wall time of the last run that extracted something; None when that is not known.
        timed_images: images that it extracted in that time.
        details: ordered facts, such as ("detector", "vg-r101-c4"), ("weights", ...), ("content digest", "3f2a...").
        banner: what its reader must know first, such as that boxes and names mean nothing.
    """

    store_name: str
    num_images: int
    num_records: int
    num_regions: int
    num_failures: int
    seconds: float | None
    timed_images: int
    details: tuple[tuple[str, str], ...]
    banner: Banner | None


@dataclass(frozen=True)
class RegionFigures:
    """What was counted over the records.

    Attributes:
        num_records: records that were counted; fewer than the store's when it was sampled.
        regions_per_image: number of regions -> number of images.
        score_counts: regions per class score, in equal bars over 0..1.
        classes, attributes: the most frequent ones, (name, regions), by descending count.
        num_classes, num_attributes: how many different ones were seen.
    """

    num_records: int
    regions_per_image: Mapping[int, int]
    score_counts: tuple[int, ...]
    classes: tuple[tuple[str, int], ...]
    attributes: tuple[tuple[str, int], ...]
    num_classes: int
    num_attributes: int


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one reason: how many, and the first few."""

    reason: str
    count: int
    examples: tuple[Failure, ...]


@dataclass(frozen=True)
class Photo:
    """One photo of the grid.

    Attributes:
        image_id: of its record.
        image_hw: (height, width) of the record, pixels.
        num_regions: of the record; `regions` holds the ones to draw, best first.
        thumbnail_jpeg: the photo made small; None when there is none to show.
        missing: why there is none.
    """

    image_id: str
    image_hw: tuple[int, int]
    num_regions: int
    regions: tuple[DrawnRegion, ...]
    thumbnail_jpeg: bytes | None
    missing: str = ""


_STYLE = """
.axis { font-size: 11px; color: var(--quiet); text-align: center; }
.bars { table-layout: auto; }
.bars th { width: 1px; max-width: 13em; }
.bars .share { width: 100%; }
.bars .number { width: 1px; padding-left: 10px; white-space: nowrap; }
"""


def page_html(
    facts: ReportFacts,
    figures: RegionFigures,
    failures: Sequence[FailureGroup],
    photos: Sequence[Photo],
    *,
    regions_per_photo: int,
    attribute_score: float,
) -> Iterator[str]:
    """The page, part by part. `regions_per_photo` and `attribute_score` are limits the page tells its reader."""
    yield PAGE_HEAD.format(title=escaped(facts.store_name, 120), style=PAGE_STYLE + _STYLE)
    yield from _header(facts)
    yield from _notes(facts)
    yield _counts(facts, figures)
    if figures.num_records:
        yield from _regions(facts, figures, attribute_score)
    yield from _failures(failures, facts.num_failures)
    yield from _photos(photos, facts, regions_per_photo)
    yield "</main>\n</body>\n</html>\n"


def _header(facts: ReportFacts) -> Iterator[str]:
    yield f'<header><h1>{escaped(facts.store_name, 200)}</h1>\n<dl class="details">'
    for name, value in facts.details:
        yield f"<div><dt>{escaped(name, 60)}</dt><dd>{escaped(value)}</dd></div>"
    yield "</dl></header>\n<main>\n"


def _notes(facts: ReportFacts) -> Iterator[str]:
    yield banner_html(facts.banner)
    accounted = facts.num_records + facts.num_failures
    if accounted < facts.num_images:
        missing = facts.num_images - accounted
        yield _note("Incomplete.", f"{counted(missing, 'image')} gave neither a record nor a failure so far.")
    elif accounted > facts.num_images:
        yield _note(
            "Counts disagree.",
            f"{counted(facts.num_records, 'record')} and {counted(facts.num_failures, 'failure')} "
            f"for {counted(facts.num_images, 'image')}.",
        )


def _counts(facts: ReportFacts, figures: RegionFigures) -> str:
    cells = [
        ("images", f"{facts.num_images:,}"),
        ("records", f"{facts.num_records:,}"),
        ("regions", f"{facts.num_regions:,}"),
        ("failures", f"{facts.num_failures:,}"),
    ]
    if facts.num_images and facts.num_failures:
        cells.append(("failed", _percent(facts.num_failures / facts.num_images)))
    if facts.num_records:
        cells.append(("regions per image", f"{facts.num_regions / facts.num_records:.1f}"))
    if figures.regions_per_image and figures.num_records >= facts.num_records:
        fewest, most = min(figures.regions_per_image), max(figures.regions_per_image)
        cells.append(("fewest, most", f"{fewest:,}, {most:,}") if fewest != most else ("in each image", f"{most:,}"))
    if facts.seconds and facts.timed_images:
        some = facts.timed_images != facts.num_images
        cells.append((f"time of {facts.timed_images:,}" if some else "time", _duration(facts.seconds)))
        cells.append(("images/s", _rate(facts.timed_images / facts.seconds)))
    pairs = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cells)
    return f'<dl class="counts">{pairs}</dl>\n'


def _regions(facts: ReportFacts, figures: RegionFigures, attribute_score: float) -> Iterator[str]:
    sampled = figures.num_records < facts.num_records
    of = f"counted on {figures.num_records:,} of {facts.num_records:,} records, evenly spread over the store"
    yield f'<section><h2>Regions{f" <small>{of}</small>" if sampled else ""}</h2>\n<div class="charts">\n<div>'
    bars = bars_of_integers(figures.regions_per_image)
    yield f"<h3>Regions per image <small>{counted(figures.num_records, 'image')}</small></h3>"
    yield histogram(
        bars, noun="image", ticks=_integer_ticks(bars), label="Histogram of the regions per image",
        title="regions in an image",
    )  # fmt: skip
    num_regions = sum(figures.score_counts)
    if num_regions:
        steps = len(figures.score_counts)
        scores = [
            Bar(i / steps, (i + 1) / steps, count, f"{i / steps:.2f} to {(i + 1) / steps:.2f}")
            for i, count in enumerate(figures.score_counts)
        ]
        ticks = [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")]
        yield f"<h3>Class score <small>{counted(num_regions, 'region')}</small></h3>"
        yield histogram(
            scores, noun="region", ticks=ticks, label="Histogram of the class scores",
            title="score of the best class, 0 to 1",
        )  # fmt: skip
    yield "</div>\n"
    if figures.classes:
        yield _bar_list("Most frequent classes", f"{figures.num_classes:,} seen", figures.classes)
    if figures.attributes:
        what = f"{figures.num_attributes:,} seen with score ≥ {attribute_score:g}"
        yield _bar_list("Most frequent attributes", what, figures.attributes)
    yield "</div></section>\n"


def _bar_list(title: str, remark: str, rows: Sequence[tuple[str, int]]) -> str:
    longest = max(count for _, count in rows)
    lines = "".join(
        f'<tr><th scope="row">{escaped(name, 60)}</th>'
        f'<td class="share"><i style="width:{100 * count / longest:.1f}%">'
        f'</i></td><td class="number">{count:,}</td></tr>'
        for name, count in rows
    )
    return f'<div><h3>{title} <small>{remark}; regions of each</small></h3><table class="bars">{lines}</table></div>\n'


def _failures(groups: Sequence[FailureGroup], num_failures: int) -> Iterator[str]:
    if not groups:
        if num_failures == 0:
            yield '<section><h2>Failures</h2><p class="quiet">None.</p></section>\n'
        return
    yield f"<section><h2>Failures <small>{counted(len(groups), 'reason')}</small></h2>\n"
    yield (
        '<table class="failures"><thead><tr><th>Reason</th><th>Image</th><th>Stage</th><th>Detail</th></tr></thead>\n'
    )
    for group in groups:
        yield "<tbody>"
        rest = group.count - len(group.examples)
        for position, failure in enumerate(group.examples):
            yield "<tr>"
            if position == 0:
                span = len(group.examples) + (rest > 0)
                yield f'<th scope="rowgroup" rowspan="{span}">{escaped(group.reason, 60)} <b>{group.count:,}</b></th>'
            yield (
                f'<td class="id"><bdi>{escaped(failure.image_id, 100)}</bdi></td><td>{escaped(failure.stage, 30)}</td>'
                f"<td><bdi>{escaped(failure.detail, 300)}</bdi></td></tr>"
            )
        if rest > 0:
            yield f'<tr><td class="quiet" colspan="3">and {rest:,} more</td></tr>'
        yield "</tbody>\n"
    yield "</table></section>\n"


def _photos(photos: Sequence[Photo], facts: ReportFacts, regions_per_photo: int) -> Iterator[str]:
    yield f"<section><h2>Photos <small>{_photos_remark(photos, facts, regions_per_photo)}</small></h2>\n"
    if not photos:
        yield '<p class="quiet">No records.</p></section>\n' if not facts.num_records else "</section>\n"
        return
    colours = colours_by_class([region.class_id for region in photo.regions] for photo in photos)
    yield '<div class="photos">\n'
    for photo in photos:
        height, width = photo.image_hw
        if photo.thumbnail_jpeg is None:
            picture = f'<div class="missing"><p>Photo not shown: <bdi>{escaped(photo.missing)}</bdi></p></div>'
        else:
            picture = photo_with_regions(
                photo.thumbnail_jpeg,
                photo.regions,
                image_hw=photo.image_hw,
                colours=colours,
                label=f"{photo.image_id}, {counted(len(photo.regions), 'region')} drawn",
            )
        yield (
            f'<figure>{picture}<figcaption><bdi class="id" title="{escaped(photo.image_id, 600)}">'
            f"{escaped(photo.image_id, 80)}</bdi><span>{width:,} &times; {height:,} px</span>"
            f"<span>{counted(photo.num_regions, 'region')}</span></figcaption></figure>\n"
        )
    yield "</div></section>\n"


def _photos_remark(photos: Sequence[Photo], facts: ReportFacts, regions_per_photo: int) -> str:
    if not photos:
        return ""
    which = (
        f"{len(photos):,} of {facts.num_records:,}, evenly spread over the store; "
        if (len(photos) < facts.num_records)
        else ""
    )
    return f"{which}the {regions_per_photo} regions of highest class score that do not cover each other are drawn"


def _integer_ticks(bars: Sequence[Bar]) -> list[tuple[float, str]]:
    if bars[0].high - bars[0].low > 1:  # grouped: the edges between bars are round numbers
        every = -(-len(bars) // 5)
        ticks = [(i / len(bars), f"{bars[i].low:,.0f}") for i in range(0, len(bars), every)]
        return [*ticks, (1.0, f"{bars[-1].high:,.0f}")] if len(bars) % every == 0 else ticks
    every = next(step for step in (1, 2, 5, 10) if len(bars) <= 8 * step)
    return [((i + 0.5) / len(bars), f"{bar.low:,.0f}") for i, bar in enumerate(bars) if bar.low % every == 0]


def _note(title: str, text: str) -> str:
    return f'<p class="note"><b>{title}</b> {text}</p>\n'


def _percent(fraction: float) -> str:
    # A failure among millions is not 0 percent.
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 else "< 0.1 %"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


PAGE_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""

PAGE_STYLE = """
:root { --page: #fff; --text: #1b1f24; --quiet: #5b6470; --line: #d9dee4; --frame: #eef1f4; --bar: #4a7ab5;
  --note: #fff4d6; --note-line: #c58a00; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14171b; --text: #e4e8ec; --quiet: #98a2ae; --line: #2d333b; --frame: #1f242a; --bar: #6c9bd4;
    --note: #332a10; --note-line: #d9a520; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1280px; padding: 24px 24px 48px; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { margin: 0 0 10px; font-size: 22px; line-height: 1.25; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 32px 0 12px; padding-top: 12px; border-top: 1px solid var(--line); font-size: 16px; font-weight: 650; }
h3 { margin: 0 0 8px; font-size: 13px; font-weight: 600; }
h2 small, h3 small { margin-left: 6px; font-size: 12px; font-weight: 400; color: var(--quiet); }
dl, dd, p, figure { margin: 0; }
.quiet { color: var(--quiet); }
.id { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px;
  overflow-wrap: anywhere; }
.details { display: flex; flex-wrap: wrap; gap: 2px 20px; font-size: 13px; }
.details div { display: flex; gap: 6px; min-width: 0; }
.details dt { color: var(--quiet); white-space: nowrap; }
.details dd { min-width: 0; overflow-wrap: anywhere; }
.note { margin-top: 16px; padding: 8px 12px; background: var(--note); border-left: 3px solid var(--note-line); }
.counts { display: grid; grid-template-columns: repeat(auto-fit, minmax(116px, 1fr)); margin-top: 20px;
  border: solid var(--line); border-width: 1px 0 0 1px; }
.counts div { padding: 8px 12px; border: solid var(--line); border-width: 0 1px 1px 0; }
.counts dt { font-size: 12px; color: var(--quiet); white-space: nowrap; }
.counts dd { font-size: 18px; font-weight: 600; white-space: nowrap; }
.counts + section h2 { border-top: 0; padding-top: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 28px 40px; }
.histogram { position: relative; margin-bottom: 26px; padding-top: 18px; }
.histogram svg { display: block; width: 100%; height: 130px; border-bottom: 1px solid var(--quiet); }
.histogram .bar { fill: var(--bar); }
.histogram .hit { fill: transparent; }
.histogram g:hover .hit { fill: var(--frame); }
.highest { position: absolute; top: 0; left: 0; right: 0; height: 18px; border-bottom: 1px dotted var(--line);
  font-size: 11px; color: var(--quiet); }
.ticks { position: relative; height: 18px; font-size: 11px; color: var(--quiet); }
.ticks span { position: absolute; top: 2px; white-space: nowrap; }
.ticks .inner { transform: translateX(-50%); }
.ticks .last { transform: translateX(-100%); }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 400; }
.bars { table-layout: fixed; font-size: 13px; line-height: 20px; }
.bars th { width: 42%; padding: 0 8px 0 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.bars .share i { display: block; min-width: 1px; height: 10px; background: var(--bar); }
.bars .number { width: 76px; text-align: right; }
.failures { font-size: 13px; }
.failures td, .failures th { padding: 4px 16px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
.failures thead th { font-size: 12px; color: var(--quiet); }
.failures tbody { border-top: 1px solid var(--line); }
.failures tbody th { width: 18%; font-weight: 600; }
.failures tbody th b { margin-left: 4px; font-weight: 400; color: var(--quiet); }
.failures td:nth-last-child(3) { width: 26%; }
.failures td:nth-last-child(2) { width: 8%; overflow-wrap: normal; }
.photos { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 20px 16px; }
figure { min-width: 0; break-inside: avoid; }
.photo, .missing { display: block; width: 100%; aspect-ratio: 4 / 3; background: var(--frame); }
.photo text { font-family: Arial, "Liberation Sans", "Helvetica Neue", "DejaVu Sans", sans-serif; }
.photo .enlarged { image-rendering: pixelated; }
.photo .under, .photo .box { fill: none; vector-effect: non-scaling-stroke; }
.photo .under { stroke-opacity: .55; stroke-width: 3.5px; }
.photo .box { stroke-width: 1.75px; }
.missing { display: flex; align-items: center; justify-content: center; padding: 24px; border: 1px dashed var(--line);
  color: var(--quiet); font-size: 13px; text-align: center; overflow: hidden; }
.missing p { min-width: 0; overflow-wrap: anywhere; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 12px; padding-top: 5px; font-size: 12px; color: var(--quiet); }
figcaption .id { flex: 1 1 100%; color: var(--text); }
@media (max-width: 640px) {
  body { padding: 16px 14px 32px; }
  .failures thead { display: none; }
  .failures tbody { display: block; padding: 6px 0; }
  .failures tr, .failures tbody th, .failures td, .failures td:nth-last-child(n) { display: block; width: auto;
    padding: 1px 0; }
  .failures tr + tr { margin-top: 6px; } }
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  h2, h3 { break-after: avoid; }
  .charts { grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); column-gap: 24px; }
  .charts > div, .failures tr { break-inside: avoid; }
  .counts div { padding: 5px 8px; }
  .counts dd { font-size: 14px; }
  .failures, .bars { font-size: 12px; }
  .photos { grid-template-columns: repeat(2, 1fr); }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
"""
