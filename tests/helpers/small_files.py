"""Small files that tests write, with the folders that they stand in."""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content))


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_tar(
    path: Path, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


class Hostile:
    """Makes a folder when it is unpickled by anything that runs what a pickle asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)
