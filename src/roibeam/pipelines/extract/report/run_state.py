"""Where the run of a store stands, read from its shard manifests and heartbeats: the same for any runner.

A look costs one listing, the manifests that are new since the last one, and the heartbeats of the shards in work.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.shard.manifest import ShardManifest, shard_manifest_name
from roibeam.pipelines.common.console.progress import Standing
from roibeam.pipelines.data.shard_plan import Plan
from roibeam.pipelines.extract.shard.heartbeat import Beat, read_heartbeats

log = logging.getLogger(__name__)
REMOTE_LOOK_SECONDS = 15.0  # between two looks at a store at a URL: its heartbeats come no faster
_TIMES = ("seconds", "decode_ms", "net_ms", "write_ms")


@dataclass(frozen=True)
class FinishedShard:
    """What is kept of a shard manifest; all of them are in memory.

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


class ProgressView:
    """Reads where the run stands. The manifest of a finished shard is read once; threads may read at once."""

    def __init__(self, folder: OutputFolder, plan: Plan) -> None:
        self._folder = folder
        self._names = {shard_manifest_name(shard.number): shard.number for shard in plan.shards}
        self._lock = threading.Lock()
        self.finished: dict[int, FinishedShard] = {}
        self.in_work: list[Beat] = []
        self.heard_at = 0.0  # when a file of a run was written last, Unix seconds

    def read(self) -> Standing:
        """Finished shards plus what the heartbeats of the others say."""
        with self._lock:
            return self._read()

    def _read(self) -> Standing:
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


def standing_of(finished: Iterable[FinishedShard], in_work: Iterable[Beat]) -> Standing:
    """The images of finished shards and of those in work together."""
    records, failures = 0, Counter[str]()
    for shard in finished:
        records += shard.records
        for (_, reason), count in shard.failures.items():
            failures[reason] += count
    for beat in in_work:
        records += beat.records
        failures.update(beat.failures)
    return Standing(records, failures)
