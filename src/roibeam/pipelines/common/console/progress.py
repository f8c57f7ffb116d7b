"""Progress and log lines of a command on standard error.

    with Progress("extracting", 1000, IMAGES) as progress:
        progress.to(12)

    with waiting("loading the detector"):
        ...

On a terminal `rich` draws a bar for each piece of work, below what is printed. Elsewhere, and in a program that did
not call `show_bars`, there is a log line every ten seconds, of the piece that began last, if its count is new. Logs are
roibeam's own; those of libraries are hidden.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, TypeVar, cast

from roibeam.extraction.weights.sources import show_downloads
from roibeam.messages import on_a_line
from roibeam.pipelines.common.compute import is_main_process, main_process_only
from roibeam.pipelines.common.console.printable_streams import PrintableStream, terminal_below

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


def duration(seconds: float | None) -> str:
    """Seconds as a person reads them: "8 s", "3 min 20 s", "2 h 5 min"; "?" for None."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


log = logging.getLogger(__name__)
MOST_COLUMNS = 100
FIRST_LINE_SECONDS = 1.0  # shorter work gets no line
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.5  # in lines
_SECONDS_BETWEEN_FRAMES = 0.125
_BAR_COLUMNS = 30


class ProgressItem:
    """Work under way that has no count. `Screen` reads it from a thread of its own."""

    is_counted = False
    in_lines = False  # also on a terminal
    total: int | None = None

    def __init__(self, what: str) -> None:
        self.what, self._start = what, time.monotonic()
        self.next_line = 0.0
        self.bar: TaskID | None = None

    @property
    def done(self) -> int:
        return 0

    def look(self) -> None:
        """Updates the state, if another process or file has it."""

    def state(self) -> str:
        """Words on the progress, for a bar."""
        return f"{duration(time.monotonic() - self._start)} so far"

    def log_state(self) -> None:
        log.info("%s: %s", self.what, self.state())


