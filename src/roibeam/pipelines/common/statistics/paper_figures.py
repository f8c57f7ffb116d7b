"""Figures of the papers, each once: `paper_figures.csv` beside this file, read when it is first needed.

A figure that a paper prints twice is one line, whose table names both places. A later version and the README of a
release are papers of their own.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
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
