"""`roibeam progress`: how far the run of a store is, or of several stores, such as those of the jobs of an array.

Works on any machine that can read the stores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roibeam.features.folders.folder_protocol import LOCK_NAME, OutputFolder, is_locked, lock_of_this_machine
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.messages import on_a_line
from roibeam.pipelines.common.console.progress import IMAGES, ProgressState, duration, failed
from roibeam.pipelines.data.shard_plan import Plan, read_plan
from roibeam.pipelines.extract.shard.run_progress import Beat, ProgressView, standing_of
from roibeam.pipelines.extract.shard.store_folder import last_end

LIVING_SECONDS = 120.0  # a shard without a heartbeat for longer counts in no rate
SILENT_SECONDS = 1200.0  # longer than a detector call may take by default (--detect-timeout)
_LISTED_SHARDS = 20
RUNNING, FINISHED, FAILED, STOPPED, SILENT = "running", "finished", "failed", "stopped", "silent"


@dataclass(frozen=True)
class Status:
    """State of a run at one time.

    Attributes:
        in_work: shards without one whose attempt has a heartbeat, the longest silent one first.
        is_complete: whether all shards are finished and the store manifest is there.
        seen_at: when this was read, Unix seconds.
        heard_at: time of the run's last write, Unix seconds.
        state: "running"; "finished"; "failed", whose store is complete, but past --max-failures; "stopped", with work
            left and no run there; "silent", without a write for `SILENT_SECONDS`.
        error: why it failed or stopped, by its summary.
    """

    plan: Plan
    standing: ProgressState
    finished: int
    in_work: tuple[Beat, ...]
    is_complete: bool
    seen_at: float
    heard_at: float
    state: str
    error: str | None = None

    @property
    def is_well(self) -> bool:
        """Whether the run is at work, or ended as it should."""
        return self.state in (RUNNING, FINISHED)

    @property
    def is_over(self) -> bool:
        """Whether the state is final, unless another run starts."""
        return self.state in (FINISHED, FAILED, STOPPED)

    @property
    def waiting(self) -> int:
        """Shards that are neither finished nor in work."""
        return len(self.plan.shards) - self.finished - len(self.in_work)

    @property
    def images_per_second(self) -> float:
        """Rate of the living attempts, each since its start."""
        return sum(beat.images_per_second for beat in self.in_work if self.silent_seconds(beat) < LIVING_SECONDS)

    @property
    def eta_seconds(self) -> float | None:
        left = self.plan.num_images - self.standing.images
        rate = self.images_per_second
        return left / rate if rate > 0 else None

    def silent_seconds(self, beat: Beat) -> float:
        """Seconds since the attempt's heartbeat; clocks of two machines may differ a little."""
        return max(0.0, self.seen_at - beat.beaten_at)


class NotPlannedError(ValueError):
    """No run of `roibeam extract` has started in a folder."""


class StatusView:
    """Reads the progress of a store's run, again and again; finished shards are read once. Raises NotPlannedError when
    no run of `roibeam extract` has started there."""

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder
        plan = read_plan(folder)
        if plan is None:
            raise NotPlannedError(
                f"{folder}: has no plan.json: no run of `roibeam extract` has planned a store there yet"
            )
        self._plan, self._view = plan, ProgressView(folder, plan)

    def read(self) -> Status:
        plan, path = self._plan, self._folder.local_path
        # Read before the shards: a run that ends in between is seen as running once more, and never as stopped.
        locked = None if path is None else is_locked(path)
        standing = self._view.read()
        now, heard_at = time.time(), self._view.heard_at
        in_work = tuple(sorted(self._view.in_work, key=lambda beat: beat.beaten_at))
        num_finished = len(self._view.finished)
        is_complete = num_finished == len(plan.shards) and self._folder.num_bytes(STORE_MANIFEST_NAME) is not None
        state, error = self._complete(locked, now) if is_complete else self._unfinished(locked, now)
        if state == STOPPED:  # what was in work is lost
            in_work, standing = (), standing_of(self._view.finished.values(), ())
        return Status(plan, standing, num_finished, in_work, is_complete, now, heard_at, state, error)

    def _unfinished(self, locked: bool | None, now: float) -> tuple[str, str | None]:
        """State and error of a store that lacks something."""
        silent = now - self._view.heard_at
        if self._folder.local_path is not None:
            if locked is None:
                status, error, _ = last_end(self._folder)
                return STOPPED, None if status == FINISHED else error
            # The lock of a killed run, or of one on another machine whose locks cannot be seen here.
            holder = dict(self._folder.read_many([LOCK_NAME]))[LOCK_NAME]
            if not locked and (silent >= LIVING_SECONDS or holder == lock_of_this_machine()):
                return STOPPED, f"it ended without a word, killed perhaps; last heard {duration(silent)} ago"
        return SILENT if silent >= SILENT_SECONDS else RUNNING, None

    def _complete(self, locked: bool | None, now: float) -> tuple[str, str | None]:
        """State and error of a store whose manifest is there; a run that is at its report is running."""
        if locked:
            return RUNNING, None
        status, error, digest = last_end(self._folder)
        data = self._folder.read_bytes(STORE_MANIFEST_NAME)
        if digest == StoreManifest.from_bytes(data, self._folder.where(STORE_MANIFEST_NAME)).content_digest:
            return (FAILED, error) if status == FAILED else (FINISHED, None)
        is_heard = self._folder.local_path is None and now - self._view.heard_at < LIVING_SECONDS
        return RUNNING if is_heard else FINISHED, None


