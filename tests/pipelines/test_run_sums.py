"""Sums of what lies beside a run's checkpoints: no kill leaves a sound file refused, and no damage passes."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from roibeam.pipelines.training.run_folder import files
from roibeam.pipelines.training.run_folder.files import (
    SUMS_NAME,
    check_run_config,
    check_run_file,
    list_grown_file,
    put_run_file,
    write_run_json,
)


class Killed(Exception):
    pass


def put(run: Path, text: str) -> None:
    aside = run / ".writing-x"
    aside.mkdir()
    (aside / "a").write_text(text)
    put_run_file(aside, run / "x")


@pytest.mark.parametrize("step", ["_list", "rmtree", "sync_to_disk"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_kill_while_a_file_is_replaced_refuses_no_sound_one(tmp_path, monkeypatch, step, call):
    """Before and after each thing that is done, with the old file, the new one, or none there."""
    put(tmp_path, "old")
    calls = []
    holder, name = (shutil, "rmtree") if step == "rmtree" else (files, step)
    done = getattr(holder, name)

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise Killed
        return done(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(holder, name, killed)
        with contextlib.suppress(Killed):
            put(tmp_path, "new")
    check_run_file(tmp_path / "x")
    shutil.rmtree(tmp_path / ".writing-x", ignore_errors=True)
    put(tmp_path, "newer")
    check_run_file(tmp_path / "x")
    assert len((tmp_path / SUMS_NAME).read_text().splitlines()) == 1
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS_NAME], cwd=tmp_path).returncode == 0
    (tmp_path / "x" / "a").write_text("old")
    with pytest.raises(ValueError, match=r"x/a: is damaged"):
        check_run_file(tmp_path / "x")
    (tmp_path / "x" / "a").rename(tmp_path / "x" / "b")
    with pytest.raises(ValueError, match=r"x/a: is missing"):
        check_run_file(tmp_path / "x")


@pytest.mark.parametrize("tail, is_sound", [("", True), ("c\n", True), ("c", True), ("c\nd\n", False)])
def test_a_log_may_be_one_line_ahead_of_its_sum(tmp_path, tail, is_sound):
    log = tmp_path / "evaluation.jsonl"
    log.write_text("a\nb\n")
    list_grown_file(log)
    log.write_text("a\nb\n" + tail)
    if is_sound:
        check_run_file(log, grows=True)
        log.write_text("x\nb\n" + tail)
    with pytest.raises(ValueError, match=r"evaluation\.jsonl: is damaged"):
        check_run_file(log, grows=True)


def test_the_configuration_of_the_newest_checkpoint_may_be_put_back(tmp_path):
    """Which a message recommends."""
    newest = tmp_path / "checkpoints" / "step-00000002"
    newest.mkdir(parents=True)
    (newest / "config.json").write_text("{}")
    write_run_json(tmp_path / "config.json", {"steps": 9})
    check_run_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"put that of .*step-00000002 in its place"):
        check_run_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_run_config(tmp_path)


def test_a_list_that_is_no_list_is_refused_and_none_is_warned_of(tmp_path, caplog):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "x").write_text("x")
    for _ in range(2):
        check_run_file(tmp_path / "x")
    assert [record.message.partition(": ")[0] for record in caplog.records] == [f"{tmp_path} has no {SUMS_NAME}"]
    (tmp_path / SUMS_NAME).write_text("00  ../x\n")
    with pytest.raises(ValueError, match=f"{SUMS_NAME}: is damaged: .*restore it, or remove it"):
        check_run_file(tmp_path / "x")
