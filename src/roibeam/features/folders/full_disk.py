"""What a disk refuses, with the name of the file: neither Python's `write` nor LMDB says which one it was."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    except Exception as error:
        if type(error).__module__ != "lmdb":  # not imported here: few commands need it
            raise
        number = next((number for words, number in _NUMBERS.items() if words in str(error)), None)
        if number is None:
            raise
        number = _reason(path) if number == errno.EIO else number
        raise OSError(number, os.strerror(number), str(path)) from error


def with_place(error: BaseException, places: Iterable[Path]) -> OSError | None:
    """An error of a disk that names no file, as most libraries raise it, as one that names the likely place.

    Args:
        error: with what it was raised from.
        places: where the work writes, files and folders that may not be there yet.
    Returns:
        None for other errors, and those that name their file.
    """
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:  # what is raised again can be the context of its own cause
        seen.add(id(each))
        if isinstance(each, OSError) and each.filename is not None:
            return None
        number = _number_of(each)
        if number is not None:
            disks = [place for place in map(_nearest, places) if os.access(place, os.W_OK)]
            fullest = min(disks, key=free_bytes, default=None)
            place = next((place for place in places if _nearest(place) == fullest), None)
            return None if place is None else OSError(number, os.strerror(number), str(place))
        each = each.__cause__ or each.__context__
    return None


def _number_of(error: BaseException) -> int | None:
    """The number of an error of the disk, by its words where a library has its own kind of exception."""
    if isinstance(error, OSError) and error.errno in _NUMBERS.values():
        return error.errno
    text = str(error)
    # SQLite; PyTorch's writer of zip files, which says no more than that fewer bytes were written.
    if "database or disk is full" in text or ("inline_container.cc" in text and "unexpected pos" in text):
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return errno.ENOSPC if limit == resource.RLIM_INFINITY else errno.EFBIG
    return next((number for words, number in _NUMBERS.items() if words in text), None)


def _nearest(place: Path) -> Path:
    """The place, or the folder above it that is there."""
    place = place.absolute()
    return next((each for each in (place, *place.parents) if each.exists()), place)


def free_bytes(place: Path) -> int:
    """Bytes that may still be written there."""
    found = os.statvfs(_nearest(place))
    return found.f_bavail * found.f_frsize


def _reason(path: Path) -> int:
    """Why a write was short: no room, a limit on the size of files, or another fault of the disk."""
    if free_bytes(path) < _LEAST_FREE_BYTES:
        return errno.ENOSPC
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and path.is_file() and path.stat().st_size >= limit // 2:
        return errno.EFBIG
    return errno.EIO
