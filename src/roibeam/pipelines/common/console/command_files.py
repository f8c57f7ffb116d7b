"""Files that a command line names: checked before torch or Beam are imported, read as JSON, copied from a URL.

All that is wrong with the names is one message. JSON files are small, and users may have damaged them.
`TemporaryCopies` gives a path of this machine for each file: its own, or that of a temporary copy of one at a URL.
Pipes and devices are refused by CPython's audit event "open", which all Python code that opens a file passes: a pipe
without a writer is waited for, and /dev/zero has no end. Files that libraries in C open are checked with
`features.folders.durable_files.check_regular_file`.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from roibeam.features.folders.durable_files import scratch_folder
from roibeam.features.folders.local_folder import is_at_url
from roibeam.messages import byte_count, plural
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.termination import failure_of
from roibeam.pipelines.common.remote_files import is_url

FILE, FOLDER, EITHER = "file", "folder", "file or folder"
# Prefixes that name no file of this machine: a repository of the Hugging Face hub, and weights that are drawn.
_ELSEWHERE = ("hf:", "random:", "file:")
_T = TypeVar("_T")
Named = str | os.PathLike[str] | None


class NamedFiles:
    """Errors in the files and names of a request: `need` and `look` collect them, `check` raises them."""

    def __init__(self) -> None:
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def need(self, option: str, value: Named, kind: str = EITHER) -> bool:
        """Whether the file or folder of an option is there, of its `kind`, and no empty file or folder of photos. None
        stands for an option that was not given; URLs and hf:<repo> are not looked for."""
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
            with_tables = (
                ": of tables of your own it holds train.csv and val.csv (or .jsonl, .parquet), with the columns image, "
                "text and label, or of --task vqa image, question and answer; docs/finetuning.md, A table of your own"
            )
            more = with_tables if option == "--data" else ""
            self._wrong.append(f"{option} {os.fspath(value)!r} is a file; name a folder{more}")
            return False
        if os.path.isfile(path) and not os.path.getsize(path):
            self._wrong.append(
                f"{option} {os.fspath(value)!r} is an empty file (0 bytes); name another, or make it again"
            )
            return False
        if os.path.isdir(path) and option.endswith("photos") and not os.listdir(path):
            self._wrong.append(f"{option} {os.fspath(value)!r} is an empty folder; name that of the photos")
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

    def refuse(self, line: str) -> None:
        """Adds an error."""
        self._wrong.append(line)

    def look(self, check: Callable[[], _T]) -> _T | None:
        """Returns the result of a check; None where it raises an error, which is kept."""
        try:
            return check()
        except (ValueError, OSError) as error:
            self._wrong.append(failure_of(error).line)
            return None

    def check(self) -> None:
        """Raises ValueError with all errors that were found, if any."""
        missing = [f"no such file or folder: {', '.join(self._missing)}"] if self._missing else []
        if found := [*missing, *dict.fromkeys(self._wrong)]:
            raise ValueError("; and ".join(found))


def check_named_files(named: Iterable[tuple[str, Named]]) -> None:
    """Raises ValueError with all options whose file or folder is not there; for more checks see `NamedFiles`."""
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


def read_json_object(
    path: Path, *, max_bytes: int | None = None, hint: str = "", parse_float: Callable[[str], float] = float
) -> dict[str, Any]:
    """Reads the JSON object in a file; ValueError, which ends in `hint`, for anything else or more than `max_bytes`."""
    after = f"; {hint}" if hint else ""
    if max_bytes is not None and path.is_file() and (size := path.stat().st_size) > max_bytes:
        raise ValueError(f"{path}: {size:,} bytes are too many; at most {max_bytes:,} are read{after}")
    try:
        found = json.loads(path.read_text("utf-8"), parse_float=parse_float)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, a number of 4,301 digits
        raise ValueError(f"{path}: cannot be read as JSON: {error}{after}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}; expected a JSON object{after}")
    return found


_COPIED_AT_ONCE = 16


@dataclass(frozen=True)
class TemporaryCopies:
    """A file or folder with a path on this machine: its own, or that of a copy of one at a URL.

    Attributes:
        location: its absolute path or URL, as in messages and stores.
        num_bytes: that it takes; those of an LMDB map that were never written do not count.
        changed_ns: when the newest file was changed, in ns.
    """

    path: Path
    location: str
    num_bytes: int
    changed_ns: int


UPLOADING = ".uploading.json"  # lies in a folder at a URL while its files come


@contextmanager
def borrowed_files(place: str | os.PathLike[str], *, scratch: str | None = None) -> Iterator[TemporaryCopies]:
    """Gives a file or folder a local path. Files at a URL are copied to a scratch folder below `scratch`, which is
    removed afterwards and needs room for all of them; nothing is held in memory."""
    if not is_at_url(place):
        yield TemporaryCopies(Path(place), os.path.abspath(place), *_size_and_time(Path(place)))
        return
    # Not above: it needs fsspec, which reading a local file can do without.
    from roibeam.features.folders.object_folder import ObjectFolder

    url = str(place).rstrip("/")
    parent, _, name = url.rpartition("/")
    with scratch_folder(scratch) as folder:
        outer = ObjectFolder(parent)
        path, facts = folder / name, outer.file_facts(name)
        found = {"": facts} if facts is not None else ObjectFolder(url).files_below()
        if not found:
            raise FileNotFoundError(f"{url}: no such file or folder; is the URL right?")
        if UPLOADING in found:
            raise ValueError(f"{url}: is not whole, its upload is under way or stopped; the same export goes on")
        num_bytes = sum(each.num_bytes for each in found.values())

        def copy(below: str) -> None:
            target = path / below
            target.parent.mkdir(parents=True, exist_ok=True)
            outer.download(f"{name}/{below}".rstrip("/"), target, found[below].num_bytes)

        with (
            waiting(f"copying {plural(len(found), 'file')}, {byte_count(num_bytes)}, from {url}"),
            ThreadPoolExecutor(_COPIED_AT_ONCE, thread_name_prefix="copy") as pool,
        ):
            for done in [pool.submit(copy, below) for below in found]:
                done.result()
        changed_ns = int(max(each.written_at for each in found.values()) * 1e9)
        yield TemporaryCopies(path, url, num_bytes, changed_ns)


def _size_and_time(source: Path) -> tuple[int, int]:
    files = (os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names)
    states = [os.stat(source)] if source.is_file() else map(os.lstat, files)
    num_bytes = newest = 0
    for state in states:
        num_bytes += min(state.st_size, state.st_blocks * 512)
        newest = max(newest, state.st_mtime_ns)
    return num_bytes, newest


# Devices that processes may open: their own streams (`--out /dev/stdout`), the null device, a terminal.
_WRITABLE = ("/dev/", "/proc/")
_READABLE = ("/dev/null", "/dev/tty")
_is_looking = False


def refuse_pipes_and_devices() -> None:
    """Makes opening a pipe or device by its name raise ValueError, also in forked processes."""
    global _is_looking
    if not _is_looking:
        _is_looking = True
        sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    path, _, flags = arguments
    if isinstance(path, int) or flags & os.O_NONBLOCK:  # open already, or looked at afterwards
        return
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(kind) or not (stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)):
        return
    name = os.fsdecode(path)
    if name in _READABLE or (flags & os.O_ACCMODE != os.O_RDONLY and name.startswith(_WRITABLE)):
        return
    what = "a pipe" if stat.S_ISFIFO(kind) else "a device"
    raise ValueError(f"{name}: is not a regular file but {what}, which may never end; put a file in its place")
