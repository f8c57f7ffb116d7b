"""Ctrl-C and SIGTERM: one line says what is kept and what to type next, by command. Real processes, real signals."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roibeam.pipelines.common.console import termination
from roibeam.pipelines.common.console.termination import command_of, resume_hint, set_resume_hint, typed_again
from roibeam.pipelines.toyworld.rendering import draw_samples

ROIBEAM = str(Path(sys.executable).with_name("roibeam"))
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}


def test_the_line_tells_by_command_what_is_kept_and_quotes_what_was_typed() -> None:
    termination._hint.clear()
    typed = ["/somewhere/roibeam-of-nobody", "extract", "my photos/", "store", "--set", "detector.short_edge=80"]
    line = resume_hint(typed)
    assert line.startswith("interrupted; finished shards stay; to go on: /somewhere/roibeam-of-nobody extract")
    assert shlex.split(line.partition("to go on: ")[2]) == typed
    assert command_of(["roibeam", "--debug", "store", "copy", "a", "b"]) == "store copy"
    assert "nothing is kept; to begin again: " in resume_hint(["roibeam", "evaluate", "run"])
    checked = ["x", "store", "verify", "s", "--deep", "--shards", "0-9"]
    assert typed_again(checked, {"shards": "3-"}) == "x store verify s --deep --shards 3-"
    assert typed_again(["x", "--shards=0-9", "s"], {"shards": "3-"}) == "x s --shards 3-"
    try:
        set_resume_hint("the shards before 3 are read", shards="3-")
        assert resume_hint(checked).endswith("are read; to go on: x store verify s --deep --shards 3-")
    finally:
        termination._hint.clear()


class Ended:
    """A command that got a signal once `is_at_work`, all of its group as from a keyboard where `to_group`."""

    def __init__(
        self, arguments: list[str], number: signal.Signals, is_at_work: Callable[[], bool], *, to_group: bool
    ) -> None:
        self.arguments = arguments
        run = subprocess.Popen(
            [ROIBEAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while not is_at_work():
            assert run.poll() is None and time.monotonic() < deadline, run.communicate()
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(run.pid, number)
        _, self.said = run.communicate(timeout=60)
        self.code = run.returncode

    def assert_told(self, what: str, kept: str) -> None:
        """The last line and no other; no traceback of this or another process."""
        lines = self.said.splitlines()
        start = f"roibeam: {what}; {kept}; to go on: "
        assert "Traceback" not in self.said and lines[-1].startswith(start), self.said
        assert shlex.split(lines[-1].removeprefix(start))[1:] == self.arguments
        assert sum(line.startswith(f"roibeam: {what}") for line in lines) == 1


def toyworld(out: Path, *more: str) -> list[str]:
    return ["toyworld", str(out), "--num-images", "100000", *more]


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    out = tmp_path / "world"
    ended = Ended(toyworld(out, "--workers", "1"), signal.SIGTERM, lambda: any(out.rglob("*.jpg")), to_group=False)
    assert ended.code == 143
    ended.assert_told("ended by SIGTERM", "the pictures drawn so far stay")


@pytest.mark.slow
@pytest.mark.parametrize("number", WORDS)
def test_a_world_drawn_by_processes_ends_without_their_tracebacks(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "world"
    ended = Ended(toyworld(out, "--workers", "2"), number, lambda: any(out.rglob("*.jpg")), to_group=True)
    assert ended.code == 128 + number
    ended.assert_told(WORDS[number], "the pictures drawn so far stay")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_of_an_extraction_leaves_a_summary_and_nothing_half_done(
    tmp_path: Path, tiny_network: tuple[str, ...], workers: str
) -> None:
    many, out = tmp_path / "many", tmp_path / "store"
    many.mkdir()
    draw_samples(tmp_path / "samples", count=6)
    for copy in range(60):
        for photo in (tmp_path / "samples" / "images").glob("sample_*.jpg"):
            os.link(photo, many / f"{copy:02d}_{photo.name}")
    arguments = ["extract", str(many), str(out), *map(str, tiny_network), "--shard-size", "90", "--workers", workers]
    ended = Ended(arguments, signal.SIGTERM, lambda: any(out.glob(".tmp-*/heartbeat.json")), to_group=False)
    assert ended.code == 143
    assert "finished and kept, what is in work is dropped; to go on: " in ended.said.splitlines()[-1]
    assert "Traceback" not in ended.said
    assert json.loads((out / "run_summary.json").read_bytes())["status"] == "interrupted"
    assert not [path.name for path in out.glob(".*")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_run_that_is_still_loading_ends_too(tmp_path: Path, number: signal.Signals) -> None:
    labels = tmp_path / "train.txt"
    started = time.monotonic()
    arguments = ["pretrain", str(tmp_path / "run"), "--text-corpus", str(labels), "--system", "vlbert"]
    labels.write_text("a line of text\n" * 200_000)
    ended = Ended(arguments, number, lambda: time.monotonic() - started > 3, to_group=True)
    assert ended.code == 128 + number
    last = ended.said.splitlines()[-1]
    assert f"roibeam: {WORDS[number]}" in last or f"stopped by {number.name}" in ended.said
    assert "Traceback" not in ended.said and "pretrain" in last


def printed_by(code: str) -> str:
    """By a process that ends without a word of error."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_falls_into_a_destructor_is_heard(number: signal.Signals) -> None:
    """Python drops what is raised there, so that a training that was told to stop went on."""
    code = f"""
import os, time
from roibeam.pipelines.common.console.termination import exit_code, stop_as_by_ctrl_c

class Closing:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        time.sleep(0.01)

stop_as_by_ctrl_c()
closing = Closing()
try:
    del closing
    time.sleep(20)
except KeyboardInterrupt:
    print("heard", exit_code())
"""
    assert printed_by(code) == f"heard {128 + number}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_falls_into_an_import_is_heard_after_it(tmp_path: Path, number: signal.Signals) -> None:
    """C++ that imports ends the process on an exception that it does not know, or raises another in its place."""
    lines = ["import os, time", f"os.kill(os.getpid(), {int(number)})", "time.sleep(0.3)", "done = True"]
    (tmp_path / "imported.py").write_text("\n".join(lines))
    code = f"""
import sys, time
from roibeam.pipelines.common.console.termination import exit_code, stop_as_by_ctrl_c

sys.path.insert(0, {str(tmp_path)!r})
stop_as_by_ctrl_c()
try:
    import imported
    time.sleep(20)
except KeyboardInterrupt:
    print("heard", exit_code(), imported.done)
"""
    assert printed_by(code) == f"heard {128 + number} True\n"


@pytest.mark.slow
def test_a_second_ctrl_c_three_seconds_later_interrupts_an_import_too(tmp_path: Path) -> None:
    """An import that hangs, as on a network's file system. What is sent again by ourselves is no second one."""
    (tmp_path / "imported.py").write_text("""
import os, time
started = time.monotonic()
os.kill(os.getpid(), 2)
while time.monotonic() - started < 4:
    time.sleep(0.05)
print("still there", flush=True)
os.kill(os.getpid(), 2)
time.sleep(20)
""")
    code = f"""
import sys, time
from roibeam.pipelines.common.console.termination import stop_as_by_ctrl_c

sys.path.insert(0, {str(tmp_path)!r})
stop_as_by_ctrl_c()
started = time.monotonic()
try:
    import imported
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started < 15)
"""
    assert printed_by(code) == "still there\ninterrupted True\n"
