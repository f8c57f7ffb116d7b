"""One pool of memory for all threads of a process that extracts.

glibc gives threads pools of their own ("arenas", up to eight for each core), and each keeps what was freed in it. Every
shard has new threads, so the detector's moves through the arenas, and each comes to hold the most that a call takes:
the process grows over its first shards (BENCHMARKS.md, "Memory of the local run").
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # glibc, malloc.h


def use_one_arena() -> None:
    """Has glibc give all threads that start from now on one arena; call it while there is but one thread.

    A user's own MALLOC_ARENA_MAX counts instead. Other C libraries have no arenas to limit, so nothing happens there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)
