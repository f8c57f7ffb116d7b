"""Threads that do not keep the process alive: a read or a detector call that hangs must not keep it from ending."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

_WAIT_AT_EXIT_SECONDS = 5.0
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start_thread(name: str, run: Callable[[], object]) -> None:
    """Starts a daemon thread; the caller must signal its end."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()


def wait_for_threads(seconds: float) -> bool:
    """Waits for the threads that were signalled to end; False if one of them still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(max(deadline - time.monotonic(), 0.0))
    return not any(thread.is_alive() for thread in _threads)


# A daemon thread that returns from C++ code after Python has gone ends the process with an abort.
atexit.register(wait_for_threads, _WAIT_AT_EXIT_SECONDS)
