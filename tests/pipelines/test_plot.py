"""Plots stay what a page needs: text as text, colours of the page, names of their own, the same each time."""

import re
import subprocess
import sys
from xml.etree import ElementTree

from roibeam.pipelines.common.plot import Level, Plot, Series, plot_svg, svg_file

SVG = "{http://www.w3.org/2000/svg}"
PLOT = Plot(
    "Masked words: right",
    "step",
    "right (%)",
    [Series("step", range(30), [0.01 * n for n in range(30)], 1, "faint"), Series("mean", [0, 29], [0.0, 0.3], 1)],
    [Level("chance 12.5 %", 0.125)],
    percent=True,
)


def texts(svg: str) -> list[str]:
    # A page knows its elements without a namespace.
    svg = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_text_stays_text_and_nothing_has_a_colour_of_its_own() -> None:
    svg = plot_svg(PLOT, "a")
    shown = texts(svg)
    for text in ("Masked words: right", "step", "right (%)", "mean", "chance 12.5 %", "0", "10", "30"):
        assert text in shown, shown
    assert not re.search(r"#[0-9a-f]{6}\b", svg) and "var(--series-1)" in svg and "var(--text)" in svg
    assert "font-family" not in svg and "DejaVu" not in svg and "<metadata" not in svg
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)}
    assert sizes and min(sizes) >= 11 and svg.startswith('<svg class="plot" viewBox="0 0 360 ')
    shown = texts(plot_svg(Plot("a <b> & $x_1$", "step", "loss", [Series("", [1], [float("nan")])]), "a"))
    assert "a <b> & $x_1$" in shown


def test_two_plots_share_no_name_and_the_same_plot_is_the_same_text() -> None:
    first, second = plot_svg(PLOT, "a"), plot_svg(PLOT, "b")
    names = [set(re.findall(r' id="([^"]+)"', each)) for each in (first, second)]
    assert names[0] and not names[0] & names[1]
    for svg, known in zip((first, second), names, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) == known
    assert plot_svg(PLOT, "a") == first


def test_a_file_of_plots_stands_for_itself() -> None:
    file = svg_file([plot_svg(PLOT, name) for name in "ab"])
    found = ElementTree.fromstring(file)
    assert len(found.findall(f"{SVG}svg")) == 2 and "--series-0" in file and "prefers-color-scheme: dark" in file


def test_matplotlib_waits_until_something_is_drawn() -> None:
    code = "import sys, roibeam.pipelines.common.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_legend_of_two_levels_ends_inside_the_plot() -> None:
    series = [Series(name, [0, 1], [0.1, 0.2]) for name in ("mean of 3 steps", "running mean", "held out")]
    levels = [Level("chance 28.6 %", 0.286), Level("words alone 66.3 %", 0.29, 2)]
    svg = plot_svg(Plot("Masked words: right", "step", "right (%)", series, levels, percent=True), "a")
    for name in [each.name for each in (*series, *levels)]:
        x = re.search(rf'x="([\d.]+)"[^>]*>{re.escape(name)}</text>', svg)
        assert x is not None and float(x[1]) + 7 * len(name) < 360, name
