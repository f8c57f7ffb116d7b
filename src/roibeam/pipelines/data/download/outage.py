"""Tells dead links from a dead network: the former are data, the latter would make dead letters of everything."""

from __future__ import annotations

from collections import deque
from urllib.parse import urlsplit

from roibeam.pipelines.data.download.failures import LocalFaultError
from roibeam.pipelines.data.download.journal import FailedRow, Outcome

_LONGEST_SILENCE = 400  # rows one after another of which no host answered
_FEWEST_HOSTS = 100  # of them; a list may have many rows of one dead host
_SILENT = frozenset({"host not found", "no connection", "timeout"})


class OutageWatch:
    """Is told every outcome as they come, and gives back those that are sure.

    What looks like silence is held back until a host has answered after it: if none does, these rows have no outcome,
    and the next run does them again.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[int, Outcome]] = deque()
        self._hosts = set[str]()

    def note(self, row: int, url: str, outcome: Outcome) -> list[tuple[int, Outcome]]:
        """The outcomes to be written down now, of this row or earlier ones.

        Raises:
            LocalFaultError: if so many rows of so many hosts got no answer that it cannot be theirs.
        """
        if isinstance(outcome, FailedRow) and outcome.stage == "url":
            return [(row, outcome)]  # no host was asked
        self._held.append((row, outcome))
        if not (isinstance(outcome, FailedRow) and outcome.reason in _SILENT):
            self._hosts.clear()
            return self.release()
        if len(self._hosts) < _FEWEST_HOSTS:
            self._hosts.add(_host(url))
        if len(self._held) < _LONGEST_SILENCE:
            return []
        if len(self._hosts) >= _FEWEST_HOSTS:
            raise LocalFaultError(
                f"none of the last {len(self._held)} URLs, on {_FEWEST_HOSTS} hosts or more, got an answer: is the "
                f"network up? Nothing is lost, run again"
            )
        return [self._held.popleft()]

    def release(self) -> list[tuple[int, Outcome]]:
        """All that is held back: the list is at its end."""
        held = list(self._held)
        self._held.clear()
        return held


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
