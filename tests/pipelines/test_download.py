"""`roibeam download` against a server that does everything wrong."""

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from disk_steps import noted_disk_steps
from faulty_server import EXPECTED, OK, FaultyServer, image, serve, write_list
from killed_download import content
from tiny_commands import Cli, ok

from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.download.download_folder import Coverage
from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
from roibeam.pipelines.data.download.limits import DownloadLimits
from roibeam.pipelines.data.source_kinds import open_source

LIMITS = DownloadLimits(
    connections=32, per_host=32, attempts=2, connect_seconds=5, stall_seconds=0.5, total_seconds=1.5,
    backoff_seconds=0.01, max_redirects=3, max_bytes=1_000_000,
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with serve() as server:
        yield server


def download(rows: str, out: Path, **options: Any) -> Coverage:
    resolver = options.pop("resolver", None)
    given = {"limits": LIMITS, "allow_private": ("127.0.0.1",)} | options
    return run_download(rows, out, DownloadOptions(**given), resolver=resolver)


def letters(out: Path) -> dict[int, tuple[str, str]]:
    table = pq.read_table(out / "dead_letters.parquet").to_pylist()
    assert len({letter["image_id"] for letter in table}) == len(table)
    return {int(letter["image_id"][-8:]): (letter["stage"], letter["reason"]) for letter in table}


def images(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(out).items() if name.startswith("images/")}


@pytest.mark.faults
def test_each_fault_has_its_reason_and_every_good_image_is_stored_once(server: FaultyServer, tmp_path: Path) -> None:
    kinds = list(EXPECTED)
    rows = write_list(tmp_path / "list.tsv", [server.url(kind, row) for row, kind in enumerate(kinds)])
    coverage = download(rows, tmp_path / "out")
    found = letters(tmp_path / "out")
    assert {kind: found.get(row, OK) for row, kind in enumerate(kinds)} == EXPECTED
    good = [row for row, kind in enumerate(kinds) if EXPECTED[kind] == OK]
    kept = images(tmp_path / "out")
    suffixes = {row: ".png" if kinds[row] == "png" else ".jpg" for row in good}
    assert kept == {f"images/00000/{row:08d}{suffix}": image(row, suffix) for row, suffix in suffixes.items()}
    assert coverage.images == coverage.captions == len(good)
    assert coverage.num_bytes == sum(map(len, kept.values()))
    assert coverage.failures.total() == len(kinds) - len(good)
    others = {path.name for path in (tmp_path / "out").iterdir()}  # and nothing else is left
    assert others == {"images", "local.tsv", "dead_letters.parquet", "download.json", "journal.jsonl"}


def test_the_source_of_extract_reads_what_was_downloaded(server: FaultyServer, tmp_path: Path) -> None:
    urls = [server.url("good", 3), server.url("404"), server.url("good", 3), server.url("png", 5)]
    download(write_list(tmp_path / "list.tsv", urls), tmp_path / "out")
    source = open_source(str(tmp_path / "out" / "local.tsv"))
    assert [image.image_id for image in source.images] == ["images/00000/00000000", "images/00000/00000003"]
    assert all(Path(image.location).is_file() for image in source.images)
    captions, notes = read_captions(str(tmp_path / "out" / "local.tsv"))
    assert [(caption.name, caption.text) for caption in captions] == [
        ("images/00000/00000000.jpg", "caption 0"),
        ("images/00000/00000000.jpg", "caption 2"),  # the same URL again: one image, two captions
        ("images/00000/00000003.png", "caption 3"),
    ]
    assert notes == []


def test_one_url_in_many_rows_is_asked_for_once(server: FaultyServer, tmp_path: Path) -> None:
    urls = [server.url("good", 1)] * 50 + [server.url("404", 1)] * 50
    coverage = download(write_list(tmp_path / "list.tsv", urls), tmp_path / "out")
    assert server.requests == {"/good/1.jpg": 1, "/404/1.jpg": 1}
    assert (coverage.rows, coverage.captions, coverage.urls, coverage.images) == (100, 50, 2, 1)
    assert letters(tmp_path / "out") == {50: ("fetch", "HTTP 404")}
    assert coverage.failed_share == 0.5


def test_bad_rows_of_a_list_are_dead_letters_too(server: FaultyServer, tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    path.write_bytes(
        f"one\t{server.url('good')}\r\n\nno url\n\t{server.url('good')}\n".encode()
        + b"\xe9\tx\nlocal\tphotos/a.jpg\nftp\tftp://127.0.0.1/a.jpg\n"
    )
    coverage = download(str(path), tmp_path / "out")
    assert letters(tmp_path / "out") == {
        2: ("list", "no tab"), 3: ("list", "empty caption"), 4: ("list", "not UTF-8"),
        5: ("list", "no http or https URL"), 6: ("list", "no http or https URL"),
    }  # fmt: skip
    assert (coverage.rows, coverage.urls, coverage.images) == (6, 1, 1)


def test_sbu_lists_and_captions_with_line_ends(server: FaultyServer, tmp_path: Path) -> None:
    path = tmp_path / "sbu.json"
    urls = [server.url("good", 0), 17, server.url("good", 2)]
    captions = ["a\tcaption\r\nof two lines", "b", "c"]
    path.write_text(json.dumps({"image_urls": urls, "user_ids": ["x", "y", "z"], "captions": captions}))
    download(str(path), tmp_path / "out")
    lines = ("a caption of two lines\timages/00000/00000000.jpg", "c\timages/00000/00000002.jpg\n")
    assert (tmp_path / "out" / "local.tsv").read_text() == "\n".join(lines)
    assert letters(tmp_path / "out") == {1: ("list", "no http or https URL")}


def test_a_rerun_asks_no_server_and_gives_the_same(server: FaultyServer, tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url(kind, 1) for kind in ("good", "404", "html", "png")])
    first = download(rows, tmp_path / "out")
    before, asked = content(tmp_path / "out"), server.requests.copy()
    assert download(rows, tmp_path / "out") == first
    assert content(tmp_path / "out") == before
    assert server.requests == asked
    other = write_list(tmp_path / "other.tsv", [server.url("good")])
    with pytest.raises(ValueError, match="holds images of another list"):
        download(other, tmp_path / "out")


def test_an_image_is_on_the_disk_before_the_journal_says_so(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url("good", 0)])
    steps = noted_disk_steps(monkeypatch)
    download(rows, tmp_path / "out")
    image, journal, report = "file rename folder folder".split(), ["file"], ["file", "replace"]
    first = steps.index("rename") - 1
    assert steps[first : first + 7] == image + journal + report


