"""How far the shards in work are: a small file of each attempt, replaced as images are done.

On a local disk it lies in the attempt's scratch folder, at a URL beside the shards, and is put less often there.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.full_disk import naming_file
from roibeam.features.folders.local_folder import SCRATCH_PREFIX
from roibeam.features.folders.object_folder import ObjectFolder

log = logging.getLogger(__name__)
LOCAL_SECONDS = 0.5
REMOTE_SECONDS = 15.0
_LOCAL_NAME = "heartbeat.json"
REMOTE_PREFIX = ".heartbeat-"


@dataclass(frozen=True)
class Beat:
    """What an attempt says of itself.

    Attributes:
        shard: its number.
        records, failures: images done, with a record, and failed ones by reason.
        started_at, beaten_at: when it began and when it said this, Unix seconds by its own clock.
        attempt, host: who says it.
        stage: "extracting", or "uploading" once all images are done.
    """

    shard: int
    records: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    beaten_at: float = 0.0
    attempt: str = ""
    host: str = ""
    stage: str = "extracting"

    @property
    def images(self) -> int:
        return self.records + sum(self.failures.values())

    @property
    def images_per_second(self) -> float:
        """Since it began; 0.0 before it can be told."""
        seconds = self.beaten_at - self.started_at
        return self.images / seconds if seconds > 0 else 0.0


class Heartbeat:
    """Writes the beats of one attempt; a context manager around its work."""

    def __init__(self, folder: OutputFolder, scratch: Path, attempt: str, shard: int) -> None:
        self._remote = folder if isinstance(folder, ObjectFolder) else None
        self._scratch, self._attempt, self._shard = scratch, attempt, shard
        self._name = f"{REMOTE_PREFIX}{attempt}.json"
        self._host = socket.gethostname()
        self._started_at = time.time()
        self._next = 0.0
        self._told = False

    def __enter__(self) -> Heartbeat:
        if self._remote is not None:
            self.beat(0, [])
        return self

    def __exit__(self, *_: object) -> None:
        if self._remote is not None:
            try:
                self._remote.delete(self._name)
            except OSError as error:  # the run's end removes it
                log.warning("%s", error)

    def beat(self, num_records: int, failures: Sequence[Failure]) -> None:
        """Says how far the attempt is, unless it just did."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (LOCAL_SECONDS if self._remote is None else REMOTE_SECONDS)
        data = self._beat(num_records, failures, "extracting")
        if self._remote is not None:
            self._put(self._remote, data)
            return
        aside = self._scratch / "heartbeat.new"
        with naming_file(aside):
            aside.write_bytes(data)
        os.replace(aside, self._scratch / _LOCAL_NAME)

    def uploading(self, num_records: int, failures: Sequence[Failure]) -> None:
        """All images are done; on a local disk what is left takes no time."""
        if self._remote is not None:
            self._put(self._remote, self._beat(num_records, failures, "uploading"))

    def _beat(self, num_records: int, failures: Sequence[Failure], stage: str) -> bytes:
        reasons = dict(Counter(failure.reason for failure in failures))
        beat = Beat(
            self._shard, num_records, reasons, self._started_at, time.time(), self._attempt, self._host, stage
        )  # fmt: skip
        return json.dumps(asdict(beat)).encode("ascii")

    def _put(self, folder: ObjectFolder, data: bytes) -> None:
        try:
            folder.put_bytes(self._name, data, tries=1)
        except OSError as error:  # only a sign of life; what the shard itself puts is tried again, and then ends it
            if not self._told:
                log.warning("shard %d goes on without heartbeat: %s", self._shard, error)
            self._told = True


def read_heartbeats(folder: OutputFolder, names: Iterable[str]) -> list[Beat]:
    """The last beat of every attempt that has left one.

    Args:
        names: of the files directly in the folder.
    """
    found: list[bytes | None] = []
    if folder.local_path is not None:
        for path in folder.local_path.glob(f"{SCRATCH_PREFIX}*/{_LOCAL_NAME}"):
            try:
                found.append(read_regular_file(path))
            except (FileNotFoundError, ValueError):
                continue  # its shard finished just now, or it is no file
    else:
        found = [data for _, data in folder.read_many(name for name in names if name.startswith(REMOTE_PREFIX))]
    return [beat for data in found if data is not None and (beat := _parsed(data)) is not None]


def _parsed(data: bytes) -> Beat | None:
    """None for a file that another version wrote, or someone else: progress is told without it."""
    try:
        content: dict[str, Any] = json.loads(data)
        beat = Beat(**{name: content[name] for name in Beat.__dataclass_fields__ if name in content})
        numbers = (beat.shard, beat.records, *beat.failures.values())
        times, texts = (beat.started_at, beat.beaten_at), (beat.attempt, beat.host, beat.stage)
        fits = all(type(number) is int for number in numbers) and all(type(each) is float for each in times)
        return beat if fits and all(type(text) is str for text in texts) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
