"""The paper's figures 3 and 4: accuracy of every head over its layer, active heads large, beside the baseline and what
the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roibeam.pipelines.analysis.attention.head_figures import HeadFigures, commonest
from roibeam.pipelines.analysis.attention.paper_table import paper_rows
from roibeam.pipelines.common.pages.plot import Level, Plot, Series, plot_svg, png_file, svg_file

# Figure 4 shows these three; where one is missing, the commonest that is left takes its place.
_SHOWN = ("pobj", "nsubj", "amod")


def write_plots(out: Path, entity: HeadFigures, relations: Sequence[HeadFigures]) -> list[Path]:
    """heads.svg and .png; with relations relations.svg and .png."""
    written = _write(out / "heads", [_plot(entity, "Entity grounding")])
    table = commonest(relations)
    wanted = [each for name in _SHOWN for each in table if each.name == name]
    shown = [*wanted, *(each for each in table if each not in wanted)][: len(_SHOWN)]
    if shown:
        written += _write(out / "relations", [_plot(each, f"Syntactic grounding: {each.name}") for each in shown])
    return written


def _write(path: Path, plots: Sequence[Plot]) -> list[Path]:
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    drawn = [plot_svg(plot, f"{path.name}-{number}") for number, plot in enumerate(plots)]
    svg.write_text(svg_file(drawn), "utf-8")
    png.write_bytes(png_file(plots))
    return [svg, png]


def _plot(figures: HeadFigures, title: str) -> Plot:
    series = []
    for name, which, style, colour in (
        ("active heads", figures.active, "dots", 0),
        ("other heads", ~figures.active, "small dots", 1),
    ):
        layers, heads = which.nonzero()
        if len(layers):
            values = figures.accuracy[layers, heads].tolist()
            series.append(Series(name, (layers + 1).tolist(), values, colour, style))  # type: ignore[arg-type]
    return Plot(
        title,
        "layer",
        "accuracy (%)",
        series,
        [Level("strongest region", figures.baseline.value), *_printed(figures)],
        percent=True,
    )


def _printed(figures: HeadFigures) -> list[Level]:
    row = paper_rows().get(figures.paper_name)
    if row is None:
        return []
    return [
        Level(f"paper: best head {row.accuracy}", float(row.accuracy) / 100, 2),
        Level(f"paper: strongest {row.baseline}", float(row.baseline) / 100, 3),
    ]
