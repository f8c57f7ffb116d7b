"""A real S3 server (moto, on loopback) behind a proxy that answers badly: 500 and 503, answers cut in their middle,
lines closed before and after the request was done."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

import pytest

KEYS = {"key": "k", "secret": "s"}
FAULTS = ("503", "500 after it was done", "cut in its middle", "closed before", "closed after")


class FaultyS3:
    def __init__(self, server: tuple[str, int], url: str, seed: int) -> None:
        self.server, self.url = server, url  # the latter of the proxy
        # Environment variables that lead s3:// to it.
        self.settings = {"FSSPEC_S3_ENDPOINT_URL": url} | {f"FSSPEC_S3_{key.upper()}": KEYS[key] for key in KEYS}
        self.share = 0.0  # of requests that are answered badly, drawn from a seed
        self.requests: Counter[str] = Counter()  # by method
        self.faults: Counter[str] = Counter()
        # Called with method and path of each request that is let through; may end a process.
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._random, self._lock = random.Random(seed), threading.Lock()

    def drawn_fault(self, method: str) -> str | None:
        with self._lock:
            self.requests[method] += 1
            if self._random.random() >= self.share:
                return None
            fault = self._random.choice(FAULTS)
            self.faults[fault] += 1
            return fault

    def files(self) -> Any:
        """The bucket as it is, past the faults."""
        import s3fs

        direct = "http://{}:{}".format(*self.server)
        return s3fs.S3FileSystem(endpoint_url=direct, use_listings_cache=False, skip_instance_cache=True, **KEYS)


@contextmanager
def faulty_s3(seed: int = 1) -> Iterator[FaultyS3]:
    """A server with an empty bucket, `bucket`, and a proxy before it, which fails as `share` says."""
    pytest.importorskip("s3fs", reason="needs s3fs (the extra dev or remote)")
    moto = pytest.importorskip("moto.server", reason="needs moto and flask (the extra dev)")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    proxy.daemon_threads = True
    made = FaultyS3((host, port), f"http://127.0.0.1:{proxy.server_port}", seed)
    proxy.made = made  # type: ignore[attr-defined]
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        # moto keeps its buckets per process, past the end of a server.
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        made.files().mkdir("bucket")
        yield made
    finally:
        proxy.shutdown()
        proxy.server_close()
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        made: FaultyS3 = self.server.made  # type: ignore[attr-defined]
        body = self._body()
        made.before(self.command, self.path)
        fault = made.drawn_fault(self.command)
        if fault == "closed before":
            self.close_connection = True
            return
        if fault == "503":
            self._answer(503, {"Content-Type": "application/xml"}, _error("SlowDown"))
            return
        line = http.client.HTTPConnection(*made.server, timeout=60)
        line.request(self.command, self.path, body, dict(self.headers))
        answer = line.getresponse()
        data, headers = answer.read(), dict(answer.headers)
        line.close()
        if fault == "closed after":
            self.close_connection = True
        elif fault == "500 after it was done":
            self._answer(500, {"Content-Type": "application/xml"}, _error("InternalError"))
        else:
            self._answer(answer.status, headers, data, cut=fault == "cut in its middle")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        del self.headers["Transfer-Encoding"]
        self.headers["Content-Length"] = str(sum(map(len, parts)))
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        left_out = {"content-length", "transfer-encoding", "connection", "date", "server"}
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("Content-Length", headers.get("Content-Length", "0"))
            data = b""
        elif status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>of the test</Message></Error>".encode()
