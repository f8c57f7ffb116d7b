"""How far a command is: a bar on a terminal, a log line every ten seconds elsewhere; always on standard error.

    with Progress("extracting", 1000, IMAGES) as progress:
        progress.to(12)

    with waiting("loading the detector"):
        ...

See screen.py for where and when it is shown.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from roibeam.pipelines.common.console.duration import duration
from roibeam.pipelines.common.console.progress_text import Unit, failed
from roibeam.pipelines.common.console.screen import SCREEN

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")
log = logging.getLogger(__name__)
IMAGES = Unit("image", "images")
PHOTOS = Unit("photo", "photos")
RECORDS = Unit("record", "records")
ENTRIES = Unit("entry", "entries")
CAPTIONS = Unit("caption", "captions")
STEPS = Unit("step", "steps")
MEGABYTES = Unit("MB", "MB", 1_000_000)

_RATE_SECONDS, _RATE_POINTS = 60.0, 10  # the rate is of the last minute, or of the last ten counts
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_BAR, _ASCII_BAR = ("━", "─"), ("=", "-")
_SPINNER, _ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"


@dataclass(frozen=True)
class Standing:
    """Where a run stands: images with a record, and failed ones by reason."""

    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


class Readable(Protocol):
    """Whatever knows where a run stands; read from the screen's thread."""

    def read(self) -> Standing: ...


