"""A file at a URL of which only some places are read: headers of an archive, between bodies that nobody asks for.

Beam's own files read 16 MB at a time, so whoever looks at the headers of a tar through one reads all of it. Here a
place far ahead is a request of its own for a few kilobytes, and what lies near goes on in ever larger pieces.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import BinaryIO

from roibeam.pipelines.common.files.remote_files import open_url, s3_object, with_retries

FIRST_BYTES = 16 * 2**10  # of a place far from what was read: the header there, captions behind it, the next header
MOST_BYTES = 4 * 2**20  # at once, of what is read on and on
# A body of so many bytes is passed over by a new request; a smaller one is read through. A request that takes 20 ms
# takes as long as 128 kB of one of 16 threads that share a line of 1 Gbit/s.
NEAR_BYTES = 128 * 2**10


class RangedFile(io.RawIOBase):
    """A file to read from and seek in, by as few bytes and requests as its reader's places allow.

    Args:
        fetch: bytes from a start to a stop; both lie in the file.
        length: of the file, in bytes.
        close: called once.
    """

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
    """A file at a URL, for a reader of few places in it. A read that fails is tried again, as `with_retries` does.

    Raises:
        FileNotFoundError, OSError: naming the URL; so does reading.
        ValueError: when the driver is missing.
    """
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
