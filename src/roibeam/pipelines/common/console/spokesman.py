"""Which process of a run tells things: of those that a launcher started, the first. Errors are told by any."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import MappingProxyType

# `extra` of a record that this process alone has met, such as a photo that it could not read.
OF_THIS_PROCESS: Mapping[str, object] = MappingProxyType({"of_this_process": True})


def is_spokesman() -> bool:
    """By the rank that torchrun and accelerate give each process."""
    return os.environ.get("RANK", "0") == "0"


def is_told_here(record: logging.LogRecord) -> bool:
    """A filter of log records: what all processes of a run would say is said once."""
    return record.levelno >= logging.ERROR or is_spokesman() or hasattr(record, "of_this_process")
