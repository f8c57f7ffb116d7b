"""Pages of a WARC file, as crawlers and Common Crawl write them (.warc, .warc.gz), read by FastWARC.

A bad record does not cost the rest of the file: reading goes on where that record ends. Its end is given by its writer,
the crawler: the end of its gzip member, or its Content-Length. A page that holds a WARC record is no second record.
Only behind damage is the next record searched by its first bytes.
"""

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from roibeam.features.folders.durable_files import open_regular_file
from roibeam.messages import printable
from roibeam.pipelines.collection.document import web_url
from roibeam.pipelines.collection.pairs import BrokenPage, Page, Reason
from roibeam.pipelines.data.download.robots import usage_directives

_GZIP_HEAD = b"\x1f\x8b\x08"
_GZIP = re.compile(_GZIP_HEAD)
_LINE = re.compile(rb"WARC/\d\.\d\r\n(?=[^\r\n:]{1,200}:)")  # a record has headers
_MAX_LOOKS = 1_000_000  # at gzip members, for the next record: each costs some microseconds
_PIECE = 2**20
_LOOK_BYTES = 1024  # enough of a member to see what it holds: its tables of codes come first
_HEAD_BYTES = 2**16
_CONTENT_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


def record_end(file: BinaryIO, start: int) -> int | None:
    """Returns the byte behind the record that begins at `start`; for one that is cut off, the end of the file.

    Returns:
        None where the record has no length, or its member is damaged.
    """
    file.seek(start)
    head = file.read(_HEAD_BYTES)
    if not head:
        return start
    if head.startswith(_GZIP_HEAD):
        # Unpacks the gzip member, a piece at a time.
        file.seek(start)
        unpack = zlib.decompressobj(wbits=31)
        place = start
        try:
            while not unpack.eof and (piece := file.read(_PIECE)):
                place += len(piece)
                while piece and not unpack.eof:
                    unpack.decompress(piece, _PIECE)
                    piece = unpack.unconsumed_tail
        except zlib.error:
            return None
        return place - len(unpack.unused_data)
    lines, blank, _ = head.partition(b"\r\n\r\n")
    found = _CONTENT_LENGTH.search(lines)
    if not head.startswith(b"WARC/") or not blank or found is None:
        return None
    return min(start + len(lines) + len(blank) + int(found[1]), file.seek(0, os.SEEK_END))


def next_record(file: BinaryIO, start: int, *, is_packed: bool) -> int | None:
    """Finds the beginning of the next record, from this byte on; None where there is none.

    Args:
        is_packed: look for gzip members that hold one, at most at `_MAX_LOOKS`, else for lines that begin one.
    """
    file.seek(start)
    data, base = b"", start
    num_looks = 0
    while num_looks <= _MAX_LOOKS:
        piece = file.read(_PIECE)
        data += piece
        for found in (_GZIP if is_packed else _LINE).finditer(data):
            place = found.start()
            if piece and place + _LOOK_BYTES > len(data):
                break  # looked at with the next piece
            if not is_packed or _begins_a_record(data[place : place + _LOOK_BYTES]):
                return base + place
            num_looks += 1
        if not piece:
            return None
        cut = max(len(data) - _LOOK_BYTES, 0)
        data, base = data[cut:], base + cut
    return None


def is_at_end(file: BinaryIO, place: int) -> bool:
    """Whether only blanks and zeros follow."""
    file.seek(place)
    while piece := file.read(_PIECE):
        if piece.strip(b"\r\n\0 "):
            return False
    return True


def _begins_a_record(data: bytes) -> bool:
    try:
        return zlib.decompressobj(wbits=31).decompress(data, 5) == b"WARC/"
    except zlib.error:
        return False


_MAX_DAMAGED = 10_000  # places in a file from which it is read anew: each costs as much as many good records
_MAX_WEB_BYTES = 64 * 2**30
_HTML = ("text/html", "application/xhtml+xml")


def read_warc(place: str, *, max_bytes: int, allowed: tuple[str, ...] | None = None) -> Iterator[Page | BrokenPage]:
    """Reads pages in the order of the file. A body over `max_bytes` (also unpacked) comes cut to one byte more.

    Args:
        place: path, or a URL that fsspec opens (https, s3, with the extra `remote`). Where such a place cannot be
            read from the middle, records behind a damaged one are not read.
        allowed: networks beside public addresses that may be contacted by http and https, see `AddressRule`; None for
            all.
    Raises:
        OSError: if the file is not there, or a disk or network fails: that is no damage of the file.
    """
    try:
        yield from _read(place, max_bytes, allowed)
    except Exception as error:  # any error of the library of a URL
        if "://" not in place:
            raise
        cause: BaseException = error.__cause__ or error  # fsspec's own "not found" stands for any fault
        cause = getattr(cause, "os_error", cause)  # of aiohttp
        if type(cause).__name__ == "PrivateAddressError":
            raise ValueError(f"{place}: {cause}, or redirected to one; --allow-private NETWORK takes it") from error
        words = printable(str(cause) or type(cause).__name__, 200)
        raise OSError(f"{place}: cannot be read ({words}); what is done is kept, run again") from error


