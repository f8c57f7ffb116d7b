"""Web servers of a folder: as `python -m http.server`, without ranges or sizes, or with hostile answers."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENDLESS_BYTES = 12 * 2**30  # endless enough: no test may take it
_BOMB = gzip.compress(b" " * 2**28)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, modes: dict[str, str], **kwargs: Any) -> None:
        self._modes = modes
        super().__init__(*args, **kwargs)

    def do_HEAD(self) -> None:
        if self._mode() == "no HEAD":
            self.send_error(501)
        else:
            self.do_GET(with_body=False)

    def do_GET(self, *, with_body: bool = True) -> None:
        path = Path(self.translate_path(self.path))
        mode = self._mode()
        if mode == "plain" or not path.is_file():
            super().do_GET() if with_body else super().do_HEAD()
            return
        try:
            self._answer(mode, path.read_bytes(), with_body)
        except OSError:  # the reader has seen enough
            self.close_connection = True

    def _mode(self) -> str:
        return next((mode for ending, mode in self._modes.items() if self.path.endswith(ending)), "plain")

    def _answer(self, mode: str, data: bytes, with_body: bool) -> None:
        headers: dict[str, object] = {}
        status, start, stop = 200, 0, len(data)
        if "range" in self.headers and "range" in mode:
            first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or stop) + 1, stop)
            if start >= len(data):
                self.send_error(416)
                return
            total, length = len(data) + 1000 * (mode == "ranges of more"), stop - start
            if mode == "other range":
                start, stop = start + 1, stop + 1
            status, headers = 206, {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
            if mode == "short range":
                stop = start + length // 2
            if mode != "long range":
                headers["Content-Length"] = len(data[start:stop])
        elif mode == "declared":
            headers = {"Content-Length": 10**13}
        elif mode == "bomb":
            data, stop, headers = _BOMB, len(_BOMB), {"Content-Length": len(_BOMB), "Content-Encoding": "gzip"}
        elif mode == "loop":
            status, headers = 302, {"Location": self.path.partition("?")[0] + "?x", "Content-Length": 0}
        elif mode not in ("endless", "no size", "no HEAD"):
            headers = {"Content-Length": len(data)}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if not with_body or mode == "loop":
            return
        for at in range(start, stop if mode == "slow" else start):
            self.wfile.write(data[at : at + 1])
            time.sleep(0.05)
        self.wfile.write(data[start:stop])
        for _ in range(ENDLESS_BYTES // 2**20 if mode in ("endless", "declared", "long range") else 0):
            self.wfile.write(b" " * 2**20)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read what a command says."""


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """Serves on this machine while the block runs; yields the port, a free one for 0."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def serve_oddly(folder: Path, modes: dict[str, str]) -> Iterator[str]:
    """Yields the URL of a folder.

    Args:
        modes: how a path ends -> what is odd about it; may be changed meanwhile. Other files are served plainly.
    """
    with serving(partial(_Handler, directory=str(folder), modes=modes)) as port:
        yield f"http://127.0.0.1:{port}"
