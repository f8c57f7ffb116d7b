"""The whole check of a store: its files and records, and the captions and labels beside them."""

from __future__ import annotations

import re
import sys

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.reading.borrowed_store import borrowed_store
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.features.verify import Problem, verify_store
from roibeam.pipelines.extract.annotations import annotation_problem
from roibeam.pipelines.foundation.console.interruption import tell_what_is_kept
from roibeam.pipelines.foundation.console.progress import RECORDS, Progress
from roibeam.pipelines.stores.places import Place, folder_at


def check_store(
    store: Place, *, deep: bool = False, shards: str | None = None, scratch: str | None = None
) -> list[Problem]:
    """
    Args:
        store: its folder, or its URL.
        deep: also read every record, and every row of captions and labels.
        shards: those that `deep` reads, "<first>-<last>" or "<first>-"; None for all.
        scratch: where one shard of a URL lies while it is read; None for the machine's temporary folder.
    Raises:
        ValueError: for `shards` that are none, or without `deep`.
        UnreachableError: when a URL is not answered.
    """
    if shards is not None and not deep:
        raise ValueError("--shards goes with --deep: the rest of the check takes seconds and is for all shards")
    deep_shards = None if shards is None else _shard_range(shards)
    folder = folder_at(store, scratch)
    progress = Progress("verifying", None, RECORDS)
    try:
        with progress:
            problems = verify_store(folder, deep=deep, progress=progress.to, deep_shards=deep_shards)
    except KeyboardInterrupt:
        if deep:
            shard = shard_of_record(folder, progress.done)
            tell_what_is_kept(f"the shards before {shard:,} are read, and nothing is changed", shards=f"{shard}-")
        raise
    if deep and not problems:
        with borrowed_store(store, scratch=scratch) as opened:
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


def shard_of_record(store: OutputFolder, num_records: int) -> int:
    """Number of the shard that the record after so many lies in, or of the last one."""
    number = 0
    data = store.read_bytes(STORE_MANIFEST_NAME)
    for entry in StoreManifest.from_bytes(data, store.where(STORE_MANIFEST_NAME)).shards:
        number = entry.shard
        num_records -= entry.num_records
        if num_records < 0:
            break
    return number