def _read(place: str, max_bytes: int, allowed: tuple[str, ...] | None) -> Iterator[Page | BrokenPage]:
    name = os.path.basename(place)
    with _opened(place, allowed) as file:
        start: int | None = 0
        count = num_damaged = 0  # `count`: of responses and damaged records
        others: set[str] = set()  # types of other records
        while start is not None:
            last, error = None, ""
            try:
                for record in _records(file, start):
                    last = record.stream_pos
                    if record.record_type == _response():
                        count += 1
                        yield from _page(record, f"{name}, record {count}", max_bytes)
                    else:
                        others.add(str(record.record_type))
            except (OSError, ValueError, EOFError, UnicodeError) as problem:  # any error of FastWARC in hostile bytes
                has_number = isinstance(problem, OSError) and problem.errno is not None
                if has_number or isinstance(
                    problem, ConnectionError | TimeoutError
                ):  # a disk or a network failed, not the bytes
                    raise
                error = str(problem)
            if not file.seekable():
                start, is_damaged = None, bool(error)
            else:
                start, is_damaged = _goes_on(file, start, last, is_packed=name.lower().endswith(".gz"))
            if is_damaged:
                count += 1
                num_damaged += 1
                if num_damaged > _MAX_DAMAGED:
                    start, error = None, f"over {_MAX_DAMAGED} damaged places; the rest of the file is not read"
                yield BrokenPage(f"{name}, record {count}", Reason.BROKEN_RECORD, printable(error or "damaged", 200))
        if not count:
            found = f"only {', '.join(sorted(others))}; is it a WET or WAT file?" if others else "it is empty"
            yield BrokenPage(name, Reason.NO_PAGE, f"no response record: {found}")


def _goes_on(file: BinaryIO, start: int, last: int | None, *, is_packed: bool) -> tuple[int | None, bool]:
    """Returns the byte to read on from, None at the end, and whether something damaged is passed over.

    FastWARC stops at damage, sometimes without an error, and also after a record whose own content it could not unpack.
    So the end of the last record that it found decides, and not its error.

    Args:
        last: beginning of the last record that it found; None if it found none.
    """
    end = start if last is None else record_end(file, last)
    if end is None and last is not None and (whole := record_end(file, start)) is not None and whole > last:
        end = whole  # all records packed as one member: FastWARC's places are not those of records
    if end is not None and is_at_end(file, end):
        return None, False
    if end is not None and last is not None:
        return end, False
    return next_record(file, (start if last is None else last) + 1, is_packed=is_packed), True


def _opened(place: str, allowed: tuple[str, ...] | None) -> Any:
    if "://" not in place:
        return open_regular_file(Path(place))
    import fsspec

    if not place.lower().startswith(("http://", "https://")):
        return fsspec.open(place, "rb").open()
    from roibeam.features.folders.web_driver import WebFiles
    from roibeam.pipelines.data.download.limits import AddressRule

    file = WebFiles(socket_factory=None if allowed is None else AddressRule(allowed).open_socket).open(place)
    if file.size is None or file.size > _MAX_WEB_BYTES:
        size = "no size" if file.size is None else f"{file.size} bytes"
        file.close()
        raise OSError(f"its server states {size}; copy it here, if it is a WARC file")
    return file


def _records(file: BinaryIO, start: int) -> Iterator[Any]:
    from fastwarc.warc import ArchiveIterator

    if file.seekable():
        file.seek(start)
    return iter(ArchiveIterator(file, parse_http=True, auto_decode="all"))


def _response() -> Any:
    from fastwarc.warc import WarcRecordType

    return WarcRecordType.response


def _page(record: Any, place: str, max_bytes: int) -> Iterator[Page | BrokenPage]:
    headers = record.http_headers
    url = web_url("", record.headers.get("WARC-Target-URI", "").strip("<>"))
    if headers is None:
        yield BrokenPage(place, Reason.BROKEN_RECORD, "no HTTP headers; is the record cut off?")
    elif url is None:
        yield BrokenPage(place, Reason.BROKEN_RECORD, "no http or https WARC-Target-URI")
    elif headers.status_code is None:
        yield BrokenPage(place, Reason.BROKEN_RECORD, "no HTTP status")
    elif headers.status_code != 200:
        yield BrokenPage(place, Reason.NO_PAGE, f"status {headers.status_code}")
    elif (kind := (record.http_content_type or "").lower()) and kind not in _HTML:
        yield BrokenPage(place, Reason.NOT_HTML, printable(kind, 60))
    else:
        try:
            body = record.reader.read(max_bytes + 1)
        except (OSError, ValueError, EOFError) as error:
            yield BrokenPage(place, Reason.BROKEN_RECORD, printable(str(error), 200))
            return
        robots = tuple(printable(value, 200) for value in usage_directives(headers.get_multiple))
        yield Page(url, body, record.http_charset, robots, place)


def is_warc_name(name: str) -> bool:
    return name.lower().endswith((".warc", ".warc.gz"))
