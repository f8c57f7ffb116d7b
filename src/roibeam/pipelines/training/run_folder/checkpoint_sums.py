"""SHA-256 of each file of a checkpoint, in its file SHA256SUMS, as `sha256sum --check` reads it. No torch."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from roibeam.features.folders.durable_files import open_regular_file, read_regular_file

logger = logging.getLogger(__name__)

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")


def write_sums(folder: Path) -> None:
    """Of all files in `folder` and below, read again from it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sum(folder / name)}  {name}\n" for name in names if name != SUMS]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path, *, below: str = "") -> None:
    """Compares each file with its sum; one warning for a checkpoint that was written without sums.

    Args:
        below: only files whose names begin so, of a model that is read; else a run goes on from all of them.
    Raises:
        ValueError: naming the first file that is another one, and another checkpoint to take.
        OSError: when a file cannot be read.
    """
    if not (folder / SUMS).exists():
        logger.warning("%s has no %s: it is read without a check for damage", folder, SUMS)
        return
    remedy = other_checkpoints(folder, resumes=not below)
    for name, want in _sums(folder, remedy).items():
        if not name.startswith(below):
            continue
        try:
            is_it = _sum(folder / name) == want
        except FileNotFoundError:
            raise ValueError(f"{folder / name}: is missing; {remedy}") from None
        if not is_it:
            raise ValueError(f"{folder / name}: is damaged: its SHA-256 is not that in {SUMS}; {remedy}")


def other_checkpoints(folder: Path, *, resumes: bool = True) -> str:
    """What to do without this checkpoint, in words; `resumes`: to go on from it, else to read its model."""
    others = sorted(path.name for path in folder.parent.glob("step-*") if path.name != folder.name)
    if not others:
        return "restore it; the run has no other checkpoint"
    other = others[-1]
    if not resumes:
        return f"restore it, or name another one: {folder.parent / other}"
    return (
        f"restore it, or take {folder.parent / other}: finetune goes on from that once {folder.name} is moved "
        f"elsewhere, other trainings with --resume-from {other}"
    )


def _sums(folder: Path, remedy: str) -> dict[str, str]:
    """File -> its sum; `remedy` for a list that is damaged."""
    lines = read_regular_file(folder / SUMS).decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    sums = {match[2]: match[1] for match in found if match is not None}
    if len(sums) < max(len(lines), 1) or any(part in ("", ".", "..") for name in sums for part in name.split("/")):
        raise ValueError(f"{folder / SUMS}: is damaged: a line is no sum of a file; {remedy}")
    if "state.json" not in sums or "optimizer.safetensors" not in sums or "model/config.json" not in sums:
        raise ValueError(f"{folder / SUMS}: is damaged: it does not name all files; {remedy}")
    return sums


def _sum(path: Path) -> str:
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
