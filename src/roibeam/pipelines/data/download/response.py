"""Response of a server: its bytes on the way to a file, and errors in place of an image.

A `DownloadError` is the URL's fault, which is data; a `LocalFaultError` is this machine's, which stops the run. A
body is decompressed where the server insists, and never grows beyond a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import FileIO


class DownloadError(Exception):
    """One URL that gave no image.

    Args:
        stage: "list", "url", "connect", "fetch" or "decode".
        reason: short word for counting.
        detail: one line for a person.
        may_pass: whether another attempt may end otherwise.
        wait_seconds: wait before it that the server wants.
    """

    def __init__(
        self, stage: str, reason: str, detail: str, *, may_pass: bool = False, wait_seconds: float | None = None
    ) -> None:
        super().__init__(detail)
        self.stage, self.reason, self.detail = stage, reason, detail
        self.may_pass, self.wait_seconds = may_pass, wait_seconds


class LocalFaultError(RuntimeError):
    """A full disk, too many open files, no network: no URL is to blame."""


_PIECE_BYTES = 2**18  # of what is decompressed at once: a few bytes of a bomb may become thousands of times as many


class Unpacker:
    """The bytes of an answer decompressed, some at a time.

    Args:
        encoding: the answer's Content-Encoding; requests ask for none, some servers compress all the same.
    Raises:
        DownloadError: on an encoding that is not read, or damaged data.
    """

    def __init__(self, encoding: str) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise DownloadError("fetch", "unknown encoding", f"Content-Encoding {encoding}, which was not requested")
        # 32: finds out whether it is gzip or zlib.
        self._inflate = None if encoding in ("", "identity") else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._num_received = 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Contents of the next bytes, at most `_PIECE_BYTES` at once where they are compressed."""
        self._num_received += len(data)
        if self._inflate is None:
            yield data
            return
        try:
            while data and not self._inflate.eof:
                yield self._inflate.decompress(data, _PIECE_BYTES)
                data = self._inflate.unconsumed_tail
        except zlib.error as error:
            raise DownloadError("fetch", "damaged encoding", f"Content-Encoding: {error}") from None

    def finish(self) -> None:
        """Checks the end of the stream, after the last bytes."""
        if self._inflate is not None and not self._inflate.eof:
            detail = f"compressed data end after {self._num_received} bytes, before their end mark"
            raise DownloadError("fetch", "damaged encoding", detail, may_pass=True)


class Body:
    """Writes what `add` is given.

    Args:
        file: open for writing, without a buffer.
        encoding: as of `Unpacker`.
        max_bytes: of the decompressed file, and of what comes over the wire.
    Raises:
        DownloadError: on an encoding that is not read, damaged data, or too much of it.
        LocalFaultError: if the file cannot be written.
    """

    def __init__(self, file: FileIO, *, encoding: str, max_bytes: int) -> None:
        self._unpacker = Unpacker(encoding)
        self._file, self._max_bytes = file, max_bytes
        self._num_received = self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self._num_received += len(data)
        if self._num_received > self._max_bytes:
            self._refuse()
        for piece in self._unpacker.pieces(data):
            self._write(piece)

    def finish(self) -> None:
        """Checks the end of the stream, after the last piece."""
        self._unpacker.finish()

    def _write(self, data: bytes) -> None:
        self.num_bytes += len(data)
        if self.num_bytes > self._max_bytes:
            self._refuse()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]  # a raw file may take less than all
        except OSError as error:
            raise LocalFaultError(f"{self._file.name}: {error.strerror}; nothing is lost, run again") from error

    def _refuse(self) -> None:
        raise DownloadError("fetch", "too many bytes", f"over the limit of {self._max_bytes} bytes (--max-bytes)")
