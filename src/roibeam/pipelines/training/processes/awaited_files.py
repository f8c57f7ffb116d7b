"""Waiting for the files of other processes of one run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from roibeam.features.counted import counted

logger = logging.getLogger(__name__)

_SECONDS = 0.2  # between two looks
_TOLD_AFTER, _TOLD_AGAIN = 60.0, 600.0  # seconds until it is told what is waited for


def wait_for_files(files: Sequence[Path]) -> None:
    """Returns when all are there; a launcher ends this process when another one fails.

    After a minute a warning tells what is waited for and where: machines that share no disk would wait for ever.
    """
    told_at = time.monotonic() + _TOLD_AFTER
    while missing := [file for file in files if not file.is_file()]:
        if time.monotonic() >= told_at:
            told_at += _TOLD_AGAIN
            logger.warning(
                "waiting for %s of %s that other processes write, such as %s; of several machines all must share this "
                "folder", f"{len(missing):,}", counted(len(files), "file"), missing[0].absolute(),
            )  # fmt: skip
        time.sleep(_SECONDS)
