"""What writing a store needs of its folder, wherever that lies.

Names are relative to the folder: `part-00003.json`, `plan/part-00003.jsonl`. A file is whole or not there; a data file
comes before the manifest that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_METADATA_BYTES = 64 * 2**20  # of 100,000 shards; what claims to be larger is no metadata
MAX_RANGE_BYTES = 256 * 2**20  # of an index or a record at a URL, which are read as a whole
UNKNOWN_BYTES = -1  # the size of a file whose server does not state it
ABANDONED_SECONDS = 24 * 3600.0  # so old, what no manifest at a URL names is nobody's work any more


@dataclass(frozen=True)
class FileFacts:
    """What a listing tells of a file: its size (`UNKNOWN_BYTES` where not told), and when it was written last (Unix
    seconds; 0.0 where not told)."""

    num_bytes: int
    written_at: float


class UnreachableError(OSError):
    """A file at a URL could not be read or written, now or with these rights. It tells nothing of the file: what looks
    for damage must stop at it, and not take the file for a damaged one."""


class SlowServerError(OSError):
    """A server that sends nothing, or next to nothing. No TimeoutError: fsspec makes one of its own of that."""


class OutputFolder(Protocol):
    """What writing a store needs of its folder. Plain picklable data; `str()` of it is how messages name it.

    All methods raise OSError naming the file when the folder cannot be read or written.
    """

    @property
    def local_path(self) -> Path | None:
        """The folder on this machine's disk; None for one at a URL, where nothing can be renamed or locked."""

    def where(self, name: str) -> str:
        """How messages name a file."""

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
        """As `put_bytes`, for a file that several attempts may put at once: the first one's stays. False when another's
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

    def written_aside(self, name: str) -> AbstractContextManager[Path]:
        """A local path to write to; when the block ends well, the file is put as `name`, else dropped."""

    def delete(self, name: str) -> None:
        """Removes a file; nothing where there is none."""

    def scratch(self, attempt: str, parent: str | None) -> AbstractContextManager[Path]:
        """An empty local folder for one attempt, removed afterwards.

        Args:
            parent: where it lies for a folder at a URL; None for the machine's temporary folder.
        """
