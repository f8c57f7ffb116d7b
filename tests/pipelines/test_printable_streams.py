"""Whatever is printed, logged, drawn or raised reaches the terminal as text."""

import io
import logging
import os
import pty
import sys

import pytest
import typer

from roibeam.pipelines.common.console.printable_streams import Unchanged, printable_streams
from roibeam.pipelines.common.console.progress import _StandardError

HOSTILE, SHOWN = "\x1b]0;title\x07\u202eb\ud800", r"\x1b]0;title\x07\u202eb\ud800"


def test_print_echo_and_logs_pass_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("roibeam", logging.INFO, "", 0, f"{HOSTILE}\nroibeam: faked\n    folded", None, None)
    with printable_streams():
        print(HOSTILE, "\ta tab", file=sys.stdout)
        typer.echo(HOSTILE)
        typer.echo(Unchanged("\x1b[1mbold\x1b[0m"), color=True)
        _StandardError().emit(record)
        typer.echo(HOSTILE, err=True)
    said = capsys.readouterr()
    assert said.out == f"{SHOWN} \ta tab\n{SHOWN}\n\x1b[1mbold\x1b[0m\n"
    assert said.err == f"{SHOWN}\\nroibeam: faked\n    folded\n{SHOWN}\n"


def test_letters_that_a_stream_does_not_know_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, shown in (("ascii", "é图\n".encode()), ("latin-1", b"\xe9\\u56fe\n")):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        with printable_streams():
            typer.echo("é图")
        sys.stdout.flush()
        assert raw.getvalue() == shown


def test_what_is_drawn_and_what_stands_above_it_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    from roibeam.pipelines.common.console.progress import SCREEN, Progress, show_bars

    SCREEN.forget()  # a console that an earlier test drew on
    far, near = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(near, "w", buffering=1, closefd=False) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with printable_streams():
            show_bars()
            with Progress(f"at {HOSTILE}", 3):
                SCREEN.refresh()
                print(f"above {HOSTILE}", file=sys.stderr)
    SCREEN.forget()
    os.close(near)
    drawn = os.read(far, 1 << 16).decode()
    assert f"at {SHOWN}" in drawn and f"above {SHOWN}" in drawn
    assert "\x1b]" not in drawn and "\u202e" not in drawn
