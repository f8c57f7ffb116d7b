"""robots.txt (RFC 9309): what it forbids is not asked for, and no file makes a run slow, large or loud."""

import gzip
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from faulty_server import image, write_list
from odd_servers import serving

from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
from roibeam.pipelines.data.download.limits import DownloadLimits
from roibeam.pipelines.data.download.robots import MAX_ROBOTS_BYTES, read_robots

FOR_ALL = "User-agent: *\nDisallow: /private/\nAllow: /private/open\nDisallow: /*.gif$\nDisallow: /search?q=*&page\n"


@pytest.mark.parametrize(
    "text, path, rule",
    [
        ("", "/a.jpg", None),
        (FOR_ALL, "/a.jpg", None),
        (FOR_ALL, "/private/a.jpg", "Disallow: /private/"),
        (FOR_ALL, "/private/open/a.jpg", None),  # the longer rule decides
        (FOR_ALL, "/x/a.gif", "Disallow: /*.gif$"),
        (FOR_ALL, "/x/a.gif?w=3", None),
        (FOR_ALL, "/search?q=dog&page=3", "Disallow: /search?q=*&page"),
        (FOR_ALL, "/robots.txt", None),
        (FOR_ALL + "User-Agent: Roibeam/1.0\nDisallow:\n", "/private/a.jpg", None),  # a group of our own counts alone
        ("user-agent: a\nuser-agent: roibeam\n\nDISALLOW : /x # why\n", "/x/1.jpg", "Disallow: /x"),
        ("User-agent: roibeam\nDisallow: /a\nUser-agent: b\nDisallow: /b\nUser-agent: roibeam\nDisallow: /c",
         "/c/1.jpg", "Disallow: /c"),  # groups of one name are one
        ("User-agent: googlebot\nDisallow: /", "/a.jpg", None),
        ("\ufeffUser-agent: *\r\nDisallow: /\u00e4", "/%C3%A4.jpg", "Disallow: /%C3%A4"),
        ("Disallow: /\n", "/a.jpg", None),  # without a user agent
        ("User-agent: *\nAllow: /a\nDisallow: /a\n", "/a", None),
        ("User-agent: *\nDisallow: *\n", "/a", "Disallow: *"),
        ("User-agent: *\rDisallow: /\r", "/a", "Disallow: /"),  # CR alone ends a line, too
        ("User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n", "/a",
         "Content-Signal: search=yes,ai-train=no"),
        ("User-agent: *\nContent-Signal: ai-train=yes\nContent-Usage: /b/ train-ai=n\n", "/a", None),
        ("User-agent: *\nAllow: /\nContent-Usage: /b/ train-ai=n\n", "/b/a", "Content-Usage: /b/ train-ai=n"),
        ("User-agent: b\nContent-Usage: train-ai=n\nUser-agent: *\nAllow: /\n", "/a", None),
        ("User-agent: *\nContent-Usage: train-ai=n\nUser-agent: roibeam\nAllow: /\n", "/a", None),
        ("<html>\x00\x07: :::\nUser-agent\n" * 50, "/a", None),
    ],
)  # fmt: skip
def test_which_rule_decides(text: str, path: str, rule: str | None) -> None:
    assert read_robots(text.removeprefix("\ufeff")).refusal(path) == rule


def test_a_group_of_the_name_that_servers_see_counts() -> None:
    text = "User-agent: mylab\nDisallow: /a\nUser-agent: roibeam\nDisallow: /b\nUser-agent: *\nDisallow: /c\n"
    rules = read_robots(text, ("roibeam", "mylab"))
    assert [rules.refusal(path) is None for path in ("/a", "/b", "/c")] == [False, False, True]
    assert read_robots("User-agent: lab2\nDisallow: /", ("roibeam", "lab")).refusal("/a") is None


def test_a_hostile_pattern_takes_no_time() -> None:
    rules = read_robots("User-agent: *\n" + f"Disallow: /{'a*' * 200}b$\n" * 1000)
    started = time.perf_counter()
    assert rules.refusal("/" + "a" * 2000) is None
    assert time.perf_counter() - started < 2


