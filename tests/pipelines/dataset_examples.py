"""Small files for the tests of dataset readers, and the one line of error that a reader owes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def write(path: Path, content: str | bytes | dict[str, Any] | list[Any]) -> str:
    text = json.dumps(content) if isinstance(content, dict | list) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def error_of(read: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        read()
    assert str(error.value).isprintable()
    return str(error.value)


def assert_refused(read: Callable[[str], object], path: str, *words: str) -> None:
    """The reader's error has these words and the name of the file."""

    def read_all() -> None:
        found = read(path)
        list(found) if isinstance(found, Iterator) else None

    message = error_of(read_all)
    for each in (*words, Path(path).name):
        assert each in message, message