def is_drawn_on(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


class Screen:
    """Displays the work under way, innermost last: bars of `rich` on a terminal, else log lines by the clock."""

    def __init__(self) -> None:
        self.draws = False
        self._lock = threading.RLock()
        self._under_way: list[ProgressItem] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._bars: Bars | None = None
        self._streams = (sys.stdout, sys.stderr)  # as they are while nothing is drawn
        os.register_at_fork(after_in_child=self.forget)

    def begin(self, work: ProgressItem) -> None:
        """Displays work until `end`, in the main process of a run only."""
        if not is_main_process():
            return
        with self._lock:
            # A wait, and what is within something else, has its line only when it takes long.
            pause = FIRST_LINE_SECONDS if work.is_counted and not self._under_way else SECONDS_BETWEEN_LINES
            work.next_line = time.monotonic() + pause
            self._under_way.append(work)
            if self.draws and not work.in_lines:
                self._bars = self._bars or self._start_drawing()
                work.bar = self._bars.add_task(on_a_line(work.what), total=work.total, state="")
                self.refresh()
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._wake,), name="progress", daemon=True)
                self._thread.start()

    def end(self, work: ProgressItem) -> None:
        with self._lock:
            self._under_way = [each for each in self._under_way if each is not work]
            thread = None
            if not self._under_way:
                self._wake.set()
                thread, self._thread = self._thread, None
            if self._bars is not None and work.bar is not None:
                self._bars.remove_task(work.bar)
                if not self._bars.tasks:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    sys.stdout, sys.stderr = self._streams
                    self._bars.stop()
                    self._bars = None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def columns(self) -> int:
        """Most columns of a line for people."""
        return min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 0)).columns) if self.draws else MOST_COLUMNS

    def _run(self, wake: threading.Event) -> None:
        while not wake.wait(_SECONDS_BETWEEN_FRAMES if self.draws else SECONDS_BETWEEN_LOOKS):
            for work in list(self._under_way):
                work.look()
            with self._lock:
                self.refresh()
                # The innermost has its line; the others wait until it is their turn.
                if self._under_way and (work := self._under_way[-1]).bar is None and time.monotonic() >= work.next_line:
                    work.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
                    work.log_state()

    def refresh(self) -> None:
        """Draws the bars as they are now, if there are any."""
        if self._bars is not None:
            for work in self._under_way:
                if work.bar is not None:
                    state = on_a_line(work.state())
                    self._bars.update(work.bar, completed=work.done, total=work.total, state=state)
            self._bars.refresh()

    def _start_drawing(self) -> Bars:
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        below = terminal_below(sys.stderr)
        bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(_BAR_COLUMNS),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(file=below, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bars.start()
        self._streams = (sys.stdout, sys.stderr)
        # What is printed stands above the bars; a result that goes into a file or pipe must not go to the terminal.
        sys.stderr = cast("TextIO", PrintableStream(cast("TextIO", FileProxy(bars.console, below)), "<stderr>"))
        if sys.stdout.isatty():
            above = FileProxy(bars.console, terminal_below(sys.stdout))
            sys.stdout = cast("TextIO", PrintableStream(cast("TextIO", above), "<stdout>"))
        return bars

    def forget(self) -> None:
        """Resets a forked child: the parent displays the work, and a lock may be held by a thread left behind."""
        if self._bars is not None:
            sys.stdout, sys.stderr = self._streams
        self.__dict__.update(draws=False, _lock=threading.RLock(), _under_way=[], _thread=None, _bars=None)


SCREEN = Screen()


def show_bars() -> None:
    """Draws the work under way from now on, if standard error is a terminal that can."""
    SCREEN.draws = is_drawn_on(sys.stderr)
    # Bars of the Hugging Face libraries do not fit with these, and write control codes into files.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@dataclass(frozen=True)
class Unit:
    """Unit of counts: Unit("image", "images").

    Attributes:
        size: counted things in one of the unit: 1,000,000 for bytes that are displayed as MB.
    """

    one: str
    many: str
    size: int = 1

    def count(self, number: float) -> str:
        """ "1,234"."""
        return f"{number / self.size:,.0f}"

    def plural(self, number: float) -> str:
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
    """Folds a line for people to the width of the terminal, or 100 columns, with room for the prefix of a log."""
    width = SCREEN.columns() - 10
    return textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def failed(failures: Counter[str], *, with_reasons: bool = True) -> str:
    """ "12 failed (10 empty file, 2 too large)"; empty without failures."""
    if not failures:
        return ""
    reasons = ", ".join(f"{count:,} {on_a_line(reason)}" for reason, count in failures.most_common())
    return f"{failures.total():,} failed" + (f" ({reasons})" if with_reasons else "")


T = TypeVar("T")
IMAGES = Unit("image", "images")
PHOTOS = Unit("photo", "photos")
RECORDS = Unit("record", "records")
FILES = Unit("file", "files")
ENTRIES = Unit("entry", "entries")
CAPTIONS = Unit("caption", "captions")
STEPS = Unit("step", "steps")
MEGABYTES = Unit("MB", "MB", 1_000_000)

_RATE_SECONDS, _RATE_POINTS = 60.0, 10  # the rate is of the last minute, or of the last ten counts


@dataclass(frozen=True)
class ProgressState:
    """Progress of a run: images with a record, and failed ones by reason."""

    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


class Progress(ProgressItem):
    """Progress of counted work. A context manager around the work.

    A run that finds everything done when it begins displays nothing.

    Args:
        total: how many there are; None where that is not known.
        done: how many were done before.
        view: reads the progress of a run, from the screen's thread; without one `to` and `one_more` set it.
        least_seconds: between two reads of the view, where a read costs something.
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
        view: Callable[[], ProgressState] | None = None,
        least_seconds: float = 1.0,
        as_json: bool = False,
    ) -> None:
        super().__init__(what)
        self.in_lines = as_json
        self.total, self._unit, self._view = total, unit, view
        self._least_seconds, self._next_look = least_seconds, 0.0
        self._standing, self._before, self._note = ProgressState(done), done, ""
        self._logged: ProgressState | None = None  # what the last line told
        self._points: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        self._next_look = self._start + self._least_seconds
        if self._view is not None:
            self._standing = self._view()
            self._before = self._standing.images
        self._points.append((self._start, self._before))
        SCREEN.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._view is not None and kind is None:
            self._take(self._view())
        was_drawn = self.bar is not None and time.monotonic() - self._start >= FIRST_LINE_SECONDS
        SCREEN.end(self)
        if kind is None and (self.in_lines or self._logged or (was_drawn and not self._had_nothing_to_do())):
            self._log_line(is_last=True)

    @property
    def done(self) -> int:
        return self._standing.images

    def to(self, done: int, total: int | None = None) -> None:
        """Sets how many are done by now, and `total` where it is only known now."""
        self.total = self.total if total is None else total
        self._take(ProgressState(done))

    def one_more(self) -> None:
        """Adds one to the count."""
        self.to(self._standing.images + 1)

    def counting(self, things: Iterable[T]) -> Iterator[T]:
        """Yields the same things; each counts when the next one is taken."""
        for thing in things:
            yield thing
            self.one_more()

    def note(self, text: str) -> None:
        """Sets a few words behind the count: "loss 2.35"."""
        self._note = text

    def look(self) -> None:
        if self._view is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._least_seconds
        try:
            self._take(self._view())
        except (OSError, ValueError) as error:  # the run itself reports what is wrong, if anything is
            log.debug("the progress cannot be read: %s", error)

    def log_state(self) -> None:
        if not self._had_nothing_to_do() and (self.in_lines or self._logged != self._standing):
            self._log_line()

    def _take(self, standing: ProgressState) -> None:
        if standing.images != self._standing.images:
            now = time.monotonic()
            self._points.append((now, standing.images))
            while len(self._points) > _RATE_POINTS and self._points[1][0] < now - _RATE_SECONDS:
                self._points.popleft()
        self._standing = standing

    def _had_nothing_to_do(self) -> bool:
        return self._before == self.total and self._standing.images == self._before

    def _rate(self, *, overall: bool) -> float | None:
        """Units a second; None before the first count."""
        if overall:
            done, seconds = self._standing.images - self._before, time.monotonic() - self._start
        else:
            (first, before), (last, after) = self._points[0], self._points[-1]
            done, seconds = after - before, last - first
        return done / max(seconds, 1e-9) if done > 0 else None

    def state(self, *, is_last: bool = False, with_reasons: bool = False) -> str:
        done = self._standing.images
        left = None if self.total is None else self.total - done
        count = "" if self.total is None else f"{self._unit.count(done)} of "
        parts = [count + self._unit.plural(done if self.total is None else self.total)]
        rate = self._rate(overall=is_last)
        parts += [] if rate is None else [self._unit.rate(rate)]
        parts += [self._note] if self._note else []
        if is_last or left == 0 or rate is None or left is None:
            seconds = time.monotonic() - self._start
            parts.append(duration(seconds) + ("" if is_last or left == 0 else " so far"))
        else:
            parts.append(f"{duration(left / rate)} left")
        parts += [failed(self._standing.failures, with_reasons=with_reasons)] if self._standing.failures else []
        return ", ".join(parts)

    def _log_line(self, *, is_last: bool = False) -> None:
        self._logged = self._standing
        if self.in_lines:
            sys.stdout.write(json.dumps(self._event()) + "\n")
            sys.stdout.flush()
        else:
            log.info("%s: %s", self.what, self.state(is_last=is_last, with_reasons=True))

    def _event(self) -> dict[str, object]:
        standing, rate = self._standing, self._rate(overall=True) or 0.0
        left = (self.total or 0) - standing.images
        return {
            "event": "progress", "images": standing.images, "total": self.total, "records": standing.records,
            "failures": dict(standing.failures), "images_per_second": round(rate, 3),
            "eta_seconds": round(left / rate, 1) if rate else None,
        }  # fmt: skip


@contextmanager
def weights_download(name: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """Displays a download of weights, as `show_downloads` of extraction/weights takes it."""
    with Progress(f"fetching {name}", length, MEGABYTES) as progress:
        yield lambda num_bytes: progress.to(progress.done + num_bytes)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Displays `what` during the block, such as "loading the detector"; a log line after a while."""
    work = ProgressItem(what)
    SCREEN.begin(work)
    try:
        yield
    finally:
        SCREEN.end(work)


_FAKED_LINE = re.compile(r"\n(?! )")


class _StandardError(logging.Handler):
    """Log handler for the current `sys.stderr`: while a bar is drawn, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # A message is a line, or folded by `folded`: none of its lines may pass for a message of its own.
            text = self.format(record) if record.exc_info else _FAKED_LINE.sub(r"\\n", self.format(record))
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure_logging(*, debug: bool = False) -> None:
    """Sets up logging: shows roibeam's messages as `roibeam: <message>`, hides libraries'. With `debug`, shows all.

    On a terminal, the work under way is drawn below them. Only the main process of a run logs; errors, and records
    marked `OF_THIS_PROCESS`, come from any.
    """
    show_bars()
    show_downloads(weights_download)
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("roibeam: %(message)s"))
    if not debug:
        handler.addFilter(logging.Filter("roibeam"))  # Beam logs a worker's error with pages of its own traceback
        handler.addFilter(main_process_only)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
