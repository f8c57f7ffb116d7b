"""Files of a run's folder: their names, the newest checkpoint, checksums, writes that are surely on the disk. No torch.

SHA-256 of each file of a checkpoint stands in its file SHA256SUMS, as `sha256sum --check` reads it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import fsync_folder as sync_to_disk
from roibeam.features.folders.durable_files import (
    naming_file,
    open_regular_file,
    read_regular_file,
    write_bytes_atomically,
)

PAGE_NAME = "report.html"  # of a run, and of several stages
STAGES_NAME = "stages.json"  # where several stages have run


CHECKPOINTS = "checkpoints"  # folder of a run


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint folder with the highest step, or None. Every folder of that name is complete."""
    found = sorted((Path(run_dir) / CHECKPOINTS).glob("step-*"))
    return found[-1] if found else None


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """The step of a folder of `checkpoint_folder`."""
    return int(folder.name.removeprefix("step-"))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


logger = logging.getLogger(__name__)

SUMS_NAME, WRITING = "SHA256SUMS", ".writing-"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")
_OF_A_MODEL = ("config.json", "state.json", "model/")
RESTORE = "restore it from a copy of the run"

_Sums = list[tuple[str, str]]  # name, sum


def write_sums(folder: Path) -> None:
    """Writes the sums of all files in `folder` and below, read again from it."""
    found = [each for each in _found(folder) if each[0] != SUMS_NAME]
    (folder / SUMS_NAME).write_bytes(_written(found))


def check_sums(folder: Path, *, model_only: bool = False) -> None:
    """Compares each file, with `model_only` those that a model is read from, with its sum; one warning for a checkpoint
    that was written without sums. The ValueError names the first that differs, and another checkpoint to take."""
    if not (folder / SUMS_NAME).exists():
        logger.warning("%s has no %s: it is read without a check for damage", folder, SUMS_NAME)
        return
    remedy = other_checkpoints(folder, resumes=not model_only)
    sums = _read(folder, remedy)
    if not {"state.json", "optimizer.safetensors", "model/config.json"} <= {name for name, _ in sums}:
        raise ValueError(f"{folder / SUMS_NAME}: is damaged: it does not name all files; {remedy}")
    for name, want in sums:
        if model_only and not name.startswith(_OF_A_MODEL):
            continue
        try:
            is_it = _sum(folder / name) == want
        except FileNotFoundError:
            raise ValueError(f"{folder / name}: is missing; {remedy}") from None
        if not is_it:
            raise _damaged(folder / name, remedy)


def other_checkpoints(folder: Path, *, resumes: bool = True) -> str:
    """Advice without this checkpoint, in words; `resumes`: to resume from it, else to read its model."""
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


def put_run_file(aside: Path, final: Path) -> None:
    """Puts a file, or a folder of files, of a run in its place; it and its sums are then on the disk."""
    run_dir = final.parent
    with naming_file(final):
        before, new = _listed(run_dir), _found(aside, final.name)
        _list(run_dir, [*before, *new])
        for path in [*aside.rglob("*"), aside] if aside.is_dir() else [aside]:
            sync_to_disk(path)
        if final.is_dir():
            shutil.rmtree(final)
        aside.replace(final)
        sync_to_disk(run_dir)
        _list(run_dir, [*(each for each in before if not _is_of(each[0], final.name)), *new])


