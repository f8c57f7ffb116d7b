"""run_summary.json: what the last run did and what the store holds, for people and machines.

Written at the end of a run, also of one that failed or was interrupted. It is no part of the store's content.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import statistics
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.data.shard_plan import Plan
from roibeam.pipelines.extract.shard.run_progress import FinishedShard, ProgressView
from roibeam.pipelines.extract.shard.store_folder import SUMMARY_FORMAT, SUMMARY_NAME

log = logging.getLogger(__name__)
SUMMARY_VERSION = 1
_SLOWEST = 10
_KEPT_OF_A_RUN = ("status", "error", "started", "ended", "seconds", "command", "runner", "beam_args", "versions")
# Parts of an address that may be a password or a signature: before @, and after ?.
_SECRET = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=\?)\S+")
_PACKAGES = ("roibeam", "torch", "torchvision", "apache-beam", "lmdb", "fsspec")


@dataclass(frozen=True)
class RunEnd:
    """End of a run, beside the facts in its shards.

    Attributes:
        status: "finished", "failed" (by an error, or past --max-failures) or "interrupted".
        error: that stopped it, in one line; None for none.
        started, ended: Unix seconds.
        metrics: Beam's; None where the run did not end well.
    """

    status: str
    error: str | None
    runner: str
    beam_args: tuple[str, ...]
    started: float
    ended: float
    notes: tuple[str, ...] = ()
    content_digest: str | None = None
    metrics: dict[str, Any] | None = None


def write_run_summary(
    folder: OutputFolder, plan: Plan, end: RunEnd, before: Collection[FinishedShard], view: ProgressView
) -> None:
    """Writes the summary; where a run failed and the store cannot be written any more, there is a warning instead.

    Args:
        before: the finished shards when the run began.
        view: of the store; it looks once more.
    """
    try:
        view.read()
        content = run_summary(str(folder), plan, end, before, view.finished.values())
        content["last_extraction"] = _extraction(content) or last_extraction(folder)
        folder.put_bytes(SUMMARY_NAME, json_bytes(content))
    except OSError as error:
        if end.error is None:
            raise
        log.warning("no %s: %s", SUMMARY_NAME, error)


def last_extraction(folder: OutputFolder) -> dict[str, Any] | None:
    """Entry in `run_summary.json` of the last run that extracted something: `seconds`, `images`, and how it was
    started and ended; None if there is none."""
    found = _read(folder)
    try:
        last = found["last_extraction"] if "last_extraction" in found else _extraction(found)
        return None if last is None else {**last, "seconds": float(last["seconds"]), "images": int(last["images"])}
    except (ValueError, KeyError, TypeError):
        return None


def last_end(folder: OutputFolder) -> tuple[str | None, str | None, str | None]:
    """`status`, `error` and `content_digest` of the last run by the summary that is there, each None if missing."""
    summary = _read(folder)
    status, error, digest = (summary.get(name) for name in ("status", "error", "content_digest"))
    return (
        status if isinstance(status, str) else None,
        error if isinstance(error, str) else None,
        digest if isinstance(digest, str) else None,
    )


def _read(folder: OutputFolder) -> dict[str, Any]:
    """The summary that is there; {} where there is none. It is no part of the store: a broken one is no error."""
    if folder.num_bytes(SUMMARY_NAME) is None:
        return {}
    try:
        found = json.loads(folder.read_bytes(SUMMARY_NAME))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == SUMMARY_FORMAT else {}


def _extraction(summary: dict[str, Any]) -> dict[str, Any] | None:
    this_run = summary["this_run"]
    if not this_run["images"]:
        return None
    kept = {name: summary.get(name) for name in _KEPT_OF_A_RUN}
    return {**kept, **{name: this_run[name] for name in ("shards", "images", "records")}}


def run_summary(
    store: str, plan: Plan, end: RunEnd, before: Collection[FinishedShard], after: Collection[FinishedShard]
) -> dict[str, Any]:
    """Content of run_summary.json; docs/stores.md describes its fields."""
    earlier = {(shard.number, shard.attempt) for shard in before}
    new = [shard for shard in after if (shard.number, shard.attempt) not in earlier]
    seconds = end.ended - end.started
    this_run = _counts(new)
    copied = sum(shard.copied for shard in new)  # where failed images were tried again
    this_run |= {"images": this_run["images"] - copied, "records": this_run["records"] - copied, "copied": copied}
    rate = {"images_per_second": round(this_run["images"] / seconds, 3) if seconds > 0 else None}
    return {
        "format": SUMMARY_FORMAT, "version": SUMMARY_VERSION, "store": store, "status": end.status, "error": end.error,
        "started": _time(end.started), "ended": _time(end.ended), "seconds": round(seconds, 3),
        "command": _command(), "runner": end.runner, "beam_args": list(end.beam_args), "versions": _versions(),
        "notes": list(end.notes),
        "planned": {"shards": len(plan.shards), "images": plan.num_images},
        "this_run": this_run | rate, "in_all": _counts(after), "content_digest": end.content_digest,
        "beam_metrics": end.metrics,
    }  # fmt: skip


def _counts(shards: Collection[FinishedShard]) -> dict[str, Any]:
    images = sum(shard.images for shard in shards)
    letters = sum((shard.failures for shard in shards), Counter[tuple[str, str]]())
    dead: dict[str, dict[str, int]] = {}
    for (stage, reason), count in sorted(letters.items()):
        dead.setdefault(stage, {})[reason] = count
    return {
        "shards": len(shards),
        "images": images,
        "records": sum(shard.records for shard in shards),
        "regions": sum(shard.regions for shard in shards),
        "bytes": sum(shard.num_bytes for shard in shards),
        "dead_letters": {"total": letters.total(), "by_stage_and_reason": dead},
        "times": {name: _time_totals(shards, name) for name in ("decode_ms", "net_ms", "write_ms")},
        "shard_seconds": _shard_seconds(shards),
    }


def _time_totals(shards: Collection[FinishedShard], name: str) -> dict[str, float] | None:
    """Totals over the shards that have these times; None when none has."""
    telling = [shard for shard in shards if name in shard.times]
    if not telling:
        return None
    total, images = sum(shard.times[name] for shard in telling), sum(shard.images for shard in telling)
    return {"total": round(total, 1), "mean_per_image": round(total / max(images, 1), 3)}


def _shard_seconds(shards: Collection[FinishedShard]) -> dict[str, Any] | None:
    timed = sorted((shard for shard in shards if "seconds" in shard.times), key=lambda shard: -shard.times["seconds"])
    if not timed:
        return None
    seconds = [shard.times["seconds"] for shard in timed]
    return {
        "min": seconds[-1], "median": round(statistics.median(seconds), 3), "max": seconds[0],
        "slowest": [
            {"shard": shard.number, "images": shard.images, **shard.times} for shard in timed[:_SLOWEST]
        ],
    }  # fmt: skip


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _command() -> list[str]:
    """The words that this process was started with, without passwords of addresses: a store is handed on."""
    return [_SECRET.sub("***", word) if "://" in word else word for word in sys.argv]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # such as roibeam itself, run from a checkout
    return found
