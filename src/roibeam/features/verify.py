"""Verification of a store: manifests, files and indexes always; every byte of every record with `deep`."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import lmdb

from roibeam.features.annotations import CAPTIONS_SUFFIX, captions_file_name, checked_annotations
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX
from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.folders.local_folder import note_links, output_folder
from roibeam.features.record.region_record import content_digest, merge_digests, record_digest
from roibeam.features.shard.lmdb_file import LmdbPages
from roibeam.features.shard.manifest import (
    PLAN_NAME,
    RETRIED_PREFIX,
    STORE_MANIFEST_NAME,
    AnnotationsEntry,
    ShardEntry,
    ShardManifest,
    StoreManifest,
    listed_manifest,
    unfinished_run,
)
from roibeam.features.shard.reader import ShardObject, ShardReader
from roibeam.features.shard.writer import META_DATABASE, REGIONS_DATABASE, digests_in_sequences
from roibeam.messages import first_line, plural


def record_problem(reader: ShardReader, row: int, image_id: str) -> str | None:
    """Problem of a record, every byte of it read; None when it is whole."""
    try:
        if reader.find(image_id) != row:
            return "a lookup in the offset index does not find it"
        record = reader.record_at(row, copy=False, check=True)
    except ValueError as error:
        return first_line(error).removeprefix(f"{reader.path}: ").removeprefix(f"record {image_id!r}").lstrip(": ")
    ((_, digest),) = reader.digests(row, row + 1)
    return None if record_digest(record) == digest else "its content has another digest than the index says"


_MAX_PROBLEMS_PER_SHARD = 20
_SCRATCH_PREFIX = ".tmp-"  # folders in which attempts work, docs/store-format.md, section 1
_REEXTRACT = "copy the file again, or let `roibeam store repair` extract what is broken"


@dataclass(frozen=True)
class Problem:
    """A file, its problem, and the remedy; `leftover` marks a file that only takes space."""

    file: str
    what: str
    what_to_do: str
    leftover: bool = False


def verify_store(
    path: str | os.PathLike[str] | OutputFolder,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
    *,
    deep_shards: range | None = None,
) -> list[Problem]:
    """Every problem of a store; an empty list means it is whole.

    Memory grows with the number of shards (a few kB each), not of records.

    Args:
        path: the store's folder, or its URL. At a URL manifests and indexes alone are read; `deep` copies one shard
            after the other to a scratch folder.
        deep: also read every record twice, through LMDB and through the offset index, compare the two, and check
            checksums, field rules, record digests and tree structure.
        progress: called with (records done, records in all) after each shard, in deep mode about every 100 records.
        deep_shards: numbers of the shards that `deep` is for, to go on after a stop or to share the work; None: all.

    Raises:
        UnreachableError: when a URL is not answered: whether the store is whole is not known then.
        ValueError: when the URL's driver is missing.
    """
    folder = output_folder(path)
    if folder.local_path is None:
        folder.num_bytes(STORE_MANIFEST_NAME)  # an unreadable URL is an error, and no problem of a store
    try:
        data = folder.read_bytes(STORE_MANIFEST_NAME)
        store = StoreManifest.from_bytes(data, folder.where(STORE_MANIFEST_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return _unfinished(folder, deep)
    except UnreachableError:
        raise
    except (OSError, ValueError) as error:
        return [Problem(STORE_MANIFEST_NAME, first_line(error), "run the same command again to write it")]
    if folder.local_path is not None:
        note_links(os.path.abspath(folder.local_path))
    problems: list[Problem] = []
    sound: list[ShardManifest] = []
    done = dead_letters = 0
    for entry in store.shards:
        found: list[Problem] = []
        manifest = _checked_manifest(folder, entry, store, found)
        if manifest is not None:
            dead_letters += len(manifest.dead_letters)
        if manifest is not None and manifest.data_file is not None and not found:
            report = _Report(found, manifest.data_file)
            read_all = deep and (deep_shards is None or entry.shard in deep_shards)
            for count in _check_data_file(folder, manifest, read_all, report):
                if progress is not None:
                    progress(done + count, store.num_records)
            if not found:
                sound.append(replace(manifest, dead_letters=(), stats={}))  # small: all are kept
        problems += found
        done += entry.num_records
        if progress is not None:
            progress(done, store.num_records)
    if not problems:
        problems += _check_totals(folder, store, sound, dead_letters)
    if store.annotations is not None:
        problems += _check_annotations(folder, store.annotations)
    named = {STORE_MANIFEST_NAME} | {entry.manifest for entry in store.shards}
    named |= {entry.data_file for entry in store.shards if entry.data_file is not None}
    return problems + _check_plan(folder, store) + _leftovers(folder, named)


def _unfinished(folder: OutputFolder, deep: bool) -> list[Problem]:
    """The problems of a folder without a store manifest: what a killed or running command has finished, and left."""
    is_there = folder.local_path is None or folder.local_path.is_dir()
    leftovers = _leftovers(folder, named=set()) if is_there else []
    shards = [problem.file for problem in leftovers if problem.file.endswith(".json")]
    if not is_there or (not leftovers and folder.num_bytes(PLAN_NAME) is None):
        what = f"no feature store here, {folder} does not hold it"
        return [Problem(STORE_MANIFEST_NAME, what, "is the path right?")]
    problems: list[Problem] = []
    named = set(shards)
    whole = 0
    for name in shards:
        found: list[Problem] = []
        try:
            manifest = ShardManifest.from_bytes(folder.read_bytes(name), folder.where(name))
        except UnreachableError:
            raise
        except (OSError, ValueError) as error:
            problems.append(Problem(name, first_line(error), "run the same command again to redo this shard"))
            continue
        if manifest.data_file is not None:
            named.add(manifest.data_file)
            for _ in _check_data_file(folder, manifest, deep, _Report(found, manifest.data_file)):
                pass
        whole += not found
        problems += found
    what = f"is missing: the run that writes it has not finished, {plural(whole, 'shard')} of it can be used"
    problems.insert(0, Problem(STORE_MANIFEST_NAME, what, "run the same command again"))
    return problems + _leftovers(folder, named)


class _Report:
    """Collects the problems of one data file, the first 20 of them: one bad disk block is not a million lines."""

    def __init__(self, problems: list[Problem], file: str) -> None:
        self._problems, self._file = problems, file
        self.copied: tuple[str, str] | None = None  # path of a scratch copy, and the URL that replaces it in messages

    def add(self, what: str) -> None:
        if self.copied is not None:
            what = what.replace(*self.copied)
        if len(self._problems) < _MAX_PROBLEMS_PER_SHARD:
            self._problems.append(Problem(self._file, what, _REEXTRACT))


def _checked_manifest(
    folder: OutputFolder, entry: ShardEntry, store: StoreManifest, problems: list[Problem]
) -> ShardManifest | None:
    remake = "restore it from a copy, or run the same command again"
    try:
        data, got, is_set_aside = listed_manifest(folder.read_bytes, entry, folder.where(entry.manifest))
        manifest = ShardManifest.from_bytes(data, folder.where(entry.manifest))
    except UnreachableError:
        raise
    except FileNotFoundError:
        problems.append(Problem(entry.manifest, "is missing", remake))
        return None
    except (OSError, ValueError) as error:
        problems.append(Problem(entry.manifest, str(error), remake))
        return None
    if is_set_aside:
        what = "its failed images are tried again, or were when a run was stopped; its records can be read meanwhile"
        problems.append(Problem(entry.manifest, what, "run the same command again"))
    elif ShardEntry.of(manifest, manifest_sha256=got) != entry:
        what = f"does not agree with {STORE_MANIFEST_NAME} about shard {entry.shard} (counts, ids, digest, bytes)"
        problems.append(Problem(entry.manifest, what, remake))
    elif manifest.fingerprint.feature_space != store.fingerprint.feature_space:
        what = f"has feature space {manifest.fingerprint.feature_space}, the store {store.fingerprint.feature_space}"
        problems.append(Problem(entry.manifest, what, "re-extract the shard with the store's configuration"))
    elif manifest.num_records and (manifest.feature_dim, manifest.feature_dtype) != (
        store.feature_dim,
        store.feature_dtype,
    ):
        what = f"has features {manifest.feature_dim} {manifest.feature_dtype}, the store {store.feature_dim}"
        problems.append(Problem(entry.manifest, f"{what} {store.feature_dtype}", remake))
    return manifest


def _check_data_file(folder: OutputFolder, manifest: ShardManifest, deep: bool, report: _Report) -> Iterator[int]:
    """Yields how many records are done."""
    assert manifest.data_file is not None
    try:
        if folder.local_path is None and not deep:
            _check_index(ShardObject(folder, manifest, check_file=True), manifest, report)
            return
        with folder.local_file(manifest.data_file, manifest.data_bytes) as path:
            report.copied = str(path), folder.where(manifest.data_file)
            with ShardReader(path, manifest) as reader:
                _check_index(reader, manifest, report)
                if deep:
                    yield from _check_records(path, reader, report)
    except UnreachableError:
        raise
    except (OSError, ValueError) as error:
        report.add(first_line(error))


def _check_index(shard: ShardReader | ShardObject, manifest: ShardManifest, report: _Report) -> None:
    if content_digest(shard.digests()) != manifest.content_digest:
        report.add("its index gives another content digest than its manifest")
    ids = (manifest.first_id, manifest.last_id)
    keys = [shard.record_key(0), shard.record_key(len(shard) - 1)]
    if [key.decode("utf-8", "replace") for key in keys] != list(ids):
        report.add(f"first and last id in its index are {keys}, in its manifest {ids}")


def _check_records(path: Path, reader: ShardReader, report: _Report) -> Iterator[int]:
    # The whole tree is walked with every bound checked before liblmdb, which trusts its files more, may open it.
    walked = _check_tree(reader)
    if walked:
        report.add(walked)
        return
    try:
        with lmdb.open(os.fspath(path), subdir=False, readonly=True, lock=False, max_dbs=3, create=False) as env:
            meta, regions = env.open_db(META_DATABASE, create=False), env.open_db(REGIONS_DATABASE, create=False)
            with env.begin(buffers=True) as txn, txn.cursor(meta) as metas, txn.cursor(regions) as values:
                for row, (small, large) in enumerate(zip(metas, values, strict=True)):
                    what = _lmdb_problem(reader, row, small, large)
                    if what is not None:
                        report.add(what)
                    if row % 100 == 99:
                        yield row + 1
    except lmdb.Error as error:
        report.add(f"LMDB cannot read it: {error}")


_Entry = tuple[memoryview, memoryview]  # key, value


def _lmdb_problem(reader: ShardReader, row: int, small: _Entry, large: _Entry) -> str | None:
    """Problem of a record, or of the two entries that LMDB has in its place."""
    key = reader.record_key(row)
    image_id = key.decode("utf-8", "replace")
    if not bytes(small[0]) == bytes(large[0]) == key:
        what: str | None = f"LMDB has {bytes(small[0])!r} and {bytes(large[0])!r} in its place"
    elif reader.values_at(row) != (bytes(small[1]), large[1]):
        what = "LMDB and the offset index lead to different bytes"
    else:
        what = record_problem(reader, row, image_id)
    return None if what is None else f"record {image_id!r}: {what}"


def _check_tree(reader: ShardReader) -> str | None:
    """Problem of the tree, or None when walking it leads to exactly what is in the index."""
    try:
        pages = LmdbPages(reader.buffer, str(reader.path))
        metas, regions = pages.values(META_DATABASE), pages.values(REGIONS_DATABASE)
        num_regions = 0
        for row, meta, region in zip_longest(reader.index_rows(), metas, regions):
            if row is None or meta is None or region is None:
                return "its tree and its index hold different numbers of records"
            want = ((row.key, row.meta_offset, row.meta_length), (row.key, row.region_offset, row.region_length))
            if (tuple(meta), tuple(region)) != want:
                return f"its tree and its index disagree about record {row.key.decode('utf-8', 'replace')!r}"
            num_regions += row.num_regions
        if num_regions != reader.manifest.num_regions:
            return f"the rows of its index have {num_regions} regions, its manifest says {reader.manifest.num_regions}"
    except ValueError as error:
        return first_line(error)
    return None


def _check_totals(
    folder: OutputFolder, store: StoreManifest, sound: list[ShardManifest], dead_letters: int
) -> list[Problem]:
    remake = "run the same command again to write it"
    if dead_letters != store.num_dead_letters:
        what = f"counts {store.num_dead_letters} dead letters, its shards {dead_letters}"
        return [Problem(STORE_MANIFEST_NAME, what, remake)]
    try:
        got = content_digest(merge_digests(digests_in_sequences(folder, sound)))
    except UnreachableError:
        raise
    except (OSError, ValueError) as error:
        return [Problem(STORE_MANIFEST_NAME, first_line(error), "remove one of the shards that hold it and run again")]
    if got != store.content_digest:
        what = f"content digest {store.content_digest}, its shards give {got}"
        return [Problem(STORE_MANIFEST_NAME, what, remake)]
    return []


def _check_annotations(folder: OutputFolder, entry: AnnotationsEntry) -> list[Problem]:
    """Checks that the table is the one that the manifest names; its contents need a reader of its format."""
    try:
        with folder.local_file(entry.file, entry.bytes) as path:
            checked_annotations(path.parent, entry)
    except UnreachableError:
        raise
    except (FileNotFoundError, ValueError) as error:
        message = first_line(error).rpartition(f"{entry.file}: ")[2]
        what, _, what_to_do = message.rpartition("; ")
        return [Problem(entry.file, what or message, what_to_do)]
    return []


def _check_plan(folder: OutputFolder, store: StoreManifest) -> list[Problem]:
    """Finds a run that adds images and has not finished: nothing else in the store lists its missing shards."""
    try:
        unfinished = unfinished_run(folder, store)
    except UnreachableError:
        raise
    except (OSError, ValueError) as error:
        what, _, what_to_do = first_line(error).rpartition("; ")
        return [Problem(PLAN_NAME, what or what_to_do, what_to_do if what else "restore it")]
    return [] if unfinished is None else [Problem(PLAN_NAME, str(unfinished), "run the same command again")]


def _leftovers(folder: OutputFolder, named: set[str]) -> list[Problem]:
    """Files in the folder that are not in `named`; the scratch folder of a killed attempt is one too."""
    problems = []
    named = named | _claimed(folder, named)
    named = named | {captions_file_name(name) for name in named if name.endswith(".lmdb")}
    for name, is_scratch in _unnamed(folder, named):
        if is_scratch or name.endswith((".lmdb", "-lock", TEMPORARY_SUFFIX, CAPTIONS_SUFFIX)):
            what = "belongs to no shard of the store: left by an attempt that failed or was repeated"
            problems.append(Problem(name, what, "delete it when no run is writing this store", leftover=True))
        elif name.startswith("part-") and name.endswith(".json"):
            what = f"a shard that {STORE_MANIFEST_NAME} does not list: a later run has not finished"
            problems.append(Problem(name, what, "run the same command again", leftover=True))
    return problems


def _claimed(folder: OutputFolder, named: set[str]) -> set[str]:
    """Data files, not `named`, of shards that are finished: those that a run has added or made anew since the store
    manifest was written, and those whose failed images are tried again. The next run goes on with them."""
    names = [name for name, _ in _unnamed(folder, set())]
    if not any(name.endswith(".lmdb") and name not in named for name in names):
        return set()
    claimed = set()
    for name in names:
        if name.startswith(("part-", RETRIED_PREFIX)) and name.endswith(".json"):
            try:
                manifest = ShardManifest.from_bytes(folder.read_bytes(name), folder.where(name))
            except UnreachableError:
                raise
            except (OSError, ValueError):
                continue  # a run makes its shard again
            if manifest.data_file is not None:
                claimed.add(manifest.data_file)
    return claimed


def _unnamed(folder: OutputFolder, named: set[str]) -> Iterator[tuple[str, bool]]:
    """Names of the folder that are not `named`, and whether it is that of a scratch folder."""
    if folder.local_path is None:
        yield from ((name, False) for name in sorted(folder.listing()) if name not in named)
        return
    for path in sorted(folder.local_path.iterdir()):
        is_scratch = path.is_dir() and path.name.startswith(_SCRATCH_PREFIX)
        if path.name not in named and (path.is_file() or is_scratch):
            yield path.name, is_scratch
