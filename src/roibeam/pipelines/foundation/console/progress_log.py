"""How far a command is, as log lines ten seconds apart."""

from __future__ import annotations

import logging
import time

from roibeam.pipelines.foundation.console.duration import duration

log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0


class LoggedProgress:
    """Counts what is done of a whole.

    Args:
        what: of which things what is done, such as "records written".
        total: how many there are.
        since: `time.monotonic()` of the start; None: now.
    """

    def __init__(self, what: str, total: int, *, since: float | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._last = time.monotonic()
        self._start = self._last if since is None else since

    def to(self, done: int) -> None:
        """So many are done by now."""
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES or (done == self._total and done != self._done):
            self._last = now
            rate = done / max(now - self._start, 1e-9)
            left = f", {duration((self._total - done) / rate)} left" if 0 < done < self._total else ""
            log.info("%s of %s %s: %.0f per second%s", f"{done:,}", f"{self._total:,}", self._what, rate, left)
        self._done = done

    def one_more(self) -> None:
        """One more is done."""
        self.to(self._done + 1)
