"""Progress and log lines of a command on standard error.

    with Progress("extracting", 1000, IMAGES) as progress:
        progress.to(12)

    with waiting("loading the detector"):
        ...

On a terminal there is a bar for each piece of work, below what is printed. Elsewhere, and in a program that did not
call `show_bars`, there is a log line every ten seconds, of the piece that began last. Logs are roibeam's own; those of
libraries are hidden.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar, cast

from roibeam.extraction.weights.sources import show_downloads
from roibeam.messages import on_a_line
from roibeam.pipelines.common.compute import is_main_process, main_process_only
from roibeam.pipelines.common.console.printable_streams import printable_lines, terminal_below

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text


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
_DUMB = ("", "dumb", "unknown")


class ProgressItem(Protocol):
    """Piece of work under way. All methods may be called from the screen's thread."""

    is_counted: bool

    @property
    def in_lines(self) -> bool:
        """Whether it is logged in lines also on a terminal."""
        ...

    def look(self) -> None:
        """Updates the state; called at each frame of the screen."""
        ...

    def log_state(self) -> None:
        """Logs the current progress."""
        ...

    def drawn(self, columns: int) -> Text:
        """Returns one line of at most so many columns."""
        ...


def is_drawn_on(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB


class Screen:
    """Holds the work under way, innermost last, and displays it from a thread of its own."""

    def __init__(self) -> None:
        self.draws = False
        self._lock = threading.RLock()
        self._under_way: list[tuple[ProgressItem, list[float]]] = []  # with the time of the next line
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._console: Console | None = None
        self._live: Live | None = None
        self._streams = (sys.stdout, sys.stderr)  # as they are while nothing is drawn
        os.register_at_fork(after_in_child=self._forget)

    def begin(self, item: ProgressItem) -> None:
        """Displays an item until `end`, in the main process of a run only."""
        if not is_main_process():
            return
        with self._lock:
            # A wait, and what is within something else, has its line only when it takes long.
            pause = FIRST_LINE_SECONDS if item.is_counted and not self._under_way else SECONDS_BETWEEN_LINES
            self._under_way.append((item, [time.monotonic() + pause]))
            if self.draws and self._live is None and not item.in_lines:
                self._start_drawing()
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._wake,), name="progress", daemon=True)
                self._thread.start()

    def end(self, item: ProgressItem, *, last: Text | None = None) -> None:
        """Args: last: a line that stays on a terminal."""
        with self._lock:
            self._under_way = [each for each in self._under_way if each[0] is not item]
            thread = None
            if not self._under_way:
                self._wake.set()
                thread, self._thread = self._thread, None
            if last is not None and self._console is not None:
                self._console.print(_printable(last), no_wrap=True, overflow="ellipsis", crop=True)
            if not any(not each.in_lines for each, _ in self._under_way):
                self._stop_drawing()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def is_drawn(self, item: ProgressItem) -> bool:
        return self._live is not None and not item.in_lines

    def columns(self) -> int:
        """Width of a drawn line."""
        return min(MOST_COLUMNS, self._console.width) if self._console is not None else MOST_COLUMNS

    def has_unicode(self) -> bool:
        """Whether drawn lines may be other than ASCII."""
        return self._console is None or not self._console.options.ascii_only

    def _run(self, wake: threading.Event) -> None:
        while not wake.wait(_SECONDS_BETWEEN_FRAMES if self.draws else SECONDS_BETWEEN_LOOKS):
            with self._lock:
                under_way = list(self._under_way)
            for item, _ in under_way:
                item.look()
            with self._lock:
                if self._live is not None:
                    self._live.refresh()
                if self._under_way:
                    self._log_due_line()

    def _log_due_line(self) -> None:
        """Logs the innermost item; the others wait until it is their turn."""
        item, next_line = self._under_way[-1]
        if not self.is_drawn(item) and time.monotonic() >= next_line[0]:
            next_line[0] = time.monotonic() + SECONDS_BETWEEN_LINES
            item.log_state()

    def _start_drawing(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._console is None:
            self._console = Console(file=terminal_below(sys.stderr), highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._frame,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._streams = (sys.stdout, sys.stderr)
        sys.stderr = _above(self._console, sys.stderr)
        # A result that goes into a file or pipe must not go to the terminal.
        sys.stdout = _above(self._console, sys.stdout) if sys.stdout.isatty() else sys.stdout

    def _stop_drawing(self) -> None:
        if self._live is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = self._streams
            self._live.stop()
            self._live = None

    def _frame(self) -> Text:
        from rich.text import Text

        with self._lock:
            lines = [_printable(item.drawn(self.columns())) for item, _ in self._under_way if not item.in_lines]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _forget(self) -> None:
        """Resets a forked child: the parent displays the work, and a lock may be held by a thread left behind."""
        if self._live is not None:
            sys.stdout, sys.stderr = self._streams
        self.__dict__.update(
            draws=False, _lock=threading.RLock(), _under_way=[], _thread=None, _console=None, _live=None
        )


def _printable(line: Text) -> Text:
    """Returns a line that may be drawn; one with control characters loses its colours."""
    text = printable_lines(line.plain)
    return line if text == line.plain else type(line)(text, no_wrap=True, overflow="ellipsis")


def _above(console: Console, stream: TextIO) -> TextIO:
    """Returns a stream whose lines stand above the drawn ones."""
    from rich.file_proxy import FileProxy

    class Above(FileProxy):
        # Without these, typer's echo takes the file below and writes into the drawn line.
        encoding, errors = "utf-8", "strict"

        def write(self, text: str) -> int:
            return super().write(printable_lines(text))

    return cast("TextIO", Above(console, stream))


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
ENTRIES = Unit("entry", "entries")
CAPTIONS = Unit("caption", "captions")
STEPS = Unit("step", "steps")
MEGABYTES = Unit("MB", "MB", 1_000_000)

_RATE_SECONDS, _RATE_POINTS = 60.0, 10  # the rate is of the last minute, or of the last ten counts
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_BAR, _ASCII_BAR = ("━", "─"), ("=", "-")
_SPINNER, _ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"


@dataclass(frozen=True)
class ProgressState:
    """Progress of a run: images with a record, and failed ones by reason."""

    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


class Readable(Protocol):
    """Source of the progress of a run; read from the screen's thread."""

    def read(self) -> ProgressState: ...


class Progress:
    """Progress of counted work. A context manager around the work.

    A run that finds everything done when it begins displays nothing.

    Args:
        what: the work, such as "extracting".
        total: how many there are; None where that is not known.
        unit: of the counts.
        done: how many were done before.
        view: source of the progress; without one `to` and `one_more` set it.
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
        view: Readable | None = None,
        least_seconds: float = 1.0,
        as_json: bool = False,
    ) -> None:
        self.in_lines = as_json
        self._what, self._total, self._unit, self._view = what, total, unit, view
        self._least_seconds, self._next_look = least_seconds, 0.0
        self._standing, self._before, self._note = ProgressState(done), done, ""
        self._start, self._logged = time.monotonic(), False
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
        if kind is None and (self.in_lines or self._logged):
            self._log_line(is_last=True)

    @property
    def done(self) -> int:
        return self._standing.images

    def to(self, done: int, total: int | None = None) -> None:
        """Sets how many are done by now, and `total` where it is only known now."""
        self._total = self._total if total is None else total
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
            self._take(self._view.read())
        except (OSError, ValueError) as error:  # the run itself reports what is wrong, if anything is
            log.debug("no look at the progress: %s", error)

    def log_state(self) -> None:
        if not self._had_nothing_to_do():
            self._log_line()

    def drawn(self, columns: int) -> Text:
        return self._drawn(columns)

    def _take(self, standing: ProgressState) -> None:
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
        """Parts of a line after the count."""
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

    def _log_line(self, *, is_last: bool = False) -> None:
        self._logged = True
        if self.in_lines:
            sys.stdout.write(json.dumps(self._event()) + "\n")
            sys.stdout.flush()
            return
        done = self._standing.images
        if self._total is None:
            count = self._unit.plural(done)
        else:
            count = f"{self._unit.count(done)} of {self._unit.plural(self._total)}"
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
        count = self._unit.plural(done) if total is None else f"{self._unit.count(done)}/{self._unit.plural(total)}"
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
    """Work without a count."""

    in_lines = is_counted = False

    def __init__(self, what: str) -> None:
        self._what, self._start = what, time.monotonic()

    def look(self) -> None:
        """Does nothing: there is no state."""

    def log_state(self) -> None:
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
    """Displays a download of weights, as `show_downloads` of extraction/weights takes it."""
    with Progress(f"fetching {name}", length, MEGABYTES) as progress:
        yield lambda num_bytes: progress.to(progress.done + num_bytes)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Displays a spinner and `what` during the block, such as "loading the detector"; a log line after a while."""
    wait = _Wait(what)
    SCREEN.begin(wait)
    try:
        yield
    finally:
        SCREEN.end(wait)


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
        handler.addFilter(_is_from_roibeam)
        handler.addFilter(main_process_only)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)


def _is_from_roibeam(record: logging.LogRecord) -> bool:
    """Log filter that hides libraries: Beam logs each worker error with pages of its own traceback."""
    return record.name.partition(".")[0] == "roibeam"
