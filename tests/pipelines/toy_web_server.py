"""Serves the pages and pictures of a toy web on 127.0.0.1, as a site would: with types, and with an opt-out by header
for files whose address has "/optout/" in it; "/moved-inside/" redirects into a private network."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from odd_servers import serving


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, requests: Counter[str], **kwargs: Any) -> None:
        self._requests = requests
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        self._requests[self.path] += 1
        if "/moved-inside/" not in self.path:
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", "http://169.254.169.254/latest/a.jpg")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def end_headers(self) -> None:
        if "/optout/" in self.path:
            self.send_header("X-Robots-Tag", "noai, noimageai")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read what was asked in `requests`."""


@contextmanager
def serve_toy_web(web: Path, port: int = 0) -> Iterator[tuple[int, Counter[str]]]:
    """
    Args:
        web: folder of `roibeam toyworld --web`.
        port: 0 takes a free one, which is not the one that the pages name.
    Yields:
        The port, and how often each path was asked for.
    """
    requests = Counter[str]()
    handler = partial(_Handler, directory=str(web / "site"), requests=requests)
    with serving(handler, port) as chosen:
        yield chosen, requests