@pytest.mark.faults
def test_dead_letters_are_tried_again_when_asked(server: FaultyServer, tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url("flaky", 0), server.url("404", 1), server.url("good", 2)])
    hasty = DownloadLimits(attempts=1)
    coverage = download(rows, tmp_path / "out", limits=hasty)
    assert coverage.failures == {"HTTP 500": 1, "HTTP 404": 1}
    coverage = download(rows, tmp_path / "out", limits=hasty, retry_dead_letters=True)
    assert (coverage.images, coverage.failures) == (2, {"HTTP 404": 1})
    assert server.requests == {"/flaky/0.jpg": 2, "/404/1.jpg": 2, "/good/2.jpg": 1}
    assert letters(tmp_path / "out") == {1: ("fetch", "HTTP 404")}


@pytest.mark.faults
def test_images_that_were_lost_cut_or_changed_since_are_fetched_again(server: FaultyServer, tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url("good", row) for row in range(4)])
    download(rows, tmp_path / "out")
    before = content(tmp_path / "out")
    folder = tmp_path / "out" / "images" / "00000"
    (folder / "00000000.jpg").unlink()
    (folder / "00000001.jpg").write_bytes(b"half")
    changed = folder / "00000003.jpg"  # of the same size
    changed.write_bytes(changed.read_bytes()[:-3] + b"abc")
    (folder / "00000002.png").write_bytes(b"of a run that was killed before it wrote this down")
    (tmp_path / "out" / ".tmp").mkdir()
    (tmp_path / "out" / ".tmp" / "00000002").write_bytes(b"half")
    download(rows, tmp_path / "out")
    assert content(tmp_path / "out") == before
    assert server.requests == {"/good/0.jpg": 2, "/good/1.jpg": 2, "/good/2.jpg": 1, "/good/3.jpg": 2}


def test_retry_after_is_waited_for_within_a_limit(server: FaultyServer, tmp_path: Path) -> None:
    """429 with Retry-After: 0 is tried again at once, the one for a day is given up without a second request."""
    rows = write_list(tmp_path / "list.tsv", [server.url("busy"), server.url("429-for-long")])
    coverage = download(rows, tmp_path / "out", limits=DownloadLimits(attempts=3, backoff_seconds=50))
    assert server.requests == {"/busy/0.jpg": 2, "/429-for-long/0.jpg": 1}
    assert coverage.images == 1
    (letter,) = pq.read_table(tmp_path / "out" / "dead_letters.parquet").to_pylist()
    assert letter["detail"] == "Too Many Requests; asks to wait 86400 s, the limit is 60 s (--max-wait)"


def test_a_host_that_keeps_asking_for_long_pauses_is_left_alone(server: FaultyServer, tmp_path: Path) -> None:
    """Also for robots.txt and whatever else is there; a dead letter that may be tried again another day."""
    rows = write_list(tmp_path / "list.tsv", [server.url("429-for-long", row) for row in range(40)])
    coverage = download(rows, tmp_path / "out", limits=DownloadLimits(connections=4, per_host=2))
    assert 5 <= server.requests.total() <= 6  # two were under way
    num_asked = server.requests.total()
    assert coverage.failures == {"HTTP 429": num_asked, "host asks to wait": 40 - num_asked}


