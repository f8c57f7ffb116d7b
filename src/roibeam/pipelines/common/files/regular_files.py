"""Pipes and devices in place of files are refused before they are opened, by whatever code of Python opens them.

A pipe without a writer is waited for, and /dev/zero has no end. A hundred places open files that a user or a stranger's
folder names, so the look at them is at the one place where all of them pass: CPython's audit event "open".
Libraries in C do not pass there; what they open is checked with `features.folders.durable_files.check_regular_file`.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

# Of processes that get on with one: their own streams (`--out /dev/stdout`), the null device, a terminal.
_WRITABLE = ("/dev/", "/proc/")
_READABLE = ("/dev/null", "/dev/tty")
_is_looking = False


def refuse_pipes_and_devices() -> None:
    """From now on, and in forked processes, opening a pipe or device by its name raises ValueError."""
    global _is_looking
    if not _is_looking:
        _is_looking = True
        sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    path, _, flags = arguments
    if isinstance(path, int) or flags & os.O_NONBLOCK:  # open already, or looked at afterwards
        return
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(kind) or not (stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)):
        return
    name = os.fsdecode(path)
    if name in _READABLE or (flags & os.O_ACCMODE != os.O_RDONLY and name.startswith(_WRITABLE)):
        return
    what = "a pipe" if stat.S_ISFIFO(kind) else "a device"
    raise ValueError(f"{name}: is not a regular file but {what}, which may never end; put a file in its place")
