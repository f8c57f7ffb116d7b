"""The whole check of a store: its files and records, the captions and labels beside them, and the files of its plan."""

from __future__ import annotations

import re
import sys

from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.reading.borrowed_store import borrowed_store
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.features.verify import Problem, verify_store
from roibeam.pipelines.common.console.interruption import tell_what_is_kept
from roibeam.pipelines.common.console.progress import RECORDS, Progress
from roibeam.pipelines.data.annotations import annotation_problem
from roibeam.pipelines.data.shard_plan import members_name, read_members, read_plan
from roibeam.pipelines.extract.stores.places import Place, folder_at

_MAX_PLAN_PROBLEMS = 20


def check_store(
    store: Place, *, deep: bool = False, shards: str | None = None, scratch: str | None = None
) -> list[Problem]:
    """
    Args:
        store: its folder, or its URL.
        deep: also read every record, every row of captions and labels, and every line of the plan.
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
    return problems + _plan_problems(folder, range(0) if not deep else deep_shards)


def _plan_problems(store: OutputFolder, deep_shards: range | None) -> list[Problem]:
    """Files of the plan that are gone or changed, the first 20: no image can be added then. What plan.json itself says
    is the matter of `verify_store`.

    Args:
        deep_shards: those whose files are read, None for all; of the others it is enough that they are there.
    """
    try:
        plan = read_plan(store)
    except UnreachableError:
        raise
    except (OSError, ValueError):
        return []
    problems: list[Problem] = []
    for shard in () if plan is None else plan.shards:
        name = members_name(shard.number, shard.revision)
        what = None
        if store.num_bytes(name) is None:
            what = "is missing"
        elif deep_shards is None or shard.number in deep_shards:
            try:
                read_members(store, shard)
            except ValueError as error:
                what = f"is damaged ({str(error).partition(f'{store.where(name)}: ')[2].partition(';')[0]})"
        if what is not None:
            to_do = "restore it: no image can be added to the store without it, its records can be read"
            problems.append(Problem(name, what, to_do))
    return problems[:_MAX_PLAN_PROBLEMS]


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
