"""What a command prints with --json."""

import json
from typing import Any, NoReturn


def json_lines(printed: str) -> list[dict[str, Any]]:
    """The lines of a command's standard output: each an object of JSON as the standard has it, with an event."""
    lines = [json.loads(line, parse_constant=_refuse) for line in printed.splitlines()]
    assert all(isinstance(line, dict) and isinstance(line.get("event"), str) for line in lines), printed
    return lines


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")
