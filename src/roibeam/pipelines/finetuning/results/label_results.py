"""The result file of the task labels: one JSON object a line, {"id": "17", "label": "cat"}."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.printable import printable


def read_label_results(path: str) -> Iterator[tuple[str, str]]:
    """Id and label of each line; ValueError naming the line that is no such object."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            name, label = (entry.get("id"), entry.get("label")) if isinstance(entry, dict) else (None, None)
            if not (isinstance(name, str) and isinstance(label, str)):
                shown = printable(line.decode("utf-8", "replace"), 60)
                raise ValueError(
                    f"{path!r}, line {number}: expected an object with the texts id and label, got {shown}"
                )
            yield name, label


def write_label_results(path: Path, said: Iterable[tuple[str, str]]) -> None:
    lines = (f"{json.dumps({'id': name, 'label': label})}\n" for name, label in said)
    write_bytes_atomically(path, "".join(lines).encode())
