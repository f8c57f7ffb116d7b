"""Locations of images, as `ImageRef` and the plan hold them, and the bytes there; archives are read in place.

    /photos/a.jpg                                  a file of this machine, or of a network folder
    gs://bucket/a.jpg, s3://, hdfs://              a file of one of Apache Beam's filesystems
    tar://00012.jpg::/data/00000.tar#1024+33280    bytes 1024 to 34304 of the archive: headers and data of the member
    zip://a/b.jpg::gs://bucket/photos.zip          the zip's own directory has the place
    name-not-utf8:..., id-too-long:...             no place: a dead letter, see image_ids.py

A worker reads one range of a tar, and checks by the headers there that the archive is the planned one. Beam's own files
read 16 MB at a time; in `RangedFile` a place far ahead is a request of its own for a few kilobytes, and near places are
read in ever larger pieces.
"""

import io
import os
import re
import tarfile
import threading
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from roibeam.extraction.photos.image_ref import MAX_FILE_BYTES, PhotoReadError, read_local_file
from roibeam.pipelines.common.image_ids import check_usable, forms_of, is_utf8, path_below
from roibeam.pipelines.common.remote_files import (
    is_url,
    list_url,
    open_url,
    read_url,
    s3_object,
    url_exists,
    with_retries,
)

FIRST_BYTES = 16 * 2**10  # of a place far from what was read: the header there, captions behind it, the next header
MOST_BYTES = 4 * 2**20  # at once, of what is read on and on
# A body of so many bytes is passed over by a new request; a smaller one is read through. A request that takes 20 ms
# takes as long as 128 kB of one of 16 threads that share a line of 1 Gbit/s.
NEAR_BYTES = 128 * 2**10


class RangedFile(io.RawIOBase):
    """A file to read from and seek in, by as few bytes and requests as its reader's places allow; `fetch` gives the
    bytes from a start to a stop, both in the file."""

    def __init__(self, fetch: Callable[[int, int], bytes], length: int, close: Callable[[], None]) -> None:
        self._fetch, self._length, self._close_file = fetch, length, close
        self._position = 0
        self._held, self._held_from = b"", 0
        self._next_bytes = FIRST_BYTES

    def read(self, size: int = -1) -> bytes:
        start = self._position
        stop = self._length if size is None or size < 0 else min(start + size, self._length)
        if start >= stop:
            return b""
        if not self._held_from <= start <= stop <= self._held_from + len(self._held):
            self._hold(start, stop)
        self._position = stop
        return self._held[start - self._held_from : stop - self._held_from]

    def _hold(self, start: int, stop: int) -> None:
        """Fetches these bytes and some behind them; what is held of them is not fetched again."""
        end = self._held_from + len(self._held)
        is_near = 0 <= start - end <= NEAR_BYTES or self._held_from <= start < end
        self._next_bytes = min(2 * self._next_bytes, MOST_BYTES) if is_near and self._held else FIRST_BYTES
        kept = self._held[start - self._held_from :] if self._held_from <= start < end else b""
        begin = start + len(kept)
        self._held = kept + self._fetch(begin, min(max(stop, begin + self._next_bytes), self._length))
        self._held_from = start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._held = b""
            self._close_file()
        super().close()


