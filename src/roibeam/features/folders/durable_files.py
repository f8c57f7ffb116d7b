"""Small files that are whole or not there, even after a power cut: written under another name, synced, renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from io import BufferedReader
from pathlib import Path
from typing import Any

from roibeam.features.folders.full_disk import naming_file

TEMPORARY_SUFFIX = ".tmp"


def write_json_atomically(path: str | os.PathLike[str], value: dict[str, Any]) -> str:
    """Writes `value` so that `path` holds either its old content or all of the new one, also after a power cut.

    Returns:
        SHA-256 (hex) of the bytes written.
    """
    data = json_bytes(value)
    write_bytes_atomically(Path(path), data)
    return hashlib.sha256(data).hexdigest()


def json_bytes(value: dict[str, Any]) -> bytes:
    """A JSON file as all of a store's are written."""
    # ASCII escapes: an id made of undecodable file name bytes (a dead letter) must still be writable.
    return (json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def write_bytes_atomically(path: Path, data: bytes, *, first: bool = False) -> bool:
    """As `write_json_atomically`, for bytes.

    Args:
        first: leave a file that is there as it is, whoever makes it at the same time.
    Returns:
        False when there was one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with naming_file(path), open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not first:
            os.replace(temporary, path)
        elif not _linked(temporary, path):
            return False
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)
    return True


def _linked(temporary: Path, path: Path) -> bool:
    """Gives the file its other name unless that is taken: a renaming would replace what is there."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if path.exists():  # a disk without hard links: what comes between this look and the renaming is replaced
            return False
        os.replace(temporary, path)
        return True
    finally:
        temporary.unlink(missing_ok=True)
    return True


def fsync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes names created or replaced in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_regular_file(path: str | os.PathLike[str]) -> None:
    """Raises ValueError for what is there and no file: a pipe would be waited for."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{os.fspath(path)}: is not a regular file; restore it or run the command that wrote it again")


def open_regular_file(path: Path) -> BufferedReader:
    """The file, to be read, once it is checked."""
    check_regular_file(path)
    return path.open("rb")


def read_regular_file(path: Path) -> bytes:
    """All bytes of what `open_regular_file` opens."""
    with open_regular_file(path) as file:
        return file.read()
