"""What a disk refuses, with the name of the file: neither Python's `write` nor LMDB says which one it was."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

# In the words of LMDB, which has no number for them.
_NUMBERS = {os.strerror(number): number for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
_LEAST_FREE_BYTES = 2**20


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Around what writes a file: an OSError without a name, and LMDB's errors of the disk, name it.

    Raises:
        OSError: "No space left on device" also where LMDB says "Input/output error" of a disk without room, and "File
            too large" where a limit on the size of files (ulimit -f) was met.
    """
    try:
        yield
    except lmdb.Error as error:
        number = next((number for words, number in _NUMBERS.items() if words in str(error)), None)
        if number is None:
            raise
        number = _reason(path) if number == errno.EIO else number
        raise OSError(number, os.strerror(number), str(path)) from error
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _reason(path: Path) -> int:
    """Why a write was short: no room, a limit on the size of files, or another fault of the disk."""
    folder = os.statvfs(path if path.is_dir() else path.parent)
    if folder.f_bavail * folder.f_frsize < _LEAST_FREE_BYTES:
        return errno.ENOSPC
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and path.is_file() and path.stat().st_size >= limit // 2:
        return errno.EFBIG
    return errno.EIO
