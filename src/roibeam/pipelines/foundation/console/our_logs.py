"""What a process of ours shows of its logs: what we say, not what libraries say."""

from __future__ import annotations

import logging


def show_our_logs(*, debug: bool = False) -> None:
    """Logs go to standard error in lines for users: `roibeam: <message>`. With `debug`, all of everybody's."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("roibeam: %(message)s"))
    if not debug:
        handler.addFilter(_is_ours)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)


def _is_ours(record: logging.LogRecord) -> bool:
    """Beam logs each worker error with pages of its own traceback."""
    return record.name.partition(".")[0] == "roibeam"
