"""Lines that tell how far a run is, printed from a thread of their own."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from roibeam.pipelines.foundation.console.duration import duration


@dataclass(frozen=True)
class Standing:
    """Where a run stands: images with a record, and failed ones by reason."""

    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


class Readable(Protocol):
    """Whatever knows where a run stands; read from the printer's thread."""

    def read(self) -> Standing: ...


class ProgressPrinter:
    """Prints a progress line every few seconds from a thread of its own; a context manager around the run.

    On a terminal the line is rewritten in place; elsewhere a new line every ten seconds. With `as_json`, JSON lines.

    Args:
        total: images of the run.
        least_seconds: between two lines, where a look costs something.
    """

    def __init__(
        self,
        view: Readable,
        total: int,
        *,
        as_json: bool = False,
        stream: TextIO | None = None,
        least_seconds: float = 0.0,
    ) -> None:
        self._view, self._total, self._as_json = view, total, as_json
        self._stream = stream or (sys.stdout if as_json else sys.stderr)
        self._in_place = not as_json and self._stream.isatty()
        self._every = max(least_seconds, 1.0 if self._in_place else 10.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPrinter:
        self._start = time.monotonic()
        self._before = self._view.read().images
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._print(self._view.read(), last=True)
        elif self._in_place:
            self._stream.write("\n")

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            standing = self._view.read()
            # A runner may take a while to end; the last line, with everything done, is the one of `__exit__`.
            if standing.images < self._total or self._in_place:
                self._print(standing)

    def _print(self, standing: Standing, last: bool = False) -> None:
        seconds = time.monotonic() - self._start
        rate = (standing.images - self._before) / max(seconds, 1e-9)
        left = self._total - standing.images
        eta = left / rate if rate > 0 else None
        if self._as_json:
            event = {
                "event": "progress", "images": standing.images, "total": self._total, "records": standing.records,
                "failures": dict(standing.failures), "images_per_second": round(rate, 3),
                "eta_seconds": None if eta is None else round(eta, 1),
            }  # fmt: skip
            text = json.dumps(event) + "\n"
        else:
            line = progress_line(standing, self._total, rate, eta)
            text = f"\r\x1b[K{line}" + ("\n" if last else "") if self._in_place else line + "\n"
        self._stream.write(text)
        self._stream.flush()


def progress_line(standing: Standing, total: int, rate: float | None, eta: float | None) -> str:
    """One line for a person: done/total, rate (unless None), time left, failures by reason."""
    parts = [f"{standing.images:,}/{total:,} images"]
    if rate is not None:
        parts.append(f"{rate:.2f} images/s" if rate < 10 else f"{rate:.0f} images/s")
    if standing.images < total:
        parts.append(f"ETA {duration(eta)}")
    if standing.failures:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in standing.failures.most_common())
        parts.append(f"{standing.failures.total():,} failed ({reasons})")
    return "  ".join(parts)
