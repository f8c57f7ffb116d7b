"""SBU captioned photos: sbu-captions-all.json with three parallel lists, "image_urls", "user_ids" and "captions".

`read_sbu` takes the photos as local: the last part of a URL is the file's name, as wget and curl -O save it. A path in
place of a URL is taken as written. `read_sbu_urls` gives the URLs to download.

Id rule: that name or path without its extension ("http://static.flickr.com/2723/4385058960_b0f291553e.jpg" ->
"4385058960_b0f291553e").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from roibeam.pipelines.common.files.image_ids import image_id_of, is_utf8, path_below
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets.json_pieces import read_json_members
from roibeam.pipelines.data.datasets.rows import BadRow, CaptionRow, UrlRow, caption_text, is_web_url

EXPECTED = 'an SBU file with "image_urls" and "captions" lists'


def read_sbu(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order, numbered from 1. The file has all URLs before the captions: they wait on disk.

    Raises:
        ValueError: if the file is no such json, or its lists differ in length: then no caption is sure of its photo.
    """
    url_of: dict[int, int] = {}  # of a million rows: hashes take a third of what the texts would
    for row, (url, caption) in enumerate(_read_pairs(path), start=1):
        try:
            name = _local_name(url)
            text = caption_text(caption)
        except ValueError as error:
            yield BadRow(row, str(error))
            continue
        if url_of.setdefault(hash(name), hash(url)) != hash(url):
            yield BadRow(row, "another URL ends in the same file name")
            continue
        yield CaptionRow(row, text, name, image_id_of(name, id_rule=id_rule))


def read_sbu_urls(path: str) -> Iterator[UrlRow | BadRow]:
    """Rows in file order, numbered from 1; errors as `read_sbu`."""
    for row, (url, caption) in enumerate(_read_pairs(path), start=1):
        if not isinstance(url, str) or not is_utf8(url) or not is_web_url(url.strip()):
            yield BadRow(row, "no http or https URL")
            continue
        try:
            yield UrlRow(row, caption_text(caption), url.strip())
        except ValueError as error:
            yield BadRow(row, str(error))


def _read_pairs(path: str) -> Iterator[tuple[str | None, str | None]]:
    """The file's image_urls and captions, None for what is no text."""
    table = ScratchDatabase("CREATE TABLE image_urls (entry BLOB)", "CREATE TABLE captions (entry BLOB)")
    counts: dict[str, int] = {}
    members = read_json_members(path, expected=EXPECTED)
    for name, group in itertools.groupby(members, key=lambda member: member[0]):
        if name not in ("image_urls", "captions", "user_ids"):
            continue
        entries = [next(group)]
        if entries[0][1] is None:
            if entries[0][2] == []:
                counts[name] = 0
            continue
        rows = ((_bytes(entry),) for _, _, entry in itertools.chain(entries, group))
        if name == "user_ids":
            counts[name] = sum(1 for _ in rows)
            continue
        table.add(f"INSERT INTO {name} VALUES (?)", rows)
        counts[name] = table.rows(f"SELECT coalesce(max(rowid), 0) FROM {name}")[0][0]
    if not {"image_urls", "captions"} <= counts.keys():
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")
    num_urls, num_captions, num_users = (counts.get(name, 0) for name in ("image_urls", "captions", "user_ids"))
    if num_urls != num_captions or num_users not in (0, num_urls):
        raise ValueError(
            f"{path!r}: {num_urls} image_urls, {num_users} user_ids and {num_captions} captions; the lists of an SBU "
            f"file are of one length, and row k of each is of photo k"
        )
    pairs = "FROM image_urls JOIN captions ON captions.rowid = image_urls.rowid ORDER BY image_urls.rowid"
    for url, caption in table.stream(f"SELECT image_urls.entry, captions.entry {pairs}"):
        yield _text(url), _text(caption)


def _bytes(entry: Any) -> bytes | None:
    # As bytes, since json may hold half a surrogate pair, which is no text to a database.
    return entry.encode("utf-8", "surrogatepass") if isinstance(entry, str) else None


def _text(entry: bytes | None) -> str | None:
    return None if entry is None else entry.decode("utf-8", "surrogatepass")


def _local_name(url: Any) -> str:
    """Raises ValueError with a short reason, so that rows can be counted by it."""
    if not isinstance(url, str) or not url.strip():
        raise ValueError("no URL")
    if not is_web_url(url):
        return path_below(url)
    try:
        name = urlsplit(url).path.rpartition("/")[2]
    except ValueError:
        raise ValueError("not a URL") from None
    if not name:
        raise ValueError("URL names no file")
    return path_below(name)
