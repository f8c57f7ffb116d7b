"""Ctrl-C in the main thread ends the work on shards in others."""

import threading
import time
from collections.abc import Callable

import pytest

from roibeam.pipelines.extract.shard.process_setup import running_shard, shards_must_stop, stop_shards_on_interrupt


def interrupt_at_work(work: Callable[[], object], seconds: float) -> threading.Thread:
    """Ctrl-C in the main thread while another does `work` on a shard; so long is waited for it."""
    at_work = threading.Event()

    def run() -> None:
        with running_shard():
            at_work.set()
            work()

    thread = threading.Thread(target=run)
    with pytest.raises(KeyboardInterrupt), stop_shards_on_interrupt(seconds):
        thread.start()
        at_work.wait()
        raise KeyboardInterrupt
    return thread


def test_shards_in_work_are_told_and_waited_for() -> None:
    ended: list[str] = []

    def work() -> None:
        while not shards_must_stop():
            time.sleep(0.01)
        time.sleep(0.1)
        ended.append("dropped")

    thread = interrupt_at_work(work, 30)
    assert ended == ["dropped"]
    thread.join()
    assert not shards_must_stop()  # the next work of this process may begin


def test_a_shard_that_does_not_end_is_not_waited_for_for_ever() -> None:
    released = threading.Event()
    thread = interrupt_at_work(released.wait, 0.2)
    assert shards_must_stop()  # it is to end whenever it comes back
    released.set()
    thread.join()
    with stop_shards_on_interrupt(1):
        assert not shards_must_stop()


def test_other_errors_stop_nothing() -> None:
    with pytest.raises(OSError), stop_shards_on_interrupt(1):
        raise OSError
    assert not shards_must_stop()