def open_ranged(url: str) -> BinaryIO:
    """Opens a file at a URL, for a reader of few places in it. Failed reads are tried again, as by `with_retries`."""
    found = s3_object(url)
    if found is not None:
        length, fetch = found
        return _ranged(url, fetch, length, lambda: None)
    file = open_url(url)
    raw = getattr(file, "raw", file)  # below the buffer of megabytes that Beam puts around most of its files
    length = raw.seek(0, os.SEEK_END)

    def fetch_raw(start: int, stop: int) -> bytes:
        raw.seek(start)
        parts = []
        while start < stop and (part := raw.read(stop - start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    return _ranged(url, fetch_raw, length, file.close)


def _ranged(url: str, fetch: Callable[[int, int], bytes], length: int, close: Callable[[], None]) -> BinaryIO:
    def whole(start: int, stop: int) -> bytes:
        data = fetch(start, stop)
        if len(data) != stop - start:
            raise OSError(f"{len(data)} of {stop - start} bytes came")
        return data

    return RangedFile(lambda start, stop: with_retries(url, lambda: whole(start, stop)), length, close)  # type: ignore[return-value]


ARCHIVE_EXTENSIONS = frozenset((".tar", ".zip"))
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
_BLOCK = 512
_MAX_HEADER_BYTES = 2**20  # of one member of a tar: long names and attributes
MAX_DIRECTORY_BYTES = 64 * 2**20  # of a zip, held in memory: some 700,000 members
_TAR_LOCATION = re.compile(r"tar://(.+)::(.+)#(\d+)\+(\d+)", re.DOTALL)
_ZIP_LOCATION = re.compile(r"zip://(.+)::(.+)", re.DOTALL)


@dataclass(frozen=True)
class Member:
    """A file in an archive or folder.

    Attributes:
        path: below the archive's top, without "." and ".." parts.
        location: what `read_location` takes.
        read: the first so many bytes; to be called before the next member is taken.
    """

    path: str
    location: str
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class TarRange:
    """A location in a tar: the member's name as the tar writes it, and its headers and data as a range of bytes."""

    archive: str
    member: str
    start: int
    length: int


@dataclass(frozen=True)
class ZipPlace:
    archive: str
    member: str


def parse_location(location: str) -> TarRange | ZipPlace | None:
    """Parses the location of a member of an archive; None for any other location."""
    if location.startswith("tar://"):
        match = _TAR_LOCATION.fullmatch(location)
        if match is None:
            raise ValueError(f"{location!r}: expected tar://MEMBER::ARCHIVE#START+LENGTH")
        return TarRange(match[2], match[1], int(match[3]), int(match[4]))
    if location.startswith("zip://"):
        match = _ZIP_LOCATION.fullmatch(location)
        if match is None:
            raise ValueError(f"{location!r}: expected zip://MEMBER::ARCHIVE")
        return ZipPlace(match[2], match[1])
    return None


def list_members(archive: str, left_out: Counter[str]) -> Iterator[Member]:
    """Yields the regular files of an archive: images, captions and other metadata.

    Args:
        archive: absolute path or URL of a .tar or .zip.
        left_out: counts, by reason, members that are none: links, devices, paths that leave the archive, names that are
            not UTF-8.
    """
    if "::" in archive or "#" in archive:
        raise ValueError(f"{archive!r}: '::' and '#' part an archive from its members; rename the file or its folder")
    is_zip = archive.lower().endswith(".zip")
    with open_ranged(archive) if is_url(archive) else open(archive, "rb") as file:
        yield from (_zip_members if is_zip else _tar_members)(archive, file, left_out)


def tar_member(chunk: bytes, name: str) -> bytes:
    """Returns the data of a member, from its range of the archive; ChangedError if it is not there."""
    try:
        # In memory a header that lies about its length can have no more than there is.
        with _opened_tar(io.BytesIO(chunk)) as tar:
            member = tar.next()
    except (tarfile.TarError, ValueError) as error:
        raise ChangedError(f"no member of a tar is there any more ({error})") from None
    if member is None or member.name != name or not member.isreg() or member.issparse():
        found = "another member" if member is None or member.isreg() else "no regular file"
        raise ChangedError(f"{found} is there now")
    if member.offset_data + member.size != len(chunk):
        raise ChangedError("it has another length now")
    return chunk[member.offset_data :]


class ChangedError(Exception):
    """Raised when an archive is not the one of the plan."""


def zip_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns the data of a member; FileNotFoundError without it, OSError if it is damaged, unusual or too large."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise FileNotFoundError(f"the zip has no member {name!r}") from None
    if info.file_size > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        # Gives no more bytes than the directory declares, and checks their sum: a bomb is an error after that many.
        with archive.open(info) as file:
            return file.read(info.file_size + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        # RuntimeError: a password; NotImplementedError, which is one: another compression.
        raise OSError(f"damaged or unusual member of a zip: {error}") from None


def open_zip(file: BinaryIO, archive: str) -> zipfile.ZipFile:
    """Raises ValueError if the file is no zip, or its directory is too large for the memory."""
    try:
        return zipfile.ZipFile(_BoundedReads(file, MAX_DIRECTORY_BYTES))
    except _TooLongError:
        raise ValueError(
            f"{archive!r}: its directory has more than {MAX_DIRECTORY_BYTES} bytes; use tar archives, or several zips"
        ) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(f"{archive!r}: not a zip, or cut short ({error}); fetch it again") from None


class _TooLongError(Exception):
    """Raised when a header requires more bytes than any real one has."""


class _BoundedReads(io.RawIOBase):
    """A file that refuses to read more than so much at once: headers of archives from strangers name any length."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        file.seek(0, os.SEEK_END)
        self._length = file.tell()
        file.seek(0)

    def read(self, size: int = -1) -> bytes:
        wanted = self._length - self._file.tell() if size is None or size < 0 else size
        if wanted > self._most:
            raise _TooLongError
        return self._file.read(wanted)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _opened_tar(file: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape")


def _tar_members(archive: str, file: BinaryIO, left_out: Counter[str]) -> Iterator[Member]:
    bounded = _BoundedReads(file, _MAX_HEADER_BYTES)
    count = 0
    try:
        with _opened_tar(bounded) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it keeps all, for an access that is not needed
                count += 1
                path = _path_of(member.name, "directory" if member.isdir() else _tar_kind(member), left_out)
                if path is None:
                    continue
                end = member.offset_data + member.size
                location = f"tar://{member.name}::{archive}#{member.offset}+{end - member.offset}"
                yield Member(path, location, _reader(file, member.offset_data, member.size))
            _check_tar_end(file, tar.offset)
    except (tarfile.TarError, _TooLongError, ValueError, EOFError) as error:
        what = "a header of a length that none has" if isinstance(error, _TooLongError) else str(error)
        after = f" after {count:,} members" if count else ""
        raise ValueError(
            f"{archive!r}: not a tar archive, damaged or cut short{after} ({what}); fetch it again"
        ) from None


def _tar_kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link"
    return "file" if member.isreg() and not member.issparse() else "special file"


def _check_tar_end(file: BinaryIO, offset: int) -> None:
    """Checks the blocks of zeros at the end. Without them the archive was cut short; with more behind, tarfile stopped
    early."""
    file.seek(offset)
    block = file.read(_BLOCK)
    if block.strip(b"\0"):
        raise ValueError(f"no header at byte {offset}")
    if len(block) < _BLOCK:
        raise ValueError(f"no end mark at byte {offset}")
    while rest := file.read(2**20):
        if rest.strip(b"\0"):
            raise ValueError(f"more follows its end mark at byte {offset}; were two archives joined?")


def _reader(file: BinaryIO, start: int, size: int) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        file.seek(start)
        return file.read(min(size, most))

    return read


def _zip_members(archive: str, file: BinaryIO, left_out: Counter[str]) -> Iterator[Member]:
    with open_zip(file, archive) as opened:
        last = None
        for info in sorted(opened.infolist(), key=lambda each: each.filename):
            if info.filename == last:
                raise ValueError(f"{archive!r}: two members are called {last!r}; rename one of them")
            last = info.filename
            path = _path_of(info.filename, _zip_kind(info), left_out)
            if path is not None:
                yield Member(path, f"zip://{info.filename}::{archive}", _zip_reader(opened, info))


def _zip_kind(info: zipfile.ZipInfo) -> str:
    if info.is_dir():
        return "directory"
    kind = (info.external_attr >> 16) & 0o170000 if info.create_system == 3 else 0  # as Unix writes it
    return {0: "file", 0o100000: "file", 0o120000: "link"}.get(kind, "special file")


def _zip_reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        try:
            with archive.open(info) as file:
                return file.read(most)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
            raise ValueError(f"{info.filename!r}: damaged or unusual member of a zip: {error}") from None

    return read


def _path_of(name: str, kind: str, left_out: Counter[str]) -> str | None:
    """Returns the path of a regular file that is not hidden; None for anything else, which is counted."""
    if kind == "directory":
        return None
    if kind != "file":
        left_out[kind] += 1
        return None
    try:
        path = path_below(name.replace("\\", "/") if os.sep == "\\" else name)
    except ValueError:
        left_out["path that leaves the archive, or not in UTF-8"] += 1
        return None
    # As in folders. Archives made on a Mac hold a hidden shadow of each file.
    return None if any(part.startswith(".") for part in path.split("/")) else path


OPEN_ARCHIVES = 4  # of one process: images of a shard follow each other in their archives
_HEADERS_ROOM_BYTES = 2 * 2**20


class SourceGoneError(RuntimeError):
    """Raised when the image folder has gone. Not an OSError, which would make it a dead letter of one image."""


def read_image(image_root: str, location: str) -> bytes:
    """Reads an image as `read_location`; SourceGoneError where the whole image folder has gone (unmounted, moved): then
    the run stops instead of the image."""
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
    if place.length > MAX_FILE_BYTES + _HEADERS_ROOM_BYTES:
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
        opened = _OpenArchive(open_url(archive) if is_url(archive) else open(archive, "rb"))
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
