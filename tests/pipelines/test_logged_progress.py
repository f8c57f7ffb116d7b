"""Progress as log lines: how far, how fast, how long still."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from roibeam.pipelines.foundation.console import progress_log as logged_progress
from roibeam.pipelines.foundation.console.progress_log import LoggedProgress


def test_a_line_every_ten_seconds_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(logged_progress.time, "monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, logged_progress.__name__)
    progress = LoggedProgress("pairs scored", 3000)
    for done in range(500, 3001, 500):
        now[0] += 4
        progress.to(done)
    assert caplog.messages == [
        "1,500 of 3,000 pairs scored: 125 per second, 12 s left",
        "3,000 of 3,000 pairs scored: 125 per second",
    ]


def test_the_command_line_shows_what_we_log_and_not_what_libraries_do(
    roibeam: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert roibeam("recipes").code == 0  # any command sets the logs up
    logging.getLogger("roibeam.features.store").info("ours")
    logging.getLogger("apache_beam.runners").error("theirs")
    assert capfd.readouterr().err == "roibeam: ours\n"
