"""Several tasks worked on by threads, whose results come as one thread would give them: in order, errors too.

For tasks that wait for a disk or a server. Threads may be any number ahead of what is taken, up to a weight of results
that nobody has taken yet; so memory is bounded whatever the tasks are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Condition, Thread
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")
_TOGETHER = 256  # results that are handed over at once: a lock taken for each would cost more than the work
_PARTS = 64  # or fewer, once they weigh so much of what may wait


def in_order(
    tasks: Iterable[_T],
    work: Callable[[_T], Iterable[_R]],
    *,
    threads: int,
    weight: Callable[[_R], int],
    most_waiting: int,
) -> Iterator[tuple[_T, Iterator[_R]]]:
    """Each task with its results, in the order of the tasks; take the results of one before the next is asked for.

    An error of a task is raised where its results break off, after all results of the tasks before it. What threads had
    begun of later tasks is then thrown away.

    Args:
        work: gives the results of a task, in a thread of its own; it must not use what other tasks use.
        threads: tasks that are worked on at once; 1 does all in the calling thread, when it is asked for.
        weight: of one result, such as its bytes.
        most_waiting: weight of the results that wait to be taken, of all tasks together, beside what each
            thread is at.
    """
    if threads == 1:
        yield from ((task, iter(work(task))) for task in tasks)
        return
    ahead = _Ahead(work, weight, most_waiting)
    left, jobs = iter(tasks), deque[_Job[_T, _R]]()
    try:
        while True:
            for task in islice(left, threads - len(jobs)):
                jobs.append(_Job(task))
                # A daemon: where whoever takes the results fails and keeps its error, no exit waits for these.
                Thread(target=ahead.do, args=(jobs[-1],), name="works ahead", daemon=True).start()
            if not jobs:
                return
            ahead.set_first(jobs[0])
            yield jobs[0].task, ahead.results(jobs[0])
            jobs.popleft()
    finally:
        ahead.stop()


class _Job(Generic[_T, _R]):
    def __init__(self, task: _T) -> None:
        self.task = task
        self.waiting: deque[tuple[list[_R], int]] = deque()  # results and their weight
        self.is_done = False
        self.error: BaseException | None = None


class _StoppedError(Exception):
    """Nobody takes the results any more."""


class _Ahead(Generic[_T, _R]):
    """What the threads and the one that takes their results share."""

    def __init__(self, work: Callable[[_T], Iterable[_R]], weight: Callable[[_R], int], most_waiting: int) -> None:
        self._work, self._weight, self._most = work, weight, most_waiting
        self._changed = Condition()
        self._first: _Job[_T, _R] | None = None  # whose results are taken now
        self._waiting = 0
        self._is_stopped = False

    def set_first(self, job: _Job[_T, _R]) -> None:
        with self._changed:
            self._first = job
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def do(self, job: _Job[_T, _R]) -> None:
        """All of a job; in a thread."""
        some: list[_R] = []
        weight = 0
        try:
            for result in self._work(job.task):
                some.append(result)
                weight += self._weight(result)
                if len(some) == _TOGETHER or weight > self._most // _PARTS:
                    self._put(job, some, weight)
                    some, weight = [], 0
        except _StoppedError:
            return
        except BaseException as error:
            job.error = error  # raised by the one that takes the results, when it comes to this place
        if some:
            with suppress(_StoppedError):
                self._put(job, some, weight)
        with self._changed:
            job.is_done = True
            self._changed.notify_all()

    def _put(self, job: _Job[_T, _R], some: list[_R], weight: int) -> None:
        with self._changed:
            # The first one always goes on when nothing of it waits: all others may have to wait for it.
            while not self._is_stopped and self._waiting + weight > self._most:
                if job is self._first and not job.waiting:
                    break
                self._changed.wait()
            if self._is_stopped:
                raise _StoppedError
            self._waiting += weight
            job.waiting.append((some, weight))
            self._changed.notify_all()

    def results(self, job: _Job[_T, _R]) -> Iterator[_R]:
        while True:
            with self._changed:
                while not job.waiting and not job.is_done:
                    self._changed.wait()
                if not job.waiting:
                    break
                some, weight = job.waiting.popleft()
                self._waiting -= weight
                self._changed.notify_all()
            yield from some
        if job.error is not None:
            raise job.error
