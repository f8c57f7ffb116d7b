"""A command that is ended by Ctrl-C or SIGTERM: what stays of its work, and what to type to go on."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

AGAIN = "nothing is kept; to begin again"
# By command, as it is typed. A command that is not here changes nothing, or keeps nothing that is not whole.
_KEPT = {
    "extract": "finished shards stay; to go on",
    "download": "the images that are there stay; to go on",
    "pretrain": "the newest checkpoint stays, if there is one; to go on",
    "detector train": "the newest checkpoint stays, if there is one; to go on",
    "toyworld": "the pictures drawn so far stay; to go on",
    "demo": "the steps that are finished stay; to go on",
    "store copy": "finished shards stay; to go on",
    "store import": "finished shards stay; to go on",
    "store export": "what is written stays beside its place, but of lxmert-h5; to go on",
    "store repair": "the store is as it was, repaired shards stay beside it; to go on",
    "store info": "nothing is changed; again",
    "store verify": "nothing is changed; again",
    "store show": "nothing is changed; again",
    "store diff": "nothing is changed; again",
    "store ids": "nothing is changed; again",
    "store dead-letters": "nothing is changed; again",
    "store plan": "nothing is changed; again",
    "progress": "the run itself goes on; to look again",
    "leaks": "nothing is changed; again",
}
_GROUPS = ("store", "detector")
_told: dict[str, str] = {}  # what this process knows better than the table: "kept", and options to go on with
_signals: list[int] = []
_AGAIN_SECONDS = 0.1  # after which a Ctrl-C that could not be heard comes again
_IMPATIENT_SECONDS = 3.0


class _CtrlC:
    """The handler of SIGINT: raises KeyboardInterrupt, but not inside an import.

    Modules in C++ run Python while they are imported. An exception that they do not expect ends the process there, or
    comes out as another one. So Ctrl-C waits for the end of the import. If somebody waits three seconds and types it
    again, it waits no longer.
    """

    def __init__(self) -> None:
        self._came = 0.0
        self._waits = False
        self._is_ours = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_ours, self._is_ours = self._is_ours, False
        now = time.monotonic()
        self._came = self._came or now
        if not _imports(frame) or (not is_ours and now - self._came > _IMPATIENT_SECONDS):
            raise KeyboardInterrupt
        self.send_again()

    def send_again(self) -> None:
        if self._waits:  # one more of the same would fall into what the command does at its end
            return
        self._waits = True
        timer = threading.Timer(_AGAIN_SECONDS, self._send)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        self._waits, self._is_ours = False, True
        os.kill(os.getpid(), signal.SIGINT)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def stop_as_by_ctrl_c() -> None:
    """From now on SIGTERM does what Ctrl-C does, whatever that is at the time. Only in the main thread.

    Ctrl-C raises KeyboardInterrupt, after an import that is under way. Python drops an exception that is raised in a
    destructor, so a Ctrl-C that falls into one comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()
    _signals.clear()
    _told.clear()
    ctrl_c = _CtrlC()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker, which has nothing to bring to an end
            os._exit(128 + number)
        _signals.append(number)
        by_ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(by_ctrl_c):
            raise KeyboardInterrupt
        by_ctrl_c(signal.SIGINT, frame)

    tell = sys.unraisablehook

    def send_again(found: Any) -> None:  # sys.UnraisableHookArgs, which is a name for type checkers alone
        if not issubclass(found.exc_type, KeyboardInterrupt):
            tell(found)
        elif os.getpid() == process:
            ctrl_c.send_again()

    sys.unraisablehook = send_again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, ctrl_c)
    signal.signal(signal.SIGTERM, stop)


def exit_code() -> int:
    """128 + the number of the signal that ended the command, as shells have it."""
    return 128 + (_signals[0] if _signals else signal.SIGINT)


def tell_what_is_kept(kept: str, **options: str) -> None:
    """For whoever ends its work because of Ctrl-C, and knows what stays of it.

    Args:
        kept: such as "3 of 9 shards are finished and stay".
        options: to go on with, in place of those of the same names: shards="3-" for --shards 3-.
    """
    _told.clear()
    _told.update(kept=kept, **options)


def what_is_kept(arguments: Sequence[str]) -> str:
    """One line: what ended the command, what is kept, and what to type next.

    Args:
        arguments: as of sys.argv.
    """
    name = signal.Signals(exit_code() - 128).name
    what = "interrupted" if name == "SIGINT" else f"ended by {name}"
    options = {key: value for key, value in _told.items() if key != "kept"}
    kept = f"{_told['kept']}; to go on" if _told else _KEPT.get(command_of(arguments), AGAIN)
    return f"{what}; {kept}: {typed_again(arguments, options)}"


def command_of(arguments: Sequence[str]) -> str:
    """ "extract", "store copy"."""
    words = [word for word in arguments[1:] if not word.startswith("-")]
    return " ".join(words[: 2 if words and words[0] in _GROUPS else 1])


def typed_again(arguments: Sequence[str], options: dict[str, str] | None = None) -> str:
    """The command as it was typed, quoted for a shell, with these options."""
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
