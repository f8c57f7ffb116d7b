"""A file that several may write at once is the first one's, also on a disk without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from roibeam.features.folders.durable_files import write_bytes_atomically


def no_links(source: object, target: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source))


@pytest.mark.parametrize("hard_links", [True, False])
def test_the_first_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "part-00000.json"
    assert write_bytes_atomically(path, b"first", first=True)
    assert not write_bytes_atomically(path, b"second", first=True)
    assert path.read_bytes() == b"first"
    assert write_bytes_atomically(path, b"third")
    assert path.read_bytes() == b"third" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_an_error_in_both(tmp_path: Path) -> None:
    for first in (True, False):
        with pytest.raises(FileNotFoundError):
            write_bytes_atomically(tmp_path / "gone" / "a.json", b"x", first=first)