def write_run_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replaces a file of a run by what `write` puts at the path that it is given: it is the old one or the new one at
    any time."""
    aside = path.with_name(f"{WRITING}{path.name}")
    with naming_file(path):
        write(aside)
    put_run_file(aside, path)


def write_run_json(path: Path, value: Any) -> None:
    """`write_run_file` for JSON."""
    write_run_file(path, lambda aside: write_json(aside, value))


def list_grown_file(path: Path) -> None:
    """Updates the sum of a run's file after a line was appended.

    A kill right before leaves one line beyond the sum, which `check_run_file` allows.
    """
    sync_to_disk(path)
    others = [each for each in _listed(path.parent) if each[0] != path.name]
    _list(path.parent, [*others, (path.name, _sum(path))])


def check_run_file(path: Path, remedy: str = RESTORE, *, grows: bool = False, alike: Path | None = None) -> None:
    """Compares a file directly in a run's folder, or all files of a folder there, with their sums; one warning for a
    run without sums. Missing or unlisted files are not compared.

    Args:
        grows: by lines: the last one may be too new for the sum.
        alike: a file with the same content is right too.
    """
    run_dir = path.parent
    if not path.exists():
        return
    if not (run_dir / SUMS_NAME).exists():
        if (run_dir / CHECKPOINTS).is_dir():
            _warn_of_no_sums(run_dir)
        return
    for name in dict.fromkeys(name for name, _ in _listed(run_dir) if _is_of(name, path.name)):
        file = run_dir / name
        if not file.exists():
            raise ValueError(f"{file}: is missing; {remedy}")
        # Listed again after it was read: a training may be replacing it.
        found = _sums_of(file, grows=grows)
        if found.isdisjoint(dict.fromkeys(want for each, want in _listed(run_dir) if each == name)) and not (
            alike is not None and alike.is_file() and _sum(alike) in found
        ):
            raise _damaged(file, remedy)


def check_run_config(folder: Path) -> None:
    """Calls `check_run_file` for the configuration of a run or of one of its checkpoints: that of its newest checkpoint
    may have been put in its place."""
    newest = latest_checkpoint(folder)
    of_checkpoint = folder.parent.name == CHECKPOINTS and folder.name.startswith("step-")
    remedy = RESTORE if newest is None else f"put that of {newest} in its place"
    check_run_file(
        folder / "config.json",
        other_checkpoints(folder, resumes=False) if of_checkpoint else remedy,
        alike=None if newest is None else newest / "config.json",
    )


@cache
def _warn_of_no_sums(run_dir: Path) -> None:
    logger.warning(
        "%s has no %s: what lies beside its checkpoints is read without a check for damage", run_dir, SUMS_NAME
    )


def _is_of(name: str, file: str) -> bool:
    return name == file or name.startswith(f"{file}/")


def _found(path: Path, name: str = "") -> _Sums:
    """Sums of a file, or of all files of a folder and below, under `name`."""
    if not path.is_dir():
        return [(name, _sum(path))]
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    return [(f"{name}/{each}" if name else each, _sum(files[each])) for each in sorted(files)]


def _listed(run_dir: Path) -> _Sums:
    """Listed sums; empty for a run without a list."""
    if not (run_dir / SUMS_NAME).exists():
        return []
    return _read(run_dir, "restore it, or remove it: the files beside the checkpoints are read without a check then")


def _read(folder: Path, remedy: str) -> _Sums:
    """Reads the list of a folder; `remedy`: for a damaged list."""
    lines = read_regular_file(folder / SUMS_NAME).decode("utf-8", "replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    sums = [(match[2], match[1]) for match in found if match is not None]
    if len(sums) < max(len(lines), 1) or any(part in (".", "..") for name, _ in sums for part in name.split("/")):
        raise ValueError(f"{folder / SUMS_NAME}: is damaged: a line is no sum of a file; {remedy}")
    return sums


def _list(run_dir: Path, sums: Iterable[tuple[str, str]]) -> None:
    write_bytes_atomically(run_dir / SUMS_NAME, _written(sorted(set(sums))))


def _written(sums: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{want}  {name}\n" for name, want in sums).encode()


def _sums_of(path: Path, *, grows: bool) -> set[str]:
    if not grows:
        return {_sum(path)}
    whole = read_regular_file(path)
    before = b"".join(whole.splitlines(keepends=True)[:-1])
    return {hashlib.sha256(data).hexdigest() for data in (whole, before)}


def _sum(path: Path) -> str:
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, remedy: str) -> ValueError:
    return ValueError(f"{path}: is damaged: its SHA-256 is not that in {SUMS_NAME}; {remedy}")
