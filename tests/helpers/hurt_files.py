"""Ways to hurt a file: each takes its path."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Hurt = Callable[[Path], object]


def written(change: Callable[[bytes], bytes]) -> Hurt:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def flipped(place: float) -> Hurt:
    """A bit of the byte that stands so far in the file: 0 its first, 1 its last."""

    def flip(data: bytes) -> bytes:
        at = min(int(place * len(data)), len(data) - 1)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return written(flip)


def edited(change: Callable[[Any], object]) -> Hurt:
    """JSON, of which `change` changes the object."""

    def edit(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()
