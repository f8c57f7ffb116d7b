"""An exception in one line for people: what is wrong, and the cure where it is known; and whether it is a bug of ours.

A user can cause a ValueError of ours, every OSError, too little memory, and whatever a library raises that reads
somebody's file. Beam hands over a worker's exception as the text of its traceback: the last line of it counts.
"""

from __future__ import annotations

import builtins
import errno
import json
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.counted import byte_count
from roibeam.features.folders.full_disk import free_bytes
from roibeam.pipelines.common.console.address_space import address_space_limit

_LONGEST = 600  # characters of a message that is not ours; ours are as long as they need
# Libraries that open files of users or talk to servers; what they raise says something of those.
_OF_FILES = frozenset(
    "safetensors safetensors_rust zipfile tarfile lmdb pyarrow h5py zlib lzma gzip struct pickle _pickle csv _csv xml "
    "PIL cv2 yaml binascii sqlite3".split()
)
_OF_SERVERS = frozenset(
    "apache_beam botocore boto3 google googleapiclient grpc requests urllib3 http aiohttp aiobotocore s3fs gcsfs "
    "fsspec hdfs huggingface_hub httpx".split()
)
_CURES: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full: free some space there, then run the same command again",
    errno.EDQUOT: "your share of the disk is full: free some space there, then run the same command again",
    errno.EFBIG: "files are full at the limit of ulimit -f: raise it, then run the same command again",
    errno.EACCES: "this user may not do that there; change the rights, or name another place",
    errno.EPERM: "this user may not do that there; change the rights, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.EISDIR: "name a file in it",
    errno.ENOTDIR: "a part of this path is a file; name a folder",
    errno.EMFILE: "raise the limit of open files, such as ulimit -n 4096",
    errno.ENAMETOOLONG: "name a shorter path",
}
_MEMORY = "use a smaller --batch-size, fewer --workers or --decode-threads, or a machine with more memory"
_GPU_MEMORY = "use a smaller --batch-size or --precision bf16, another --device, or end what else uses this GPU"
_STEP_OF_BEAM = re.compile(r"\s*\[while running '[^']*'\]")
_KIND = re.compile(r"([A-Za-z_][\w.]*): ?(.*)", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Failure:
    """
    Attributes:
        line: for people, without a line break.
        is_expected: False for what no user can cause: a bug of ours.
    """

    line: str
    is_expected: bool = True


def failure_of(error: BaseException) -> Failure:
    """What an exception says to people."""
    text = _STEP_OF_BEAM.sub("", _message(error))
    if _TRACEBACK not in text:
        if isinstance(error, RecursionError) and _is_of_json(error):
            return Failure(f"a file of JSON is damaged or of another kind ({text}); write or fetch it again")
        where = f" (in {place})" if (place := _place(error)) else ""
        return _told(type(error), _full_name(type(error)), text, getattr(error, "errno", None), where)
    # "ValueError: what it says", the last line that begins at the margin.
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    start = max((at for at, line in enumerate(lines) if _KIND.match(line)), default=len(lines) - 1)
    last = " ".join(line.strip() for line in lines[start:])
    named = _KIND.match(last)
    if named is None:
        return Failure(last)
    kind = getattr(builtins, named[1], None)
    known = kind if isinstance(kind, type) and issubclass(kind, BaseException) else None
    return _told(known, named[1], named[2].strip(), None, " (in a worker)")


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        what = error.strerror[:1].upper() + error.strerror[1:]
        return f"{what}: {error.filename}{_room(error)}" if error.filename else what
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return error.args[0] if " " in error.args[0] else str(error)
    return str(error)


def _room(error: OSError) -> str:
    """How much is free on a disk that was full; what was half-written is gone by now."""
    if error.errno != errno.ENOSPC or not isinstance(error.filename, str) or error.filename.startswith("<"):
        return ""
    try:
        return f" ({byte_count(free_bytes(Path(error.filename)))} are free there now)"
    except OSError:
        return ""


def _told(kind: type[BaseException] | None, name: str, text: str, number: int | None, where: str) -> Failure:
    """
    Args:
        kind: of the exception; None for one that a worker named, where it is none of Python's own.
        name: of the kind, with its module where it is known.
        text: what it says.
        number: of an error of the operating system.
        where: the place in our code, for a bug.
    """
    line = " ".join(text.split())
    memory = _memory(kind, name, line)
    if memory is not None:
        return Failure(memory)
    short = name.rpartition(".")[2]
    if kind is None:
        pass
    elif issubclass(kind, UnicodeDecodeError):
        return Failure(f"a file is no UTF-8 text ({line}); convert it, such as with iconv -t UTF-8, or name another")
    elif issubclass(kind, json.JSONDecodeError):
        return Failure(f"a file of JSON is damaged or of another kind ({line}); write or fetch it again")
    elif issubclass(kind, EOFError):
        return Failure(f"a file ends too early ({line or short}); write or fetch it again")
    elif issubclass(kind, OSError):
        told = re.match(r"\[Errno (\d+)\] ", line)
        if told is not None:  # as the text of a worker's exception begins
            number, line = int(told[1]), line[told.end() :]
        cure = _CURES.get(number or 0)
        return Failure(f"{line or short}; {cure}" if cure else line or short)
    elif issubclass(kind, ModuleNotFoundError) and not line.startswith("No module named 'roibeam"):
        return Failure(f"{line}; install the package that has it, see the installation in README.md")
    elif issubclass(kind, NotImplementedError | RecursionError):
        return _bug(short, line, where)
    elif issubclass(kind, ValueError | RuntimeError):
        return Failure(line or short)
    elif issubclass(kind, KeyError) and " " in line and not line.startswith("'"):
        return Failure(line)  # a sentence, of a look-up in somebody's store or file
    library = name.partition(".")[0]
    if library in _OF_FILES:
        return Failure(_cut(f"a file is damaged or of another kind ({short}: {line}); write or fetch it again"))
    if library in _OF_SERVERS:
        return Failure(_cut(f"{short}: {line}"))
    return _bug(short, line, where)


def _bug(kind: str, line: str, where: str) -> Failure:
    said = f"{kind}: {line}" if line else kind
    return Failure(
        _cut(f"unexpected error: {said}{where}")
        + "; this is a fault of roibeam: run the command again with `roibeam --debug ...` and report what it prints",
        is_expected=False,
    )


def _memory(kind: type[BaseException] | None, name: str, line: str) -> str | None:
    """The line of too little memory; None for anything else."""
    if name.endswith("OutOfMemoryError") or "CUDA out of memory" in line or "CUDA error: out of memory" in line:
        asked = re.search(r"Tried to allocate [\d.]+ [KMGT]?i?B", line)
        what = asked[0][:1].lower() + asked[0][1:] if asked else "CUDA out of memory"
        return f"not enough memory on the GPU: {what}; {_GPU_MEMORY}"
    if name == "cv2.error" and "Insufficient memory" in line:
        kind, line = MemoryError, "OpenCV got less than it asked for"
    if kind is not None and issubclass(kind, MemoryError) and "ulimit -v" in line:  # of ours
        return f"not enough memory: {line}"
    limit = address_space_limit()
    cure = _MEMORY if limit is None else f"raise the limit of {limit / 1e9:.1f} GB on it (ulimit -v), or {_MEMORY}"
    if asked := re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", line):
        count = int(asked[1])
        size = f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count:,} bytes"
        return f"not enough memory: {size} more were asked for; {cure}"
    if "failed to map segment" in line or "annot allocate memory" in line:  # where libraries are loaded
        return f"not enough memory: {line}; raise the limit on it (ulimit -v), or use a machine with more"
    if (kind is not None and issubclass(kind, MemoryError)) or "std::bad_alloc" in line:
        return f"not enough memory{f': {line}' if line else ''}; {cure}"
    if limit is not None and "can't start new thread" in line:
        return f"not enough memory: no further thread could be started; {cure}"
    return None


def _full_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_of_json(error: BaseException) -> bool:
    """Whether it was raised while JSON was read."""
    return any(Path(frame.filename).parent.name == "json" for frame in traceback.extract_tb(error.__traceback__))


def _place(error: BaseException) -> str:
    """Our file and line where it was raised or passed; "" for an error that was none of ours to raise."""
    package = Path(__file__).parents[3]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(package):
            return f"{file.relative_to(package.parent)}:{frame.lineno}"
    return ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
