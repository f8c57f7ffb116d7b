"""Output folder: the operations that writing a store needs of its folder, wherever that lies, and the folder's lock.

Names are relative to the folder: `part-00003.json`, `plan/part-00003.jsonl`. A file is whole or not there; a data file
comes before the manifest that names it. One run at a time writes a store, or the folder of a training, on this machine.
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_METADATA_BYTES = 64 * 2**20  # of 100,000 shards; what claims to be larger is no metadata
MAX_RANGE_BYTES = 256 * 2**20  # of an index or a record at a URL, which are read as a whole
UNKNOWN_BYTES = -1  # the size of a file whose server does not state it
ABANDONED_SECONDS = 24 * 3600.0  # files at a URL that no manifest names are abandoned at this age


@dataclass(frozen=True)
class FileFacts:
    """A file in a listing: its size (`UNKNOWN_BYTES` if unknown), and the time of its last write (Unix seconds; 0.0 if
    unknown)."""

    num_bytes: int
    written_at: float


class UnreachableError(OSError):
    """A file at a URL could not be read or written, now or with these rights. It need not be damaged: a search for
    damage must stop here."""


class SlowServerError(OSError):
    """A server that sends nothing, or next to nothing. No TimeoutError: fsspec makes one of its own of that."""


class OutputFolder(Protocol):
    """Folder that a store is written to. Plain picklable data; `str()` of it is its name in messages.

    All methods raise OSError naming the file when the folder cannot be read or written.
    """

    @property
    def local_path(self) -> Path | None:
        """The folder on this machine's disk; None for one at a URL, where nothing can be renamed or locked."""

    def where(self, name: str) -> str:
        """Name of a file in messages."""

    def read_bytes(self, name: str) -> bytes:
        """A whole file, at a URL of at most `MAX_METADATA_BYTES`; FileNotFoundError where there is none."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of a file, fewer where it is shorter; FileNotFoundError where there is none."""

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Small files in the order given, None for those that are not there; few are in memory at a time."""

    def num_bytes(self, name: str) -> int | None:
        """The size of a file; None where there is none, `UNKNOWN_BYTES` where its server does not state it."""

    def listing(self, prefix: str = "") -> dict[str, FileFacts]:
        """The files directly in the folder whose names begin like this; {} also where there is no folder."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Writes or replaces a small file."""

    def put_first(self, name: str, data: bytes) -> bool:
        """`put_bytes` for a file that several attempts may put at once: the first one's stays. False when another's
        was there."""

    def put_many(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Files that count only when one that is put later names them: durable at the end, perhaps cut until then."""

    def put_file(self, source: Path, name: str) -> None:
        """Puts a finished file of this machine into its place, whole; `source` may be gone afterwards."""

    def local_file(self, name: str, num_bytes: int) -> AbstractContextManager[Path]:
        """A path of this machine to read a file of so many bytes by: its own, or that of a copy in a scratch folder,
        which is gone afterwards. No file is held in memory.

        Raises:
            FileNotFoundError: where there is none, for one at a URL.
            ValueError: where one at a URL has another size.
        """

    def atomic_path(self, name: str) -> AbstractContextManager[Path]:
        """A local path to write to; when the block ends well, the file is put as `name`, else dropped."""

    def delete(self, name: str) -> None:
        """Removes a file; nothing where there is none."""

    def scratch(self, attempt: str, parent: str | None) -> AbstractContextManager[Path]:
        """An empty local folder for one attempt, removed afterwards; for a folder at a URL it lies in `parent`, or in
        the machine's temporary folder."""


LOCK_NAME = ".lock"
LOCK_START = "roibeam on "  # then the name of the machine; locks of earlier versions are empty
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)

# The locks this process holds. A forked child (a loader's worker) shares them, and would hold them for seconds after
# its parent was killed: it lets go of its copies at once.
_HELD: set[int] = set()


def _let_go() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


def lock_of_this_machine() -> bytes:
    """Content of a lock file that a process of this machine holds or held."""
    return f"{LOCK_START}{socket.gethostname()}".encode()


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
    """`held_lock` of OUT/.lock while a run writes; `held` begins the message where another run holds it."""
    return held_lock(store / LOCK_NAME, f"{store}: {held}; wait for it or choose another folder")


@contextmanager
def held_lock(path: Path, held: str) -> Iterator[None]:
    """Holds a lock's file; the kernel lets go of it when the process dies, however it dies. It names this machine, so
    that a free lock here is known to be of a killed run.

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
        # The previous holder may have removed the file between open and lock.
        try:
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)
    os.utime(descriptor)  # also on a file that a killed run left: its time is the start of this run
    with suppress(OSError):  # a full disk; it is read by `roibeam progress` alone
        os.ftruncate(descriptor, 0)
        os.write(descriptor, lock_of_this_machine())
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _HELD:
            _HELD.remove(descriptor)
            path.unlink(missing_ok=True)
            os.close(descriptor)
