"""What a command line names, looked at before torch or Beam are imported; all that is wrong is told at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from roibeam.pipelines.common.console.failure import failure_of
from roibeam.pipelines.common.files.remote_files import is_url

FILE, FOLDER, EITHER = "file", "folder", "file or folder"
# What names no file of this machine: a repository of the Hugging Face hub, and weights that are drawn.
_ELSEWHERE = ("hf:", "random:", "file:")
_T = TypeVar("_T")
Named = str | os.PathLike[str] | None


class NamedFiles:
    """What is wrong with the files and names of a request: `need` and `look` collect it, `check` tells it."""

    def __init__(self) -> None:
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def need(self, option: str, value: Named, kind: str = EITHER) -> bool:
        """Whether the file or folder of an option is there. Nothing was given for None; URLs and hf:<repo> are not
        looked for.

        Args:
            kind: what it must be: `FILE`, `FOLDER` or `EITHER`.
        """
        if value is None or _is_elsewhere(value):
            return True
        path = os.path.expanduser(os.fspath(value))
        if not os.path.exists(path):
            self._missing.append(f"{option} {os.fspath(value)!r}")
            return False
        if not os.path.isdir(path) and not os.path.isfile(path):
            self._wrong.append(f"{option} {os.fspath(value)!r} is a pipe or a device; name a file")
            return False
        if kind == FILE and os.path.isdir(path):
            self._wrong.append(f"{option} {os.fspath(value)!r} is a folder; name a file")
            return False
        if kind == FOLDER and not os.path.isdir(path):
            self._wrong.append(f"{option} {os.fspath(value)!r} is a file; name a folder")
            return False
        return True

    def need_output_folder(self, out: Named) -> bool:
        """Whether a folder can be written there: no file has its name or that of a folder above it, and this user may
        write."""
        if out is None or _is_elsewhere(out):
            return True
        named = path = os.path.abspath(os.path.expanduser(os.fspath(out)))
        while not os.path.exists(path) and os.path.dirname(path) != path:
            if os.path.islink(path):
                self._wrong.append(
                    f"{path} is a link to {os.readlink(path)}, which is not there; make that folder first"
                )
                return False
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            where = "is a file" if path == named else f"cannot be made: {path} is a file"
            self._wrong.append(f"{os.fspath(out)} {where}; name a folder to write into")
        elif not os.access(path, os.W_OK | os.X_OK):
            is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            why = f"Read-only file system: {path}" if is_read_only else f"this user may not write in {path}"
            self._wrong.append(f"{os.fspath(out)} cannot be written: {why}")
        else:
            return True
        return False

    def look(self, check: Callable[[], _T]) -> _T | None:
        """What a check gives; None where it finds something wrong, which is kept."""
        try:
            return check()
        except (ValueError, OSError) as error:
            self._wrong.append(failure_of(error).line)
            return None

    def check(self) -> None:
        """Raises ValueError with all that was found; nothing where all is well."""
        missing = [f"no such file or folder: {', '.join(self._missing)}"] if self._missing else []
        if found := [*missing, *dict.fromkeys(self._wrong)]:
            raise ValueError("; and ".join(found))


def check_named_files(named: Iterable[tuple[str, Named]]) -> None:
    """Raises ValueError with all options whose file or folder is not there; a request with more to look at makes a
    `NamedFiles` of its own."""
    files = NamedFiles()
    for option, value in named:
        files.need(option, value)
    files.check()


def check_output_is_no_file(out: str | os.PathLike[str]) -> None:
    """Raises ValueError where a folder is to be written, and a file has its name."""
    named = NamedFiles()
    named.need_output_folder(out)
    named.check()


def _is_elsewhere(value: str | os.PathLike[str]) -> bool:
    text = os.fspath(value)
    return is_url(text) or text.startswith(_ELSEWHERE)
