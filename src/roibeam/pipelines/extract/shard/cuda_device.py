"""Which CUDA device a process computes on, where a machine has several.

Each process takes a seat, a locked file that the system unlocks when the process ends, however it ends. Seats are tried
device by device and then again from the first device, so processes spread evenly, also when there are more of them than
devices.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

_seats: dict[tuple[str, ...], tuple[int, IO[bytes]]] = {}  # kept open for as long as the process lives


def own_device(device: str) -> str:
    """ "cuda" -> "cuda:<n>", the same for all calls in a process; anything else is what it was.

    With one visible device (CUDA_VISIBLE_DEVICES) there is nothing to choose.
    """
    if device != "cuda" or torch.cuda.device_count() < 2:
        return device
    # By their hardware names: processes may see different devices under one number.
    names = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    return f"cuda:{take_seat(names)}"


def take_seat(names: Sequence[str], folder: Path | None = None) -> int:
    """Index of the device among `names` on which the fewest processes of this machine sit.

    Args:
        folder: where the seats are; None means one in the system's temporary folder, for each user.
    """
    key = tuple(names)
    if key not in _seats:
        folder = folder or Path(tempfile.gettempdir()) / f"roibeam-devices-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()  # its name can be guessed: another user may have made it, or a link
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise ValueError(
                f"{folder}: is not a folder that only this user can write; remove it, or set TMPDIR to a folder of "
                f"your own (or --device cuda:0)"
            )
        _seats[key] = next(seat for row in itertools.count() for seat in _free_seats(folder, names, row))
    return _seats[key][0]


def _free_seats(folder: Path, names: Sequence[str], row: int) -> list[tuple[int, IO[bytes]]]:
    """The first free seat of a row, or none."""
    for index, name in enumerate(names):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(folder / f"{name}.{row}", flags, 0o600), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return [(index, file)]
    return []
