"""One run at a time writes a store, or the folder of a training, on this machine."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from roibeam.features.folders.folder_protocol import OutputFolder

LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)

# The locks this process holds. A forked child (a loader's worker) shares them, and would hold them for seconds after
# its parent was killed: it lets go of its copies at once.
_HELD: set[int] = set()


def _let_go() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


def is_locked(store: Path) -> bool | None:
    """Whether a run that this machine knows of holds OUT/.lock; None where there is no such file: no run is at work on
    any machine. False may also be a run on another machine, where the file system does not share locks."""
    try:
        descriptor = os.open(store / LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place is not waited for
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def run_lock(folder: OutputFolder) -> AbstractContextManager[None]:
    """`store_lock` where there can be one. Object stores have no locks; runs there are safe beside each other without:
    docs/stores.md."""
    return nullcontext() if folder.local_path is None else store_lock(folder.local_path)


def lock_file(descriptor: int, operation: int, folder: Path) -> None:
    """`fcntl.flock`, of a file in `folder`.

    Raises:
        BlockingIOError, OSError: as that.
        ValueError: where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ValueError(
            f"{folder}: its file system has no locks ({error.strerror}), which keep two runs apart; mount it with them "
            f"(Lustre: -o flock), or write to a local disk and copy what was written"
        ) from None


def store_lock(store: Path, *, held: str = "another run is writing this store") -> AbstractContextManager[None]:
    """`held_lock` of OUT/.lock while a run writes.

    Args:
        held: what is said where another run holds it.
    """
    return held_lock(store / LOCK_NAME, f"{store}: {held}; wait for it or choose another folder")


@contextmanager
def held_lock(path: Path, held: str) -> Iterator[None]:
    """Holds a lock's file; the kernel lets go of it when the process dies, however it dies.

    Args:
        held: the message where another process holds it.
    Raises:
        ValueError: if another process holds it, or the file system has no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path.parent)
        except BlockingIOError:
            os.close(descriptor)
            raise ValueError(held) from None
        except BaseException:
            os.close(descriptor)
            raise
        # The previous holder may have removed the file between our open and our lock.
        try:
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)
    os.utime(descriptor)  # a file that a killed run left tells when this one began
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _HELD:
            _HELD.remove(descriptor)
            path.unlink(missing_ok=True)
            os.close(descriptor)
