"""Output folder of a run: whether it may become a store, what of it is finished, its manifest, and run_summary.json.

Before a run it is checked, and cleared of what killed runs left behind. The last step of a run writes
dead_letters.parquet, annotations.parquet, then manifest.json over all shards of the plan. The summary has what the last
run did and what the store holds, for people and machines. It is written at the end of a run, also of one that failed or
was interrupted, and is no part of the store's content.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS
from roibeam.features.annotations import checked_annotations, write_annotations
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, json_bytes
from roibeam.features.folders.folder_protocol import ABANDONED_SECONDS, LOCK_NAME, LOCK_START, FileFacts, OutputFolder
from roibeam.features.folders.local_folder import SCRATCH_PREFIX
from roibeam.features.record.fingerprint import Fingerprint, merged_numerics
from roibeam.features.shard.manifest import (
    DEAD_LETTERS_NAME,
    RETRIED_PREFIX,
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    ShardManifest,
    StoreManifest,
    retried_manifest_name,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.writer import publish_store
from roibeam.messages import plural
from roibeam.pipelines.common.dead_letters import write_dead_letters
from roibeam.pipelines.data.captions.caption_files import planned_annotations
from roibeam.pipelines.data.shard_plan import MEMBERS_START, PLAN_COPY_NAME, Plan, PlannedShard, plan_of_now, read_plan
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.shard.run_progress import REMOTE_PREFIX, FinishedShard, ProgressView, num_extracted

log = logging.getLogger(__name__)
SUMMARY_NAME = "run_summary.json"  # where the output folder was taken away in mid-run, alone in the one put there
SUMMARY_FORMAT = "roibeam-run-summary"
_STORE_FILE = (
    r"((part|retried)-\d{5,}|plan|manifest|run_summary)\.json|(dead_letters|annotations)\.parquet|report\.html"
)


def check_output_folder(folder: OutputFolder) -> Plan | None:
    """The plan of the store; None where there is none yet. Raises ValueError when the folder cannot become or continue
    a store: other things are in it."""
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{str(folder)!r}: the path is not valid UTF-8; choose another folder") from None
    plan = read_plan(folder)
    if plan is None:
        path = folder.local_path
        names = folder.listing() if path is None else os.listdir(path) if path.is_dir() else ()
        others = [name for name in names if not _is_of_a_killed_start(folder, name)]
        if STORE_MANIFEST_NAME in others:
            raise ValueError(
                f"{folder} is a store that was imported, copied or written from Python: extraction cannot add to it; "
                f"choose a new folder"
            )
        if others:
            has_photos = any(os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in others)
            hint = ", or swap the two: the photos come first" * has_photos
            raise ValueError(
                f"{folder} is not empty and holds no store ({sorted(others)[0]!r} is in it); choose a new folder{hint}"
            )
    return plan


def _is_of_a_killed_start(folder: OutputFolder, name: str) -> bool:
    """Whether an entry of the folder is what a run leaves that was stopped before plan.json was there: by its name,
    and where others may use that name by what it holds."""
    if name == "plan":
        return folder.local_path is None or _are_members(folder.local_path / name)
    if name == LOCK_NAME:
        return folder.read_bytes(name)[:100].startswith(LOCK_START.encode()) or folder.num_bytes(name) == 0
    if name == SUMMARY_NAME:
        try:
            content = json.loads(folder.read_bytes(name))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(content, dict) and content.get("format") == SUMMARY_FORMAT
    return _is_temporary(name) or (folder.local_path is None and name.startswith(REMOTE_PREFIX))


def _are_members(plan: Path) -> bool:
    """Whether a folder holds files of a plan alone; the last one may be cut."""
    if not plan.is_dir() or plan.is_symlink():
        return False
    for path in set(plan.iterdir()) - {plan.parent / PLAN_COPY_NAME}:
        if not re.fullmatch(r"part-\d{5,}\.jsonl", path.name) or not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(len(MEMBERS_START))
        if not MEMBERS_START.startswith(start):
            return False
    return True


def _is_temporary(name: str) -> bool:
    """Whether a file has the name that our writes of a store use before they rename it: that of its file, the process,
    and what sets two of one process apart."""
    return re.fullmatch(rf"\.({_STORE_FILE})\.\d+(\.[0-9a-f]+)?{re.escape(TEMPORARY_SUFFIX)}", name) is not None


def is_unused_plan(folder: OutputFolder, plan: Plan) -> bool:
    """Whether nothing was extracted under the plan yet, so that another may take its place.

    Never at a URL: other runs may be at work there unknown.
    """
    path = folder.local_path
    if path is None or (path / STORE_MANIFEST_NAME).exists():
        return False
    return not any((path / shard_manifest_name(shard.number)).exists() for shard in plan.shards)


def last_attempt(folder: OutputFolder, shard: PlannedShard) -> tuple[ShardManifest, bool] | None:
    """The manifest of a shard, and whether its failed images are to be tried again; None where it never finished."""
    for name, is_retried in ((shard_manifest_name(shard.number), False), (retried_manifest_name(shard.number), True)):
        try:
            return ShardManifest.from_bytes(folder.read_bytes(name), folder.where(name)), is_retried
        except (FileNotFoundError, ValueError):
            continue
    return None


def finished_manifest(
    folder: OutputFolder, shard: PlannedShard, feature_space: str, *, retried: bool = False
) -> ShardManifest | None:
    """The manifest of a shard that needs no work: of this plan and feature space, its data file whole in size.

    A damaged or outdated one is as good as none; its shard is extracted again.

    Args:
        retried: of a shard that was finished and whose failed images are to be tried again. Its records can be kept;
            its failed images may be planned anew since.
    """
    name = (retried_manifest_name if retried else shard_manifest_name)(shard.number)
    try:
        data = folder.read_bytes(name)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s; extracting its shard again", error)
        return None
    return _counting_manifest(folder, shard, feature_space, data, folder.num_bytes, may_differ=retried)


def _counting_manifest(
    folder: OutputFolder,
    shard: PlannedShard,
    feature_space: str,
    data: bytes,
    num_bytes: Callable[[str], int | None],
    *,
    may_differ: bool = False,
) -> ShardManifest | None:
    """`finished_manifest` from bytes; with `may_differ`, images of the shard may be planned anew since."""
    where = folder.where(shard_manifest_name(shard.number))
    try:
        manifest = ShardManifest.from_bytes(data, where)
    except ValueError as error:
        log.warning("%s; extracting its shard again", error)
        return None
    is_of_plan = may_differ or manifest.members_digest == shard.members_digest
    if not is_of_plan or manifest.fingerprint.feature_space != feature_space:
        log.warning("%s is of another plan or detector; extracting its shard again", where)
        return None
    if manifest.data_file is not None and num_bytes(manifest.data_file) != manifest.data_bytes:
        data_file = folder.where(manifest.data_file)
        log.warning("%s is missing or not %d bytes long; extracting its shard again", data_file, manifest.data_bytes)
        return None
    return manifest


def tidy_store(
    folder: OutputFolder, plan: Plan | None, feature_space: str, *, retry_dead_letters: bool = False
) -> None:
    """Leaves the shards that count and nothing else; needs the store's lock, where there is one.

    Afterwards a shard manifest means a finished shard: those that are damaged, outdated or without their data are
    removed, and with `retry_dead_letters` those that hold any are set aside (`retried-*.json`), where they and their
    data stay until the store manifest lists the new attempts: the store is read by them. Removed too: scratch
    folders, data files that no manifest names, files of broken-off atomic writes.

    At a URL unknown runs may be at work, and every file stays that an attempt may still need. An attempt uploads its
    data file, looks whether its shard is finished, and only if it is not puts the manifest (shard_job.py). So a data
    file that no manifest names is useless once its shard is finished. Where the shard is not, its attempt may be at
    work, and the file stays until it is `ABANDONED_SECONDS` old.
    """
    there = folder.listing()
    sizes = {name: facts.num_bytes for name, facts in there.items()}
    shards = {shard_manifest_name(shard.number): shard for shard in plan.shards} if plan else {}
    finished: dict[int, str | None] = {}  # data files by shard
    for name, data in folder.read_many(name for name in shards if name in there):
        manifest = None
        if data is not None:
            manifest = _counting_manifest(folder, shards[name], feature_space, data, sizes.get)
        if manifest is None or not _index_is_sound(folder, manifest):
            folder.delete(name)
        elif retry_dead_letters and manifest.dead_letters:
            _set_aside(folder, manifest.shard)
        else:
            finished[manifest.shard] = manifest.data_file
    kept = _tidy_retried(folder, plan, feature_space, finished=finished) | set(finished.values())
    if folder.local_path is None:
        left = _remove_abandoned(folder, there, kept, finished)
    else:
        left = _remove_leftovers(folder.local_path, kept)
    if left:
        log.info("%s: removed what a stopped run left: %s", folder, ", ".join(sorted(left)[:5]))


def _index_is_sound(folder: OutputFolder, manifest: ShardManifest) -> bool:
    """Whether the data file can be opened; at a URL by its size alone."""
    if manifest.data_file is None or folder.local_path is None:
        return True
    try:
        with ShardReader(folder.local_path / manifest.data_file, manifest):
            return True
    except (ValueError, OSError) as error:
        log.warning("%s; extracting its shard again", error)
        return False


def _set_aside(folder: OutputFolder, shard: int) -> None:
    """The shard is unfinished from now on; its records wait to be copied."""
    name, aside = shard_manifest_name(shard), retried_manifest_name(shard)
    if folder.local_path is not None:
        os.replace(folder.local_path / name, folder.local_path / aside)
    else:
        folder.put_bytes(aside, folder.read_bytes(name))
        folder.delete(name)


def _tidy_retried(
    folder: OutputFolder, plan: Plan | None, feature_space: str, *, finished: Collection[int]
) -> set[str | None]:
    """Removes what was set aside and is not needed any more; the data files that wait to be copied.

    Of a finished shard it is needed while readers take it: until the store manifest lists the new attempt.
    """
    kept = set()
    there = folder.listing(RETRIED_PREFIX)
    published = _store_manifest(folder) if there else None
    listed = {} if published is None else {entry.shard: entry.manifest_sha256 for entry in published.shards}
    shards = {retried_manifest_name(shard.number): shard for shard in plan.shards} if plan and there else {}
    for name, data in folder.read_many(name for name in shards if name in there):
        if data is None:
            continue
        shard, waiting = shards[name], None
        if shard.number not in finished or hashlib.sha256(data).hexdigest() == listed.get(shard.number):
            waiting = _counting_manifest(folder, shard, feature_space, data, folder.num_bytes, may_differ=True)
        if waiting is None:
            folder.delete(name)
        else:
            kept.add(waiting.data_file)
    return kept


def _remove_leftovers(store: Path, kept: Collection[str | None]) -> list[str]:
    removed = []
    for path in store.iterdir():
        is_scratch = path.name.startswith(SCRATCH_PREFIX)
        is_of_no_shard = path.match("part-*.lmdb") and path.name not in kept
        if not (is_scratch or is_of_no_shard or _is_temporary(path.name)):
            continue
        removed.append(path.name)
        if is_scratch and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return removed


def _remove_abandoned(
    folder: OutputFolder, there: Mapping[str, FileFacts], kept: Collection[str | None], finished: Collection[int]
) -> list[str]:
    oldest = time.time() - ABANDONED_SECONDS
    left = []
    for name, facts in there.items():
        found = re.fullmatch(r"part-(\d{5,})\.[A-Za-z0-9_-]+\.lmdb", name)
        if found is not None and name not in kept and (int(found[1]) in finished or 0 < facts.written_at < oldest):
            left.append(name)
    # A living attempt soon puts its heartbeat again.
    for name in (*left, *(name for name in there if name.startswith(REMOTE_PREFIX))):
        folder.delete(name)
    return left


@dataclass(frozen=True)
class StoreText:
    """Contents of the store manifest beside the shards: resolved config, names, fingerprint with details."""

    config: dict[str, Any]
    vocabulary: Vocabulary
    fingerprint: Fingerprint


def publish_run(folder: OutputFolder, plan: Plan | None, text: StoreText, *, keep: bool = False) -> StoreManifest:
    """Publishes the store of a plan whose shards are all finished.

    Args:
        plan: as it was read before; where another run has extended it since, its shards are published too.
        text: what the manifest states beside the shards; numerics are taken from the shards.
        keep: leave a manifest that lists these shards as it is: nothing was extracted, so nothing is to be restated.
    """
    plan = plan_of_now(folder, plan)
    if plan is None:
        raise ValueError(f"{folder}: no plan.json: nothing to publish")
    done: list[ShardManifest] = []
    digests: dict[str, str] = {}  # SHA-256 of the manifests by name
    for name, data in folder.read_many(shard_manifest_name(shard.number) for shard in plan.shards):
        if data is not None:
            done.append(ShardManifest.from_bytes(data, folder.where(name)))
            digests[name] = hashlib.sha256(data).hexdigest()
    if len(done) < len(plan.shards):
        unfinished = plural(len(plan.shards) - len(done), "shard")
        raise ValueError(f"{folder}: {unfinished} unfinished; run the same command again")
    if keep and (published := _published(folder, digests)) is not None:
        return published
    write_dead_letters(folder, done)
    annotations = write_annotations(folder, planned_annotations(folder, plan, done))
    return publish_store(
        folder,
        [manifest.shard for manifest in done],
        fingerprint=replace(text.fingerprint, numerics=_numerics(folder, done)),
        config=text.config,
        classes=text.vocabulary.classes,
        attributes=text.vocabulary.attributes,
        annotations=annotations,
    )


def _store_manifest(folder: OutputFolder) -> StoreManifest | None:
    try:
        return StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    except (FileNotFoundError, ValueError):
        return None


def _published(folder: OutputFolder, digests: dict[str, str]) -> StoreManifest | None:
    """The store manifest, if it is there and lists exactly these shard manifests as they are now."""
    manifest = _store_manifest(folder)
    if manifest is None:
        return None
    listed = {entry.manifest: entry.manifest_sha256 for entry in manifest.shards}
    is_whole = listed == digests and folder.num_bytes(DEAD_LETTERS_NAME) is not None
    return manifest if is_whole and _has_annotations(folder, manifest.annotations) else None


def _has_annotations(folder: OutputFolder, entry: AnnotationsEntry | None) -> bool:
    """Whether the table that the manifest names is there; at a URL by its size alone."""
    if entry is None:
        return True
    if folder.local_path is None:
        return folder.num_bytes(entry.file) == entry.bytes
    try:
        checked_annotations(folder.local_path, entry)
    except ValueError as error:
        log.warning("%s; writing it again", error)
        return False
    return True


def _numerics(folder: OutputFolder, manifests: Sequence[ShardManifest]) -> dict[str, Any]:
    """Numerics of the shards; where they differ, the values of each field in a list, with a warning."""
    numerics = merged_numerics(manifest.fingerprint.numerics for manifest in manifests)
    mixed = [f"{key} {values}" for key, values in numerics.items() if isinstance(values, list)]
    if isinstance(numerics.get("mode"), list):  # of stores that were begun by an earlier version
        log.warning(
            "%s: shards were computed in different modes (%s): regions and features differ more than in the last "
            "digits; for one mode extract into a new folder", folder, ", ".join(numerics["mode"]),
        )  # fmt: skip
    elif mixed:
        log.warning("%s: shards were computed differently (%s); features differ in the last digits", folder, mixed[0])
    return numerics


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


def write_run_summary(folder: OutputFolder, plan: Plan, end: RunEnd, view: ProgressView) -> None:
    """Writes the summary; where a run failed and the store cannot be written any more, there is a warning instead.

    Args:
        view: of the store; it looks once more.
    """
    try:
        view.read()
        content = run_summary(str(folder), plan, end, view.new(), view.finished.values())
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
    found = (summary.get(name) for name in ("status", "error", "content_digest"))
    status, error, digest = (each if isinstance(each, str) else None for each in found)
    return status, error, digest


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
    store: str, plan: Plan, end: RunEnd, new: Collection[FinishedShard], finished: Collection[FinishedShard]
) -> dict[str, Any]:
    """Content of run_summary.json; docs/stores.md describes its fields."""
    seconds = end.ended - end.started
    this_run = _counts(new)
    copied = sum(shard.copied for shard in new)
    this_run |= {"images": num_extracted(new), "records": this_run["records"] - copied, "copied": copied}
    rate = {"images_per_second": round(this_run["images"] / seconds, 3) if seconds > 0 else None}
    return {
        "format": SUMMARY_FORMAT, "version": SUMMARY_VERSION, "store": store, "status": end.status, "error": end.error,
        "started": _time(end.started), "ended": _time(end.ended), "seconds": round(seconds, 3),
        "command": _command(), "runner": end.runner, "beam_args": list(end.beam_args), "versions": _versions(),
        "notes": list(end.notes),
        "planned": {"shards": len(plan.shards), "images": plan.num_images},
        "this_run": this_run | rate, "in_all": _counts(finished), "content_digest": end.content_digest,
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
    timed = [shard for shard in shards if name in shard.times]
    if not timed:
        return None
    total, images = sum(shard.times[name] for shard in timed), sum(shard.images for shard in timed)
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
