"""Work that a command keeps on disk, so that the same command goes on from it after a stop.

    part-00003.npy    work, in any form
    part-00003.json   its mark, written last: key of the work, size and SHA-256 of each file, facts, and its own SHA-256

Work that is damaged, and that of versions that wrote no sums, is removed and made anew, with a line.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from roibeam.features.folders.durable_files import (
    TEMPORARY_SUFFIX,
    fsync_folder,
    has_content,
    naming_file,
    open_regular_file,
    read_regular_file,
    write_bytes_atomically,
)

logger = logging.getLogger(__name__)

_HEAD, _AFTER = b'{"sha256": "', b'",\n'
_REST = len(_HEAD) + 64 + len(_AFTER)


class DamagedError(ValueError):
    """A file is not what was written."""


class KeptFile:
    """A file that is being written; a context manager. In its place, whole and durable, by `finish` alone.

    Attributes:
        num_bytes, sha256: of what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
        self.num_bytes, self._sum = 0, hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def __enter__(self) -> Self:
        with naming_file(self.path):
            self._file = self._aside.open("xb")
        return self

    def write(self, data: bytes) -> None:
        with naming_file(self.path):
            self._file.write(data)
        self._sum.update(data)
        self.num_bytes += len(data)

    def finish(self) -> None:
        with naming_file(self.path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        remove_if_folder(self.path)
        os.replace(self._aside, self.path)
        fsync_folder(self.path.parent)

    def __exit__(self, *error: object) -> None:
        try:
            with naming_file(self.path):
                self._file.close()
        finally:
            self._aside.unlink(missing_ok=True)


def write_summed_json(path: Path, content: Mapping[str, Any], **form: Any) -> None:
    """Writes a JSON object, whole or not at all, with the SHA-256 of its text as the first member; `form` are arguments
    of `json.dumps`."""
    remove_if_folder(path)
    write_bytes_atomically(path, with_sum((json.dumps(dict(content), **form) + "\n").encode("ascii")))


def with_sum(text: bytes) -> bytes:
    """A JSON object with the SHA-256 of its text as the first member."""
    rest = text[1:]
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _AFTER + rest


def check_sum(data: bytes, where: Path | str) -> bool:
    """Whether the text of a JSON object has a sum: earlier versions wrote none; DamagedError when it is another one."""
    if not data.startswith(_HEAD):
        return False
    rest = data[_REST:]
    if data[:_REST] != _HEAD + hashlib.sha256(rest).hexdigest().encode() + _AFTER:
        raise DamagedError(f"{where}: is damaged: its SHA-256 is not the one in it")
    return True


def read_summed_json(path: Path) -> tuple[dict[str, Any], bool]:
    """Reads what `write_summed_json` wrote; also returns whether it has a sum.

    Raises:
        FileNotFoundError: when it is not there.
        DamagedError: when it is not what was written.
    """
    try:
        data = read_regular_file(path)
        is_summed = check_sum(data, path)
        content = json.loads(data)
    except (FileNotFoundError, DamagedError):
        raise
    except (ValueError, OSError, RecursionError):
        raise DamagedError(f"{path}: is damaged: it cannot be read as JSON") from None
    if not isinstance(content, dict):
        raise DamagedError(f"{path}: is damaged: it holds no JSON object")
    content.pop("sha256", None)
    return content, is_summed


def write_mark(path: Path, work_key: str, files: Sequence[KeptFile] = (), **facts: Any) -> None:
    """Marks work as done.

    Args:
        work_key: all that decides the result; work of another key does not count.
        files: of the work, in the folder of the mark.
        facts: plain data.
    """
    sums = {file.path.name: [file.num_bytes, file.sha256] for file in files}
    write_summed_json(path, {"asked": work_key, "files": sums, **facts})


def kept_work(path: Path, work_key: str, files: Collection[str] = (), *, removes: bool = True) -> dict[str, Any] | None:
    """The facts of finished work; None where it is to be done, whatever is there.

    Args:
        path: of the mark.
        files: names that it must stand for.
        removes: remove the mark of damaged work, with a line for people.
    """
    try:
        left = next((path.with_name(name) for name in files if path.with_name(name).exists()), None)
        if left is not None and not path.exists():
            raise DamagedError(f"{left}: has no SHA-256 in a {path.name} beside it")
        content, is_summed = read_summed_json(path)
        if not is_summed:
            raise DamagedError(f"{path}: has no SHA-256 in it")
        if content.get("asked") != work_key or not content["files"].keys() >= set(files):
            return None
        for name, (num_bytes, sha256) in content["files"].items():
            _check_file(path.parent / name, num_bytes, sha256)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        if removes:
            logger.warning("%s; it is made anew", error)
            remove_if_folder(path)
            path.unlink(missing_ok=True)
        return None
    return content


def _check_file(path: Path, num_bytes: int, sha256: str) -> None:
    try:
        with open_regular_file(path) as file:
            is_it = has_content(file, num_bytes, sha256)
    except (OSError, ValueError):
        raise DamagedError(f"{path}: is missing or cannot be read") from None
    if not is_it:
        raise DamagedError(f"{path}: is damaged: its SHA-256 is not that in {path.with_suffix('.json').name}")


def remove_if_folder(path: Path) -> None:
    """Removes a folder that is in a file's place: no kept work is a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def remove_unfinished(folder: Path, names: str) -> None:
    """Removes files that killed processes left unfinished, of the names that this regular expression matches."""
    pattern = re.compile(rf"\.({names})\.(?P<process>\d+)(\.[0-9a-f]+)?{re.escape(TEMPORARY_SUFFIX)}")
    for entry in os.scandir(folder) if folder.is_dir() else ():
        found = pattern.fullmatch(entry.name)
        if found is not None and entry.is_file(follow_symlinks=False) and not _is_another(int(found["process"])):
            Path(entry.path).unlink(missing_ok=True)


def _is_another(process: int) -> bool:
    """Whether it is a living process, and not this one."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return process != os.getpid()
