"""Folder of a store at a URL that fsspec knows (s3, gs, hdfs, http, memory, file, ...), read and written file by file.

Object stores rename nothing and lock nothing. A file is one upload under its final name, which appears when it is
whole; its size is compared afterwards, since not every driver reports a short write. Failed calls are tried again.
"""

import base64
import errno
import hashlib
import itertools
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fsspec.core import split_protocol, url_to_fs
from fsspec.registry import known_implementations

from roibeam.features.folders.durable_files import scratch_folder
from roibeam.features.folders.folder_protocol import (
    MAX_METADATA_BYTES,
    MAX_RANGE_BYTES,
    UNKNOWN_BYTES,
    FileFacts,
    SlowServerError,
    UnreachableError,
)

_CHUNK_BYTES = 8 * 2**20


class TooShortError(OSError):
    """A file ended early: it is short where it lies, or the connection was cut without an error."""


_T = TypeVar("_T")
_OF_THIS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
log = logging.getLogger(__name__)
WAIT_SECONDS = (1.0, 3.0, 9.0)  # before the second, third and fourth try; up to half of it more, by chance
_TRIES = len(WAIT_SECONDS) + 1
_READ_AT_ONCE = 64
_AT_ONCE_BYTES = 4 * 2**20
_PUT_AT_ONCE = 16
_SLOW = (SlowServerError, TimeoutError)
# Errors that another try does not change; drivers' own kinds, which have no common base, by name.
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError)
_FINAL_NAMES = frozenset(
    "NoCredentialsError PartialCredentialsError ProfileNotFound NoRegionError ParamValidationError "
    "DefaultCredentialsError".split()
)