class _Host(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, robots: tuple[int, bytes, str], asked: Counter[str]) -> None:
        self._robots, self._asked = robots, asked
        super().__init__(*args)

    def do_GET(self) -> None:
        self._asked[self.path] += 1
        status, body, place = self._robots if self.path == "/robots.txt" else (200, image(len(self.path)), "")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if place:
            self.send_header("Location", place)
        if body.startswith(b"\x1f\x8b"):
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read what was asked in `asked`."""


@contextmanager
def host(status: int, robots: str | bytes = "", place: str = "") -> Iterator[tuple[str, Counter[str]]]:
    """Address of a server with such a robots.txt, and what it was asked for."""
    asked = Counter[str]()
    body = robots.encode() if isinstance(robots, str) else robots
    handler = partial(_Host, robots=(status, body, place), asked=asked)
    with serving(handler) as port:
        yield f"http://127.0.0.1:{port}", asked


def test_each_host_is_asked_once_and_obeyed(tmp_path: Path) -> None:
    hosts = {
        "open": (404, "", ""),
        "closed": (200, FOR_ALL, ""),
        "broken": (503, "", ""),
        "long": (200, "User-agent: *\nDisallow: /private\n" + "# \n" * MAX_ROBOTS_BYTES + "Disallow: /", ""),
        "moved": (301, "", "/elsewhere-private.txt"),  # which is no robots.txt: it forbids nothing
        "inside": (302, "", "http://169.254.169.254/robots.txt"),
    }
    with ExitStack() as stack:
        served = {name: stack.enter_context(host(*robots)) for name, robots in hosts.items()}
        urls = [f"{address}/{path}/{at}.jpg" for address, _ in served.values() for path in ("a", "private")
                for at in range(10)]  # fmt: skip
        rows = write_list(tmp_path / "list.tsv", urls)
        limits = DownloadLimits(attempts=1, connect_seconds=5)
        options = DownloadOptions(limits, ("127.0.0.1",), reads_robots_txt=True)
        coverage = run_download(rows, tmp_path / "out", options)
        failures = {"robots.txt": 20, "HTTP 503": 20, "private address": 20}
        assert coverage.images == 60 and dict(coverage.failures) == failures
        private = {name: sum(path.startswith("/private/") for path in asked) for name, (_, asked) in served.items()}
        assert private == {"open": 10, "closed": 0, "broken": 0, "long": 0, "moved": 10, "inside": 0}
        assert [served[name][1]["/robots.txt"] for name in ("open", "closed", "long", "moved")] == [1] * 4
        letters = pq.read_table(tmp_path / "out" / "dead_letters.parquet").to_pylist()
        refused = next(letter["detail"] for letter in letters if letter["reason"] == "robots.txt")
        assert refused.endswith("/robots.txt: Disallow: /private/") or refused.endswith("Disallow: /private")
        again = DownloadOptions(limits, ("127.0.0.1",), retry_dead_letters=True)
        assert run_download(rows, tmp_path / "out", again).images == 120  # no request without the option


@pytest.mark.parametrize(
    "behind, cut, num_images, reason",
    [
        (0, None, 2, "robots.txt"),
        (50_000_000, None, 2, "robots.txt"),  # unpacked no further than is read
        (0, -9, 0, "damaged encoding"),  # who knows what the rest forbids
    ],
)
def test_a_gzipped_file_is_obeyed(tmp_path: Path, behind: int, cut: int | None, num_images: int, reason: str) -> None:
    robots = gzip.compress(FOR_ALL.encode() + bytes(behind), 1)[:cut]
    with host(200, robots) as (address, asked):
        paths = ("a/1", "private/1", "a/2", "private/2")
        rows = write_list(tmp_path / "list.tsv", [f"{address}/{path}.jpg" for path in paths])
        options = DownloadOptions(DownloadLimits(attempts=1), ("127.0.0.1",), reads_robots_txt=True)
        coverage = run_download(rows, tmp_path / "out", options)
        assert coverage.images == num_images and dict(coverage.failures) == {reason: 4 - num_images}
        assert not any(path.startswith("/private/") for path in asked)
