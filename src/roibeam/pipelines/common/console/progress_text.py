"""How far something is, in words: counts, rate, time left, failures."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass

from roibeam.features.printable import on_a_line
from roibeam.pipelines.common.console.duration import duration
from roibeam.pipelines.common.console.screen import SCREEN


@dataclass(frozen=True)
class Unit:
    """What is counted: Unit("image", "images").

    Attributes:
        size: counted things in one of the unit: 1,000,000 for bytes that are shown as MB.
    """

    one: str
    many: str
    size: int = 1

    def count(self, number: float) -> str:
        """ "1,234"."""
        return f"{number / self.size:,.0f}"

    def counted(self, number: float) -> str:
        """ "1 image", "1,234 images"."""
        text = self.count(number)
        return f"{text} {self.one if text == '1' else self.many}"

    def rate(self, per_second: float) -> str:
        """ "12 images/s", "3.2 images/s"; slower than one a second "43 s/image"."""
        in_units = per_second / self.size
        if in_units >= 1:
            return f"{_short(in_units)} {self.many}/s"
        seconds = 1 / max(in_units, 1e-9)
        return f"{_short(seconds)} s/{self.one}" if seconds < 120 else f"{duration(seconds)} for each {self.one}"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:,.0f}"


def folded(line: str) -> str:
    """A line for people as lines that fit the terminal, or 100 columns, with room for what a log puts before them."""
    width = SCREEN.columns() - 10
    return textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def failed(failures: Counter[str], *, with_reasons: bool = True) -> str:
    """ "12 failed (10 empty file, 2 too large)"; empty without failures."""
    if not failures:
        return ""
    reasons = ", ".join(f"{count:,} {on_a_line(reason)}" for reason, count in failures.most_common())
    return f"{failures.total():,} failed" + (f" ({reasons})" if with_reasons else "")
