"""Figures and tables of the papers: `paper_figures.csv` and, with our captions, `paper_tables.csv` beside this file.

A figure that a paper prints twice is one line, whose table names both places. A later version and the README of a
release are papers of their own. A table has a name: `vilbert-2` is Table 2 of ViLBERT's paper. What a paper prints in a
section or footnote has a name of the same form: `interbert-section-3.6`.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from roibeam.messages import name_hint


@dataclass(frozen=True)
class PaperFigure:
    """A line of the file.

    Attributes:
        paper: with its version, "VL-BERT, version 1". VisualBERT's is "What Does BERT with Vision Look At?".
        table: or section, or footnote.
        row: as printed, where that is not another row's name too.
        column: task, then metric and split, parted by ", "; results are in percent.
        printed: to the printed digits; or the name of an attention head.
        quoted: "other work" where the paper has it from others, "data set" for a count of one; "" for its own results.
        recipe: the one whose run reproduces it, of a task where there is one; "" for none.
        why: reason why no command makes it; "" where one does.
    """

    paper: str
    table: str
    row: str
    column: str
    printed: str
    quoted: str
    recipe: str
    why: str

    @property
    def task(self) -> str:
        """Task of fine-tuning, or "zero-shot ..." for none."""
        return self.column.partition(", ")[0]

    @property
    def metric(self) -> str:
        return self.column.partition(", ")[2]

    @property
    def value(self) -> float:
        """Printed number; raises ValueError for any other text."""
        return float(self.printed)

    @property
    def title(self) -> str:
        """Title of the paper."""
        return "What Does BERT with Vision Look At?" if self.paper == "VisualBERT" else self.paper

    @property
    def where(self) -> str:
        """Place in the paper, for readers of its recipe; with the paper's name if it is another system's."""
        name, _, version = self.paper.partition(", ")
        foreign = self.recipe and not self.recipe.startswith(name.lower().replace("-", ""))
        return ", ".join(filter(None, (f"{name}'s paper" if foreign else "", version, self.table)))


@cache
def paper_figures() -> tuple[PaperFigure, ...]:
    """All lines, in the order of the papers."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as lines:
        _, *rows = csv.reader(lines)
    return tuple(PaperFigure(*row) for row in rows)


def figures_of(paper: str, row: str, *columns: str) -> tuple[PaperFigure, ...]:
    """A row of a paper, in its order.

    Args:
        columns: whole ones, or their first parts, such as "VCR" or "VCR, Q->A"; all of the row where none is given.
    """
    found = _rows().get(paper)
    if found is None:
        raise ValueError(f"no paper {paper!r} in paper_figures.csv: {name_hint(paper, _rows())}")
    if row not in found:
        raise ValueError(f"{paper} has no row {row!r} in paper_figures.csv: {name_hint(row, found)}")
    for column in columns:
        if not any(_is_part(column, each.column) for each in found[row]):
            named = [each.column for each in found[row]]
            raise ValueError(f"{paper}, {row}: no column {column!r} in paper_figures.csv: {name_hint(column, named)}")
    return tuple(each for each in found[row] if not columns or any(_is_part(column, each.column) for column in columns))


def _is_part(column: str, whole: str) -> bool:
    return f"{whole}, ".startswith(f"{column}, ")


@cache
def _rows() -> Mapping[str, Mapping[str, list[PaperFigure]]]:
    rows: dict[str, dict[str, list[PaperFigure]]] = defaultdict(lambda: defaultdict(list))
    for each in paper_figures():
        rows[each.paper][each.row].append(each)
    return MappingProxyType({paper: MappingProxyType(dict(found)) for paper, found in rows.items()})


# Prefix of tables' names, where it is not the paper's name; VisualBERT's figures are those of its second paper.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "VL-BERT, version 1": "vlbert",
        "VL-BERT, later version": "vlbert-later",
        "VisualBERT": "what-does-bert-with-vision-look-at",
        "InterBERT, README.md": "interbert-readme",
    }
)
_PLACE = re.compile(
    r"Tables? (?P<first>\d+)(?: (?P<link>to|and) (?P<last>\d+))?|(?P<kind>footnote|section) (?P<at>[\d.]+)"
)


@dataclass(frozen=True)
class PaperTable:
    """
    Attributes:
        name: "vilbert-2".
        paper: as `PaperFigure.paper`.
        place: in the paper, "Table 2".
        caption: what it compares, in our words.
        figures: all that it prints, those of others too.
    """

    name: str
    paper: str
    place: str
    caption: str
    figures: tuple[PaperFigure, ...]

    @property
    def title(self) -> str:
        """The paper and the place, "ViLBERT, Table 2"."""
        return ", ".join(filter(None, (self.figures[0].title, self.place)))

    @property
    def own(self) -> tuple[PaperFigure, ...]:
        """The paper's own results."""
        return tuple(each for each in self.figures if not each.quoted)


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """All tables by name, in the order of the papers and their tables."""
    figures: dict[str, list[PaperFigure]] = defaultdict(list)
    places: dict[str, str] = {}
    for figure in paper_figures():
        for name, place in _tables_of(figure):
            figures[name].append(figure)
            places[name] = place
    with Path(__file__).with_name("paper_tables.csv").open(encoding="utf-8", newline="") as lines:
        _, *captions = csv.reader(lines)
    if figures.keys() != {name for name, _ in captions}:
        raise ValueError(
            f"tables with a caption or with figures alone: {figures.keys() ^ {name for name, _ in captions}}"
        )
    return MappingProxyType(
        {
            name: PaperTable(name, figures[name][0].paper, places[name], caption, tuple(figures[name]))
            for name, caption in captions
        }
    )


def paper_table(name: str) -> PaperTable:
    """Raises ValueError for an unknown name, with the near ones."""
    tables = paper_tables()
    if name not in tables:
        meant = name.replace("visualbert", _NAMES["VisualBERT"])
        raise ValueError(f"no table {name!r}: {name_hint(meant, tables, listed_by='roibeam tables lists all')}")
    return tables[name]


def _tables_of(figure: PaperFigure) -> Iterator[tuple[str, str]]:
    """Name and place of each table that prints a figure."""
    prefix, is_in_none = _NAMES.get(figure.paper, figure.paper.lower()), True
    for found in _PLACE.finditer(figure.table):
        is_in_none = False
        if found["kind"]:
            yield f"{prefix}-{found['kind']}-{found['at']}", found[0]
            continue
        first, last = int(found["first"]), int(found["last"] or found["first"])
        for number in range(first, last + 1) if found["link"] == "to" else dict.fromkeys((first, last)):
            yield f"{prefix}-{number}", f"Table {number}"
    if is_in_none:
        yield prefix, figure.table
