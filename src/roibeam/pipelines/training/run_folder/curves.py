"""The curves of a training run as one SVG file: a panel for each loss and metric of log.jsonl, steps to the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.printable import escaped
from roibeam.pipelines.training.run_folder.train_log import LOG_NAME, read_lines

CURVES_NAME = "curves.svg"
_NO_CURVES = frozenset({"step", "samples", "epoch", "seconds"})
_PANEL = (300, 170)  # of one panel with its margins, pixels
_PLOT = (52, 26, 238, 120)  # x, y, width, height of the curve within it
_COLUMNS = 3
_POINTS = 300  # a longer run is drawn as means over equal parts
_SMOOTH = 25  # points of the thick line's mean


def write_curves(run_dir: Path) -> Path:
    """Draws RUN/log.jsonl to RUN/curves.svg.

    Returns:
        The path of the file.
    """
    path = run_dir / CURVES_NAME
    path.write_text(curves_svg(read_lines(run_dir / LOG_NAME)), encoding="utf-8")
    return path


def curves_svg(lines: Sequence[Mapping[str, Any]], *, smooth: bool = True) -> str:
    """A panel for each number of `lines`, over their "step".

    Args:
        smooth: draw a running mean over the points; without, the line through them.
    """
    steps = np.array([line["step"] for line in lines], np.float64)
    panels: list[str] = []
    for name in dict.fromkeys(name for line in lines for name in line):
        if name not in _NO_CURVES:
            values = np.array([np.nan if line.get(name) is None else line[name] for line in lines], np.float64)
            if np.isfinite(values).any():
                panels.append(_panel(name, steps, values, len(panels), smooth=smooth))
    return _page(panels)


def _page(panels: Sequence[str]) -> str:
    width, height = _PANEL[0] * min(_COLUMNS, len(panels)), _PANEL[1] * -(-len(panels) // _COLUMNS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _panel(name: str, steps: np.ndarray, values: np.ndarray, place: int, *, smooth: bool) -> str:
    steps, values = _thinned(steps, values)
    mean = _smoothed(values) if smooth else values
    lowest, highest = float(min(values.min(), 0.0)), float(np.quantile(values, 0.995))
    highest = highest if highest > lowest else lowest + 1.0
    left, top, width, height = _PLOT
    x = left + width * (steps - steps[0]) / max(steps[-1] - steps[0], 1.0)
    lines = []
    for row, colour, thickness in ((values, "#9ecae1", 0.8), (mean, "#08519c", 1.6)):
        y = top + height * (1 - np.clip((row - lowest) / (highest - lowest), 0, 1))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{thickness}" points="{points}"/>')
    origin = (_PANEL[0] * (place % _COLUMNS), _PANEL[1] * (place // _COLUMNS))
    title = f"{escaped(name.replace('_', ' '))}, last {mean[-1]:.3g}"
    return (
        f'<g transform="translate({origin[0]},{origin[1]})"><text x="{left}" y="16" font-weight="bold">{title}</text>'
        f'<path d="M{left},{top}V{top + height}H{left + width}" fill="none" stroke="#999"/>{"".join(lines)}'
        f'<text x="{left - 4}" y="{top + 8}" text-anchor="end">{highest:.3g}</text>'
        f'<text x="{left - 4}" y="{top + height}" text-anchor="end">{lowest:.3g}</text>'
        f'<text x="{left}" y="{top + height + 14}">{steps[0]:,.0f}</text>'
        f'<text x="{left + width}" y="{top + height + 14}" text-anchor="end">step {steps[-1]:,.0f}</text></g>'
    )


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps that have a value; many of them as means over equal parts."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) <= _POINTS:
        return steps, values
    parts = np.array_split(np.arange(len(values)), _POINTS)
    return np.array([steps[part[-1]] for part in parts]), np.array([values[part].mean() for part in parts])


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Means over as many points before as after, fewer at the ends."""
    sums = np.concatenate([[0.0], values.cumsum()])
    places = np.arange(len(values))
    reach = np.minimum(np.minimum(places, len(values) - 1 - places), _SMOOTH // 2)
    return (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)
