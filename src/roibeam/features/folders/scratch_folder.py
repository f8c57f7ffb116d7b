"""Temporary folders of this machine that a killed process leaves to the next one to remove."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "roibeam-scratch-"
_LOCK_NAME = ".lock"


@contextmanager
def scratch_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """An empty folder, removed afterwards; the kernel's lock on it tells others that its process lives.

    Args:
        parent: the folder it is made in; None for the machine's temporary folder (TMPDIR).
    Raises:
        OSError: when it cannot be made, such as for want of `parent`.
    """
    base = Path(tempfile.gettempdir() if parent is None else parent)
    _remove_abandoned(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        try:
            facts = folder.lstat()
            if facts.st_uid != os.geteuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # removed just now, or not locked yet: its owner has made it this moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its process lives
        finally:
            os.close(descriptor)
