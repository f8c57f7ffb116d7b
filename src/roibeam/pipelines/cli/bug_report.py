"""`roibeam --report`: what a bug report needs to state, and the last unexpected error of a command on this machine.

Its text has no password or token, and names neither the user, the machine nor a home folder. The error lies in the
cache folder, without them too.
"""

import importlib.metadata
import os
import platform
import pwd
import re
import socket
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from roibeam.features.folders.durable_files import cache_folder, open_regular_file, write_bytes_atomically
from roibeam.messages import byte_count, on_a_line, plural
from roibeam.pipelines.common.console.termination import typed_again
from roibeam.version import __version__

_MOST_CHARACTERS = 16_000  # of a traceback: its end, which names the error
_GPUS = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_GPU_SECONDS = 10
_HIDDEN = "[hidden]"
_SECRET = r"(?:token(?![a-z])|secret|passw(?:or)?d|passphrase|credential|authorization|signature|api_?key|access_?key)"
_WORD = r"[\w-]{0,100}"  # bounded: else a long run of letters takes the square of its length
_SECRETS = (
    (r"\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@'\"]+@", rf"\1{_HIDDEN}@"),  # a user and a password in a URL
    (r"\b([a-z][a-z0-9+.-]{0,20}://[^\s?#'\"]*[?#])(?!sha256=)[^\s'\"]+", rf"\1{_HIDDEN}"),  # a URL that is signed
    (r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ)[\w.-]{8,}", _HIDDEN),
    (r"\b(bearer|basic)(\s+)[\w.+/=~-]{16,}", rf"\1\2{_HIDDEN}"),
    (rf"(--{_WORD}{_SECRET}{_WORD}(?:=|\s+))('[^']*'|\"[^\"]*\"|\S+)", rf"\1{_HIDDEN}"),
    (rf"({_WORD}{_SECRET}{_WORD}['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;)}}]+)", rf"\1{_HIDDEN}"),
)
_NAME_OF_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|KEY", re.IGNORECASE)
_SHORTEST_SECRET = 6  # characters of a variable's value; the shorter ones are switches


def bug_report() -> str:
    """Returns the lines of `roibeam --report`."""
    lines = [
        f"roibeam {__version__}, Python {platform.python_version()}, {platform.platform()}",
        _machine(),
        *_gpus(),
        *textwrap.wrap(", ".join(_packages()), 100, break_on_hyphens=False),
        "",
        _last_error(),
    ]
    return redacted("\n".join(lines))


def keep_last_error(error: BaseException) -> None:
    """Writes an unexpected error and its command, for the next `bug_report`."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    trace = "".join(traceback.format_exception(error))[-4 * _MOST_CHARACTERS :]  # more than is kept: no secret is cut
    trace = redacted(trace)[-_MOST_CHARACTERS:]
    # Each word before quotes come around it, then the whole for options and their values.
    command = redacted(on_a_line(typed_again([redacted(word) for word in sys.argv])))
    text = f"{when}, roibeam {__version__}: {command}\n{trace}"
    path = _error_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, text.encode("utf-8", "backslashreplace"))
    path.chmod(0o600)


def redacted(text: str) -> str:
    """`text` without secrets, home folders, and the names of the user and the machine."""
    named = {value for name, value in os.environ.items() if _NAME_OF_SECRET.search(name)}
    for value in sorted(named, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, _HIDDEN)
    for pattern, instead in _SECRETS:
        text = re.sub(pattern, instead, text, flags=re.IGNORECASE)
    homes, names = _personal()
    for home in sorted(homes, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = re.sub(r"(?<![\w~.-])/(?:home|Users)/[^/\s'\":]+", "~", text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", _HIDDEN, text)
    return text


def _personal() -> tuple[set[str], set[str]]:
    """Home folders of the user; names of the user and of the machine."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    homes = {os.environ.get("HOME", "")}
    with suppress(KeyError):  # a user of a container that has no name
        entry = pwd.getpwuid(os.getuid())
        names.add(entry.pw_name)
        homes.add(entry.pw_dir)
    host = socket.gethostname()
    names |= {host, host.partition(".")[0]}
    homes |= {os.path.realpath(home) for home in homes if home}
    homes = {home.rstrip("/") for home in homes}
    return homes - {""}, names - {"", "root", "localhost"}  # which say nothing


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{plural(cores, 'core')} of {os.cpu_count()}, {byte_count(memory)} of memory"


def _gpus() -> list[str]:
    try:
        done = subprocess.run(_GPUS, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"no GPU: nvidia-smi is not there or failed ({type(error).__name__})"]
    return [f"GPU {line}" for line in done.stdout.splitlines()]


def _packages() -> Iterator[str]:
    """Name and version of each package that roibeam can use and that is installed."""
    of_cuda = (name for name in _required("torch") if name.startswith(("cuda-toolkit", "nvidia-cud")))
    for name in dict.fromkeys((*_required("roibeam"), *of_cuda)):
        with suppress(importlib.metadata.PackageNotFoundError):
            yield f"{name} {importlib.metadata.version(name)}"


def _required(package: str) -> list[str]:
    try:
        requirements = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    of_users = (each for each in requirements if not re.search(r"extra == .(dev|bench)\b", each))
    return [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in of_users]


def _error_path() -> Path:
    return cache_folder() / "last_error.txt"


def _last_error() -> str:
    try:
        with open_regular_file(_error_path()) as file:
            text = file.read(4 * _MOST_CHARACTERS).decode("utf-8", "replace")
    except (OSError, ValueError, RuntimeError):  # none, a folder in its place, no home folder
        return "no unexpected error of a command is recorded"
    return f"last unexpected error, {text.rstrip()}"
