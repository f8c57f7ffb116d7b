"""Termination of a command by an exception or a signal: one line that says what is wrong, what is kept, how to resume.

A user can cause roibeam's own ValueErrors, every OSError, too little memory, and any exception of a library that reads
the user's file. Beam hands over a worker's exception as the text of its traceback: the last line of it counts.

`StopSignals` lets a step of training and its checkpoint end before SIGTERM or Ctrl-C does.
"""

from __future__ import annotations

import builtins
import errno
import json
import logging
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from roibeam.features.folders.durable_files import free_bytes
from roibeam.messages import byte_count

_LONGEST = 600  # characters of a message of a library; roibeam's own are as long as they need
# Libraries that open files of users or talk to servers; their errors are about those.
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
class FailureLine:
    """
    Attributes:
        line: for people, without a line break.
        is_expected: False for a bug of roibeam, which no user can cause.
    """

    line: str
    is_expected: bool = True


def failure_of(error: BaseException) -> FailureLine:
    """Returns the message of an exception for people."""
    text = _STEP_OF_BEAM.sub("", _message(error))
    if _TRACEBACK not in text:
        if isinstance(error, RecursionError) and _is_of_json(error):
            return FailureLine(f"a file of JSON is damaged or of another kind ({text}); write or fetch it again")
        where = f" (in {place})" if (place := _place(error)) else ""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return _described(kind, name, text, getattr(error, "errno", None), where)
    # "ValueError: message", the last line that begins at the margin.
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    start = max((at for at, line in enumerate(lines) if _KIND.match(line)), default=len(lines) - 1)
    last = " ".join(line.strip() for line in lines[start:])
    named = _KIND.match(last)
    if named is None:
        return FailureLine(last)
    known = getattr(builtins, named[1], None)
    known = known if isinstance(known, type) and issubclass(known, BaseException) else None
    return _described(known, named[1], named[2].strip(), None, " (in a worker)")


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        what = error.strerror[:1].upper() + error.strerror[1:]
        return f"{what}: {error.filename}{_room(error)}" if error.filename else what
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return error.args[0] if " " in error.args[0] else str(error)
    return str(error)


def _room(error: OSError) -> str:
    """Free space on a disk that was full, after half-written files were removed."""
    if error.errno != errno.ENOSPC or not isinstance(error.filename, str) or error.filename.startswith("<"):
        return ""
    try:
        return f" ({byte_count(free_bytes(Path(error.filename)))} are free there now)"
    except OSError:
        return ""


def _described(kind: type[BaseException] | None, name: str, text: str, number: int | None, where: str) -> FailureLine:
    """Describes an exception with its remedy; `kind` is None for one that a worker named and Python does not know."""
    line = " ".join(text.split())
    memory = _memory(kind, name, line)
    if memory is not None:
        return FailureLine(memory)
    short = name.rpartition(".")[2]
    if kind is None:
        pass
    elif issubclass(kind, UnicodeDecodeError):
        return FailureLine(
            f"a file is no UTF-8 text ({line}); convert it, such as with iconv -t UTF-8, or name another"
        )
    elif issubclass(kind, json.JSONDecodeError):
        return FailureLine(f"a file of JSON is damaged or of another kind ({line}); write or fetch it again")
    elif issubclass(kind, EOFError):
        return FailureLine(f"a file ends too early ({line or short}); write or fetch it again")
    elif issubclass(kind, OSError):
        prefix = re.match(r"\[Errno (\d+)\] ", line)
        if prefix is not None:  # as the text of a worker's exception begins
            number, line = int(prefix[1]), line[prefix.end() :]
        cure = _CURES.get(number or 0)
        return FailureLine(f"{line or short}; {cure}" if cure else line or short)
    elif issubclass(kind, ModuleNotFoundError) and not line.startswith("No module named 'roibeam"):
        return FailureLine(f"{line}; install the package that has it, see the installation in README.md")
    elif issubclass(kind, NotImplementedError | RecursionError):
        return _bug(short, line, where)
    elif issubclass(kind, ValueError | RuntimeError):
        return FailureLine(line or short)
    elif issubclass(kind, KeyError) and " " in line and not line.startswith("'"):
        return FailureLine(line)  # a sentence, of a look-up in a user's store or file
    library = name.partition(".")[0]
    if library in _OF_FILES:
        return FailureLine(_cut(f"a file is damaged or of another kind ({short}: {line}); write or fetch it again"))
    if library in _OF_SERVERS:
        return FailureLine(_cut(f"{short}: {line}"))
    return _bug(short, line, where)


