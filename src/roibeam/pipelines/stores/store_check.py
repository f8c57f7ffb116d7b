"""The whole check of a store: its files and records, and the captions and labels beside them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import Problem, verify_store
from roibeam.pipelines.extract.annotations import annotation_problem
from roibeam.pipelines.foundation.console.interruption import tell_what_is_kept
from roibeam.pipelines.foundation.console.progress import RECORDS, Progress


def check_store(store: Path, *, deep: bool = False, shards: str | None = None) -> list[Problem]:
    """
    Args:
        deep: also read every record, and every row of captions and labels.
        shards: those that `deep` reads, "<first>-<last>" or "<first>-"; None for all.
    Raises:
        ValueError: for `shards` that are none, or without `deep`.
    """
    if shards is not None and not deep:
        raise ValueError("--shards goes with --deep: the rest of the check takes seconds and is for all shards")
    deep_shards = None if shards is None else _shard_range(shards)
    progress = Progress("verifying", None, RECORDS)
    try:
        with progress:
            problems = verify_store(store, deep=deep, progress=progress.to, deep_shards=deep_shards)
    except KeyboardInterrupt:
        if deep:
            shard = shard_of_record(store, progress.done)
            tell_what_is_kept(f"the shards before {shard:,} are read, and nothing is changed", shards=f"{shard}-")
        raise
    if deep and not problems:
        with FeatureStore(store) as opened:
            entry, what = opened.manifest.annotations, annotation_problem(opened)
        if entry is not None and what is not None:
            problems.append(Problem(entry.file, what, "run the command that wrote the store again"))
    return problems


def _shard_range(text: str) -> range:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})?", text, re.ASCII)
    last = int(match[2]) if match and match[2] else sys.maxsize - 1
    if match is None or int(match[1]) > last:
        raise ValueError(f"--shards {text!r}: expected <first>-<last> or <first>-, such as 100-199")
    return range(int(match[1]), last + 1)


def shard_of_record(store: Path, num_records: int) -> int:
    """Number of the shard that the record after so many lies in, or of the last one."""
    number = 0
    for entry in StoreManifest.read(store / STORE_MANIFEST_NAME).shards:
        number = entry.shard
        num_records -= entry.num_records
        if num_records < 0:
            break
    return number
