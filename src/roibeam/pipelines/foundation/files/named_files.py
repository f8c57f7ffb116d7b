"""Files and folders that a command line names, looked for at once: before a package is imported that takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterable

from roibeam.pipelines.foundation.files.remote_files import is_url

# What names no file of this machine: a repository of the Hugging Face hub, and weights that are drawn.
_ELSEWHERE = ("hf:", "random:", "file:")


def check_named_files(named: Iterable[tuple[str, str | os.PathLike[str] | None]]) -> None:
    """
    Args:
        named: options, each with what was given for it; None for nothing. URLs and hf:<repo> are not looked for.
    Raises:
        ValueError: with all options whose file or folder is not there.
    """
    missing = [
        f"{option} {os.fspath(value)!r}" for option, value in named if value is not None and not _is_there(value)
    ]
    if missing:
        raise ValueError(f"no such file or folder: {', '.join(missing)}")


def check_output_is_no_file(out: str | os.PathLike[str]) -> None:
    """Raises ValueError where a folder is to be written, and a file has its name."""
    if os.path.isfile(out):
        raise ValueError(f"{os.fspath(out)} is a file; name a folder to write into")


def _is_there(value: str | os.PathLike[str]) -> bool:
    text = os.fspath(value)
    return is_url(text) or text.startswith(_ELSEWHERE) or os.path.exists(os.path.expanduser(text))