@dataclass(frozen=True)
class ObjectFolder:
    """An `OutputFolder` at a URL; holds no connection, so it can be pickled and used after a fork.

    Raises, in all methods, ValueError when the URL's driver is missing, and UnreachableError for what is not answered.

    Attributes:
        options: arguments of fsspec's driver, such as credentials.
        scratch_parent: where files lie while they are read or written; None for the machine's temporary folder.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    scratch_parent: str | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def local_path(self) -> None:
        return None

    def where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """`read_bytes`, also from a server that knows no ranges."""

        def read(system: Any, path: str) -> bytes:
            with system.open(path, "rb") as source:
                return _not_too_long(source.read(MAX_METADATA_BYTES + 1))

        try:
            return self._tried(name, "read", read)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; is the URL right, and the store whole?") from None

    def read_bytes(self, name: str) -> bytes:
        return self._tried(name, "read", _read_metadata)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        if end - start > MAX_RANGE_BYTES:
            raise ValueError(f"{self.where(name)}: {end - start} bytes of it are to be read at once; is it a store?")
        data: bytes = self._tried(
            name, "read", lambda system, path: system.cat_file(path, start=start, end=end)[: end - start]
        )
        return data

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        remaining = iter(names)
        while block := list(itertools.islice(remaining, _READ_AT_ONCE)):
            system, root = self._system()
            paths = [f"{root.rstrip('/')}/{name}" for name in block]
            # Drivers of object stores read them all at once: so there is a smaller limit, and a large one comes alone.
            results = system.cat_ranges(paths, 0, _AT_ONCE_BYTES + 1, on_error="return")
            for name, data in zip(block, results, strict=True):
                if isinstance(data, FileNotFoundError):
                    yield name, None
                elif isinstance(data, BaseException) or len(data) > _AT_ONCE_BYTES:
                    yield name, self._read_or_none(name, tries=1 if isinstance(data, SlowServerError) else _TRIES)
                else:
                    yield name, bytes(data)

    def _read_or_none(self, name: str, *, tries: int) -> bytes | None:
        try:
            return self._tried(name, "read", _read_metadata, tries=tries)
        except FileNotFoundError:
            return None

    def num_bytes(self, name: str) -> int | None:
        facts = self.file_facts(name)
        return None if facts is None else facts.num_bytes

    def file_facts(self, name: str) -> FileFacts | None:
        """Size and time of a file; None where there is none."""
        facts = self._facts(name)
        return None if facts is None else _file_facts(facts)

    def _facts(self, name: str) -> dict[str, Any] | None:
        def query(system: Any, path: str) -> dict[str, Any]:
            system.invalidate_cache()  # a listing that the driver remembers may be older than the file
            try:
                found: dict[str, Any] = system.info(path)
            except NotADirectoryError as error:  # a file below a file: there is none
                raise FileNotFoundError(str(error)) from error
            return found

        try:
            facts = self._tried(name, "read", query)
        except FileNotFoundError:
            return None
        return facts if facts["type"] == "file" else None

    def listing(self, prefix: str = "") -> dict[str, FileFacts]:
        def query(system: Any, path: str) -> list[dict[str, Any]]:
            system.invalidate_cache()
            found: list[dict[str, Any]] = system.ls(path.rstrip("/"), detail=True)
            return found

        try:
            entries = self._tried("", "listed", query)
        except FileNotFoundError as error:
            if "bucket does not exist" in str(error):  # an error before the work, not when it is written
                raise FileNotFoundError(f"{error}; make the bucket, or name another") from None
            return {}
        found = {}
        for entry in entries:
            name = entry["name"].rstrip("/").rpartition("/")[2]
            if entry["type"] == "file" and name.startswith(prefix):
                found[name] = _file_facts(entry)
        return found

    def files_below(self) -> dict[str, FileFacts]:
        """The files of the folder and of those in it, by their names below it; {} also where there is no folder. Raises
        ValueError for a name that leads out of the folder."""

        def find(system: Any, path: str) -> dict[str, FileFacts]:
            system.invalidate_cache()
            top = system._strip_protocol(path).rstrip("/") + "/"
            entries = system.find(path.rstrip("/"), detail=True).items()
            return {name.removeprefix(top): _file_facts(entry) for name, entry in entries}

        found = self._tried("", "listed", find)
        for name in found:
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{self.where(name)}: a file with such a name cannot be copied to this machine")
        return found

    def put_bytes(self, name: str, data: bytes, *, tries: int = _TRIES) -> None:
        def put(system: Any, path: str) -> None:
            system.pipe_file(path, data)
            self._check(name, data)

        self._tried(name, "written", put, tries=tries)

    def put_first(self, name: str, data: bytes) -> bool:
        def put(system: Any, path: str) -> bool:
            try:
                system.pipe_file(path, data, mode="create")
            except FileExistsError:
                # Perhaps written by an earlier try whose answer was lost.
                return self.read_bytes(name) == data
            try:
                self._check(name, data)
            except _ShortWriteError:
                self.delete(name)  # else the next try would take it for another's
                raise
            return True

        return self._tried(name, "written", put)

    def put_many(self, files: Iterable[tuple[str, bytes]]) -> None:
        remaining = iter(files)
        with ThreadPoolExecutor(_PUT_AT_ONCE, thread_name_prefix="put") as pool:
            while block := list(itertools.islice(remaining, _PUT_AT_ONCE)):
                for done in [pool.submit(self.put_bytes, name, data) for name, data in block]:
                    done.result()

    def put_file(self, source: Path, name: str) -> None:
        def put(system: Any, path: str) -> None:
            system.put_file(str(source), path)
            self._check(name, source)

        self._tried(name, "written", put)

    def download(self, name: str, target: Path, num_bytes: int) -> None:
        """Writes the first `num_bytes` of a file to `target`, going on where that ends, and makes them durable.

        Raises:
            ValueError: when the file is larger.
            FileNotFoundError, OSError: naming the URL when it cannot be read or is too short; what came stays.
        """

        def fetch(system: Any, path: str) -> None:
            try:
                self._fetch(name, target, num_bytes, lambda: system.open(path, "rb"))
            except TooShortError as error:
                got = (self._facts(name) or {}).get("size")
                if got is None or int(got) >= num_bytes:
                    raise
                raise UnreachableError(str(error)) from None  # short where it lies: another try does not mend it

        self._tried(name, "read", fetch)

    def _fetch(self, name: str, target: Path, num_bytes: int, opened: Callable[[], Any]) -> None:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "ab") as file:
            if file.tell() > num_bytes:
                file.truncate(0)
            have = os.fstat(descriptor).st_size
            if have < num_bytes:
                with opened() as source:
                    size = getattr(source, "size", None)
                    if isinstance(size, int) and size > num_bytes:
                        raise ValueError(f"has {size} bytes, its manifest says {num_bytes}; copy it there again")
                    if have and not _seek(source, have):
                        file.truncate(0)
                        have = 0
                    while have < num_bytes:
                        data = source.read(min(_CHUNK_BYTES, num_bytes - have))
                        if not data:
                            raise TooShortError(
                                f"{self.where(name)}: ends after {have} bytes, its manifest says {num_bytes}; "
                                f"copy it there again"
                            )
                        file.write(data)
                        have += len(data)
            file.flush()
            os.fsync(descriptor)

    @contextmanager
    def local_file(self, name: str, num_bytes: int) -> Iterator[Path]:
        got = self.num_bytes(name)
        if got is None:
            raise FileNotFoundError(f"{self.where(name)}: is missing")
        if got not in (num_bytes, UNKNOWN_BYTES):
            raise ValueError(f"{self.where(name)}: has {got} bytes, its manifest says {num_bytes}; copy it there again")
        with scratch_folder(self.scratch_parent) as folder:
            path = folder / name.rpartition("/")[2]
            self.download(name, path, num_bytes)
            yield path

    @contextmanager
    def atomic_path(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="roibeam-", dir=self.scratch_parent) as folder:
            aside = Path(folder) / name
            yield aside
            self.put_file(aside, name)

    def delete(self, name: str) -> None:
        def remove(system: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                system.rm_file(path)

        self._tried(name, "removed", remove)

    def scratch(self, attempt: str, parent: str | None) -> AbstractContextManager[Path]:
        return scratch_folder(parent or self.scratch_parent)

    def _check(self, name: str, written: bytes | Path) -> None:
        """Checks that the store has what was written: its size, and its MD5 where the store has that."""
        facts = self._facts(name)
        want = len(written) if isinstance(written, bytes) else written.stat().st_size
        got = None if facts is None else int(facts["size"])
        if got != want:
            raise _ShortWriteError(f"{want} bytes were written, the store has {'none' if got is None else got}")
        # Google's name for it. S3's ETag is an MD5 only sometimes; its client has the server compare a checksum.
        stated = facts.get("md5Hash") if facts is not None else None
        if stated is not None and base64.b64decode(stated) != _md5(written):
            raise _ShortWriteError(f"its MD5 is {stated} there, which is not that of what was written")

    def _tried(self, name: str, verb: str, work: Callable[[Any, str], _T], *, tries: int = _TRIES) -> _T:
        """Result of `work(file system, path)`, tried again where that may help."""
        system, root = self._system()
        path = f"{root.rstrip('/')}/{name}"
        is_slow = False
        for count, wait in enumerate([*WAIT_SECONDS[: tries - 1], None], start=1):
            try:
                return work(system, path)
            except UnreachableError:
                raise  # of a look at the same store, which was tried often enough
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{self.where(name)}: is not there ({error})") from error
            except Exception as error:  # each driver has kinds of its own, not all of them OSError
                if getattr(error, "errno", None) in _OF_THIS_DISK:
                    raise
                if isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES:
                    message = f"{self.where(name)}: cannot be {verb} ({_line(error)})"
                    if "Credentials" in type(error).__name__ or isinstance(error, PermissionError):
                        message += "; give the driver credentials that may do this, see docs/stores.md"
                    raise (ValueError if isinstance(error, ValueError) else UnreachableError)(message) from error
                if wait is None or (is_slow and isinstance(error, _SLOW)):  # else a slow server takes minutes
                    raise UnreachableError(
                        f"{self.where(name)}: cannot be {verb}, tried {count} times ({_line(error)}); when the store "
                        f"answers again, run the same command again"
                    ) from error
                is_slow = isinstance(error, _SLOW)
                log.warning("%s: not %s yet (%s); trying again", self.where(name), verb, _line(error))
                time.sleep(wait * (1 + random.random() / 2))
        raise AssertionError("the last try returns or raises")

    def _system(self) -> tuple[Any, str]:
        """fsspec's driver for the URL, and the folder's path as the driver takes it. Requested each time: fsspec keeps
        one object per process and does the right thing after a fork."""
        protocol = split_protocol(self.url)[0] or "file"
        try:
            if self.url.lower().startswith(("http://", "https://")):
                # Here, not above: aiohttp comes with the extra `remote`, and others have no use for it.
                from roibeam.features.folders.web_driver import WebFiles

                return WebFiles(**self.options), self.url
            made = {"auto_mkdir": True} if protocol in ("file", "local") else {}
            driver, path = url_to_fs(self.url, **{**made, **self.options})
            return driver, str(path)
        except ImportError as error:
            package = known_implementations.get(protocol, {}).get("class", "").split(".")[0]
            message = f"pip install {package}" if package not in ("", "fsspec") else str(error)
            raise ValueError(f"{self.url}: the package that reads {protocol}:// is missing: {message}") from error
        except ValueError as error:
            raise ValueError(f"{self.url}: {error}; stores are in folders, or at s3://, gs://, hdfs://") from error


def _seek(source: Any, position: int) -> bool:
    """Whether the source could go there: a web server need not know ranges."""
    try:
        return bool(source.seek(position) == position)
    except ValueError:
        return False


def _read_metadata(system: Any, path: str) -> bytes:
    """A whole file of at most `MAX_METADATA_BYTES`; reads one byte more, to detect a larger one."""
    try:
        data = system.cat_file(path, start=0, end=MAX_METADATA_BYTES + 1)
    except (FileNotFoundError, PermissionError, ValueError, *_SLOW):
        raise
    except Exception:  # each driver has its own kind for a range of an empty file
        if system.info(path)["size"]:
            raise
        return b""
    return _not_too_long(bytes(data))


def _not_too_long(data: bytes) -> bytes:
    if len(data) > MAX_METADATA_BYTES:
        raise ValueError(f"has more than {MAX_METADATA_BYTES} bytes; is it a store's?")
    return data


def _file_facts(entry: dict[str, Any]) -> FileFacts:
    size = entry.get("size")
    return FileFacts(UNKNOWN_BYTES if size is None else int(size), _written_at(entry))


class _ShortWriteError(OSError):
    """The store has other bytes than were written."""


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _md5(written: bytes | Path) -> bytes:
    if isinstance(written, bytes):
        return hashlib.md5(written, usedforsecurity=False).digest()
    with written.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _written_at(entry: dict[str, Any]) -> float:
    """Drivers name it differently, as seconds, a datetime or ISO text."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = entry.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