def _bug(kind: str, line: str, where: str) -> FailureLine:
    message = f"{kind}: {line}" if line else kind
    return FailureLine(
        _cut(f"unexpected error: {message}{where}")
        + "; this is a fault of roibeam: please report it with what `roibeam --report` prints",
        is_expected=False,
    )


def _memory(kind: type[BaseException] | None, name: str, line: str) -> str | None:
    """The line of too little memory; None for anything else."""
    if name.endswith("OutOfMemoryError") or "CUDA out of memory" in line or "CUDA error: out of memory" in line:
        tried = re.search(r"Tried to allocate [\d.]+ [KMGT]?i?B", line)
        what = tried[0][:1].lower() + tried[0][1:] if tried else "CUDA out of memory"
        return f"not enough memory on the GPU: {what}; {_GPU_MEMORY}"
    if name == "cv2.error" and "Insufficient memory" in line:
        kind, line = MemoryError, "OpenCV got less than it requested"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = limit != resource.RLIM_INFINITY
    cure = _MEMORY if not is_limited else f"raise the limit of {limit / 1e9:.1f} GB on it (ulimit -v), or {_MEMORY}"
    if tried := re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", line):
        count = int(tried[1])
        size = f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count:,} bytes"
        return f"not enough memory: {size} more were needed; {cure}"
    if "failed to map segment" in line or "annot allocate memory" in line:  # where libraries are loaded
        return f"not enough memory: {line}; raise the limit on it (ulimit -v), or use a machine with more"
    if (kind is not None and issubclass(kind, MemoryError)) or "std::bad_alloc" in line:
        return f"not enough memory{f': {line}' if line else ''}; {cure}"
    if is_limited and "can't start new thread" in line:
        return f"not enough memory: no further thread could be started; {cure}"
    return None


def _is_of_json(error: BaseException) -> bool:
    """Whether it was raised while JSON was read."""
    return any(Path(frame.filename).parent.name == "json" for frame in traceback.extract_tb(error.__traceback__))


def _place(error: BaseException) -> str:
    """File and line of roibeam where it was raised or passed; "" where roibeam was not involved."""
    package = Path(__file__).parents[3]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(package):
            return f"{file.relative_to(package.parent)}:{frame.lineno}"
    return ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


AGAIN = "nothing is kept; to begin again"
# By command, as it is typed. Other commands change nothing, or keep nothing that is not whole.
_KEPT = {
    **dict.fromkeys(("extract", "store copy", "store import"), "finished shards stay; to go on"),
    **dict.fromkeys(("pretrain", "detector train"), "the newest checkpoint stays, if there is one; to go on"),
    "download": "the images that are there stay; to go on",
    "toyworld": "the pictures drawn so far stay; to go on",
    "demo": "the steps that are finished stay; to go on",
    "tables": "runs keep their newest checkpoints, and what is done stays; to go on",
    "store export": "what is written stays beside its place, but of HDF5; to go on",
    "store repair": "the store is as it was, repaired shards stay beside it; to go on",
    "progress": "the run itself goes on; to look again",
    "leaks": "nothing is changed; again",
    **{f"store {name}": "nothing is changed; again" for name in "info verify show diff ids dead-letters plan".split()},
}
_GROUPS = ("store", "detector")
_hint: dict[str, str] = {}  # set by this process, instead of the table: "kept", and options to go on with
_signals: list[int] = []
_AGAIN_SECONDS = 0.1  # after which a Ctrl-C that could not be heard comes again
_IMPATIENT_SECONDS = 3.0


