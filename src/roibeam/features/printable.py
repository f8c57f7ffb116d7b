"""Text of strangers made fit to show: names, paths and messages that came in a file."""

from __future__ import annotations

import html
from unicodedata import category

_NO_TEXT = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def printable(text: str, limit: int = 100) -> str:
    """At most `limit` characters of `text`, its middle left out; what does not print (controls, direction marks, broken
    UTF-8) is spelled as an escape, so that a name cannot reorder, hide or break what stands around it."""
    if len(text) > 4 * limit:  # 40 kB names cost nothing
        text = text[: 2 * limit] + text[-2 * limit :]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def escaped(text: str, limit: int = 300) -> str:
    """`printable` text as HTML, for element content and for quoted attributes."""
    return html.escape(printable(text, limit), quote=True)


def on_a_line(text: str) -> str:
    """All of `text` without what could do more on a terminal than print, or end the line: controls, escape sequences,
    format characters (direction, no width), line separators and lone surrogates are spelled as escapes."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if category(c) in _NO_TEXT else c for c in text)
