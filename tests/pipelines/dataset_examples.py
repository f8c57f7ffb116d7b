"""Small files for the tests of dataset readers, and the one line of error that a reader owes."""

from __future__ import annotations

import json
from collections.abc import Callable
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
