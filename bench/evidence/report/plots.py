"""The plots on the first screen of docs/evidence.md: claims of a paper around 0, and learning curves.

They use the product's own frame, colours and letters (`plot.py` of pages): text stays text, 360 px are enough, light
and dark are the reader's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evidence.report.claims import (
    ALIKE_POINTS,
    HINT,
    HINT_AGAINST,
    NOT_SHOWN,
    OTHER_WAY,
    SHOWN,
    Found,
    Judged,
)
from roibeam.messages import escaped
from roibeam.pipelines.common.plot import WIDTH_PX, Plot, Series, plot_svg, svg_file

_LEFT, _RIGHT, _NAME, _BAR, _ABOVE, _BELOW = 16, 16, 26, 9, 80, 46
_COLOURS = {
    SHOWN: "var(--series-2)", HINT: "var(--series-2)", OTHER_WAY: "var(--series-4)", HINT_AGAINST: "var(--series-4)",
    NOT_SHOWN: "var(--quiet)",
}  # fmt: skip
_MEANING = {
    SHOWN: "as the paper says", OTHER_WAY: "the other way", NOT_SHOWN: "not shown", HINT: "a hint of it",
    HINT_AGAINST: "a hint against it",
}  # fmt: skip
_IN_A_ROW = 3  # of the legend
_MIDDLE = (_LEFT + WIDTH_PX - _RIGHT) / 2
_HALF = (WIDTH_PX - _LEFT - _RIGHT) / 2
_LEAST_POINTS = 3.0  # that the axis reaches


def plot_name(system: str) -> str:
    return f"evidence_{system}.svg"


def claims_plot(title: str, choices: Mapping[str, Sequence[Judged]]) -> str:
    """For each choice of a paper a bar for each comparison that tests it: the difference and its interval around 0.

    Differences are counted in the direction that the paper says. The mark tells the verdict, not the colour alone. A
    bar of one run is dashed.

    Args:
        choices: by name, comparisons that were run.
    """
    height = _ABOVE + sum(_height(bars) for bars in choices.values()) + _BELOW
    reach = _reach([_towards_the_paper(each) for bars in choices.values() for each in bars])
    parts = [_text(6, 16, title, weight="bold"), *_legend(), *_axis(reach, height)]
    top = float(_ABOVE)
    for name, bars in choices.items():
        parts += _choice(name, bars, top, reach)
        top += _height(bars)
    label = escaped(f"{title}: differences in percent points with 95 % intervals")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH_PX} {height}" role="img" aria-label="{label}" font-size="12">'
        f"{''.join(parts)}</svg>"
    )


def _height(bars: Sequence[Judged]) -> int:
    return _NAME + _BAR * len(bars)


def curve_plot(title: str, pictures: Sequence[int], shares: Mapping[str, Sequence[float]], key: str) -> str:
    """Shares, 0..1, over how many pictures were trained on."""
    return share_curve(title, [each / 1000 for each in pictures], shares, "training pictures, in thousands", key)


def share_curve(title: str, at: Sequence[float], shares: Mapping[str, Sequence[float]], along: str, key: str) -> str:
    """Shares, 0..1, over numbers whose axis is called `along`."""
    series = [Series(name, list(at), values, number, "points") for number, (name, values) in enumerate(shares.items())]
    return plot_svg(Plot(title, along, "share (%)", series, percent=True), key)


def file_of(plots: Sequence[str]) -> str:
    """One SVG file, the plots below each other."""
    return svg_file(plots, columns=1)


def _choice(name: str, bars: Sequence[Judged], top: float, reach: float) -> Iterator[str]:
    yield _text(6, top + 14, name)
    shown = sum(each.verdict == SHOWN for each in bars)
    yield _text(WIDTH_PX - 6, top + 14, f"{shown} of {len(bars)} shown", anchor="end", colour="var(--quiet)")
    for number, each in enumerate(bars):
        yield from _bar(each, top + 24 + _BAR * number, reach)


def _bar(judged: Judged, y: float, reach: float) -> Iterator[str]:
    value, low, high = _towards_the_paper(judged)
    if judged.claim.expected in ("alike", "no more"):
        least = -ALIKE_POINTS if judged.claim.expected == "alike" else -reach
        left, right = _x(least, reach), _x(ALIKE_POINTS, reach)
        yield f'<rect x="{left:.1f}" y="{y - 4}" width="{right - left:.1f}" height="8" style="fill: var(--line)"/>'
    style = f"stroke: {_COLOURS[judged.verdict]}; stroke-width: 1.5; fill: none"
    dashes = "; stroke-dasharray: 3 2" if judged.found is not None and judged.found.seeds == 1 else ""
    yield f'<path d="M{_x(low, reach):.1f},{y}H{_x(high, reach):.1f}" style="{style}{dashes}"/>'
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
    return 1.05 * max([_LEAST_POINTS, *(max(abs(low), abs(high)) for _, low, high in shown)])


def _x(value: float, reach: float) -> float:
    return _MIDDLE + _HALF * min(max(value / reach, -1.0), 1.0)


def _axis(reach: float, height: float) -> Iterator[str]:
    step = next(step for step in (1, 2, 5, 10, 20, 50) if reach / step < 4 or step == 50)
    bottom = height - _BELOW + 4
    for number in range(-math.floor(reach / step), math.floor(reach / step) + 1):
        x, colour = _x(number * step, reach), "line" if number else "quiet"
        yield f'<path d="M{x:.1f},{_ABOVE - 6}V{bottom}" style="stroke: var(--{colour})"/>'
        yield _text(x, bottom + 14, f"{number * step:+d}" if number else "0", anchor="middle", colour="var(--quiet)")
    yield _text(_MIDDLE, bottom + 32, "points in the direction of the paper, 95 % interval", anchor="middle")


def _legend() -> Iterator[str]:
    for number, (verdict, meaning) in enumerate(_MEANING.items()):
        x, y = 12.0 + number % _IN_A_ROW * 122, 36 + 18 * (number // _IN_A_ROW)
        yield _mark(verdict, x, y)
        yield _text(x + 9, y + 4, meaning)


def _mark(verdict: str, x: float, y: float) -> str:
    """Filled or thick where it counts, hollow or thin where it does not."""
    colour = _COLOURS[verdict]
    if verdict in (OTHER_WAY, HINT_AGAINST):
        cross = f"M{x - 3:.1f},{y - 3}l6,6M{x - 3:.1f},{y + 3}l6,-6"
        return f'<path d="{cross}" style="stroke: {colour}; stroke-width: {2.5 if verdict == OTHER_WAY else 1.2}"/>'
    fill = colour if verdict == SHOWN else "var(--page)"
    return f'<circle cx="{x:.1f}" cy="{y}" r="3" style="fill: {fill}; stroke: {colour}; stroke-width: 1.5"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "") -> str:
    # Edged with the page's colour: a letter on a line of the grid stays readable.
    style = f"fill: {colour or 'var(--text)'}; font-weight: {weight}; stroke: var(--page); stroke-width: 3"
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" paint-order="stroke" style="{style}">{escaped(text)}</text>'
    )
