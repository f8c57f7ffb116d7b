"""What a process of ours shows of its logs: what we say, not what libraries say."""

from __future__ import annotations

import logging
import re
import sys

from roibeam.extraction.weights.shown_download import show_downloads
from roibeam.pipelines.common.console.progress import weights_download
from roibeam.pipelines.common.console.screen import show_bars
from roibeam.pipelines.common.console.spokesman import is_told_here

_FAKED_LINE = re.compile(r"\n(?! )")


class _StandardError(logging.Handler):
    """Writes to what `sys.stderr` is at the time: while a bar is drawn, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # A message is a line, or folded by us: none of its lines may pass for a message of its own.
            text = self.format(record) if record.exc_info else _FAKED_LINE.sub(r"\\n", self.format(record))
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show_our_logs(*, debug: bool = False) -> None:
    """Logs go to standard error in lines for users: `roibeam: <message>`. With `debug`, all of everybody's.

    On a terminal, what is under way is drawn below them. Of several processes of one run the first speaks; errors, and
    what a process alone has met, come from any.
    """
    show_bars()
    show_downloads(weights_download)
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("roibeam: %(message)s"))
    if not debug:
        handler.addFilter(_is_ours)
        handler.addFilter(is_told_here)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)


def _is_ours(record: logging.LogRecord) -> bool:
    """Beam logs each worker error with pages of its own traceback."""
    return record.name.partition(".")[0] == "roibeam"
