"""Annotation files that a case of data-set items holds as text, in a folder, as their readers find them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, failed, within

FILES = "file/"
MAX_SIZE = 1 << 12  # pieces and regions that a case may ask for
ITEM_TOLERANCE = 1e-5  # of boxes, features and targets (README, "One data-set file")


def text_of(arrays: Arrays, name: str) -> str:
    """Raises ArrayError for an array that is no text."""
    array = arrays.take(name)
    if array.dtype.kind != "U" or array.ndim:
        raise ArrayError(name, f"has shape {array.shape} and holds {array.dtype}, expected one text")
    return str(array)


def json_of(arrays: Arrays, name: str) -> Any:
    """Raises ArrayError for a text that is no json."""
    try:
        return json.loads(text_of(arrays, name))
    except (ValueError, RecursionError) as error:
        raise ArrayError(name, f"is no json: {' '.join(str(error).split())}") from None


def size_option(options: Mapping[str, Any], name: str) -> int:
    """A number of pieces or regions. Raises ArrayError for what is none, or beyond `MAX_SIZE`."""
    value = options.get(name)
    if not isinstance(value, int) or not 2 <= value <= MAX_SIZE:
        raise ArrayError("config", f"{name} must be a whole number from 2 to {MAX_SIZE}, got {value!r}")
    return value


def write_item_file(arrays: Arrays, name: str, path: Path) -> str:
    """Writes the text of an array, as it is; the path, for a reader."""
    path.write_bytes(text_of(arrays, name).encode("utf-8"))
    return str(path)


def write_pickle(value: Any, path: Path) -> str:
    """Writes what a case shows as json as the pickle that it is; the path, for a reader."""
    path.write_bytes(pickle.dumps(value, protocol=2))
    return str(path)


def same_json(arrays: Arrays, name: str, ours: Any) -> Check:
    """Whether a json text holds our value; numbers are equal to the last digit."""
    theirs = json_of(arrays, name)
    return within(name, float(ours != theirs), 0, "must be equal", "" if ours == theirs else f"ours is {ours!r:.200}")


def unread_outputs(arrays: Arrays) -> list[Check]:
    """A miss for each output that was not compared."""
    return [failed(name, "is compared with nothing of ours") for name in arrays.unread if name.startswith("out/")]
