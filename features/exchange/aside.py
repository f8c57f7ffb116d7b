"""Files and folders that are whole or not there: written under another name beside their place, then renamed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.durable_files import TEMPORARY_SUFFIX, fsync_folder

_LONGEST_NAME = 255 - len("..00000000") - len(TEMPORARY_SUFFIX)  # bytes; what ext4, XFS and NTFS take


@contextmanager
def written_aside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A place to write to that becomes `path` when the block ends well, and is removed when it does not.

    What a killed writer of the same `path` left is removed first: a writer holds a lock on its place while it lives.

    Args:
        folder: the place is an empty folder instead of an empty file.
    Raises:
        ValueError: when `path` exists already (also when it appeared meanwhile), or its name is too long.
        OSError: when its folder cannot be written.
    """
    _check_free(path)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ValueError(f"{path}: its name has over {_LONGEST_NAME} bytes; choose a shorter one")
    _remove_leftovers(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    if folder:
        aside.mkdir()
    else:
        aside.touch(exist_ok=False)
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield aside
        if folder:
            os.sync()  # thousands of small files: one call for all of them
        else:
            os.fsync(descriptor)
        _check_free(path)
        os.rename(aside, path)
        fsync_folder(path.parent)
    except BaseException:
        _remove(aside)
        raise
    finally:
        os.close(descriptor)


def _check_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists already; choose another name, or delete it first")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")


def _remove_leftovers(path: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}")
    for left in [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]:
        try:
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # its writer ended just now
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except BlockingIOError:
            continue  # its writer lives
        finally:
            os.close(descriptor)


def _remove(aside: Path) -> None:
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink(missing_ok=True)
