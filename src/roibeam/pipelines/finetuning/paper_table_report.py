"""A paper's table with printed and measured figures side by side: Markdown, CSV and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import escaped, plural
from roibeam.pipelines.common.page_layout import PAGE_END, Banner, banner_html, folded, page_start, table, tiles
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.common.statistics.paper_tables import PaperTable
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES, chain_of
from roibeam.pipelines.pretraining.recipes.published import RECIPES

HEAD = ("row", "column", "printed", "ours", "95 % interval", "ours less printed", "printed is", "hours", "recipes")
DRILL = Banner("A drill.", "Small models on drawn pictures: that all commands run is shown, the figures mean nothing.")


@dataclass(frozen=True)
class Cell:
    """A figure and what came out.

    Attributes:
        values: in percent, by seed; empty where nothing is known yet.
        low, high: 95 % interval over images, of one seed; the lowest and highest value of several.
        words: what came out, of a figure that is no number.
        is_served: whether a test server tells it.
        seconds: of the commands that it needs, shared ones too.
    """

    figure: PaperFigure
    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    words: str = ""
    is_served: bool = False
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.figure.row}: {self.figure.column}"

    @property
    def mean(self) -> float | None:
        return sum(self.values) / len(self.values) if self.values else None

    def line(self) -> list[str]:
        """Texts below `HEAD`."""
        figure, mean = self.figure, self.mean
        recipes = " > ".join(chain_of(figure.recipe)) if figure.recipe else f"none: {figure.why}"
        hours = f"{self.seconds / 3600:.2f}" if self.seconds else ""
        start = [figure.row, figure.column, figure.printed]
        if mean is None:
            missing = "for the test server" if self.is_served else "" if figure.recipe else "no command"
            return [*start, self.words or missing, "", "", "", hours, recipes]
        interval, inside = "", ""
        if self.low is not None and self.high is not None:
            of_seeds = f" of {plural(len(self.values), 'seed')}" if len(self.values) > 1 else ""
            interval = f"{self.low:.2f} .. {self.high:.2f}{of_seeds}"
            inside = "inside" if self.low <= figure.value <= self.high else "outside"
        return [*start, f"{mean:.2f}", interval, f"{mean - figure.value:+.2f}", inside, hours, recipes]


def write_table(folder: Path, shown: PaperTable, cells: Sequence[Cell], *, is_toy: bool) -> None:
    """Writes table.md, table.csv and table.html, each whole."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [each.line() for each in cells]
    text = io.StringIO()
    csv.writer(text).writerows([HEAD, *lines])
    for name, content in (
        ("table.md", _markdown(shown, lines, cells, is_toy=is_toy)),
        ("table.csv", text.getvalue()),
        ("table.html", _page(shown, lines, cells, is_toy=is_toy)),
    ):
        write_bytes_atomically(folder / name, content.encode())


def _summary(cells: Sequence[Cell]) -> str:
    known = sum(bool(each.values or each.words) for each in cells)
    served = sum(each.is_served and not each.values for each in cells)
    return (
        f"{known} of {plural(len(cells), 'figure')} measured" + (f", {served} for a test server" * bool(served)) + "."
    )


def _markdown(shown: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    parts = [f"# {shown.name}: {shown.title}: {shown.caption}", f"{DRILL.line}." if is_toy else "", _summary(cells)]
    rows = [HEAD, ["---"] * len(HEAD), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    for recipe, points in _differences(cells):
        parts += [f"## What {recipe} leaves open", "\n".join(f"- {point}" for point in points)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _page(shown: PaperTable, lines: Sequence[Sequence[str]], cells: Sequence[Cell], *, is_toy: bool) -> str:
    counts = [("figures", str(len(cells))), ("measured", str(sum(bool(each.values or each.words) for each in cells)))]
    parts = [
        page_start(f"{shown.name}: {shown.title}", f"{shown.caption}. {_summary(cells)}"),
        banner_html(DRILL if is_toy else None),
        tiles(counts),
        table(HEAD, [[escaped(cell, 300) for cell in line] for line in lines], numbers=(2, 3, 4, 5, 7)),
    ]
    for recipe, points in _differences(cells):
        listed = "".join(f"<li>{escaped(point, 1000)}</li>" for point in points)
        parts.append(folded(f"What {recipe} leaves open", f"<ul>{listed}</ul>"))
    return "".join((*parts, PAGE_END))


def _differences(cells: Sequence[Cell]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each recipe that a cell is made by, and in what a run of it may differ from the paper's."""
    made_by = dict.fromkeys(name for each in cells if each.figure.recipe for name in chain_of(each.figure.recipe))
    for name in made_by:
        recipe = TASK_RECIPES.get(name) or RECIPES[name]
        if recipe.left_open:
            yield name, recipe.left_open
