"""What torchrun says of the processes that it launched: known before torch is imported."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Whether this process speaks for all of a run, before and after `train`."""
    return int(os.environ.get("RANK", "0")) == 0


def num_processes() -> int:
    """Of a run, before `train`."""
    return int(os.environ.get("WORLD_SIZE", "1"))
