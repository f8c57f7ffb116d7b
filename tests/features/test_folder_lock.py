"""A lock is held by the process that took it, and by no child of it."""

import errno
import fcntl
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from refusals import refused

from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.folders.folder_protocol import store_lock


def held(folder: Path) -> bool:
    try:
        with store_lock(folder):
            return False
    except ValueError:
        return True


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    told = f"{tmp_path}: its file system has no locks .*{os.strerror(number)}.*-o flock.*local disk"
    for block in (store_lock(tmp_path), atomic_path(tmp_path / "out.h5")):
        refused(told, block.__enter__)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_forked_child_does_not_hold_the_lock_of_a_killed_parent(tmp_path: Path) -> None:
    """A loader's workers live for seconds after their training was killed: the rerun must not wait for them."""
    taken, take = os.pipe()
    stay, go = os.pipe()
    holder = os.fork()
    if holder == 0:
        with store_lock(tmp_path):
            if os.fork() == 0:
                os.close(go)
                os.write(take, b"1")
                os.read(stay, 1)  # until the test lets it go
                os._exit(0)
            signal.pause()
        os._exit(0)
    os.close(stay)
    assert os.read(taken, 1) == b"1"
    try:
        assert held(tmp_path)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert not held(tmp_path)
    finally:
        os.close(go)


def test_a_child_that_leaves_the_block_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    """It must not remove the file of the lock, which would let a second run in beside the first."""
    block = store_lock(tmp_path)
    with block:
        if (child := os.fork()) == 0:
            block.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / ".lock").exists()
        assert held(tmp_path)
    assert not held(tmp_path)
