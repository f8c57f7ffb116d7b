"""The progress of a run, read from its shard manifests and heartbeats: the same for any runner."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from features.manifest import ShardManifest, shard_manifest_name
from pipelines.duration import duration
from pipelines.plan import Plan
from pipelines.store_folder import SCRATCH_PREFIX


@dataclass(frozen=True)
class Standing:
    """Where a run stands: images with a record, and failed ones by reason."""

    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def images(self) -> int:
        return self.records + self.failures.total()


class Readable(Protocol):
    """Whatever knows where a run stands; read from the printer's thread."""

    def read(self) -> Standing: ...


class ProgressView:
    """Reads where the run stands. Finished shards are read once."""

    def __init__(self, store: Path, plan: Plan) -> None:
        self._store = store
        self._open = [shard.number for shard in plan.shards]
        self._done = Standing()

    def read(self) -> Standing:
        """Finished shards plus what the heartbeats of the others say."""
        records, failures = self._done.records, Counter(self._done.failures)
        still_open = []
        for number in self._open:
            path = self._store / shard_manifest_name(number)
            try:
                manifest = ShardManifest.read(path)
            except FileNotFoundError:
                still_open.append(number)
                continue
            records += manifest.num_records
            failures.update(letter.reason for letter in manifest.dead_letters)
        self._open, self._done = still_open, Standing(records, Counter(failures))
        for beat in self._heartbeats(set(still_open)).values():
            records += beat["records"]
            failures.update(beat["failures"])
        return Standing(records, failures)

    def _heartbeats(self, shards: set[int]) -> dict[int, dict[str, Any]]:
        """The furthest heartbeat of each of `shards`; a shard may be tried twice at once."""
        beats: dict[int, dict[str, Any]] = {}
        for path in self._store.glob(f"{SCRATCH_PREFIX}*/heartbeat.json"):
            try:
                beat = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # its shard finished just now
            number = beat["shard"]
            if number in shards and (number not in beats or beats[number]["records"] < beat["records"]):
                beats[number] = beat
        return beats


class ProgressPrinter:
    """Prints a progress line every few seconds from a thread of its own; a context manager around the run.

    On a terminal the line is rewritten in place; elsewhere a new line every ten seconds. With `as_json`, JSON lines.
    """

    def __init__(self, view: Readable, total: int, *, as_json: bool = False, stream: TextIO | None = None) -> None:
        self._view, self._total, self._as_json = view, total, as_json
        self._stream = stream or (sys.stdout if as_json else sys.stderr)
        self._in_place = not as_json and self._stream.isatty()
        self._every = 1.0 if self._in_place else 10.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPrinter:
        self._start = time.monotonic()
        self._before = self._view.read().images
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._print(self._view.read(), last=True)
        elif self._in_place:
            self._stream.write("\n")

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._print(self._view.read())

    def _print(self, standing: Standing, last: bool = False) -> None:
        seconds = time.monotonic() - self._start
        rate = (standing.images - self._before) / max(seconds, 1e-9)
        left = self._total - standing.images
        eta = left / rate if rate > 0 else None
        if self._as_json:
            event = {
                "event": "progress", "images": standing.images, "total": self._total, "records": standing.records,
                "failures": dict(standing.failures), "images_per_second": round(rate, 3),
                "eta_seconds": None if eta is None else round(eta, 1),
            }  # fmt: skip
            text = json.dumps(event) + "\n"
        else:
            line = progress_line(standing, self._total, rate, eta)
            text = f"\r\x1b[K{line}" + ("\n" if last else "") if self._in_place else line + "\n"
        self._stream.write(text)
        self._stream.flush()


def progress_line(standing: Standing, total: int, rate: float, eta: float | None) -> str:
    """One line for a person: done/total, rate, time left, failures by reason."""
    parts = [f"{standing.images:,}/{total:,} images", f"{rate:.2f} images/s" if rate < 10 else f"{rate:.0f} images/s"]
    if standing.images < total:
        parts.append(f"ETA {duration(eta)}")
    if standing.failures:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in standing.failures.most_common())
        parts.append(f"{standing.failures.total():,} failed ({reasons})")
    return "  ".join(parts)
