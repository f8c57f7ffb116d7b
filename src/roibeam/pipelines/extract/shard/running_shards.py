"""The shards that this process works on, so that Ctrl-C can end them.

Python tells only the main thread of Ctrl-C; runners work in other threads, which would go on until the process is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition()
_stopping = False
_num_running = 0


@contextmanager
def running_shard() -> Iterator[None]:
    """Around the work on one shard."""
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
    """What the work on a shard asks several times a second; it then ends with an exception, and drops its shard."""
    return _stopping


def stop_running_shards(seconds: float) -> bool:
    """Tells shards in work to stop and waits for them, at most so many seconds; True when none is left."""
    global _stopping
    _stopping = True
    with _changed:
        return _changed.wait_for(lambda: not _num_running, seconds)


@contextmanager
def stopping_with_the_caller(seconds: float) -> Iterator[None]:
    """Around a run: when Ctrl-C ends it, shards in work are told to stop and waited for, at most so many seconds."""
    global _stopping
    _stopping = False
    try:
        yield
    except KeyboardInterrupt:
        _stopping = not stop_running_shards(seconds)
        raise