class Progress:
    """Counts what is done of a whole. A context manager around the work.

    A run that finds everything done when it begins shows nothing.

    Args:
        what: is done, such as "extracting".
        total: how many there are; None where nobody knows.
        unit: of what.
        done: how many were there before.
        view: is asked where the run stands; without one `to` and `one_more` say so.
        least_seconds: between two looks at the view, where a look costs something.
        as_json: JSON lines on standard output in place of all that.
    """

    is_counted = True

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: Unit = IMAGES,
        *,
        done: int = 0,
        view: Readable | None = None,
        least_seconds: float = 1.0,
        as_json: bool = False,
    ) -> None:
        self.in_lines = as_json
        self._what, self._total, self._unit, self._view = what, total, unit, view
        self._least_seconds, self._next_look = least_seconds, 0.0
        self._standing, self._before, self._note = Standing(done), done, ""
        self._start, self._told = time.monotonic(), False
        self._points: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        self._next_look = self._start + self._least_seconds
        if self._view is not None:
            self._standing = self._view.read()
            self._before = self._standing.images
        self._points.append((self._start, self._before))
        SCREEN.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._view is not None and kind is None:
            self._take(self._view.read())
        draws = SCREEN.is_drawn(self) and time.monotonic() - self._start >= 1.0 and not self._had_nothing_to_do()
        SCREEN.end(self, last=self._drawn(SCREEN.columns(), is_last=True) if draws else None)
        if kind is None and (self.in_lines or self._told):
            self._say(is_last=True)

    @property
    def done(self) -> int:
        return self._standing.images

    def to(self, done: int, total: int | None = None) -> None:
        """So many are done by now; `total` where it is only known now."""
        self._total = self._total if total is None else total
        self._take(Standing(done))

    def one_more(self) -> None:
        """One more is done."""
        self.to(self._standing.images + 1)

    def counting(self, things: Iterable[T]) -> Iterator[T]:
        """The same things; each counts when the next one is asked for."""
        for thing in things:
            yield thing
            self.one_more()

    def note(self, text: str) -> None:
        """A few words that stand behind the count: "loss 2.35"."""
        self._note = text

    def look(self) -> None:
        if self._view is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._least_seconds
        try:
            self._take(self._view.read())
        except (OSError, ValueError) as error:  # the run itself will say what is wrong, if anything is
            log.debug("no look at the progress: %s", error)

    def tell(self) -> None:
        if not self._had_nothing_to_do():
            self._say()

    def drawn(self, columns: int) -> Text:
        return self._drawn(columns)

    def _take(self, standing: Standing) -> None:
        if standing.images != self._standing.images:
            now = time.monotonic()
            self._points.append((now, standing.images))
            while len(self._points) > _RATE_POINTS and self._points[1][0] < now - _RATE_SECONDS:
                self._points.popleft()
        self._standing = standing

    def _had_nothing_to_do(self) -> bool:
        return self._before == self._total and self._standing.images == self._before

    def _rate(self, *, overall: bool) -> float | None:
        """Units a second; None before the first count."""
        if overall:
            done, seconds = self._standing.images - self._before, time.monotonic() - self._start
        else:
            (first, before), (last, after) = self._points[0], self._points[-1]
            done, seconds = after - before, last - first
        return done / max(seconds, 1e-9) if done > 0 else None

    def _parts(self, *, is_last: bool, with_reasons: bool) -> list[str]:
        """What follows the count."""
        seconds = time.monotonic() - self._start
        rate = self._rate(overall=is_last)
        parts = [] if rate is None else [self._unit.rate(rate)]
        parts += [self._note] if self._note else []
        left = None if self._total is None else self._total - self._standing.images
        if is_last or left == 0 or rate is None or left is None:
            parts.append(duration(seconds) + ("" if is_last or left == 0 else " so far"))
        else:
            parts.append(f"{duration(left / rate)} left")
        parts += [failed(self._standing.failures, with_reasons=with_reasons)] if self._standing.failures else []
        return parts

    def _say(self, *, is_last: bool = False) -> None:
        self._told = True
        if self.in_lines:
            sys.stdout.write(json.dumps(self._event()) + "\n")
            sys.stdout.flush()
            return
        done = self._standing.images
        if self._total is None:
            count = self._unit.counted(done)
        else:
            count = f"{self._unit.count(done)} of {self._unit.counted(self._total)}"
        log.info("%s: %s", self._what, ", ".join([count, *self._parts(is_last=is_last, with_reasons=True)]))

    def _event(self) -> dict[str, object]:
        standing, rate = self._standing, self._rate(overall=True) or 0.0
        left = (self._total or 0) - standing.images
        return {
            "event": "progress", "images": standing.images, "total": self._total, "records": standing.records,
            "failures": dict(standing.failures), "images_per_second": round(rate, 3),
            "eta_seconds": round(left / rate, 1) if rate else None,
        }  # fmt: skip

    def _drawn(self, columns: int, *, is_last: bool = False) -> Text:
        from rich.text import Text

        done, total = self._standing.images, self._total
        count = self._unit.counted(done) if total is None else f"{self._unit.count(done)}/{self._unit.counted(total)}"
        if self._had_nothing_to_do():
            return Text(f"{self._what}: {count}, all there already", no_wrap=True, overflow="ellipsis")
        tail = "  ".join([count, *self._parts(is_last=is_last, with_reasons=False)])
        line = Text(f"{self._what} ", no_wrap=True, overflow="ellipsis")
        room = columns - len(self._what) - len(tail) - 3
        if total and room >= _SHORTEST_BAR:
            length = min(room, _LONGEST_BAR)
            full = length * min(done, total) // total
            there, rest = _BAR if SCREEN.has_unicode() else _ASCII_BAR
            line.append(there * full, style="green" if done >= total else "cyan")
            line.append(rest * (length - full) + "  ", style="bright_black")
        line.append(tail)
        line.truncate(columns, overflow="ellipsis")
        return line


class _Wait:
    """Something that has no count."""

    in_lines = is_counted = False

    def __init__(self, what: str) -> None:
        self._what, self._start = what, time.monotonic()

    def look(self) -> None:
        """There is nothing to look at."""

    def tell(self) -> None:
        seconds = time.monotonic() - self._start
        log.info("%s: %s so far", self._what, duration(seconds))

    def drawn(self, columns: int) -> Text:
        from rich.text import Text

        seconds = time.monotonic() - self._start
        frames = _SPINNER if SCREEN.has_unicode() else _ASCII_SPINNER
        frame = frames[int(seconds * 8) % len(frames)]
        line = Text(f"{frame} {self._what}" + (f"  {duration(seconds)}" if seconds >= 2 else ""), no_wrap=True)
        line.truncate(columns, overflow="ellipsis")
        return line


@contextmanager
def weights_download(name: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """A download of weights, as `show_downloads` of extraction/weights takes it."""
    with Progress(f"fetching {name}", length, MEGABYTES) as progress:
        yield lambda num_bytes: progress.to(progress.done + num_bytes)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner and a word while the block runs, such as "loading the detector"; a log line when it takes long."""
    wait = _Wait(what)
    SCREEN.begin(wait)
    try:
        yield
    finally:
        SCREEN.end(wait)
