"""Standard error while a command works: what is under way is drawn on a terminal, and told in log lines elsewhere.

On a terminal the lines of all that is under way stand below what is printed. Elsewhere, and in a program that did not
call `show_bars`, there are log lines: what began last tells itself, every ten seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from roibeam.pipelines.common.console.printable_streams import printable_lines, terminal_below
from roibeam.pipelines.common.console.spokesman import is_spokesman

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

log = logging.getLogger(__name__)
MOST_COLUMNS = 100
FIRST_LINE_SECONDS = 1.0  # what takes less is not worth a line
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.5  # in lines
_SECONDS_BETWEEN_FRAMES = 0.125
_DUMB = ("", "dumb", "unknown")


class Shown(Protocol):
    """Something under way. All of it may be called from the screen's thread."""

    is_counted: bool

    @property
    def in_lines(self) -> bool:
        """Whether it is told in lines also on a terminal."""
        ...

    def look(self) -> None:
        """Finds out where it stands; called as often as the screen looks."""
        ...

    def tell(self) -> None:
        """Says in a line where it stands."""
        ...

    def drawn(self, columns: int) -> Text:
        """One line of at most so many columns."""
        ...


def is_drawn_on(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB


class Screen:
    """Holds what is under way, innermost last, and shows it from a thread of its own."""

    def __init__(self) -> None:
        self.draws = False
        self._lock = threading.RLock()
        self._under_way: list[tuple[Shown, list[float]]] = []  # with the time of the next line
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._console: Console | None = None
        self._live: Live | None = None
        self._streams = (sys.stdout, sys.stderr)  # as they are while nothing is drawn
        os.register_at_fork(after_in_child=self._forget)

    def begin(self, shown: Shown) -> None:
        """Shows it until `end`. Of several processes of one run, the first one does."""
        if not is_spokesman():
            return
        with self._lock:
            # A wait, and what is within something else, has its line only when it takes long.
            pause = FIRST_LINE_SECONDS if shown.is_counted and not self._under_way else SECONDS_BETWEEN_LINES
            self._under_way.append((shown, [time.monotonic() + pause]))
            if self.draws and self._live is None and not shown.in_lines:
                self._start_drawing()
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._wake,), name="progress", daemon=True)
                self._thread.start()

    def end(self, shown: Shown, *, last: Text | None = None) -> None:
        """Args: last: a line that stays on a terminal."""
        with self._lock:
            self._under_way = [each for each in self._under_way if each[0] is not shown]
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

    def is_drawn(self, shown: Shown) -> bool:
        return self._live is not None and not shown.in_lines

    def columns(self) -> int:
        """Of a line that is drawn."""
        return min(MOST_COLUMNS, self._console.width) if self._console is not None else MOST_COLUMNS

    def has_unicode(self) -> bool:
        """Whether what is drawn may be other than ASCII."""
        return self._console is None or not self._console.options.ascii_only

    def _run(self, wake: threading.Event) -> None:
        while not wake.wait(_SECONDS_BETWEEN_FRAMES if self.draws else SECONDS_BETWEEN_LOOKS):
            with self._lock:
                under_way = list(self._under_way)
            for shown, _ in under_way:
                shown.look()
            with self._lock:
                if self._live is not None:
                    self._live.refresh()
                if self._under_way:
                    self._tell_what_is_due()

    def _tell_what_is_due(self) -> None:
        """The innermost line; the others wait until it is their turn."""
        shown, next_line = self._under_way[-1]
        if not self.is_drawn(shown) and time.monotonic() >= next_line[0]:
            next_line[0] = time.monotonic() + SECONDS_BETWEEN_LINES
            shown.tell()

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
            lines = [_printable(shown.drawn(self.columns())) for shown, _ in self._under_way if not shown.in_lines]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _forget(self) -> None:
        """In a forked child: the parent shows what is under way, and a lock may be held by a thread left behind."""
        if self._live is not None:
            sys.stdout, sys.stderr = self._streams
        self.__dict__.update(
            draws=False, _lock=threading.RLock(), _under_way=[], _thread=None, _console=None, _live=None
        )


def _printable(line: Text) -> Text:
    """A line as it may be drawn; one with other than text loses its colours."""
    shown = printable_lines(line.plain)
    return line if shown == line.plain else type(line)(shown, no_wrap=True, overflow="ellipsis")


def _above(console: Console, stream: TextIO) -> TextIO:
    """A stream whose lines stand above what is drawn."""
    from rich.file_proxy import FileProxy

    class Above(FileProxy):
        # Without these, typer's echo takes the file below and writes into the drawn line.
        encoding, errors = "utf-8", "strict"

        def write(self, text: str) -> int:
            return super().write(printable_lines(text))

    return cast("TextIO", Above(console, stream))


SCREEN = Screen()


def show_bars() -> None:
    """From now on what is under way is drawn, where standard error is a terminal that can."""
    SCREEN.draws = is_drawn_on(sys.stderr)
    # Bars of the Hugging Face libraries know nothing of ours, and write control codes into files.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
