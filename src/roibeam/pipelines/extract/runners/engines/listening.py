"""Whether something listens at an address, before a run relies on it."""

from __future__ import annotations

import re
import socket

_SECONDS = 10.0


def silence_at(address: str) -> str | None:
    """Why nothing can be reached at "host:port", for people; None where something listens."""
    found = re.fullmatch(r"([^:,/]+):(\d+)", address)
    if found is None:
        return f"{address}: expected HOST:PORT"
    try:
        socket.create_connection((found[1], int(found[2])), _SECONDS).close()
    except (OSError, OverflowError) as error:
        return f"{address}: {error}"
    return None
