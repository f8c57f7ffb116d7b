"""Text for messages: numbers of things, text from files made safe to show, near names, objects in one line.

Also `check_list`, which refuses a single name or path where a list is expected: Python would take a text for the list
of its letters.
"""

from __future__ import annotations

import difflib
import html
import os
import re
from collections.abc import Collection
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any
from unicodedata import category


def plural(count: int, noun: str, many: str | None = None) -> str:
    """ "1 image", "2,000 images"; `many` where an s is not enough: plural(2, "entry", "entries")."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def byte_count(num_bytes: float) -> str:
    """ "0.614 MB", "1.200 GB"."""
    return f"{num_bytes / 1e9:.3f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3f} MB"


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


def first_line(error: BaseException) -> str:
    """First line of an error's message; its type where there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_MOST_NEAR, _MOST_LISTED = 3, 14
_LONG = 5  # letters of a name that another may contain
_ALIKE = 0.65  # 0 to 1, of difflib: "best" is not near to "vl-bert"


def near_names(name: str, known: Collection[str]) -> list[str]:
    """At most three of `known` that `name` may mean, the nearest first; "vl-bert" and "VLBERT" both mean "vlbert".

    If none is near, those that `name` contains."""
    plain: dict[str, list[str]] = {}
    for each in known:
        plain.setdefault(_plain(each), []).append(each)
    if same := plain.get(_plain(name)):
        return same[:_MOST_NEAR]
    near = difflib.get_close_matches(_plain(name), plain, n=_MOST_NEAR, cutoff=_ALIKE)
    held = sorted((key for key in plain if len(key) >= _LONG and key in _plain(name)), key=len, reverse=True)
    return [each for key in near or held for each in plain[key]][:_MOST_NEAR]


def name_hint(name: str, known: Collection[str], *, listed_by: str = "") -> str:
    """Suggestion for the end of an error: "did you mean vlbert? choose one of vlbert, visualbert".

    Args:
        known: in the order to be listed; of more than fourteen only the near ones are.
        listed_by: where all are listed, such as "roibeam recipes lists all 58".
    """
    near = near_names(name, known)
    meant = f"did you mean {' or '.join(near)}?" if near else ""
    listed = list(known)
    if len(listed) <= _MOST_LISTED:
        return f"{meant} choose one of {', '.join(listed)}".strip()
    if listed_by:
        return f"{meant} {listed_by}".strip()
    return meant or f"there are {', '.join(listed[:_MOST_LISTED])} and {len(listed) - _MOST_LISTED} more"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def check_list(given: object, name: str) -> None:
    """
    Args:
        given: for a parameter of several names or paths; None passes.
    Raises:
        ValueError: for one text or path in place of a list.
    """
    if isinstance(given, str | bytes | os.PathLike):
        raise ValueError(f"{name} is a list, got one alone, {given!r}; write [{given!r}]")


def check_lists(of: object, *names: str) -> None:
    """`check_list` of these attributes, for `__post_init__` of a dataclass."""
    for name in names:
        check_list(getattr(of, name), name)


_MOST_CHARACTERS, _MOST_ITEMS = 60, 4


def short_repr(self: Any) -> str:
    """`__repr__` of a dataclass without the fields that are None or have their default; arrays by dtype and shape."""
    named = ((field, getattr(self, field.name)) for field in fields(self) if field.repr)
    parts = [f"{field.name}={_short(value)}" for field, value in named if not _is_default(field, value)]
    return f"{type(self).__name__}({', '.join(parts)})"


def _is_default(field: Field[Any], value: object) -> bool:
    if value is None:
        return True
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return type(value) is type(default) and not hasattr(value, "shape") and bool(value == default)


def _short(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list | tuple) and len(value) > _MOST_ITEMS:
        return f"{len(value):,} x {type(value[0]).__name__}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_short, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"dict of {len(value):,}" if value else "{}"
    if is_dataclass(value) and type(value).__repr__ is not short_repr:
        return f"{type(value).__name__}(...)"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 4]}...{text[-1]}"
