"""Pages as WARC 1.0, gzipped record by record as Common Crawl does (ISO 28500)."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

_DATE = "2019-07-01T12:00:00Z"  # fixed: equal pages give equal files


class WarcWriter:
    """Writes one .warc.gz; a `with` closes it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")
        self._write("warcinfo", "", "application/warc-fields", b"software: roibeam toyworld\r\nformat: WARC/1.0\r\n")

    def add(self, url: str, body: bytes, content_type: str) -> None:
        """One answer of a server.

        Args:
            content_type: as in the HTTP header.
        """
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write("response", url, "application/http; msgtype=response", head.encode("ascii") + body)

    def _write(self, kind: str, url: str, content_type: str, block: bytes) -> None:
        digits = hashlib.sha256(f"{kind} {url} {Path(self._file.name).name}".encode()).hexdigest()
        name = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"
        lines = [
            "WARC/1.0", f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{name}>", f"WARC-Date: {_DATE}",
            *([f"WARC-Target-URI: {url}"] if url else []),
            f"Content-Type: {content_type}", f"Content-Length: {len(block)}",
        ]  # fmt: skip
        record = "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + block + b"\r\n\r\n"
        self._file.write(gzip.compress(record, compresslevel=6, mtime=0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
