"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any


def write_text(path: Path, text: str) -> None:
    """Writes aside and renames: a file under its own name is a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(text.encode("utf-8"))
    os.replace(temporary, path)


class JsonListFile:
    """A JSON object with one long list that is written as it grows, and more members before and after it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        # Not a `with`: it lives as long as this object; without a name, it leaves nothing behind.
        self._entries: IO[bytes] = tempfile.TemporaryFile()
        self._count = 0

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.write((b",\n" if self._count else b"") + _json(entry))
        self._count += 1

    def close(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Puts the file in place."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        self._entries.seek(0)
        with open(temporary, "wb") as file:
            file.write(b"{")
            for key, value in before.items():
                file.write(_json(key) + b": " + _json(value) + b",\n")
            file.write(_json(self._name) + b": [\n")
            shutil.copyfileobj(self._entries, file)
            file.write(b"\n]")
            for key, value in after.items():
                file.write(b",\n" + _json(key) + b": " + _json(value))
            file.write(b"}\n")
        self._entries.close()
        os.replace(temporary, self._path)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii")
