"""Layout of all pages: light and dark, readable on a phone, printable, without scripts and without the network.

A page is a template of `templates/` that extends `base.html`; `parts.html` has what several pages share. Every text is
escaped there, and printable: it cannot reorder, hide or break what stands around it. A page begins with a sentence on
its content; a `Banner` on top is for what its reader must know before anything else. A page is written at a new place
or over an older page of roibeam, and over nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from roibeam.messages import plural, printable
from roibeam.pipelines.common.plot import PLOT_COLOURS

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).with_name("templates")
_LONGEST = 100_000  # letters of a text whose template sets no limit
_CODE = re.compile("`([^`]+)`")
_MOST_BYTES = 1_900_000  # of the rows of a page


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


def rendered(template: str, **values: Any) -> Markup:
    """Markup of a template, of a whole page or of a part; texts in `values` are plain, markup is `Markup`."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: _short(value, _LONGEST),
    )
    made.filters.update(short=_short, prose=_prose, plural=plural, count=lambda number: f"{number:,}")
    made.globals.update(plot_colours=PLOT_COLOURS)
    return made


def _short(value: Any, limit: int = 300) -> Any:
    """At most `limit` printable letters of a text; markup and numbers as they are."""
    return printable(value, limit) if isinstance(value, str) and not isinstance(value, Markup) else value


def _prose(text: str, limit: int = 300) -> Markup:
    """The same as markup; what stands in backticks is code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text, limit)))))


@dataclass(frozen=True)
class PageSection:
    """Rows of one section that the page has room for, as markup, and how many were left out."""

    title: str
    remark: str
    rows: Sequence[Markup]
    left_out: int


def page_sections(
    titled: Sequence[tuple[str, str, Sequence[Any]]], row_of: Callable[[Any], Markup]
) -> list[PageSection]:
    """Sections of a page, as much of them as a page may hold.

    Args:
        titled: title, remark and rows of each section.
        row_of: row -> its markup.
    """
    room, found = _MOST_BYTES, []
    for title, remark, rows in titled:
        kept = list[Markup]()
        for row in rows:
            markup = row_of(row)
            room -= len(markup.encode("utf-8"))
            if room < 0:
                break
            kept.append(markup)
        found.append(PageSection(title, remark, kept, len(rows) - len(kept)))
    return found


_START = (_TEMPLATES / "base.html").read_bytes().partition(b"{")[0]


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
