"""Names of classes from a file: one a line, or JSON as other code bases keep them. Background is none of them.

    text    one name a line; other spellings of it after commas
    JSON    ["cat", "dog"]    {"0": "cat", "1": "dog"}    {"cat": 0, "dog": 1}    [{"id": 1, "name": "cat"}, ...]
            or an object with one of those under a usual name (`_UNDER`); VinVL's label map also has attributes

Detectors number their classes from 0 and count background apart, or as the first or last one. Here it has no number,
so a name of background is left out where it stands first or last.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Sequence
from typing import Any

from roibeam.pipelines.data.datasets.rows import MAX_JSON_BYTES, BadRow, read_lines, read_small_json

logger = logging.getLogger(__name__)
_UNDER = (
    "categories", "classes", "names", "class_names", "thing_classes", "id2label", "label2id", "idx_to_label",
    "label_to_idx", "idx2label", "label2idx",
)  # fmt: skip
_UNDER_ATTRIBUTES = ("idx_to_attribute", "attribute_to_idx")
_BACKGROUND = frozenset(
    ("background", "bg", "back ground", "no object", "no objects", "none of these", "no attribute", "no attributes")
)
_WHOLE = re.compile("[0-9]{1,9}", re.ASCII)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FORMS = 'a list of names, {"0": name, ...}, {name: 0, ...} or [{"id": 0, "name": name}, ...]'


def read_class_names(path: str, *, skip_blank: bool = False) -> tuple[str, ...]:
    """The names in the order of their numbers, spellings included ("cat,kitten"), without background.

    Args:
        skip_blank: passes over blank lines, which are errors otherwise.
    Raises:
        ValueError: naming the line that has no name or is no text, or what the JSON has in place of names.
    """
    if _is_json(path):
        return _without_background(path, _names_under(path, _json(path), _UNDER))
    return _without_background(path, _names_of_lines(path, skip_blank=skip_blank))


def read_attribute_names(path: str) -> tuple[str, ...] | None:
    """The names of attributes that stand beside those of classes in a label map, as VinVL has it (label_to_idx,
    idx_to_attribute, ...); None for a file of classes alone. Raises ValueError as `read_class_names` does."""
    content = _json(path) if _is_json(path) else None
    if not isinstance(content, dict) or not any(content.get(name) for name in _UNDER_ATTRIBUTES):
        return None
    return _without_background(path, _names_under(path, content, _UNDER_ATTRIBUTES))


def _is_json(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(_UTF16):
        raise ValueError(f"vocabulary {path!r}: is UTF-16 text; convert it to UTF-8 (iconv -f utf-16 -t utf-8)")
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"[", b"{")


def _json(path: str) -> Any:
    return read_small_json(
        path,
        too_long=f"vocabulary {path!r}: is JSON of over {MAX_JSON_BYTES:,} bytes; give the names alone",
        no_json=f"vocabulary {path!r}: begins like JSON and is none",
    )


def _without_background(path: str, names: list[str]) -> tuple[str, ...]:
    if not names:
        raise ValueError(f"vocabulary {path!r}: holds no name; give one a line")
    if all(name.partition(",")[0].strip().isdecimal() for name in names):
        raise ValueError(f"vocabulary {path!r}: its names are numbers, the first {names[0]!r}; give one name a line")
    for place, index in (("first", 0), ("last", -1)):
        if len(names) > 1 and is_background(names[index]):
            logger.info(
                "vocabulary %s: its %s name, %r, is left out: background has no number; the first name is %r",
                path, place, names[index], names[1] if index == 0 else names[0],
            )  # fmt: skip
            del names[index]
            break
    return tuple(names)


def is_background(name: str) -> bool:
    """Whether a name means that there is no object, such as "__background__" or "no object"."""
    return " ".join(name.partition(",")[0].lower().replace("_", " ").replace("-", " ").split()) in _BACKGROUND


def _names_of_lines(path: str, *, skip_blank: bool) -> list[str]:
    names: list[str] = []
    for row in read_lines(path):
        if isinstance(row, BadRow):
            raise ValueError(f"vocabulary {path!r}, line {row.line}: {row.reason}")
        line, text = row
        if "\r" in text:
            raise ValueError(f"vocabulary {path!r}, line {line}: holds a carriage return; end lines with LF or CRLF")
        if skip_blank and not text.strip():
            continue
        if not text.partition(",")[0].strip():
            raise ValueError(f"vocabulary {path!r}, line {line}: no name; ids count lines, so each needs one")
        names.append(text)
    return names


def _names_under(path: str, content: Any, usual: Sequence[str]) -> list[str]:
    """The names in JSON, or in the member of it that has one of these usual names."""
    if isinstance(content, dict):
        content = next((content[name] for name in usual if isinstance(content.get(name), list | dict)), content)
    numbered: list[tuple[Any, Any]] = []
    if isinstance(content, list) and all(isinstance(each, str) for each in content):
        numbered = list(enumerate(content))
    elif isinstance(content, list):
        numbered = [(each.get("id"), each.get("name")) for each in content if isinstance(each, dict)]
        numbered = numbered if len(numbered) == len(content) else []
    elif isinstance(content, dict):
        turned = all(type(value) is int for value in content.values())
        numbered = [(value, name) if turned else (name, value) for name, value in content.items()]
    found = {
        int(number): name
        for number, name in numbered
        if isinstance(name, str) and name.strip() and _WHOLE.fullmatch(str(number))
    }
    if not found or len(found) != len(numbered):
        raise ValueError(f"vocabulary {path!r}: its JSON is no list of class names; expected is {_FORMS}")
    first, last = min(found), max(found)
    if first not in (0, 1) or last != first + len(found) - 1:
        gap = min(set(range(min(first, 1), last + 1)).difference(found)) if last < 10**6 else first
        raise ValueError(
            f"vocabulary {path!r}: its {len(found)} names have numbers from {first} to {last}, {gap} is missing; write "
            f"the names in the detector's order, one a line"
        )
    return [found[number] for number in sorted(found)]
