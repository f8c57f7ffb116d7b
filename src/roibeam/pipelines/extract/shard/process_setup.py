"""Set-up of a process that extracts: one memory pool, shards that end with Ctrl-C, quiet closed connections.

glibc gives threads pools of their own ("arenas", up to eight for each core), and each keeps what was freed in it. Every
shard has new threads, so the detector's moves through the arenas, and each comes to hold the most that a call takes:
the process grows over its first shards (BENCHMARKS.md, "Memory of the local run").

Python raises Ctrl-C in the main thread only; runners work in other threads, which would go on until the process ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # glibc, malloc.h


def use_one_arena() -> None:
    """Makes glibc use one arena for all threads that start later; call it while there is only one thread.

    A user's own MALLOC_ARENA_MAX counts instead. Other C libraries have no arenas to limit, so nothing happens there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


_changed = threading.Condition()
_stopping = False
_num_running = 0


@contextmanager
def running_shard() -> Iterator[None]:
    """Counts one shard as in work, during the block."""
    global _num_running
    with _changed:
        _num_running += 1
    try:
        yield
    finally:
        with _changed:
            _num_running -= 1
            _changed.notify_all()


def shards_must_stop() -> bool:
    """Checked by the work on a shard several times a second; it then ends with an exception, and drops its shard."""
    return _stopping


def stop_running_shards(seconds: float) -> bool:
    """Stops shards in work and waits for them, at most so many seconds; True when none is left."""
    global _stopping
    _stopping = True
    with _changed:
        return _changed.wait_for(lambda: not _num_running, seconds)


@contextmanager
def stop_shards_on_interrupt(seconds: float) -> Iterator[None]:
    """Stops shards in work when Ctrl-C ends the block, and waits for them, at most so many seconds."""
    global _stopping
    _stopping = False
    try:
        yield
    except KeyboardInterrupt:
        _stopping = not stop_running_shards(seconds)
        raise


def silence_closed_connections() -> None:
    """Hides gRPC's errors of closed connections in threads; the watchers of workers and runners report them."""
    threading.excepthook = _report_unless_closed


def _report_unless_closed(what: threading.ExceptHookArgs) -> None:
    import grpc

    if not issubclass(what.exc_type, grpc.RpcError):
        threading.__excepthook__(what)
