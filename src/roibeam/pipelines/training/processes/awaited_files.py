"""Waiting for the files of other processes of one run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from roibeam.features.counted import counted

logger = logging.getLogger(__name__)

_SECONDS = 0.2  # between two looks
_TOLD_AFTER, _TOLD_AGAIN = 60.0, 600.0  # seconds until it is told what is waited for
_GONE_AFTER = 600.0  # seconds without the process that writes a file: launched ones come within seconds of each other


def wait_for_files(
    files: Sequence[Path],
    is_whole: Callable[[Path], bool] = Path.is_file,
    is_at_work: Callable[[Path], bool] = lambda file: True,
) -> None:
    """Returns when all are whole; a launcher ends this process when another one fails.

    After a minute a warning tells what is waited for and where: machines that share no disk would wait for ever.

    Args:
        is_at_work: whether the process that writes a file is there.
    Raises:
        ValueError: when the process of a missing file was not there for ten minutes.
    """
    begin = seen_at = time.monotonic()
    told_at, missing = begin + _TOLD_AFTER, list(files)
    while missing := [file for file in missing if not is_whole(file)]:
        now = time.monotonic()
        if now >= told_at:
            told_at += _TOLD_AGAIN
            logger.warning(
                "waiting for %s of %s that other processes write, such as %s; of several machines all must share this "
                "folder", f"{len(missing):,}", counted(len(files), "file"), missing[0].absolute(),
            )  # fmt: skip
        if all(map(is_at_work, missing)):
            seen_at = now
        elif now - seen_at > _GONE_AFTER:
            raise ValueError(
                f"{missing[0]}: is missing, and no process that would write it is at work; run the same command again "
                f"with as many processes, and it goes on from the other parts"
            )
        time.sleep(_SECONDS)
