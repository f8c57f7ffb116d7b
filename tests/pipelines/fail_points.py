"""Named stages of a run that writes a store, and what can happen to it there, each time at the same place.

A process that is to be disturbed calls `install`, which wraps the calls that a stage is known by and counts them. Its
standard error tells where it was disturbed.
"""

import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from roibeam.extraction.detector import Detector
from roibeam.extraction.engine.detector_calls import PhotoLoad
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.writer import ShardWriter
from roibeam.pipelines.common.console.progress import Progress

PLAN = "plan"  # before plan.json gets its name
READ, DECODE = "read", "decode"  # of the n-th image
DETECT = "detect"  # in the n-th call of the detector
RECORD = "record"  # when the n-th record has been made
WRITE = "write"  # after the n-th record of the run was put
COMMIT = "commit"  # the system writes n pages of a data file and refuses the rest of what LMDB commits
SYNC = "sync"  # before the n-th data file is made durable
MOVE = "move"  # before the n-th data file gets its name
SHARD_MANIFEST = "shard manifest"  # before the n-th of them gets its name
DEAD_LETTERS = "dead letters"  # before their table gets its name
STORE_MANIFEST = "store manifest"
REPORT = "report"
SUMMARY = "summary"  # before run_summary.json gets its name
STAGES = (
    PLAN, READ, DECODE, DETECT, RECORD, WRITE, COMMIT, SYNC, MOVE, SHARD_MANIFEST, DEAD_LETTERS, STORE_MANIFEST, REPORT,
    SUMMARY,
)  # fmt: skip
# Of `store export`, which writes no store:
EXPORT = "export"  # when the n-th record of an export was handed to the file
EXPORT_NAME = "export name"  # before an exported file gets its name
_NAMES = {
    PLAN: "plan.json", MOVE: "part-*.lmdb", SHARD_MANIFEST: "part-*.json", DEAD_LETTERS: "dead_letters.parquet",
    STORE_MANIFEST: "manifest.json", REPORT: "report.html", SUMMARY: "run_summary.json",
}  # fmt: skip
_PAGE = 4096
_FIRST_PAGES = 2  # LMDB writes its meta pages when it makes the file


@dataclass(frozen=True)
class FailPoint:
    """`action` is called when `stage` is reached for the `count`-th time, from 1; it may return, raise or never come
    back."""

    stage: str
    count: int
    action: Callable[[], None]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(seconds: float) -> None:
    """Ctrl-C, and what it met takes so long."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(seconds)


def broken_disk() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def hang() -> None:
    time.sleep(3600)


def delete(path: Path) -> None:
    path.unlink()


def hold(folder: Path, name: str) -> None:
    """Says that it is there, by a file `name`.here, and waits for a file `name`.go."""
    (folder / f"{name}.here").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(0.002)


def fill_disk(folder: Path) -> None:
    """Leaves no byte on the disk of `folder`, by a file "ballast"."""
    with open(folder / "ballast", "ab", buffering=0) as file:
        for num_bytes in (2**16, 1):
            try:
                while True:
                    file.write(bytes(num_bytes))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def unmount(folder: Path) -> None:
    """As when a network disk goes away: the folder is empty from now on, open files stay open."""
    subprocess.run(["umount", "--lazy", folder], check=True)


def install(points: Sequence[FailPoint]) -> None:
    """Makes this process run into the `points`."""
    reached = _Reached(points)
    _count_engine_calls(reached)
    _count_file_operations(reached)
    for point in points:
        if point.stage == COMMIT:
            _cut_commits(point)


class _Reached:
    """Counts stages, from any thread, and calls the actions."""

    def __init__(self, points: Sequence[FailPoint]) -> None:
        self._points = points
        self._counts = dict.fromkeys((*STAGES, EXPORT, EXPORT_NAME), 0)
        self._lock = threading.Lock()

    def __call__(self, stage: str, what: object) -> None:
        with self._lock:
            self._counts[stage] += 1
            count = self._counts[stage]
        for point in self._points:
            if (point.stage, point.count) == (stage, count):
                os.write(2, f"fail point: {stage}, number {count}: {what}\n".encode())
                point.action()


def _before(call: Callable[..., Any], say: Callable[..., None]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        say(*arguments)
        return call(*arguments, **options)

    return counted


def _after(call: Callable[..., Any], say: Callable[..., None]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        say(*arguments)
        return result

    return counted


def _count_engine_calls(reached: _Reached) -> None:
    load = PhotoLoad.__call__

    def counted_load(self: PhotoLoad, image: Any, begin_stage: Callable[[str], None]) -> Any:
        return load(self, image, _after(begin_stage, lambda stage: reached(stage, image.image_id)))

    def exported(progress: Progress) -> None:
        if progress.what == "writing":
            reached(EXPORT, "")

    calls: list[tuple[type, str, Callable[..., Any]]] = [
        (Progress, "one_more", _after(Progress.one_more, exported)),
        (PhotoLoad, "__call__", counted_load),
        (Detector, "forward", _before(Detector.forward, lambda *_: reached(DETECT, ""))),
        (RegionRecord, "__post_init__",
         _after(RegionRecord.__post_init__, lambda record: reached(RECORD, record.image_id))),
        (ShardWriter, "put", _after(ShardWriter.put, lambda _, record: reached(WRITE, record.image_id))),
    ]  # fmt: skip
    for kind, name, counted in calls:
        setattr(kind, name, counted)


def _count_file_operations(reached: _Reached) -> None:
    def syncs(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".lmdb"):
            reached(SYNC, path)

    def gets_its_name(source: Any, target: Any) -> None:
        for stage, name in _NAMES.items():
            if fnmatch(os.path.basename(target), name):
                reached(stage, target)

    os.fsync = _before(os.fsync, syncs)
    os.replace, os.link = _before(os.replace, gets_its_name), _before(os.link, gets_its_name)
    os.rename = _before(os.rename, lambda source, target: reached(EXPORT_NAME, target))


def _cut_commits(point: FailPoint) -> None:
    """Python ignores the signal of this limit, so the write is cut short and LMDB gives up; then comes the action,
    before the writer can delete the file."""
    limit = (_FIRST_PAGES + point.count) * _PAGE - 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    unlink = Path.unlink

    def unlink_of_the_half_written(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".lmdb":
            os.write(2, f"fail point: {COMMIT}, number {point.count}: {self.stat().st_size} bytes of {self}\n".encode())
            point.action()
        unlink(self, missing_ok)

    Path.unlink = unlink_of_the_half_written  # type: ignore[method-assign]
