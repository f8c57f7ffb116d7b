"""Small files that tests write, with the folders that they stand in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content))


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
