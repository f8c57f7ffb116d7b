"""The parts of a download that need no server."""

import asyncio
import json
import zlib
from io import FileIO
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from roibeam.pipelines.data.datasets.rows import BadRow, UrlRow
from roibeam.pipelines.data.datasets.tables import UrlColumns
from roibeam.pipelines.data.download.download_folder import FailedRow, Journal, StoredImage
from roibeam.pipelines.data.download.download_run import OutageWatch
from roibeam.pipelines.data.download.fetcher import HostGates, _retry_after
from roibeam.pipelines.data.download.limits import AddressRule, PrivateAddressError, is_public
from roibeam.pipelines.data.download.response import Body, DownloadError, LocalFaultError
from roibeam.pipelines.data.download.robots import agent_names, refusal, usage_directives
from roibeam.pipelines.data.download.url_list import UrlList


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "224.0.0.251", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::",
        "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "2002:7f00:1::1", "64:ff9b::a9fe:a9fe", "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "168.63.129.16", "192.0.0.192", "192.88.99.1", "3fff::1", "3fff:fff::1", "::ffff:168.63.129.16",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(PrivateAddressError):
        AddressRule().open_socket((2, 1, 6, "", (address, 80)))


PUBLIC = ("8.8.8.8", "168.63.129.17", "192.88.100.1", "151.101.1.69", "2606:4700::1111")


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_networks_that_the_user_allows_and_no_others() -> None:
    rule = AddressRule(["10.1.0.0/16", "fe80::/10"])
    allowed = ["10.1.2.3", "fe80::1%eth0", "8.8.8.8", "10.2.0.1", "127.0.0.1", "::1"]
    assert [rule.allows(address) for address in allowed] == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("values", "directive"),
    [
        ([], None),
        (["all"], None),
        (["noai"], "noai"),
        (["nofollow, NoImageAI"], "noimageai"),
        (["nofollow", "noindex"], "noindex"),
        (["none"], "none"),
        (["otherbot: noai, noindex"], None),
        (["otherbot: noai, roibeam: noindex"], "noindex"),
        (["Roibeam: noimageindex"], "noimageindex"),
        (["*: noai"], "noai"),
        (["max-image-preview: none"], None),  # a value, not a refusal
        (["max-image-preview: large, noai"], "noai"),  # what follows a value concerns everybody all the same
        (["unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT, noai"], "noai"),
        (["notnoai"], None),
        (["noai noimageai"], "noai"),  # without a comma
        (["mylab: noai"], None),
        (["tdm-reservation: 1"], "tdm-reservation: 1"),
        (["tdm-reservation: 0"], None),
        (["content-usage: search=y, train-ai=n"], "content-usage: train-ai=n"),
        (["content-usage: train-ai=y"], None),
    ],
)
def test_opt_out_headers(values: list[str], directive: str | None) -> None:
    assert refusal(values) == directive


@pytest.mark.parametrize(
    ("user_agent", "names"),
    [
        ("MyLab-bot/1.0 (+mailto:me@mylab.org)", ("roibeam", "mylab-bot")),
        ("Mozilla/5.0 (compatible; lab2/1.0; +https://mylab.org)", ("roibeam", "lab2")),
        ("Mozilla/5.0 (X11; Linux x86_64)", ("roibeam",)),
        ("Mozilla/5.0 (compatible; roibeam/1.0)", ("roibeam",)),
        ("", ("roibeam",)),
    ],
)
def test_a_site_may_call_us_what_its_log_calls_us(user_agent: str, names: tuple[str, ...]) -> None:
    assert agent_names(user_agent) == names
    assert refusal([f"otherbot: noai, {names[-1]}: noindex"], names) == "noindex"


