"""One json object per line, as VCR and lists of boxes have them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

MAX_LINE_BYTES = 16 * 2**20  # 65,535 boxes take about 4 MB


def read_json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object with its place ("file, line 3") for errors; blank lines are passed over.

    Raises:
        ValueError: naming the line that is no json object, not UTF-8 or longer than 16 MiB.
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        line = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            line += 1
            where = f"{path!r}, line {line}"
            if len(raw) > MAX_LINE_BYTES:
                raise ValueError(f"{where}: longer than {MAX_LINE_BYTES} bytes; expected one json object for each line")
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw.strip():
                continue
            try:
                entry = json.loads(raw.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not a json object ({error})") from None
            if not isinstance(entry, dict):
                raise ValueError(f"{where}: expected a json object, got {type(entry).__name__}")
            yield where, entry
