"""SBU captioned photos: sbu-captions-all.json with three parallel lists, "image_urls", "user_ids" and "captions".

`read_sbu` takes the photos as local: the last part of a URL is the file's name, as wget and curl -O save it. A path in
place of a URL is taken as written. `read_sbu_urls` gives the URLs to download.

Id rule: that name or path without its extension ("http://static.flickr.com/2723/4385058960_b0f291553e.jpg" ->
"4385058960_b0f291553e").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pipelines.datasets.image_ids import image_id_of, is_utf8, path_below
from pipelines.datasets.json_members import read_json_members
from pipelines.datasets.rows import BadRow, CaptionRow, UrlRow, is_web_url

EXPECTED = 'an SBU file with "image_urls" and "captions" lists'


def read_sbu(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order, numbered from 1. Holds the file's URLs and captions in memory: it has them one after another.

    Raises:
        ValueError: if the file is no such json, or its lists differ in length: then no caption is sure of its photo.
    """
    urls, captions = _read_lists(path)
    url_of: dict[str, str] = {}
    for row, (url, caption) in enumerate(zip(urls, captions, strict=True), start=1):
        try:
            name = _local_name(url)
            text = _caption(caption)
        except ValueError as error:
            yield BadRow(row, str(error))
            continue
        if url_of.setdefault(name, url) != url:
            yield BadRow(row, "another URL ends in the same file name")
            continue
        yield CaptionRow(row, text, name, image_id_of(name, id_rule=id_rule))


def read_sbu_urls(path: str) -> Iterator[UrlRow | BadRow]:
    """Rows in file order, numbered from 1; memory and errors as `read_sbu`."""
    urls, captions = _read_lists(path)
    for row, (url, caption) in enumerate(zip(urls, captions, strict=True), start=1):
        if not isinstance(url, str) or not is_utf8(url) or not is_web_url(url.strip()):
            yield BadRow(row, "no http or https URL")
            continue
        try:
            yield UrlRow(row, _caption(caption), url.strip())
        except ValueError as error:
            yield BadRow(row, str(error))


def _read_lists(path: str) -> tuple[list[Any], list[Any]]:
    """The file's image_urls and captions, of one length."""
    lists: dict[str, list[Any]] = {}
    num_users = 0
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name == "user_ids":
            num_users += index is not None
        elif name in ("image_urls", "captions") and (index is not None or entry == []):
            lists.setdefault(name, []).extend([] if index is None else [entry])
    if len(lists) < 2:
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")
    urls, captions = lists["image_urls"], lists["captions"]
    if len(urls) != len(captions) or num_users not in (0, len(urls)):
        raise ValueError(
            f"{path!r}: {len(urls)} image_urls, {num_users} user_ids and {len(captions)} captions; the lists of an SBU "
            f"file are of one length, and row k of each is of photo k"
        )
    return urls, captions


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


def _caption(caption: Any) -> str:
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError("empty caption")
    if not is_utf8(caption):
        raise ValueError("caption is not valid UTF-8")
    return caption.strip()