def test_headers_that_speak_of_use() -> None:
    headers = {"X-Robots-Tag": ["all", "nofollow"], "tdm-reservation": ["1"]}
    assert usage_directives(lambda name: headers.get(name, ())) == ("all", "nofollow", "tdm-reservation: 1")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("0", 0.0), (" 17 ", 17.0), ("9" * 5000, 999_999_999.0), ("soon", None), ("-3", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 32 Oct 2015 07:28:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert _retry_after(value) == seconds


@pytest.mark.parametrize("wbits", [31, 15], ids=["gzip", "zlib"])
def test_a_compressed_body_in_single_bytes(tmp_path: Path, wbits: int) -> None:
    data = bytes(range(256)) * 5000
    with (tmp_path / "body").open("wb", buffering=0) as file:
        body = Body(file, encoding=" GZip" if wbits == 31 else "deflate", max_bytes=len(data))
        for byte in zlib.compress(data, wbits=wbits):
            body.add(bytes([byte]))
        body.finish()
    assert (tmp_path / "body").read_bytes() == data
    assert body.num_bytes == len(data)


def test_a_compressed_body_without_its_end_is_cut_and_worth_another_try(tmp_path: Path) -> None:
    with (tmp_path / "body").open("wb", buffering=0) as file:
        body = Body(file, encoding="gzip", max_bytes=10_000)
        body.add(zlib.compress(bytes(5000), wbits=31)[:-9])
        with pytest.raises(DownloadError, match="before their end mark") as raised:
            body.finish()
    assert raised.value.may_pass


def test_a_file_that_takes_little_at_once_gets_all(tmp_path: Path) -> None:
    class Little(FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:3]))

    with Little(tmp_path / "body", "wb") as file:
        Body(file, encoding="", max_bytes=100).add(b"0123456789")
    assert (tmp_path / "body").read_bytes() == b"0123456789"


def test_a_bomb_is_never_unpacked_beyond_the_limit(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(100_000_000), wbits=31)
    with (tmp_path / "body").open("wb", 0) as file, pytest.raises(DownloadError, match="the limit of 1000000 bytes"):
        Body(file, encoding="gzip", max_bytes=1_000_000).add(bomb)
    assert (tmp_path / "body").stat().st_size <= 1_000_000


def test_a_full_disk_is_no_fault_of_the_url() -> None:
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(LocalFaultError, match="No space left on device"):
        Body(file, encoding="", max_bytes=100).add(b"x")


def test_a_pause_holds_back_whoever_comes_to_that_host_only() -> None:
    async def visits() -> list[str]:
        gates, order = HostGates(per_host=2), list[str]()

        async def visit(host: str, name: str) -> None:
            async with gates.turn(host):
                order.append(name)

        async with gates.turn("a"):
            gates.pause("a", 0.05)
        await asyncio.gather(visit("a", "later"), visit("b", "at once"), visit("a", "later"))
        assert not gates._gates or list(gates._gates) == ["a"]
        return order

    assert asyncio.run(visits()) == ["at once", "later", "later"]


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    async def closed_for() -> float:
        gates = HostGates(per_host=2)
        async with gates.turn("a"):
            gates.pause("a", 60)
            gates.pause("a", 0.01)
            return gates._gates["a"].closed_until - monotonic()

    assert 50 < asyncio.run(closed_for()) <= 60


def test_turns_at_a_host_are_counted_and_forgotten() -> None:
    async def largest() -> int:
        gates, open_now, largest = HostGates(per_host=3), 0, 0

        async def visit() -> None:
            nonlocal open_now, largest
            async with gates.turn("a"):
                open_now += 1
                largest = max(largest, open_now)
                await asyncio.sleep(0)
                open_now -= 1

        await asyncio.gather(*(visit() for _ in range(20)))
        assert gates._gates == {}
        return largest

    assert asyncio.run(largest()) == 3


STORED, FAILED = StoredImage("images/00000/00000000.jpg", 3, "ab"), FailedRow("fetch", "HTTP 404", "gone")


def journal(path: Path, *written: tuple[int, StoredImage | FailedRow]) -> Journal:
    """One of a list of four rows; `written` is added to it."""
    opened = Journal(path, list_sha256="aa", num_rows=4)
    if written:
        opened.append(written)
    return opened


def journal_of_two(path: Path) -> bytes:
    """The bytes of a journal of an image and a failure."""
    journal(path, (0, STORED), (1, FAILED)).close()
    return path.read_bytes()


def test_a_journal_read_again_says_what_was_written(tmp_path: Path) -> None:
    written = journal(tmp_path / "journal", (2, FAILED), (0, STORED))
    written.append([(3, FAILED)])
    written.close()
    read = journal(tmp_path / "journal")
    assert [read.outcome(row) for row in range(5)] == [STORED, None, FAILED, FAILED, None]
    assert (read.num_stored, read.failures) == (1, {"HTTP 404": 2})
    assert list(read.rows(stored=True)) == [0]
    read.forget(2)
    stored = StoredImage("images/00000/00000002.jpg", 3, "ab")
    read.append([(2, stored)])
    read.close()
    assert journal(tmp_path / "journal").outcome(2) == stored
    assert journal(tmp_path / "journal").failures == {"HTTP 404": 1}


