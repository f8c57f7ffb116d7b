"""`roibeam store import`: a published feature file becomes a store like any other, except for its feature space."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from features.exchange.check_report import CheckReport
from features.exchange.feature_file import FeatureFile
from features.exchange.formats import format_of
from features.fingerprint import IMPORTED_PREFIX, Fingerprint
from features.imported import imported_fingerprint
from features.manifest import STORE_MANIFEST_NAME, TEMPORARY_SUFFIX, ShardManifest, StoreManifest
from features.publish import publish_store
from features.shard_sequence import num_outcomes, write_shard_sequence
from pipelines.dead_letters import DEAD_LETTERS_NAME, write_dead_letters
from pipelines.store_lock import LOCK_NAME, store_lock

log = logging.getLogger(__name__)
DEFAULT_SHARD_SIZE = 4000
IMPORT_DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class ImportSummary:
    """What an import gave.

    Attributes:
        format: name of the source's format.
        manifest: of the store.
        report: what was in the source.
        failures: reason -> entries that could not be used; they are the store's dead letters.
        num_repeats: entries left out because an earlier one says the same about their image.
        seconds: wall time.
    """

    format: str
    manifest: StoreManifest
    report: CheckReport
    failures: Counter[str]
    num_repeats: int
    seconds: float

    @property
    def failed_share(self) -> float:
        """Dead letters / (records + dead letters), 0..1."""
        return self.failures.total() / max(self.manifest.num_records + self.failures.total(), 1)


def import_features(
    source: Path,
    out: Path,
    *,
    format_name: str | None = None,
    dtype: str = "float16",
    shard_size: int = DEFAULT_SHARD_SIZE,
) -> ImportSummary:
    """Writes the records of a feature file to the folder `out`, in key order.

    The store manifest comes last: before it there is no store. What a killed import left is removed by the next one,
    which starts again from the beginning (it reads faster than it would pay to continue).

    Args:
        source: a file or folder of a format in `features.exchange.formats`.
        format_name: of it; None: it is recognised by its content.
        dtype: of the stored features; float16 is half the size, and a value over 65504 makes a dead letter in it.
        shard_size: entries per shard.
    Raises:
        ValueError: when `source` is no such file, or `out` holds anything but a killed import.
        OSError: when `out` cannot be written.
    """
    start = time.monotonic()
    if dtype not in IMPORT_DTYPES:
        raise ValueError(f"--dtype {dtype!r}: choose one of {', '.join(IMPORT_DTYPES)}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder to write the store into")
    found = format_of(source, format_name)
    with found.open(source) as file:
        details = {"layout": file.layout, **file.details, "feature_dtype": dtype}
        fingerprint = imported_fingerprint(found.name, details)
        report = CheckReport(file.layout, file.details)
        out.mkdir(parents=True, exist_ok=True)
        with store_lock(out):
            _clear_killed_import(out)
            num_bytes = _bytes_on_disk(source)
            manifests = _write_shards(file, report, out, fingerprint, source, num_bytes, dtype, shard_size)
            write_dead_letters(out / DEAD_LETTERS_NAME, manifests)
            repeats = sum(manifest.stats["equal_repeats"] for manifest in manifests)
            published = publish_store(
                out,
                range(len(manifests)),
                fingerprint=fingerprint,
                config={
                    "source": {"kind": found.name, "location": os.path.abspath(source), "bytes": num_bytes},
                    "options": {"feature_dtype": dtype, "shard_size": shard_size},
                    "entries": {"all": file.num_entries, "equal_repeats": repeats},
                },
            )
    failures = Counter(letter.reason for manifest in manifests for letter in manifest.dead_letters)
    return ImportSummary(found.name, published, report, failures, repeats, time.monotonic() - start)


def _write_shards(
    file: FeatureFile,
    report: CheckReport,
    out: Path,
    fingerprint: Fingerprint,
    source: Path,
    num_bytes: int,
    dtype: str,
    shard_size: int,
) -> list[ShardManifest]:
    start = time.monotonic()
    manifests: list[ShardManifest] = []
    done = 0
    shards = write_shard_sequence(
        out,
        report.watch(file.outcomes(dtype)),
        fingerprint=fingerprint,
        source=str(source),
        shard_size=shard_size,
        planned_bytes=num_bytes * min(shard_size, file.num_entries) // max(file.num_entries, 1),
    )
    for manifest in shards:
        manifests.append(manifest)
        done += num_outcomes(manifest)
        rate = done / max(time.monotonic() - start, 1e-9)
        log.info("%d of %d entries: %.0f per second", done, file.num_entries, rate)
    return manifests


def _bytes_on_disk(source: Path) -> int:
    """Bytes that a file or the files in a folder take; those of an LMDB map that were never written do not count."""
    if source.is_file():
        return _allocated(os.stat(source))
    return sum(
        _allocated(os.lstat(os.path.join(folder, name))) for folder, _, names in os.walk(source) for name in names
    )


def _allocated(status: os.stat_result) -> int:
    return min(status.st_size, status.st_blocks * 512)


def _clear_killed_import(out: Path) -> None:
    """Empties a folder that holds nothing but what a killed import wrote; needs the store's lock."""
    names = sorted(path.name for path in out.iterdir() if path.name != LOCK_NAME)
    if STORE_MANIFEST_NAME in names:
        raise ValueError(f"{out} is a store already; choose a new folder, or delete it first")
    for name in names:
        if not _is_of_a_killed_import(out / name):
            raise ValueError(f"{out} is not empty and not of a killed import ({name!r} is in it); choose a new folder")
    if names:
        log.info("%s: a killed import left %s; starting again", out, ", ".join(names[:5]))
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        (out / name).unlink()


def _is_of_a_killed_import(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    if re.fullmatch(r"part-\d{5,}\.json", path.name):
        try:
            return ShardManifest.read(path).fingerprint.feature_space.startswith(IMPORTED_PREFIX)
        except ValueError:
            return False
    return (
        re.fullmatch(r"part-\d{5,}\.[0-9a-f]{8}\.lmdb", path.name) is not None
        or path.name == DEAD_LETTERS_NAME
        or (path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX))
    )
