"""Progress of a run: heartbeats of the shards in work, and the manifests of those that are finished.

A heartbeat is a small file of each attempt, replaced as images are done. On a local disk it lies in the attempt's
scratch folder, at a URL beside the shards, and is put less often there. `ProgressView` reads all of it, the same for
any runner: a look costs one listing, the manifests that are new since the last one, and the heartbeats.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.folders.durable_files import naming_file, read_regular_file
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import SCRATCH_PREFIX
from roibeam.features.folders.object_folder import ObjectFolder
from roibeam.features.shard.manifest import ShardManifest, shard_manifest_name
from roibeam.pipelines.common.console.progress import ProgressState
from roibeam.pipelines.data.shard_plan import Plan

log = logging.getLogger(__name__)
LOCAL_SECONDS = 0.5
REMOTE_SECONDS = 15.0
_LOCAL_NAME = "heartbeat.json"
REMOTE_PREFIX = ".heartbeat-"


@dataclass(frozen=True)
class Beat:
    """Heartbeat of an attempt.

    Attributes:
        records, failures: images done, with a record, and failed ones by reason.
        started_at, beaten_at: times of its start and of this heartbeat, Unix seconds by its own clock.
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
        """Rate since it began; 0.0 before it can be known."""
        seconds = self.beaten_at - self.started_at
        return self.images / seconds if seconds > 0 else 0.0


class Heartbeat:
    """Writes the beats of one attempt; a context manager around its work."""

    def __init__(self, folder: OutputFolder, scratch: Path, attempt: str, shard: int) -> None:
        self._remote = folder if isinstance(folder, ObjectFolder) else None
        self._scratch, self._name = scratch, f"{REMOTE_PREFIX}{attempt}.json"
        self._first = Beat(shard, started_at=time.time(), attempt=attempt, host=socket.gethostname())
        self._next = 0.0
        self._has_warned = False

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
        """Writes a heartbeat, unless one was written just now."""
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
        """Notes that all images are done; on a local disk the rest takes no time."""
        if self._remote is not None:
            self._put(self._remote, self._beat(num_records, failures, "uploading"))

    def _beat(self, num_records: int, failures: Sequence[Failure], stage: str) -> bytes:
        reasons = dict(Counter(failure.reason for failure in failures))
        beat = replace(self._first, records=num_records, failures=reasons, beaten_at=time.time(), stage=stage)
        return json.dumps(asdict(beat)).encode("ascii")

    def _put(self, folder: ObjectFolder, data: bytes) -> None:
        try:
            folder.put_bytes(self._name, data, tries=1)
        except OSError as error:  # only a sign of life; what the shard itself puts is tried again, and then ends it
            if not self._has_warned:
                log.warning("shard %d goes on without heartbeat: %s", self._first.shard, error)
            self._has_warned = True


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
    """The heartbeat; None for a file that another version or program wrote, which is left out of the progress."""
    try:
        content: dict[str, Any] = json.loads(data)
        beat = Beat(**{name: content[name] for name in Beat.__dataclass_fields__ if name in content})
        numbers = (beat.shard, beat.records, *beat.failures.values())
        times, texts = (beat.started_at, beat.beaten_at), (beat.attempt, beat.host, beat.stage)
        fits = all(type(number) is int for number in numbers) and all(type(each) is float for each in times)
        return beat if fits and all(type(text) is str for text in texts) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


REMOTE_LOOK_SECONDS = 15.0  # between two looks at a store at a URL: its heartbeats come no faster
_TIMES = ("seconds", "decode_ms", "net_ms", "write_ms")


@dataclass(frozen=True)
class FinishedShard:
    """Facts of a shard manifest that are kept in memory, for all shards.

    Attributes:
        num_bytes: of its data file.
        failures: dead letters by (stage, reason).
        copied: of the records, those that an earlier attempt had.
        times: those of `seconds`, `decode_ms`, `net_ms` and `write_ms` (sums over its images) that its stats have.
    """

    number: int
    attempt: str
    records: int
    regions: int
    num_bytes: int
    failures: Counter[tuple[str, str]]
    times: dict[str, float]
    copied: int = 0

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


def num_extracted(shards: Iterable[FinishedShard]) -> int:
    """Images extracted for these shards, without records that were only copied where failed images were retried."""
    return sum(shard.images - shard.copied for shard in shards)


class ProgressView:
    """Reads where the run stands. The manifest of a finished shard is read once; threads may read at once."""

    def __init__(self, folder: OutputFolder, plan: Plan) -> None:
        self._folder = folder
        self._names = {shard_manifest_name(shard.number): shard.number for shard in plan.shards}
        self._lock = threading.Lock()
        self._earlier: frozenset[tuple[int, str]] = frozenset()
        self.finished: dict[int, FinishedShard] = {}
        self.in_work: list[Beat] = []
        self.heard_at = 0.0  # when a file of a run was written last, Unix seconds

    def read(self) -> ProgressState:
        """Progress from finished shards and the heartbeats of the others."""
        with self._lock:
            there = self._folder.listing()
            new = [name for name, number in self._names.items() if name in there and number not in self.finished]
            for name, data in self._folder.read_many(new):
                if data is None:
                    continue
                try:
                    shard = _finished(ShardManifest.from_bytes(data, self._folder.where(name)))
                except ValueError as error:
                    log.debug("%s", error)  # the next run extracts it again
                    continue
                self.finished[self._names[name]] = shard
            furthest: dict[int, Beat] = {}  # a shard may be tried twice at once
            waiting = set(self._names.values()) - self.finished.keys()
            self.heard_at = max((facts.written_at for facts in there.values()), default=0.0)
            for beat in read_heartbeats(self._folder, there):
                self.heard_at = max(self.heard_at, beat.beaten_at)
                if beat.shard in waiting and (beat.shard not in furthest or furthest[beat.shard].images < beat.images):
                    furthest[beat.shard] = beat
            self.in_work = [furthest[number] for number in sorted(furthest)]
            return standing_of(self.finished.values(), self.in_work)

    def begin(self) -> None:
        """Takes the shards that are finished now for those of earlier runs."""
        self.read()
        self._earlier = frozenset((shard.number, shard.attempt) for shard in self.finished.values())

    def new(self) -> list[FinishedShard]:
        """The shards finished since `begin`, as they were read last."""
        return [shard for shard in self.finished.values() if (shard.number, shard.attempt) not in self._earlier]


def _finished(manifest: ShardManifest) -> FinishedShard:
    times = {}
    for name in _TIMES:
        value = manifest.stats.get(name)
        value = value.get("sum") if isinstance(value, dict) else value
        if isinstance(value, int | float) and math.isfinite(value):
            times[name] = float(value)
    failures = Counter((letter.stage, letter.reason) for letter in manifest.dead_letters)
    copied = manifest.stats.get("copied")
    return FinishedShard(
        manifest.shard, manifest.attempt, manifest.num_records, manifest.num_regions, manifest.data_bytes, failures,
        times, copied if type(copied) is int else 0,
    )  # fmt: skip


def standing_of(finished: Iterable[FinishedShard], in_work: Iterable[Beat]) -> ProgressState:
    """The images of finished shards and of those in work together."""
    records, failures = 0, Counter[str]()
    for shard in finished:
        records += shard.records
        for (_, reason), count in shard.failures.items():
            failures[reason] += count
    for beat in in_work:
        records += beat.records
        failures.update(beat.failures)
    return ProgressState(records, failures)
