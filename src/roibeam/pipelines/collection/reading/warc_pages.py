"""Pages of a WARC file, as crawlers and Common Crawl write them (.warc, .warc.gz), read by FastWARC.

After a damaged gzip member the next whole one is looked for, so one bad record does not cost the rest of the file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from roibeam.features.printable import printable
from roibeam.pipelines.collection.looking.document import web_url
from roibeam.pipelines.collection.page import Page
from roibeam.pipelines.collection.reading.broken import BrokenPage
from roibeam.pipelines.collection.reasons import Reason

_GZIP = b"\x1f\x8b\x08"
_PIECE = 2**20
_MEMBER_BYTES = 1024  # enough of a member to see what it holds: its tables of codes come first
_HTML = ("text/html", "application/xhtml+xml")


def read_warc(place: str, *, max_bytes: int) -> Iterator[Page | BrokenPage]:
    """Pages in the order of the file. A body over `max_bytes` (also unpacked) comes cut to one byte more.

    Args:
        place: path, or a URL that fsspec opens (https, s3, with the extra `remote`); of one, what follows a damaged
            record is not read.
    Raises:
        OSError: if the file is not there.
    """
    name = os.path.basename(place)
    with _opened(place) as file:
        start: int | None = 0
        count, is_told = 0, False  # responses and what is damaged
        while start is not None:
            last, error, found = start, "", 0
            try:
                for record in _records(file, start):
                    last, found = record.stream_pos, found + 1
                    if record.record_type == _response():
                        count += 1
                        yield from _page(record, f"{name}, record {count}", max_bytes)
            except (OSError, ValueError, EOFError, UnicodeError) as problem:  # whatever FastWARC meets in hostile bytes
                error = str(problem)
            if error and not (is_told and not found):
                count += 1
                yield BrokenPage(f"{name}, record {count}", Reason.BROKEN_RECORD, printable(error, 200))
            is_told = bool(error and found)  # the next member may be the damaged one, met again
            # FastWARC ends at some damage without a word: a whole member that it did not come to tells of it.
            start = _next_member(file, last + 1) if file.seekable() else None


def _opened(place: str) -> Any:
    if "://" not in place:
        return open(place, "rb")
    import fsspec

    return fsspec.open(place, "rb").open()


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
        robots = tuple(printable(value, 200) for value in headers.get_multiple("X-Robots-Tag"))
        yield Page(url, body, record.http_charset, robots, place)


def _next_member(file: BinaryIO, start: int) -> int | None:
    """Where the next gzip member that holds a WARC record begins, from this byte on; None where there is none."""
    file.seek(start)
    data, base = b"", start
    while True:
        piece = file.read(_PIECE)
        data += piece
        place = data.find(_GZIP)
        while place >= 0 and (place + _MEMBER_BYTES <= len(data) or not piece):
            if _begins_a_record(data[place : place + _MEMBER_BYTES]):
                return base + place
            place = data.find(_GZIP, place + 1)
        if not piece:
            return None
        cut = max(len(data) - _MEMBER_BYTES, 0)
        data, base = data[cut:], base + cut


def _begins_a_record(data: bytes) -> bool:
    try:
        return zlib.decompressobj(wbits=31).decompress(data, 5) == b"WARC/"
    except zlib.error:
        return False


def is_warc_name(name: str) -> bool:
    return name.lower().endswith((".warc", ".warc.gz"))
