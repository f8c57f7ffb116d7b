"""The objects of a folder as an S3 server on loopback gives them to Beam's client, each answer after a while.

It can only be read from: listed, asked for sizes and for ranges. moto, which the tests have, needs more CPU time for a
request than a reader of headers does, so it would be moto that is measured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"
PIECE = 2**18


class SlowS3:
    """
    Attributes:
        url: of the server.
        seconds: that each answer waits.
        requests, sent_bytes: how much was asked for, and given in bodies.
    """

    def __init__(self, folder: Path, seconds: float, url: str) -> None:
        self.folder, self.seconds, self.url = folder, seconds, url
        self.requests = self.sent_bytes = 0
        self.lock = threading.Lock()

    def options(self) -> list[str]:
        """Of Beam, which lead s3:// here."""
        return [
            f"--s3_endpoint_url={self.url}", "--s3_access_key_id=k", "--s3_secret_access_key=s",
            "--s3_region_name=us-east-1",
        ]  # fmt: skip

    def count(self, requests: int, sent_bytes: int) -> None:
        with self.lock:
            self.requests += requests
            self.sent_bytes += sent_bytes


@contextmanager
def slow_s3(folder: Path, seconds: float) -> Iterator[SlowS3]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    made = SlowS3(folder, seconds, f"http://127.0.0.1:{server.server_port}")
    server.made = made  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._object(with_body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parse_qs(parts.query):
            self._list(parse_qs(parts.query).get("prefix", [""])[0])
        else:
            self._object(with_body=True)

    def _list(self, prefix: str) -> None:
        made = self._wait()
        entries = "".join(
            f"<Contents><Key>{path.name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;x&quot;</ETag><Size>{path.stat().st_size}</Size></Contents>"
            for path in sorted(made.folder.iterdir())
            if path.name.startswith(prefix)
        )
        count = entries.count("<Key>")
        body = (
            f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{BUCKET}</Name>'
            f"<Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>100000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _object(self, *, with_body: bool) -> None:
        made = self._wait()
        path = made.folder / unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        length = path.stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last or length - 1) + 1
        stop = min(stop, length)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{length}")
        for name, value in {
            "Content-Length": str(stop - start), "Content-Type": "application/x-tar", "ETag": '"x"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self._send(path, start, stop)

    def _send(self, path: Path, start: int, stop: int) -> None:
        made: SlowS3 = self.server.made  # type: ignore[attr-defined]
        with path.open("rb") as file:
            file.seek(start)
            try:
                while start < stop and (data := file.read(min(PIECE, stop - start))):
                    self.wfile.write(data)
                    start += len(data)
                    made.count(0, len(data))
            except (BrokenPipeError, ConnectionResetError):  # the client has what it wanted
                self.close_connection = True

    def _wait(self) -> SlowS3:
        made: SlowS3 = self.server.made  # type: ignore[attr-defined]
        made.count(1, 0)
        time.sleep(made.seconds)
        return made

    def log_message(self, *_: Any) -> None:
        pass


def drop_from_cache(folder: Path) -> None:
    """The next look at these files goes to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
