"""SIGTERM and Ctrl-C while something must first be brought to a good end: a step of training, and its checkpoint."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_IMPATIENT_SECONDS = 3.0  # a launcher passes on the Ctrl-C that its processes got too


class StoppedBySignalError(Exception):
    """Work ended early, in good order, because it was told to.

    Attributes:
        exit_code: 128 + the signal's number, as shells have it.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopSignals:
    """Inside the block a SIGTERM or Ctrl-C is only noted; a second Ctrl-C, three seconds later, interrupts at once.

    Outside the main thread, where Python handles no signals, nothing is changed.

    Attributes:
        number: of the first signal that came, or 0.
    """

    def __init__(self, what_comes_first: str) -> None:
        self.number = 0
        self._what_comes_first = what_comes_first
        self._came = 0.0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in _STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._came = number, now
            logger.warning("%s: %s first", signal.Signals(number).name, self._what_comes_first)
        elif number == signal.SIGINT and now - self._came > _IMPATIENT_SECONDS:
            raise KeyboardInterrupt
