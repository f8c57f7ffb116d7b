"""Where a page may be written: at a new place, or in place of an older page of ours, and of nothing else."""

from __future__ import annotations

from pathlib import Path

from roibeam.pipelines.common.pages.frame import PAGE_HEAD

_START = PAGE_HEAD.partition("{")[0].encode("utf-8")


def check_page_file(option: str, path: Path) -> None:
    """To be asked before long work.

    Args:
        option: that names the page, for the message.
    Raises:
        ValueError: for a folder, a file that is no page of ours, or a place in a folder that is not there.
    """
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder; name a file, such as {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it, or name a file in another one")
    if path.exists() and not _is_ours(path):
        raise ValueError(f"{option} {path}: is there already, and roibeam did not write it; name another file")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_START)) == _START
