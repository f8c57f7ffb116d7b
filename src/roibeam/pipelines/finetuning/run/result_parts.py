"""Parts of a result file on disk: a stopped call goes on from them, and several processes share the work.

    OUT.parts-<digest>/part-00003.json   mark and facts of a part, see features/folders/kept_work.py
    OUT.parts-<digest>/part-00003.npy    its numbers, where it has some
    OUT.parts-<digest>/.process-1        locked by that process while it writes

The digest is of the weights and of all inputs. One call at a time writes OUT, and removes what others left.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.folders.folder_protocol import held_lock, lock_file
from roibeam.features.folders.kept_work import KeptFile, kept_work, read_summed_json, remove_unfinished, write_mark
from roibeam.pipelines.common.compute import is_main_process, num_processes
from roibeam.pipelines.training.processes import wait_for_files


@contextmanager
def result_lock(out: Path, *beside: Path | None) -> Iterator[None]:
    """Holds the lock of a result file in the main process. In the end no parts of it are left, of any process. Raises
    ValueError where another call writes it."""
    files = [out, *(file for file in beside if file is not None)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    if not is_main_process():
        yield
        return
    held = f"{out}: another roibeam predict is writing it; wait for it, or give another --out"
    with held_lock(out.with_name(f".{out.name}.lock"), held):
        for file in files:
            own = re.escape(file.name)
            file.with_name(f".writing-{file.name}").unlink(missing_ok=True)  # of an earlier version
            remove_unfinished(file.parent, rf"{own}(\.card\.json|\.ids\.json)?|\.{own}\.[0-9a-f]{{8}}\.tmp")
        yield
        for folder in out.parent.glob("*.parts-*"):
            if re.fullmatch(re.escape(out.name) + r"\.parts-[0-9a-f]{12}", folder.name):
                shutil.rmtree(folder, ignore_errors=True)


class ResultParts:
    """
    Args:
        digest: of the request, 12 hexadecimal digits.
        count: of parts; of N processes each makes every N-th one.
        has_array: whether parts have numbers.
    """

    def __init__(self, out: Path, digest: str, count: int, *, has_array: bool) -> None:
        self._folder, self._digest = out.with_name(f"{out.name}.parts-{digest}"), digest
        self._numbers, self._has_array = range(count), has_array
        self._rank = int(os.environ.get("RANK", "0"))

    @property
    def arrays(self) -> list[Path]:
        return [self._mark(number).with_suffix(".npy") for number in self._numbers]

    @contextmanager
    def missing(self) -> Iterator[list[int]]:
        """The parts that this process is to write meanwhile."""
        self._folder.mkdir(exist_ok=True)
        descriptor = os.open(self._process(self._rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock_file(descriptor, fcntl.LOCK_SH, self._folder)
            os.pwrite(descriptor, socket.gethostname().encode().ljust(64), 0)
            yield [number for number in self._numbers[self._rank :: num_processes()] if not self._is_kept(number)]
        finally:
            os.close(descriptor)

    def write(self, number: int, array: np.ndarray | None, **facts: Any) -> None:
        mark = self._mark(number)
        if array is None:
            write_mark(mark, self._mark_digest(number), **facts)
            return
        with KeptFile(mark.with_suffix(".npy")) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
            file.finish()
        write_mark(mark, self._mark_digest(number), [file], **facts)

    def wait(self) -> None:
        """Waits for the parts of all processes. Raises ValueError when one of them cannot come any more."""
        wait_for_files([self._mark(number) for number in self._numbers], self._is_whole, self._is_at_work)

    def facts(self) -> Iterator[dict[str, Any]]:
        """Facts of all parts, after `wait`."""
        return (read_summed_json(self._mark(number))[0] for number in self._numbers)

    def _mark(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.json"

    def _mark_digest(self, number: int) -> str:
        return f"{self._digest} {number}"

    def _is_kept(self, number: int, *, removes: bool = True) -> bool:
        mark = self._mark(number)
        files = [mark.with_suffix(".npy").name] if self._has_array else []
        return kept_work(mark, self._mark_digest(number), files, removes=removes) is not None

    def _is_whole(self, mark: Path) -> bool:
        number = _number(mark)
        is_own = number % num_processes() == self._rank
        if not self._is_kept(number, removes=False):
            if is_own:
                raise ValueError(f"{mark}: was removed or damaged since it was written; run the same command again")
            return False
        return True

    def _process(self, rank: int) -> Path:
        return self._folder / f".process-{rank}"

    def _is_at_work(self, mark: Path) -> bool:
        """Whether the process that writes a part is running: it holds its lock, or is on another machine."""
        try:
            descriptor = os.open(self._process(_number(mark) % num_processes()), os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return os.read(descriptor, 64).decode().strip() != socket.gethostname()
        finally:
            os.close(descriptor)


def _number(mark: Path) -> int:
    return int(mark.stem.removeprefix("part-"))
