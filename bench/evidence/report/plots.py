"""The plots on the first screen of docs/evidence.md: claims of a paper around 0, and learning curves.

They use the product's own frame, colours and letters (`plot.py` of pages): text stays text, 360 px are enough, light
and dark are the reader's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evidence.report.claims import ALIKE_POINTS, NOT_SHOWN, OTHER_WAY, SHOWN, Found, Judged, points
from roibeam.features.printable import escaped
from roibeam.pipelines.foundation.pages.plot import WIDTH_PX, Plot, Series, plot_svg, svg_file

_LEFT, _RIGHT, _ROW, _ABOVE, _BELOW = 16, 16, 38, 62, 46
_COLOURS = {SHOWN: "var(--series-2)", OTHER_WAY: "var(--series-4)", NOT_SHOWN: "var(--quiet)"}
_MEANING = {SHOWN: "as the paper says", OTHER_WAY: "the other way", NOT_SHOWN: "not shown"}
_MIDDLE = (_LEFT + WIDTH_PX - _RIGHT) / 2
_HALF = (WIDTH_PX - _LEFT - _RIGHT) / 2
_LEAST_POINTS, _SPREAD = 3.0, 4.0  # reach of the axis; of a few large differences the bars are cut off


def claims_plot(title: str, judged: Sequence[Judged]) -> str:
    """One row for each claim that was run: its name, the difference in points, and a bar for the interval around 0.

    Differences are counted in the direction that the paper says. The mark tells the verdict, not the colour alone.
    """
    height = _ABOVE + _ROW * len(judged) + _BELOW
    reach = _reach([_towards_the_paper(each) for each in judged])
    parts = [
        _text(6, 16, title, weight="bold"),
        *_legend(),
        *_axis(reach, height),
        *(part for number, each in enumerate(judged) for part in _row(each, _ABOVE + _ROW * number, reach)),
    ]
    label = escaped(f"{title}: differences in percent points with 95 % intervals")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH_PX} {height}" role="img" aria-label="{label}" font-size="12">'
        f"{''.join(parts)}</svg>"
    )


def curve_plot(title: str, pictures: Sequence[int], shares: Mapping[str, Sequence[float]], key: str) -> str:
    """Shares, 0..1, over how many pictures were trained on."""
    return share_curve(title, [each / 1000 for each in pictures], shares, "training pictures, in thousands", key)


def share_curve(title: str, at: Sequence[float], shares: Mapping[str, Sequence[float]], along: str, key: str) -> str:
    """Shares, 0..1, over numbers whose axis is called `along`."""
    series = [Series(name, list(at), values, number, "points") for number, (name, values) in enumerate(shares.items())]
    return plot_svg(Plot(title, along, "right (%)", series, percent=True), key)


def file_of(plots: Sequence[str]) -> str:
    """One SVG file, the plots below each other."""
    return svg_file(plots, columns=1)


def _row(judged: Judged, top: float, reach: float) -> Iterator[str]:
    y = top + 26
    yield _text(6, top + 14, judged.claim.short)
    value, low, high = _towards_the_paper(judged)
    yield _text(WIDTH_PX - 6, top + 14, points(value), anchor="end")
    if judged.claim.expected in ("alike", "no more"):
        least = -ALIKE_POINTS if judged.claim.expected == "alike" else -reach
        left, right = _x(least, reach), _x(ALIKE_POINTS, reach)
        yield f'<rect x="{left:.1f}" y="{y - 6}" width="{right - left:.1f}" height="12" style="fill: var(--line)"/>'
    style = f"stroke: {_COLOURS[judged.verdict]}; stroke-width: 2; fill: none"
    yield f'<path d="M{_x(low, reach):.1f},{y}H{_x(high, reach):.1f}" style="{style}"/>'
    for end, sign in ((low, -1), (high, 1)):
        if abs(end) > reach and end * sign > 0:
            x = _x(end, reach)
            yield f'<path d="M{x - 5 * sign:.1f},{y - 4}L{x:.1f},{y}L{x - 5 * sign:.1f},{y + 4}" style="{style}"/>'
    yield _mark(judged.verdict, _x(value, reach), y)


def _towards_the_paper(judged: Judged) -> tuple[float, float, float]:
    """Difference, low, high; above 0 is what the paper says."""
    found = judged.found
    assert isinstance(found, Found)
    if judged.claim.expected == "less":
        return -found.difference, -found.high, -found.low
    return found.difference, found.low, found.high


def _reach(shown: Sequence[tuple[float, float, float]]) -> float:
    """Points from 0 to either end of the axis."""
    sizes = sorted(max(abs(low), abs(high)) for _, low, high in shown)
    if not sizes:
        return _LEAST_POINTS
    return max(_LEAST_POINTS, min(sizes[-1], _SPREAD * sizes[len(sizes) // 2])) * 1.05


def _x(value: float, reach: float) -> float:
    return _MIDDLE + _HALF * min(max(value / reach, -1.0), 1.0)


def _axis(reach: float, height: float) -> Iterator[str]:
    step = next(step for step in (1, 2, 5, 10, 20, 50) if reach / step < 4 or step == 50)
    bottom = height - _BELOW + 4
    for number in range(-math.floor(reach / step), math.floor(reach / step) + 1):
        x, colour = _x(number * step, reach), "line" if number else "quiet"
        yield f'<path d="M{x:.1f},{_ABOVE - 6}V{bottom}" style="stroke: var(--{colour})"/>'
        yield _text(x, bottom + 14, f"{number * step:+d}" if number else "0", anchor="middle", colour="var(--quiet)")
    yield _text(_MIDDLE, bottom + 32, "percent points, 95 % interval", anchor="middle")


def _legend() -> Iterator[str]:
    x = 12.0
    for verdict, meaning in _MEANING.items():
        yield _mark(verdict, x, 36)
        yield _text(x + 9, 40, meaning)
        x += 28 + 6.4 * len(meaning)


def _mark(verdict: str, x: float, y: float) -> str:
    colour = _COLOURS[verdict]
    if verdict == OTHER_WAY:
        cross = f"M{x - 4:.1f},{y - 4}l8,8M{x - 4:.1f},{y + 4}l8,-8"
        return f'<path d="{cross}" style="stroke: {colour}; stroke-width: 2.5"/>'
    fill = colour if verdict == SHOWN else "var(--page)"
    return f'<circle cx="{x:.1f}" cy="{y}" r="4" style="fill: {fill}; stroke: {colour}; stroke-width: 2"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "") -> str:
    # Edged with the page's colour: a letter on a line of the grid stays readable.
    style = f"fill: {colour or 'var(--text)'}; font-weight: {weight}; stroke: var(--page); stroke-width: 3"
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" paint-order="stroke" style="{style}">{escaped(text)}</text>'
    )
