"""Layout of all pages: light and dark, readable on a phone, printable, without scripts and without the network.

A page is `page_start`, its sections, `PAGE_END`. It begins with a sentence on its content; a `Banner` on top is for
what its reader must know before anything else. A page is written at a new place or over an older page of roibeam, and
over nothing else.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.messages import escaped
from roibeam.pipelines.common.plot import PLOT_COLOURS


@dataclass(frozen=True)
class Banner:
    """Attributes:
    title: a few words with a full stop.
    text: one or two sentences.
    """

    title: str
    text: str

    @property
    def line(self) -> str:
        """Text for the terminal, without the full stop."""
        return f"{self.title} {self.text.rstrip('.')}"


def banner_html(banner: Banner | None) -> str:
    """Returns the box, styled by `PAGE_STYLE`; nothing where there is no banner."""
    if banner is None:
        return ""
    return f'<p class="note"><b>{escaped(banner.title, 200)}</b> {escaped(banner.text, 1000)}</p>\n'


PAGE_END = "</main>\n</body>\n</html>\n"


def page_start(title: str, summary: str, *more: str, style: str = "") -> str:
    """Returns a page up to its first section.

    Args:
        more: texts under it, such as how good the results are.
    """
    sentences = "".join(f'<p class="summary">{escaped(each, 2000)}</p>\n' for each in (summary, *more) if each)
    return (
        PAGE_HEAD.format(title=escaped(title, 120), style=PAGE_STYLE + style)
        + f"<header><h1>{escaped(title, 200)}</h1>\n{sentences}</header>\n<main>\n"
    )


def tiles(cells: Sequence[tuple[str, str]]) -> str:
    """A row of figures to be seen at once: (name, value), plain texts."""
    pairs = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in cells)
    return f'<dl class="counts">{pairs}</dl>\n'


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), strong: Sequence[int] = ()
) -> str:
    """A table; on a phone each row becomes a block, its first cell the heading, with the column's name at each other.

    Args:
        head: names of the columns, plain text.
        rows: cells, markup: all but numbers must be escaped.
        numbers: columns that stand to the right.
        strong: rows to be seen first.
    """
    heads = "".join(f"<th{_number(place in numbers)}>{html.escape(name)}</th>" for place, name in enumerate(head))
    heading = f' class="number" data-first="{html.escape(head[0])} "' if 0 in numbers else ""
    lines = []
    for row_number, row in enumerate(rows):
        first, *others = row
        cells = "".join(
            f'<td{_number(place in numbers)} data-head="{html.escape(head[place])}">{cell}</td>'
            if cell
            else "<td></td>"
            for place, cell in enumerate(others, start=1)
        )
        look = ' class="strong"' if row_number in strong else ""
        lines.append(f'<tr{look}><th scope="row"{heading}>{first}</th>{cells}</tr>')
    kind = "table pairs" if len(head) == 2 else "table"
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead>\n<tbody>{"".join(lines)}</tbody></table>\n'


def verdict_markup(word: str) -> str:
    """A verdict, plain text, in the colour of good or poor."""
    look = "good" if word in ("clearly above chance", "better than chance") else "poor"
    return f'<span class="{look}">{html.escape(word)}</span>' if word else ""


def interval_bar(
    value: float,
    low: float | None,
    high: float | None,
    level: float | None,
    second_level: float | None = None,
    *,
    label: str,
) -> str:
    """Markup: a share on a line from 0 to 1, with its interval and the levels that it is compared with, all 0..1 or
    None; `label` is read out in place of the picture."""
    marks = []
    if low is not None and high is not None:
        marks.append(f'<i class="range" style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></i>')
    if level is not None:
        marks.append(f'<i class="level" style="left:{100 * level:.1f}%"></i>')
    if second_level is not None:
        marks.append(f'<i class="level second" style="left:{100 * second_level:.1f}%"></i>')
    marks.append(f'<i class="value" style="left:{100 * value:.1f}%"></i>')
    return f'<span class="interval" role="img" aria-label="{html.escape(label)}">{"".join(marks)}</span>'


def folded(title: str, content: str) -> str:
    """Markup that opens when its title, plain text, is clicked."""
    return f"<details><summary>{html.escape(title)}</summary>\n{content}</details>\n"


def note(title: str, text: str) -> str:
    """Markup of a note that a reader must not miss; plain texts."""
    return f'<p class="note"><b>{html.escape(title)}</b> {escaped(text, 2000)}</p>\n'


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


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

PAGE_STYLE = (
    PLOT_COLOURS
    + """
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
.summary { margin: 0 0 8px; max-width: 76ch; font-size: 15px; }
section > p { max-width: 84ch; }
a { color: var(--series-0); }
summary { cursor: pointer; padding: 6px 0; font-weight: 600; }
.table { font-size: 13px; }
.table th, .table td { padding: 4px 14px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
.table tbody th { overflow-wrap: break-word; }
.table thead th { font-size: 12px; color: var(--quiet); vertical-align: bottom; }
.table tbody tr { border-top: 1px solid var(--line); }
.table .number { text-align: right; overflow-wrap: normal; }
.table .strong > * { font-weight: 650; }
.interval { display: block; position: relative; min-width: 160px; height: 18px; margin: 0 6px;
  background: linear-gradient(var(--line), var(--line)) center / 100% 1px no-repeat; border: solid var(--line);
  border-width: 0 1px; }
.interval i { position: absolute; }
.interval .range { top: 6px; height: 6px; min-width: 2px; background: var(--series-0); opacity: .45; }
.interval .value { top: 4px; width: 10px; height: 10px; margin-left: -5px; border-radius: 5px;
  background: var(--series-0); }
.interval .level { top: 0; width: 3px; height: 18px; margin-left: -1.5px; background: var(--series-1); }
.interval .second { background: var(--series-2); }
.good { color: var(--series-2); font-weight: 600; }
.poor { color: var(--series-4); font-weight: 600; }
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
  .table thead { display: none; }
  .table, .table tbody, .table tr, .table th, .table td { display: block; width: auto; }
  .table tr { padding: 8px 0; }
  .table td, .table th { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 0 10px;
    padding: 1px 0; }
  .table td:empty { display: none; }
  .table td.number, .table th.number { text-align: left; }
  .table [data-first]::before { content: attr(data-first); }
  .pairs tr { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 0 10px; padding: 3px 0; }
  .pairs th[scope], .pairs td[data-head] { display: block; font-weight: 400; }
  .pairs th[scope] { color: var(--quiet); }
  .pairs [data-head]::before { display: none; }
  .table [data-head]::before { content: attr(data-head); color: var(--quiet); font-weight: 400; }
  .table th:not([data-head]), .table td:not([data-head]) { display: block; font-weight: 600; }
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
)


_START = PAGE_HEAD.partition("{")[0].encode("utf-8")


def check_page_file(option: str, path: Path) -> None:
    """Checks the path of a page, which `option` names; to be called before long work."""
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder; name a file, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it, or name a file in another one")
    if path.exists():
        with path.open("rb") as file:
            start = file.read(len(_START))
        if start != _START:
            raise ValueError(f"{option} {path}: is there already, and roibeam did not write it; name another file")
