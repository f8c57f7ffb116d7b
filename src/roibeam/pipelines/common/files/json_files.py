"""Small JSON files that users may have damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json_object(
    path: Path, *, max_bytes: int | None = None, hint: str = "", parse_float: Callable[[str], float] = float
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        max_bytes: of the file; None for any.
        hint: what to tell beside an error, such as which command writes such files.
        parse_float: what makes the numbers with a point or an exponent, of their text.
    Raises:
        ValueError: naming the file, when it is no JSON object, or larger.
    """
    after = f"; {hint}" if hint else ""
    if max_bytes is not None and path.is_file() and (size := path.stat().st_size) > max_bytes:
        raise ValueError(f"{path}: {size:,} bytes are too many; at most {max_bytes:,} are read{after}")
    try:
        found = json.loads(path.read_text("utf-8"), parse_float=parse_float)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, a number of 4,301 digits
        raise ValueError(f"{path}: cannot be read as JSON: {error}{after}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}; expected a JSON object{after}")
    return found
