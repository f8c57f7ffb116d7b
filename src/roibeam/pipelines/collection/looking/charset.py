"""Bytes of a page -> text. Never fails: what cannot be decoded becomes U+FFFD."""

from __future__ import annotations

import codecs
import re

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([a-zA-Z0-9_.:-]{1,40})""", re.IGNORECASE)
_META_BYTES = 4096  # HTML's own rule is 1024; many pages have it later
# Python's, no page's: they decode into other text than was meant, or take quadratic time.
_NOT_OF_PAGES = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf-7"})
# What browsers read under these names.
_READ_AS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}


def decode_page(body: bytes, declared: str | None) -> str:
    """The page's text: by byte order mark, what the server declared, the page's own <meta>, UTF-8, Windows-1252.

    Args:
        declared: charset of the Content-Type header; None or a name that nobody knows is passed over.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    found = _META.search(body[:_META_BYTES])
    for label in (declared, found[1].decode("ascii") if found else None):
        known = _known(label)
        # A page that one can read this far is in no 16-bit encoding, whatever its <meta> says (HTML's rule too).
        if known is not None and not (known.startswith("utf-16") and found):
            return body.decode(known, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _known(label: str | None) -> str | None:
    if not label or len(label) > 40:
        return None
    try:
        info = codecs.lookup(label.strip().strip("\"'"))
    except (LookupError, ValueError):
        return None
    if not getattr(info, "_is_text_encoding", True) or info.name in _NOT_OF_PAGES:
        return None
    return _READ_AS.get(info.name, info.name)
