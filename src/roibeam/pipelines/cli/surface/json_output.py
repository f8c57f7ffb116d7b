"""What `--json` prints: values of one line, each with an `event`. A command that fails says why in such a line too."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def json_line(result: Mapping[str, Any], *, event: str = "done") -> str:
    """A result as one line."""
    return json.dumps({"event": event, **result})


def error_line(message: str, exit_code: int) -> str:
    """Why a command failed, as one line; the same words are on standard error."""
    return json_line({"message": message, "exit_code": exit_code}, event="error")


def print_error(message: str, exit_code: int) -> None:
    """Prints `error_line` where this process's command line asks for JSON, also one that could not be parsed."""
    words = sys.argv[1:]
    words = words[: words.index("--")] if "--" in words else words
    if "--json" in words:
        with suppress(OSError):  # of a full disk, which is said on standard error
            print(error_line(message, exit_code), flush=True)
