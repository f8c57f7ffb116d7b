"""Bytes of an image from its location, as `ImageRef` and the plan hold it:

/photos/a.jpg                       a file of this machine, or of a network folder
gs://bucket/a.jpg, s3://, hdfs://   a file of one of Apache Beam's filesystems
tar://..., zip://...                a member of an archive in either place, see archives.py
name-not-utf8:..., id-too-long:...  no place: a dead letter, see image_ids.py
"""

from __future__ import annotations

import os
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from roibeam.extraction.photos.image_ref import MAX_FILE_BYTES, PhotoReadError, read_local_file
from roibeam.pipelines.common.archives import (
    ChangedError,
    TarRange,
    ZipPlace,
    open_archive,
    open_zip,
    parse_location,
    tar_member,
    zip_member,
)
from roibeam.pipelines.common.image_ids import check_usable, forms_of, is_utf8
from roibeam.pipelines.common.remote_files import is_url, list_url, read_url, url_exists, with_retries

OPEN_ARCHIVES = 4  # of one process: images of a shard follow each other in their archives
_MAX_HEADER_BYTES = 2 * 2**20


class SourceGoneError(RuntimeError):
    """Raised when the image folder has gone. Not an OSError, which would make it a dead letter of one image."""


def read_image(image_root: str, location: str) -> bytes:
    """Reads an image; where the whole image folder has gone (unmounted, moved) the run stops instead of the image.

    Raises:
        SourceGoneError: when nothing is left at `image_root`.
        OSError: as `read_location`.
    """
    try:
        return read_location(location)
    except OSError as error:
        if isinstance(error, PhotoReadError) or not (isinstance(error, FileNotFoundError) or is_url(image_root)):
            raise
        if not _has_files(image_root):
            raise SourceGoneError(
                f"the image folder {image_root} has gone; mount it and run the same command"
            ) from None
        raise


def _has_files(folder: str) -> bool:
    if not is_url(folder):
        return os.path.isdir(folder) and bool(os.listdir(folder))
    try:
        return bool(list_url(f"{folder.rstrip('/')}/**", limit=1))
    except OSError:
        return False


def read_location(location: str) -> bytes:
    """Reads all bytes of an image.

    Raises:
        FileNotFoundError: when the file, or the zip's member, is not there.
        PhotoReadError: when an archive is not the one that was planned with, or the image has no usable name.
        OSError: when it cannot be read, or is over 512 MiB.
        ValueError: when no driver for the URL is installed.
    """
    check_usable(location)
    place = parse_location(location)
    if isinstance(place, TarRange):
        return _read_tar(place)
    if isinstance(place, ZipPlace):
        if is_url(place.archive):
            return with_retries(place.archive, lambda: _archives.read_zip(place))
        return _archives.read_zip(place)
    if is_url(location):
        return read_url(location, max_bytes=MAX_FILE_BYTES)
    try:
        return read_local_file(location)
    except FileNotFoundError:
        if (other := _in_other_form(location)) is None:
            raise
        return read_local_file(other)


def location_exists(location: str) -> bool:
    """Whether the file is there; of a member of an archive, the archive."""
    place = parse_location(location)
    file = location if place is None else place.archive
    return url_exists(file) if is_url(file) else os.path.exists(file) or _in_other_form(file) is not None


def _in_other_form(path: str) -> str | None:
    """Returns the path of a file whose folders and name look like these: a list written on another system than the
    files may have NFC where they have NFD."""
    if path.isascii() or not is_utf8(path):
        return None
    parts: list[str] = []
    for part in path.split("/"):
        there = (each for each in forms_of(part) if part.isascii() or os.path.lexists("/".join([*parts, each])))
        parts.append(next(there, part))
    found = "/".join(parts)
    return found if found != path and os.path.exists(found) else None


def moved_location(location: str, root: str, new_root: str) -> str | None:
    """Returns the location of an image after everything below `root` has moved; None for one that lies elsewhere."""
    place = parse_location(location)
    file = location if place is None else place.archive
    if not file.startswith(root.rstrip("/") + "/"):
        return None
    before, _, after = location.rpartition(file)
    return before + new_root.rstrip("/") + file.removeprefix(root.rstrip("/")) + after


def _read_tar(place: TarRange) -> bytes:
    if place.length > MAX_FILE_BYTES + _MAX_HEADER_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
    if is_url(place.archive):
        chunk = with_retries(place.archive, lambda: _archives.read_range(place))
    else:
        with open(place.archive, "rb", buffering=0) as file:
            chunk = os.pread(file.fileno(), place.length, place.start)
    try:
        if len(chunk) < place.length:
            raise ChangedError("the archive ends before it")
        return tar_member(chunk, place.member)
    except ChangedError as error:
        raise PhotoReadError(
            "changed since planning",
            f"{place.archive}, byte {place.start}: {error}; restore the archive, or extract into a new folder",
        ) from None


class _OpenArchive:
    """An archive and the lock under which one thread at a time uses it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.zip: zipfile.ZipFile | None = None
        self.lock = threading.Lock()
        self.is_closed = False

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            if self.zip is not None:
                self.zip.close()
            self.file.close()


class _Archives:
    """The archives of this process that are open: opening one at a URL, or a zip with its directory, takes long."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[object, ...], _OpenArchive] = OrderedDict()
        self._lock = threading.Lock()

    def read_zip(self, place: ZipPlace) -> bytes:
        with self._used(place.archive) as opened:
            if opened.zip is None:
                try:
                    opened.zip = open_zip(opened.file, place.archive)
                except ValueError as error:
                    raise OSError(str(error)) from None
            return zip_member(opened.zip, place.member)

    def read_range(self, place: TarRange) -> bytes:
        with self._used(place.archive) as opened:
            opened.file.seek(place.start)
            return opened.file.read(place.length)

    @contextmanager
    def _used(self, archive: str) -> Iterator[_OpenArchive]:
        """The archive, for this thread alone. Once its use failed at a URL it is opened anew: connections break."""
        while True:
            key, opened = self._get(archive)
            with opened.lock:
                if opened.is_closed:  # by a thread that needed the room
                    continue
                try:
                    yield opened
                    return
                except Exception:
                    if is_url(archive):
                        with self._lock:
                            self._open.pop(key, None)
                    raise

    def _get(self, archive: str) -> tuple[tuple[object, ...], _OpenArchive]:
        key: tuple[object, ...] = (archive,)
        if not is_url(archive):
            status = os.stat(archive)
            key = (archive, status.st_ino, status.st_size, status.st_mtime_ns)  # another file of this name is another
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return key, self._open[key]
        opened = _OpenArchive(open_archive(archive))
        surplus = []
        with self._lock:
            current = self._open.setdefault(key, opened)
            if current is not opened:  # another thread was quicker
                surplus.append(opened)
            while len(self._open) > OPEN_ARCHIVES:
                surplus.append(self._open.popitem(last=False)[1])
        for each in surplus:
            each.close()
        return key, current


_archives = _Archives()