class _CtrlC:
    """The handler of SIGINT: raises KeyboardInterrupt, but not inside an import.

    Modules in C++ run Python while they are imported. An exception that they do not expect ends the process there, or
    comes out as another one. So Ctrl-C waits for the end of the import. A second Ctrl-C after three seconds interrupts
    at once.
    """

    def __init__(self) -> None:
        self._came = 0.0
        self._waits = False
        self._is_repeat = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_repeat, self._is_repeat = self._is_repeat, False
        now = time.monotonic()
        self._came = self._came or now
        if not _imports(frame) or (not is_repeat and now - self._came > _IMPATIENT_SECONDS):
            raise KeyboardInterrupt
        self.send_again()

    def send_again(self) -> None:
        if self._waits:  # another one would interrupt the end of the command
            return
        self._waits = True
        timer = threading.Timer(_AGAIN_SECONDS, self._send)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        self._waits, self._is_repeat = False, True
        os.kill(os.getpid(), signal.SIGINT)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def stop_as_by_ctrl_c() -> None:
    """Makes SIGTERM do the same as Ctrl-C at the time. Only in the main thread.

    Ctrl-C raises KeyboardInterrupt, after an import that is under way. Python drops an exception that is raised in a
    destructor, so a Ctrl-C that falls into one comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()
    _signals.clear()
    _hint.clear()
    ctrl_c = _CtrlC()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker, which has nothing to bring to an end
            os._exit(128 + number)
        _signals.append(number)
        by_ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(by_ctrl_c):
            raise KeyboardInterrupt
        by_ctrl_c(signal.SIGINT, frame)

    report = sys.unraisablehook

    def send_again(found: Any) -> None:  # sys.UnraisableHookArgs, which is a name for type checkers alone
        if not issubclass(found.exc_type, KeyboardInterrupt):
            report(found)
        elif os.getpid() == process:
            ctrl_c.send_again()

    sys.unraisablehook = send_again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, ctrl_c)
    signal.signal(signal.SIGTERM, stop)


def exit_code() -> int:
    """128 + the number of the signal that ended the command, as shells have it."""
    return 128 + (_signals[0] if _signals else signal.SIGINT)


def set_resume_hint(kept: str, **options: str) -> None:
    """Sets the hint of work that ends because of Ctrl-C.

    Args:
        kept: such as "3 of 9 shards are finished and stay".
        options: to go on with, in place of those of the same names: shards="3-" for --shards 3-.
    """
    _hint.clear()
    _hint.update(kept=kept, **options)


def resume_hint(arguments: Sequence[str]) -> str:
    """Returns one line for these `sys.argv`: what ended the command, what is kept, and what to type next."""
    name = signal.Signals(exit_code() - 128).name
    what = "interrupted" if name == "SIGINT" else f"ended by {name}"
    options = {key: value for key, value in _hint.items() if key != "kept"}
    kept = f"{_hint['kept']}; to go on" if _hint else _KEPT.get(command_of(arguments), AGAIN)
    return f"{what}; {kept}: {typed_again(arguments, options)}"


def command_of(arguments: Sequence[str]) -> str:
    """ "extract", "store copy"."""
    words = [word for word in arguments[1:] if not word.startswith("-")]
    return " ".join(words[: 2 if words and words[0] in _GROUPS else 1])


def typed_again(arguments: Sequence[str], options: dict[str, str] | None = None) -> str:
    """Returns the command as it was typed, quoted for a shell, with these options."""
    program = Path(arguments[0]).name
    words = [program if shutil.which(program) else arguments[0]]
    rest = iter(arguments[1:])
    for word in rest:
        name, _, value = word.removeprefix("--").partition("=")
        if options and word.startswith("--") and name in options:
            if not value:
                next(rest, None)
            continue
        words.append(word)
    for name, value in (options or {}).items():
        words += [f"--{name}", value]
    return shlex.join(words)


logger = logging.getLogger(__name__)

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class StoppedBySignalError(Exception):
    """Raised when work ended early, in good order, because of a signal.

    Attributes:
        exit_code: 128 + the signal's number, as shells have it.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopSignals:
    """Context in which SIGTERM or Ctrl-C is only noted; a second Ctrl-C, three seconds later, interrupts at once.

    Outside the main thread, where Python handles no signals, nothing is changed.

    Attributes:
        number: of the first signal that came, or 0.
    """

    def __init__(self, what_comes_first: str) -> None:
        self.number = 0
        self._what_comes_first = what_comes_first
        self._came = 0.0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in _STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._came = number, now
            logger.warning("%s: %s first", signal.Signals(number).name, self._what_comes_first)
        elif number == signal.SIGINT and now - self._came > _IMPATIENT_SECONDS:
            raise KeyboardInterrupt