def test_a_journal_cut_at_any_byte_keeps_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = journal_of_two(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        cut = journal(path)
        num_lines = data[:length].count(b"\n")
        assert [cut.outcome(0), cut.outcome(1)] == [STORED if num_lines > 1 else None, None]
        cut.append([(row, outcome) for row, outcome in enumerate([STORED, FAILED]) if not cut.is_known(row)])
        cut.close()
        assert path.read_bytes() == data


OUTCOME = {"stage": "a", "reason": "b", "detail": "c"}
SECRET = {"path": "../secret.jpg", "num_bytes": 3, "sha256": "ab"}


@pytest.mark.parametrize(
    "line",
    [
        b"{]", b"[1]", b'{"row": 1}', json.dumps({"row": 99, **OUTCOME}).encode(),
        json.dumps({"row": -1, **OUTCOME}).encode(), json.dumps({"row": 1, "path": 5}).encode(),
        json.dumps({"row": 1, **SECRET}).encode(),
    ],
)  # fmt: skip
def test_damaged_lines_of_a_journal_are_removed(tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal"
    journal(path, (0, STORED)).close()
    data = path.read_bytes()
    of_earlier = [each.partition(b', "sum"')[0] + b"}\n" for each in data.splitlines()]
    path.write_bytes(b"".join(of_earlier) + line + b"\n")
    assert [journal(path).outcome(row) for row in range(4)] == [STORED, None, None, None]
    assert "1 line is damaged, such as line 3" in caplog.text and path.read_bytes() == data


def test_a_bit_of_a_journal_costs_its_line_alone(tmp_path: Path) -> None:
    """The first line too, which says what list it is of: each sum is of the list as well."""
    path = tmp_path / "journal"
    data = journal_of_two(path)
    line_of = [data[:place].count(b"\n") for place in range(len(data))]
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        read = journal(path)
        assert [read.outcome(0) in (STORED, None), read.outcome(1) in (FAILED, None)] == [True, True]
        hurt, found = line_of[place], [True, read.is_known(0), read.is_known(1)]
        assert all(found[:hurt]) and (not hurt or not found[hurt]), place
        read.close()
    path.write_bytes(bytes(len(data)))
    with pytest.raises(ValueError, match="no line of it names its list"):
        journal(path)


def test_a_list_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    path.write_text("a\thttp://a.example/1.jpg\n")
    url_list = UrlList(str(path))
    path.write_text(path.read_text() + "b\thttp://a.example/2.jpg\n")
    with pytest.raises(ValueError, match="changed while it was read"):
        list(url_list.rows())


def test_the_first_row_of_a_url(tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    names = ["a", "b", "a", None, "c", "b", "a"]
    path.write_text("".join(f"x\thttp://h.example/{name}\n" if name else "\n" for name in names))
    url_list = UrlList(str(path))
    assert [url_list.first_row(row) for row in (0, 1, 2, 4, 5, 6)] == [0, 1, 0, 4, 1, 0]
    assert (url_list.num_rows, url_list.num_urls, url_list.last_row) == (6, 3, 6)


def test_conceptual_12m_has_its_columns_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "cc12m.tsv"
    path.write_text("https://a/1.jpg\ta dog\nhttp://b\thttps://c/2.jpg\na cat\timages/3.jpg\n")
    rows = [row for _, row in UrlList(str(path)).rows()]
    assert rows == [
        UrlRow(1, "a dog", "https://a/1.jpg"),
        UrlRow(2, "https://c/2.jpg", "http://b"),  # the order is that of the file, whatever a row looks like
        BadRow(3, "no http or https URL"),
    ]


ROWS = [("https://a/1.jpg", "a dog"), ("https://a/2.jpg", " "), ("file:///etc/passwd", "a cat"), ("http://b/3", "x, y")]


@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_a_table_gives_the_rows_of_its_columns(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"laion{kind}"
    table = pa.table({"TEXT": [row[1] for row in ROWS], "similarity": [0.3] * 4, "URL": [row[0] for row in ROWS]})
    pq.write_table(table, path) if kind == ".parquet" else csv.write_csv(table, path)
    url_list = UrlList(str(path))
    bad = (BadRow(2, "empty caption"), BadRow(3, "no http or https URL"))
    rows = [UrlRow(1, "a dog", "https://a/1.jpg"), *bad, UrlRow(4, "x, y", "http://b/3")]
    assert [row for _, row in url_list.rows()] == rows
    assert url_list.row_word == "row" and url_list.state == url_list.sha256
    # Other columns give other images: the folder of a download belongs to one choice.
    assert UrlList(str(path), UrlColumns(url="URL")).state != url_list.state


def test_a_damaged_row_of_a_csv_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    lines = (b"\xef\xbb\xbfurl,caption", b"http://a/1,one", b'http://a/2,"two', b"http://a/3,th\xffree", b"http://a/4")
    path.write_bytes(b"\r\n".join((*lines, b"http://a/5,five")))
    reasons = ["quote that is opened there and not closed", "not UTF-8", "another number of fields than the header"]
    bad = [BadRow(number, reason) for number, reason in enumerate(reasons, start=2)]
    rows = [UrlRow(1, "one", "http://a/1"), *bad, UrlRow(5, "five", "http://a/5")]
    assert [row for _, row in UrlList(str(path)).rows()] == rows


@pytest.mark.parametrize(
    ("name", "content", "columns", "words"),
    [
        ("a.csv", "link,caption\nhttp://a/1,x\n", UrlColumns(), "no column url or image_url; choose with --url-column"),
        ("a.csv", "url,text,caption\nhttp://a/1,x,y\n", UrlColumns(), "more than one column may be .*--caption-column"),
        ("a.csv", "url,text\nhttp://a/1,x\n", UrlColumns(caption="TEXT"), "no such column; did you mean text"),
        ("a.csv", "", UrlColumns(), "nothing in it"),
        ("a.csv", "url,caption\nhttp://a/1,\n", UrlColumns(), "no row with a caption and a URL; row 1: empty caption"),
        ("a.parquet", "url,caption\n", UrlColumns(), "no parquet file, or a damaged one"),
        ("a.tsv", "x\thttp://a/1\n", UrlColumns(url="u"), "are for a table"),
        ("a.txt", "http://a/1\n", UrlColumns(), "expected a Conceptual Captions .tsv"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_used_is_one_line(
    tmp_path: Path, name: str, content: str, columns: UrlColumns, words: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        UrlList(str(tmp_path / name), columns)


def test_another_least_side_needs_another_folder(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, list_sha256="aa", num_rows=1, min_side=100).close()
    with pytest.raises(ValueError, match="was begun with --min-side 100, not 300"):
        Journal(path, list_sha256="aa", num_rows=1, min_side=300)
    path.write_text(path.read_text().partition(', "min_side"')[0] + "}\n")  # one of an earlier version
    Journal(path, list_sha256="aa", num_rows=1, min_side=300).close()


def test_a_dead_network_is_told_from_dead_links() -> None:
    dead, gone = FailedRow("connect", "host not found", ""), FailedRow("fetch", "HTTP 404", "")
    watch, written = OutageWatch(), list[int]()

    def note(row: int, host: int, outcome: FailedRow) -> None:
        written.extend(number for number, _ in watch.note(row, f"http://host{host}.example/{row}.jpg", outcome))

    for row in range(399):
        note(row, row, dead)
    assert written == []
    note(399, 0, gone)  # a server says no: the network is there, and the others were dead links
    assert written == list(range(400))
    for row in range(400, 5400):
        note(row, row % 50, dead)  # few hosts, all dead
    note(5400, 0, FailedRow("url", "not a URL", ""))  # says nothing of the network
    assert sorted(written) == [*range(5001), 5400]
    note(5401, 0, gone)
    assert sorted(written) == list(range(5402))
    with pytest.raises(LocalFaultError, match="is the network up"):
        for row in range(5402, 6000):
            note(row, row, dead)
    assert sorted(written) == list(range(5402))  # a row without an answer has no outcome


def test_what_is_held_back_at_the_end_of_a_list_is_written() -> None:
    watch, dead = OutageWatch(), FailedRow("fetch", "timeout", "")
    assert watch.note(7, "http://a.example/", dead) == []
    assert watch.release() == [(7, dead)]
    assert watch.release() == []
