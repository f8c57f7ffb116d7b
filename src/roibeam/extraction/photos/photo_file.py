"""The bytes of one photo, and why they cannot be had. No torch: sources and stores read files without a detector."""

from __future__ import annotations

import os
import stat

MAX_FILE_BYTES = 512 * 2**20


class PhotoReadError(OSError):
    """A photo that cannot be read, for a reason that is to be counted by its own word.

    Attributes:
        reason: as in `Failure`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_local_file(location: str) -> bytes:
    """Reads one local file, refusing what no image of the default pixel limit can be (over 512 MiB)."""
    # Without blocking: a pipe or device named .jpg would otherwise be waited for until somebody writes into it.
    with open(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
        return file.read(status.st_size)  # read() makes room for what it is asked for
