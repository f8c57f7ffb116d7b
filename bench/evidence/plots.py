"""A picture of shares with their intervals, one to a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evidence.intervals import Estimate

from roibeam.features.printable import escaped

_LEFT, _WIDTH, _LINE = 250, 400, 22
_COLOURS = ("#08519c", "#a50f15", "#636363")


@dataclass(frozen=True)
class Row:
    """Attributes:
    label: for people; what follows its first comma chooses the colour.
    """

    label: str
    found: Estimate


def intervals_svg(rows: Sequence[Row]) -> str:
    """From 0 to 100 percent, the interval as a line, the share as a dot."""
    height = _LINE * (len(rows) + 2)
    kinds = list(dict.fromkeys(row.label.partition(",")[2] for row in rows))
    marks = []
    for percent in range(0, 101, 25):
        x = _LEFT + _WIDTH * percent / 100
        marks.append(
            f'<path d="M{x},{_LINE / 2}V{height - _LINE}" stroke="#ddd"/>'
            f'<text x="{x}" y="{height - 6}" text-anchor="middle">{percent}</text>'
        )
    for number, row in enumerate(rows):
        y, colour = _LINE * (number + 1), _COLOURS[kinds.index(row.label.partition(",")[2]) % len(_COLOURS)]
        low, high, value = (_LEFT + _WIDTH * part for part in (row.found.low, row.found.high, row.found.value))
        marks.append(
            f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escaped(row.label)}</text>'
            f'<path d="M{low:.1f},{y}H{high:.1f}" stroke="{colour}" stroke-width="2"/>'
            f'<circle cx="{value:.1f}" cy="{y}" r="4" fill="{colour}"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" '
        f'width="{_LEFT + _WIDTH + 30}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{_LEFT + _WIDTH + 30}" height="{height}" fill="#fff"/>\n' + "\n".join(marks) + "\n</svg>\n"
    )
