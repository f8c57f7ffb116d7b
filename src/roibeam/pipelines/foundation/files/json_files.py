"""Small JSON files that users may have damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: naming the file, when it is no JSON object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}; expected a JSON object")
    return found
