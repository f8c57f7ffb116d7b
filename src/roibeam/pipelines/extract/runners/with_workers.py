"""A run whose workers are processes of its own pool: none is left behind, and none dies unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from roibeam.extraction.engine.background_threads import start_thread
from roibeam.pipelines.extract.runners.hang_ups import keep_hang_ups_quiet
from roibeam.pipelines.extract.runners.worker_pool import WorkerPool

LOOK_SECONDS = 0.1
_T = TypeVar("_T")


def run_with_workers(run: Callable[[str], _T], *, preload: str) -> _T:
    """Calls `run` with the address of a worker pool that lasts as long.

    Beam's local engine waits for ever for a worker that died, also when told to stop. So it runs in a thread that can
    be left behind, while this one watches.

    Args:
        preload: as of `WorkerPool`.
    Returns:
        What `run` returned.
    Raises:
        RuntimeError: when a worker process ended by itself.
        KeyboardInterrupt: after the workers have ended.
        Exception: what `run` raised.
    """
    deaths: list[str] = []
    errors: list[BaseException] = []
    results: list[_T] = []
    ended = threading.Event()

    def work(address: str) -> None:
        try:
            results.append(run(address))
        except BaseException as error:  # raised where the run was called for
            errors.append(error)
        finally:
            ended.set()

    keep_hang_ups_quiet()
    with WorkerPool(preload, died=deaths.append) as pool:
        start_thread("run the pipeline", lambda: work(pool.address))
        while not ended.wait(LOOK_SECONDS) and not deaths:
            pass
    if deaths:
        raise RuntimeError(f"{deaths[0]}; finished shards stay, the same command goes on")
    if errors:
        raise errors[0]
    return results[0]
