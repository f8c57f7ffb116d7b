"""Files of a toy world: whole or absent; drawn by several processes; and folders of drawn data beside the world."""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

import cv2

from roibeam.features.folders.durable_files import write_json_atomically
from roibeam.features.folders.folder_protocol import store_lock
from roibeam.pipelines.toyworld.world import WORLD_VERSION

_T = TypeVar("_T")


def write_text(path: Path, text: str) -> None:
    """Writes aside and renames: a file under its own name is a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(text.encode("utf-8"))
    os.replace(temporary, path)


class JsonListFile:
    """A JSON object with one long list that is written as it grows, and more members before and after it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        # Not a `with`: it lives as long as this object; without a name, it leaves nothing behind.
        self._entries: IO[bytes] = tempfile.TemporaryFile()
        self._count = 0

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.write((b",\n" if self._count else b"") + _json(entry))
        self._count += 1

    def close(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Puts the file in place."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        self._entries.seek(0)
        with open(temporary, "wb") as file:
            file.write(b"{")
            for key, value in before.items():
                file.write(_json(key) + b": " + _json(value) + b",\n")
            file.write(_json(self._name) + b": [\n")
            shutil.copyfileobj(self._entries, file)
            file.write(b"\n]")
            for key, value in after.items():
                file.write(b",\n" + _json(key) + b": " + _json(value))
            file.write(b"}\n")
        self._entries.close()
        os.replace(temporary, self._path)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii")


@dataclass(frozen=True)
class WrittenFiles:
    """Files that a run found or made.

    Attributes:
        manifest: content of the folder's own .json.
        num_new: pictures, or folders, that this run made; 0 where all was there.
        seconds: that the run took.
    """

    manifest: dict[str, Any]
    num_new: int
    seconds: float

    @property
    def words(self) -> str:
        """Whether this run wrote it."""
        return f"written in {self.seconds:.0f} s" if self.num_new else "all there already"


@dataclass(frozen=True)
class FolderBesideWorld(ABC):
    """Request for a folder of drawn data beside a world.

    Attributes:
        folder: as it was typed.
        option: that names the folder, such as "--tasks".
        holds: its content, for people: "tasks".
        format, version: that identify the kind of folder in its manifest.
    """

    folder: str
    world: Path
    seed: int
    num_images: int
    option: ClassVar[str]
    holds: ClassVar[str]
    manifest_name: ClassVar[str]
    format: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def _write_files(self, folder: Path, workers: int) -> dict[str, Any]:
        """Writes all files but the manifest into a folder that is not there yet; returns more of the manifest."""

    def plan(self) -> dict[str, Any]:
        """Required entries of the manifest."""
        world = {"world_version": WORLD_VERSION, "seed": self.seed, "images": self.num_images}
        return {"format": self.format, f"{self.option[2:]}_version": self.version, "world": world}

    def check(self) -> None:
        """Checks that the folder can be written, or is there, before anything is drawn."""
        check_beside(self.option, self.folder, self.world, holds=self.holds)
        self._found()

    def write(self, workers: int = 1) -> WrittenFiles:
        """Makes the folder of the drawn world, or finds it."""
        start, out = time.monotonic(), Path(self.folder).resolve()
        with store_lock(self.world):
            found = self._found()
            if found is not None:
                return WrittenFiles(found, 0, time.monotonic() - start)
            beside = out.with_name(f".{out.name}.tmp")
            shutil.rmtree(beside, ignore_errors=True)  # of a run that was stopped
            manifest = self.plan() | self._write_files(beside, workers)
            write_json_atomically(beside / self.manifest_name, manifest)
            os.replace(beside, out)
        return WrittenFiles(manifest, 1, time.monotonic() - start)

    def _found(self) -> dict[str, Any] | None:
        """Returns the manifest of a folder that is there; None where the folder is new or empty."""
        place, plan = Path(self.folder), self.plan()
        if not place.exists() or not any(place.iterdir()):
            return None
        try:
            found = json.loads((place / self.manifest_name).read_bytes())
        except (OSError, ValueError, RecursionError):
            found = None
        where = f"{self.option} {self.folder!r}"
        if not isinstance(found, dict) or found.get("format") != plan["format"]:
            raise ValueError(f"{where}: is not empty and holds no {self.holds} of a toy world; name a new folder")
        for key, want in plan.items():
            if found.get(key) != want:
                raise ValueError(
                    f"{where}: holds {self.holds} with {key} {found.get(key)}, requested {want}; name another folder"
                )
        return found


def in_processes(draw: Callable[..., _T], calls: Sequence[tuple[Any, ...]], workers: int) -> Iterator[_T]:
    """Yields the results of calls in their order, drawn by several processes.

    Ctrl-C is hidden from them: this process ends them, they would only print tracebacks.
    """
    if min(workers, len(calls)) <= 1:
        yield from (draw(*call) for call in calls)
        return
    # Spawned, not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            tasks = [pool.submit(draw, *call) for call in calls]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            for task in tasks:
                yield task.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def check_beside(option: str, folder: str, world: Path, *, holds: str) -> None:
    """Checks the folder of drawn data beside a world.

    Args:
        option: that names the folder, such as "--tasks".
        folder: as it was typed.
        holds: its content, for people: "tasks".
    Raises:
        ValueError: for a URL, a file, the world itself, and what lies in it or around it.
    """
    if "://" in folder:
        raise ValueError(f"{option} {folder!r} is a URL; name a folder on a disk, and copy the {holds} from there")
    place, around = Path(folder).resolve(), world.resolve()
    if around in (place, *place.parents) or place in around.parents:
        raise ValueError(
            f"{option} {folder!r} and the world {str(around)!r} lie in one another; name a folder beside the world"
        )
    if place.exists() and not place.is_dir():
        raise ValueError(f"{option} {folder!r} is a file; name a folder")
