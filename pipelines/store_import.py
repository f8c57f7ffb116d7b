"""`roibeam store import`: a published feature file becomes a store like any other, except for its feature space."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from features.butd_tsv import FORMAT, ButdTsv
from features.fingerprint import IMPORTED_PREFIX
from features.imported import imported_fingerprint, write_imported_shards
from features.manifest import STORE_MANIFEST_NAME, TEMPORARY_SUFFIX, ShardManifest, StoreManifest
from features.publish import publish_store
from pipelines.publish import DEAD_LETTERS_NAME, write_dead_letters
from pipelines.store_lock import LOCK_NAME, store_lock

log = logging.getLogger(__name__)
DEFAULT_SHARD_SIZE = 4000
IMPORT_DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class ImportSummary:
    """What an import gave.

    Attributes:
        manifest: of the store.
        failures: reason -> lines that could not be used; they are the store's dead letters.
        num_repeats: lines left out because an earlier one says the same about their image.
        num_blank: lines with nothing in them.
        seconds: wall time.
    """

    manifest: StoreManifest
    failures: Counter[str]
    num_repeats: int
    num_blank: int
    seconds: float

    @property
    def failed_share(self) -> float:
        """Dead letters / (records + dead letters), 0..1."""
        return self.failures.total() / max(self.manifest.num_records + self.failures.total(), 1)


def import_butd_tsv(
    source: Path, out: Path, *, dtype: str = "float16", shard_size: int = DEFAULT_SHARD_SIZE
) -> ImportSummary:
    """Writes the records of a bottom-up-attention TSV to the folder `out`, in key order.

    The store manifest comes last: before it there is no store. What a killed import left is removed by the next one,
    which starts again from the beginning (it reads faster than it would pay to continue).

    Args:
        dtype: of the stored features; float16 is half the size, and a value over 65504 makes a dead letter in it.
        shard_size: lines per shard.
    Raises:
        ValueError: when `source` is no such file, or `out` holds anything but a killed import.
        OSError: when `out` cannot be written.
    """
    start = time.monotonic()
    if dtype not in IMPORT_DTYPES:
        raise ValueError(f"--dtype {dtype!r}: choose one of {', '.join(IMPORT_DTYPES)}")
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file; give a bottom-up-attention TSV")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder to write the store into")
    with ButdTsv(source) as tsv:
        num_bytes = source.stat().st_size
        fingerprint = imported_fingerprint(
            FORMAT,
            {
                "layout": tsv.layout.name,
                "columns": tsv.layout.columns,
                "classes": tsv.layout.classes,
                "attributes": tsv.layout.attributes,
                "feature_dim": tsv.widths["features"],
                "feature_dtype": dtype,
            },
        )
        out.mkdir(parents=True, exist_ok=True)
        with store_lock(out):
            _clear_killed_import(out)
            failures: Counter[str] = Counter()
            manifests: list[ShardManifest] = []
            records = repeats = 0
            shards = write_imported_shards(
                out,
                tsv.outcomes(dtype),
                fingerprint=fingerprint,
                source=str(source),
                shard_size=shard_size,
                planned_bytes=num_bytes * min(shard_size, tsv.num_lines) // tsv.num_lines,
            )
            for manifest in shards:
                manifests.append(manifest)
                failures.update(letter.reason for letter in manifest.dead_letters)
                records += manifest.num_records
                repeats += manifest.stats["equal_repeats"]
                rate = records / max(time.monotonic() - start, 1e-9)
                log.info("%d of %d lines: %.0f records/s", records + failures.total(), tsv.num_lines, rate)
            write_dead_letters(out / DEAD_LETTERS_NAME, manifests)
            published = publish_store(
                out,
                range(len(manifests)),
                fingerprint=fingerprint,
                config={
                    "source": {"kind": FORMAT, "location": os.path.abspath(source), "bytes": num_bytes},
                    "options": {"feature_dtype": dtype, "shard_size": shard_size},
                    "lines": {"all": tsv.num_lines, "blank": tsv.num_blank, "equal_repeats": repeats},
                },
            )
    return ImportSummary(published, failures, repeats, tsv.num_blank, time.monotonic() - start)


def _clear_killed_import(out: Path) -> None:
    """Empties a folder that holds nothing but what a killed import wrote; needs the store's lock."""
    names = sorted(path.name for path in out.iterdir() if path.name != LOCK_NAME)
    if STORE_MANIFEST_NAME in names:
        raise ValueError(f"{out} is a store already; choose a new folder, or delete it first")
    for name in names:
        if not _is_of_a_killed_import(out / name):
            raise ValueError(f"{out} is not empty and not of a killed import ({name!r} is in it); choose a new folder")
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        (out / name).unlink()


def _is_of_a_killed_import(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    if re.fullmatch(r"part-\d{5,}\.json", path.name):
        try:
            return ShardManifest.read(path).fingerprint.feature_space == IMPORTED_PREFIX + FORMAT
        except ValueError:
            return False
    return (
        re.fullmatch(r"part-\d{5,}\.[0-9a-f]{8}\.lmdb", path.name) is not None
        or path.name == DEAD_LETTERS_NAME
        or (path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX))
    )
