"""What is under way: a bar on a terminal, plain lines elsewhere."""

import fcntl
import logging
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from tiny_commands import Cli

from roibeam.pipelines.common.console import progress as progress_file
from roibeam.pipelines.common.console.progress import (
    IMAGES,
    MEGABYTES,
    Progress,
    ProgressState,
    Screen,
    is_drawn_on,
    waiting,
)


class View:
    def __init__(self) -> None:
        self.standing = ProgressState()

    def read(self) -> ProgressState:
        return self.standing


@pytest.mark.parametrize(
    ("unit", "per_second", "text"),
    [
        (IMAGES, 1234.4, "1,234 images/s"),
        (IMAGES, 3.21, "3.2 images/s"),
        (IMAGES, 1.0, "1.0 images/s"),
        (IMAGES, 1 / 43.2, "43 s/image"),
        (IMAGES, 0.8, "1.2 s/image"),
        (IMAGES, 1 / 200, "3 min 20 s for each image"),
        (MEGABYTES, 12_400_000, "12 MB/s"),
    ],
)
def test_a_rate_below_one_a_second_is_told_by_its_seconds(unit: Any, per_second: float, text: str) -> None:
    assert unit.rate(per_second) == text


def test_lines_tell_count_rate_and_failures(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_file, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level(logging.INFO, progress_file.__name__)
    view = View()
    with Progress("extracting", 3000, view=view.read) as progress:
        progress.log_state()
        now[0] += 10
        view.standing = ProgressState(1490, Counter({"empty file": 8, "too large": 2}))
        progress.look()
        progress.log_state()
        progress.log_state()  # nothing is new: nothing is said
        now[0] += 10
        view.standing = ProgressState(2990, Counter({"empty file": 8, "too large": 2}))
    assert caplog.messages == [
        "extracting: 0 of 3,000 images, 0 s so far",
        "extracting: 1,500 of 3,000 images, 150 images/s, 10 s left, 10 failed (8 empty file, 2 too large)",
        "extracting: 3,000 of 3,000 images, 150 images/s, 20 s, 10 failed (8 empty file, 2 too large)",
    ]


def test_lines_come_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, progress_file.__name__)
    monkeypatch.setattr(progress_file, "SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr(progress_file, "FIRST_LINE_SECONDS", 0.05)
    monkeypatch.setattr(progress_file, "SECONDS_BETWEEN_LOOKS", 0.02)
    monkeypatch.setattr(progress_file, "SCREEN", Screen())
    with Progress("training", 5, done=2), waiting("the second"):
        until = time.monotonic() + 5
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.02)
    assert caplog.messages[0] == "the second: 0 s so far"
    caplog.clear()
    with Progress("training", 5, done=5):  # nothing to do: nothing is said
        time.sleep(0.2)
    assert not caplog.messages


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Standard error is a terminal of 80 columns; gives what was written to it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    stream = os.fdopen(slave, "w", encoding="utf-8")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress_file.log, "propagate", False)  # an earlier test may have sent log lines here

    def written_by(work: Callable[[], None]) -> str:
        # Not in the fixture itself: pytest sets standard error anew before the test.
        with monkeypatch.context() as during:
            during.setattr(sys, "stderr", stream)
            work()
        stream.flush()
        ready, _, _ = select.select([master], [], [], 5)
        return os.read(master, 1 << 20).decode() if ready else ""

    yield written_by
    stream.close()
    os.close(master)


def some_work() -> None:
    screen = progress_file.SCREEN
    screen.draws = is_drawn_on(sys.stderr)
    with Progress("extracting regions of many photos", 2_000_000) as progress:
        progress._start -= 1000
        progress._take(ProgressState(500, Counter({f"reason {number}": 3 for number in range(30)})))
        typer.echo("a word above", err=True)  # it looks for the stream below the one that it finds
        time.sleep(0.2)


@pytest.mark.parametrize("no_colour", [False, True])
def test_a_bar_fits_a_terminal(terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, no_colour: bool) -> None:
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(progress_file, "SCREEN", Screen())
    text = terminal(some_work)
    assert ("\x1b[3" in text or "\x1b[9" in text) != no_colour
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", text).splitlines() if line.strip()]
    assert "a word above" in lines and max(map(len, lines)) <= 80
    assert any("590 of 2,000,000" in line for line in lines)


def test_a_dumb_terminal_gets_no_control_codes(terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress_file, "SCREEN", Screen())
    assert terminal(some_work).replace("\r\n", "\n") == "a word above\n"


def test_the_command_line_shows_what_we_log_alone(roibeam: Cli, capfd: pytest.CaptureFixture[str]) -> None:
    assert roibeam("recipes").code == 0  # any command sets the logs up
    logging.getLogger("roibeam.features.store").info("ours")
    logging.getLogger("apache_beam.runners").error("theirs")
    assert capfd.readouterr().err == "roibeam: ours\n"
