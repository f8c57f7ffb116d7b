"""End of a command: its exit code, the line of `--json`, and one line where it fails; a traceback only with --debug.

| what happened                                     | exit code |
|---------------------------------------------------|-----------|
| done                                              | 0         |
| a file, a name or the machine is not as it must be | 1        |
| the command line cannot be parsed                 | 2         |
| an unexpected error: a bug of roibeam             | 70        |
| Ctrl-C; SIGTERM; no reader of the output          | 130; 143; 141 |

`--json` prints values of one line, each with an `event`; a command that fails prints the reason in such a line too.
"""

import errno
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from roibeam.messages import on_a_line
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.command_files import refuse_pipes_and_devices
from roibeam.pipelines.common.console.printable_streams import printable_streams
from roibeam.pipelines.common.console.termination import (
    StoppedBySignalError,
    exit_code,
    failure_of,
    resume_hint,
    stop_as_by_ctrl_c,
    typed_again,
)


def json_line(result: Mapping[str, Any], *, event: str = "done") -> str:
    """Returns a result as one line."""
    return json.dumps({"event": event, **result})


def error_line(message: str, exit_code: int) -> str:
    """Returns the reason of a failure as one line; the same words are on standard error."""
    return json_line({"message": message, "exit_code": exit_code}, event="error")


def print_error(message: str, exit_code: int) -> None:
    """Prints `error_line` if this process's command line has --json, also one that could not be parsed."""
    words = sys.argv[1:]
    words = words[: words.index("--")] if "--" in words else words
    if "--json" in words:
        with suppress(OSError):  # of a full disk, which is reported on standard error
            print(error_line(message, exit_code), flush=True)


FAILED, BUG, INTERRUPTED, NO_READER = 1, 70, 130, 141
THREADS_SECONDS = 1.0  # for threads to end by themselves before the process ends without them


@printable_streams()
def run_to_the_end(app: Callable[..., Any]) -> NoReturn:
    """Runs the command line, and ends the process."""
    refuse_pipes_and_devices()
    stop_as_by_ctrl_c()
    try:
        code = _run(app)
        if sys.stdout is not None:  # none where a shell has closed it
            sys.stdout.flush()  # a reader that has gone away, or a full disk, is seen here at the latest
    except BaseException as error:  # whatever it is, it ends in one line and with an exit code
        code = _failed(error)
    _leave(code)


def _run(app: Callable[..., Any]) -> int:
    code = app(standalone_mode=False)
    if code == INTERRUPTED:  # typer's answer to Ctrl-C
        return _complain_once(resume_hint(sys.argv), exit_code())
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """Prints why a command failed, and returns its exit code."""
    if isinstance(error, SystemExit) and not _is_of_a_pipe(error.__context__):
        return error.code if isinstance(error.code, int) else FAILED if error.code else 0
    # Typer ends by itself where a pipe has no reader, and takes the end of a file for that of a keyboard.
    cause = error.__context__ if isinstance(error, SystemExit) else error.__cause__
    if isinstance(cause, EOFError) or _is_of_a_pipe(cause):
        assert cause is not None
        error = cause
    if _is_of_a_pipe(error) and _has_no_reader():
        return _silenced()
    if isinstance(error, StoppedBySignalError):
        return _complain_once(f"{error}; to go on: {typed_again(sys.argv)}", error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return _complain_once(resume_hint(sys.argv), exit_code())
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's usage errors
        called = getattr(getattr(error, "ctx", None), "command_path", "roibeam")
        return _complain(f"{error.format_message()} ({called} --help lists all options)", error.exit_code)
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    failure = failure_of(error)
    if not failure.is_expected:
        with suppress(Exception):  # such as of a disk that is full: the error of the command itself is printed below
            from roibeam.pipelines.cli.bug_report import keep_last_error

            keep_last_error(error)
    return _complain(failure.line, FAILED if failure.is_expected else BUG)


def _complain_once(line: str, code: int) -> int:
    """Prints a line in the main process of a run only."""
    return _complain(line, code) if is_main_process() else code


def _is_of_a_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _has_no_reader() -> bool:
    """Whether standard output or error is a pipe whose reader has gone: `roibeam recipes | head`."""
    poll = select.poll()
    try:
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):  # a stream that is closed, or no file
        return True


def _silenced() -> int:
    """Discards further output: Python would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    return NO_READER


def _leave(code: int) -> NoReturn:
    """Ends the process, also when a read or a detector call in another thread never ends."""
    # Known only when something was extracted; importing it here would cost every command the time.
    threads = sys.modules.get("roibeam.extraction.engine.background_threads") if code else None
    if threads is not None and not threads.wait_for_threads(THREADS_SECONDS):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _complain(line: str, code: int) -> int:
    print(f"roibeam: {on_a_line(line)}", file=sys.stderr)
    print_error(line, code)
    return code