def status_json(status: Status, store: str) -> dict[str, Any]:
    """The look as one JSON object."""
    eta = status.eta_seconds
    return {
        "event": "progress", "store": store, "state": status.state, "error": status.error,
        "silent_seconds": round(max(0.0, status.seen_at - status.heard_at), 1),
        "images": status.standing.images, "total": status.plan.num_images,
        "records": status.standing.records, "failures": dict(status.standing.failures),
        "images_per_second": round(status.images_per_second, 3), "eta_seconds": None if eta is None else round(eta, 1),
        "shards": {
            "planned": len(status.plan.shards), "finished": status.finished, "in_work": len(status.in_work),
            "waiting": status.waiting,
        },
        "in_work": [
            {
                "shard": beat.shard, "images": beat.images,
                "total": status.plan.shards[beat.shard].num_images, "stage": beat.stage,
                "images_per_second": round(beat.images_per_second, 3),
                "silent_seconds": round(status.silent_seconds(beat), 1), "attempt": beat.attempt, "host": beat.host,
            }
            for beat in status.in_work
        ],
        "complete": status.is_complete,
    }  # fmt: skip


def _count(status: Status) -> str:
    """Done and total; rate and time left where there is a rate; failures by reason."""
    parts = [f"{status.standing.images:,} of {IMAGES.plural(status.plan.num_images)}"]
    if status.images_per_second > 0:
        parts.append(IMAGES.rate(status.images_per_second))
        parts.append(f"{duration(status.eta_seconds)} left")
    parts += [failed(status.standing.failures)] if status.standing.failures else []
    return ", ".join(parts)


def status_text(status: Status) -> str:
    """The look for a person: a line of progress, one of shards, and the shards in work, the longest silent first."""
    planned, in_work, waiting = len(status.plan.shards), len(status.in_work), status.waiting
    if status.is_complete:
        complete = f"the store is complete: {planned:,} of {planned:,} shards, {STORE_MANIFEST_NAME} is there"
        complete += {FAILED: f"; the run failed: {status.error}", RUNNING: "; the run is ending"}.get(status.state, "")
        return f"{_count(status)}\n{on_a_line(complete)}"
    heard = f"; last heard {duration(status.seen_at - status.heard_at)} ago" if status.state == RUNNING else ""
    lines = [
        _count(status),
        f"{status.finished:,} of {planned:,} shards finished, {in_work:,} in work, {waiting:,} waiting{heard}",
    ]
    if status.state == STOPPED:
        state = "stopped" if status.finished else "not begun, or stopped"
        why = f" (the last one: {status.error})" if status.error else ""
        lines.append(f"{state}: no run is at work{why}; the same command as before goes on")
    elif status.state == SILENT:
        age = duration(status.seen_at - status.heard_at)
        lines.append(f"silent: nothing was heard of the run for {age}; if it has died, the same command goes on")
    elif not waiting and not in_work:
        lines.append("all shards are finished; the store is being published")
    elif not in_work:
        lines.append("no shard is in work yet")
    for beat in status.in_work[:_LISTED_SHARDS]:
        silent, size = status.silent_seconds(beat), status.plan.shards[beat.shard].num_images
        rate = IMAGES.rate(beat.images_per_second) if beat.images_per_second > 0 else "no image yet"
        lines.append(
            f"  shard {beat.shard:>6,}  {beat.images:>6,}/{size:<6,} {beat.stage:<10} "
            f"{rate:<14}  heard of {duration(silent)} ago"
            f"{'  (silent)' if silent > LIVING_SECONDS else ''}  {beat.host} {beat.attempt}".rstrip()
        )
    if in_work > _LISTED_SHARDS:
        lines.append(f"  and {in_work - _LISTED_SHARDS:,} more, heard of later")
    return "\n".join(map(on_a_line, lines))


NOT_STARTED = "not begun"


@dataclass(frozen=True)
class SeveralStatus:
    """One look at each store; None for one in which no run has planned anything yet."""

    looks: dict[str, Status | None]

    @property
    def is_well(self) -> bool:
        """Whether each run is at work, or ended as it should."""
        return all(status is not None and status.is_well for status in self.looks.values())

    @property
    def is_over(self) -> bool:
        """Whether all states are final, unless another run starts."""
        return all(status is not None and status.is_over for status in self.looks.values())

    @property
    def has_work(self) -> bool:
        """Whether a run is at work."""
        return any(status is not None and status.state == RUNNING for status in self.looks.values())

    def json_lines(self) -> Iterator[dict[str, Any]]:
        for store, status in self.looks.items():
            not_started = {"event": "progress", "store": store, "state": NOT_STARTED}
            yield not_started if status is None else status_json(status, store)

    def text(self) -> str:
        """Each store as `status_text` has it, of several with its name before it."""
        none = f"{NOT_STARTED}: no run has planned a store there yet"
        texts = {store: none if status is None else status_text(status) for store, status in self.looks.items()}
        return "\n".join(text if len(texts) == 1 else f"{on_a_line(store)}:\n{text}" for store, text in texts.items())


class SeveralView:
    """Reads the progress of several stores' runs, again and again. Raises NotPlannedError when a look at one store
    alone finds no run; of several it may come later."""

    def __init__(self, stores: Sequence[str]) -> None:
        self._views: dict[str, StatusView | None] = dict.fromkeys(stores)

    def read(self) -> SeveralStatus:
        return SeveralStatus({store: self._read(store) for store in self._views})

    def _read(self, store: str) -> Status | None:
        view = self._views[store]
        if view is None:
            try:
                view = self._views[store] = StatusView(output_folder(store))
            except NotPlannedError:
                if len(self._views) == 1:
                    raise
                return None
        return view.read()