def test_a_host_gets_no_more_connections_than_it_may(server: FaultyServer, tmp_path: Path) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url("good", row) for row in range(60)])
    download(rows, tmp_path / "out", limits=DownloadLimits(connections=16, per_host=3))
    assert 1 <= server.largest_num_open <= 3


def test_what_a_server_sends_beyond_its_length_becomes_nobody_elses_image(server: FaultyServer, tmp_path: Path) -> None:
    kinds = ["short-length", "good"] * 20
    rows = write_list(tmp_path / "list.tsv", [server.url(kind, row) for row, kind in enumerate(kinds)])
    limits = DownloadLimits(connections=1, per_host=1, attempts=4, backoff_seconds=0)
    coverage = download(rows, tmp_path / "out", limits=limits)
    assert images(tmp_path / "out") == {f"images/00000/{row:08d}.jpg": image(row) for row in range(1, 40, 2)}
    assert coverage.failures == {"bad HTTP": 20}


@pytest.mark.faults
def test_loopback_is_refused_unless_allowed(server: FaultyServer, tmp_path: Path) -> None:
    urls = [server.url("good"), f"http://localhost:{server.port}/good/1.jpg", f"http://[::1]:{server.port}/good/2.jpg"]
    coverage = download(write_list(tmp_path / "list.tsv", urls), tmp_path / "out", allow_private=())
    assert coverage.failures == {"private address": 3}
    assert not server.requests


class Rebinding(AbstractResolver):
    """A name server of an attacker: another address each time it is asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers.pop(0)
        flags = socket.AI_NUMERICHOST
        return [{"hostname": host, "host": address, "port": port, "family": socket.AF_INET, "proto": 0, "flags": flags}]

    async def close(self) -> None:
        pass


def test_the_address_that_is_connected_to_is_the_one_that_was_checked(server: FaultyServer, tmp_path: Path) -> None:
    """The name means an allowed address first, then a private one: each connection is judged by its own."""
    names = [f"http://photos{row}.example:{server.port}/good/{row}.jpg" for row in range(2)]
    resolver = Rebinding("127.0.0.1", "127.0.0.2")
    limits = DownloadLimits(connections=1, per_host=1, attempts=1)
    coverage = download(write_list(tmp_path / "list.tsv", names), tmp_path / "out", limits=limits, resolver=resolver)
    assert (coverage.images, coverage.failures) == (1, {"private address": 1})
    assert resolver.answers == []  # asked once for each, and not again after the check
    assert server.requests.total() == 1


@pytest.mark.faults
def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    with serve(self_signed(tmp_path / "key.pem")) as server:
        url = f"https://127.0.0.1:{server.port}/good/0.jpg"
        assert download(write_list(tmp_path / "list.tsv", [url]), tmp_path / "out").failures == {"TLS error": 1}
        assert not server.requests


def self_signed(path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    forms = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*forms) + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_we_say_who_we_are_and_ask_for_no_compression(server: FaultyServer, tmp_path: Path) -> None:
    download(write_list(tmp_path / "list.tsv", [server.url("good")]), tmp_path / "out", user_agent="ours/1.0 (a lab)")
    assert b"User-Agent: ours/1.0 (a lab)" in server.headers
    assert b"Accept-Encoding: identity" in server.headers


def test_a_url_is_asked_for_as_it_is_written(server: FaultyServer, tmp_path: Path) -> None:
    names = ["0.jpg?a=%2C,%41+b;c=%e9", "1.jpg?x=y#place", "2.jpg?two words", "3.jpg?é"]
    urls = [server.url("good").removesuffix("0.jpg") + name for name in names]
    assert download(write_list(tmp_path / "list.tsv", urls), tmp_path / "out").images == 4
    asked = ("0.jpg?a=%2C,%41+b;c=%e9", "1.jpg?x=y", "2.jpg?two%20words", "3.jpg?%C3%A9")
    assert server.requests == {f"/good/{name}": 1 for name in asked}


def test_the_command(server: FaultyServer, tmp_path: Path, roibeam: Cli) -> None:
    rows = write_list(tmp_path / "list.tsv", [server.url("good", 0), server.url("404", 1), server.url("404", 2)])
    out, loopback = tmp_path / "out", ("--allow-private", "127.0.0.1")
    done = ok(roibeam("download", rows, out, *loopback))
    assert "1 image (0.0 MB) of 3 URLs, for 1 of 3 rows (33.3 %); 2 dead letters" in done.out
    assert "2 HTTP 404" in done.out
    done = roibeam("download", rows, out, *loopback, "--max-failures", "0.5", "--json")
    assert done.code == 1
    assert "66.7 % of the rows have no image, more than the 50 % of --max-failures" in done.err
    progress, summary = [json.loads(line) for line in done.out.splitlines()][-2:]
    assert (summary["event"], summary["images"], summary["failures"]) == ("summary", 1, {"HTTP 404": 2})
    assert (progress["event"], progress["images"], progress["total"]) == ("progress", 3, 3)
