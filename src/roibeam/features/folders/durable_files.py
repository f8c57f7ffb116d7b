"""Durable files of this machine: whole or not there, even after a power cut; and scratch folders.

A file is written under another name, synced, renamed. A refusing disk is reported with the name of the file, which
neither Python's `write` nor LMDB gives. A scratch folder that a killed process leaves is removed by the next process.
"""

import errno
import fcntl
import hashlib
import json
import os
import resource
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

# LMDB's words: it has no number for these errors.
_NUMBERS = {os.strerror(number): number for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
_LEAST_FREE_BYTES = 2**20


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Names the file in an OSError without a name, and in LMDB's errors of the disk, while a file is written.

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
    # SQLite; PyTorch's writer of zip files, whose only message is that fewer bytes were written.
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
    """`write_json_atomically` for bytes.

    Args:
        first: leave a file that is there as it is, also one made at the same time.
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


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/roibeam`, or the same under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roibeam"


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


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_content(file: BufferedReader, num_bytes: int, sha256: str) -> bool:
    """Whether the bytes of a file, opened just now, are so many and have this SHA-256 (hex)."""
    return os.fstat(file.fileno()).st_size == num_bytes and hashlib.file_digest(file, "sha256").hexdigest() == sha256


PREFIX = "roibeam-scratch-"
_LOCK_NAME = ".lock"


@contextmanager
def scratch_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """An empty folder, removed afterwards; the kernel's lock on it shows other processes that its own is alive.

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
