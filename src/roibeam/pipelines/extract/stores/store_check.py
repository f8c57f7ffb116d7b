"""Check of a store: every file and record is read, and broken or missing images are found by their ids.

`check_store` covers the files and records, the captions and labels beside them, and the files of the plan.
`find_damage` lists images. A record is broken when it cannot be read whole: its header, checksums, field rules or
digest fail, or its shard's data file is lost. An image is missing when the plan names it and the store has neither a
record nor a dead letter of it.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.reading.temporary_copy import local_store
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.region_record import content_digest
from roibeam.features.shard.lmdb_file import LmdbPages, ValuePosition
from roibeam.features.shard.manifest import (
    DEAD_LETTERS_NAME,
    PLAN_NAME,
    STORE_MANIFEST_NAME,
    DeadLetter,
    ShardEntry,
    ShardManifest,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardReader, shard_digests
from roibeam.features.shard.writer import INDEX_DATABASE
from roibeam.features.verify import Problem, record_problem, verify_store
from roibeam.messages import first_line
from roibeam.pipelines.common.console.progress import RECORDS, Progress
from roibeam.pipelines.common.console.termination import set_resume_hint
from roibeam.pipelines.common.dead_letters import dead_letters_file
from roibeam.pipelines.data.captions.caption_files import annotation_problem
from roibeam.pipelines.data.shard_plan import Plan, PlannedShard, members_name, read_members, read_plan
from roibeam.pipelines.extract.stores.locations import StoreLocation

log = logging.getLogger(__name__)
_NEITHER = "the plan names it, the store has neither a record nor a dead letter of it"


@dataclass(frozen=True)
class ShardState:
    """One shard that is damaged or holds dead letters.

    Attributes:
        planned: its entry in the plan; None in a store without a plan.
        manifest: its own; where that is lost, rebuilt from other files; None where it was never finished.
        is_readable: whether `manifest` leads to records, of which those that are not `broken` are whole.
        files: problems of its files, one line each.
        broken: image id -> problem of its record, in key order.
        missing: ids, in the plan's order.
        num_unnamed: lost records of unknown ids (a store without a plan).
    """

    number: int
    planned: PlannedShard | None
    manifest: ShardManifest | None
    is_readable: bool
    files: tuple[str, ...] = ()
    broken: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    num_unnamed: int = 0

    @property
    def is_damaged(self) -> bool:
        return bool(self.files or self.broken or self.missing or self.num_unnamed)

    @property
    def num_dead_letters(self) -> int:
        return 0 if self.manifest is None else len(self.manifest.dead_letters)

    def images(self) -> Iterator[tuple[str, str, str]]:
        """("broken" or "missing", image id, what is wrong)."""
        for image_id, what in self.broken.items():
            yield "broken", image_id, what
        for image_id in self.missing:
            yield "missing", image_id, _NEITHER


@dataclass(frozen=True)
class StoreDamage:
    """Damage of a store. Memory: about 100 bytes for each broken or missing image, and the dead letters.

    Attributes:
        plan: None for a store that was imported or copied.
        shards: those that are damaged or hold dead letters, by number.
        is_stale: whether the store manifest must be written again, since a shard has a newer attempt than it lists, or
            its own sums are wrong.
        annotations: problem of the table of captions and labels, "" for none.
    """

    manifest: StoreManifest
    plan: Plan | None
    shards: tuple[ShardState, ...]
    is_stale: bool
    annotations: str = ""

    @property
    def damaged(self) -> list[ShardState]:
        return [state for state in self.shards if state.is_damaged]

    @property
    def is_whole(self) -> bool:
        return not (self.is_stale or self.damaged or self.annotations)

    @property
    def num_broken(self) -> int:
        return sum(len(state.broken) + state.num_unnamed for state in self.shards)

    @property
    def num_missing(self) -> int:
        return sum(len(state.missing) for state in self.shards)

    @property
    def num_dead_letters(self) -> int:
        return sum(state.num_dead_letters for state in self.shards)


def find_damage(place: StoreLocation | OutputFolder) -> StoreDamage:
    """Reads everything, like a deep `verify_store`, and finds the images that it concerns.

    Args:
        place: the store's folder or URL.
    Raises:
        ValueError: when the store manifest or the plan cannot be read: without them the store is unknown.
        OSError: when the disk cannot be read, or the URL is not answered.
    """
    store = output_folder(place)
    manifest = _store_manifest(store)
    plan = _plan_of(store, manifest)
    problems: dict[str, list[str]] = {}  # file -> lines that name it
    with Progress("reading", None, RECORDS) as progress:
        found_problems = verify_store(store, deep=True, progress=progress.to)
    for problem in found_problems:
        if not problem.leftover:
            problems.setdefault(problem.file, []).append(f"{problem.file}: {problem.what}")
    entries = {entry.shard: entry for entry in manifest.shards}
    planned = {shard.number: shard for shard in plan.shards} if plan else {}
    if plan is not None and entries.keys() - planned.keys():
        raise ValueError(
            f"{store.where(PLAN_NAME)} knows no shard {min(entries.keys() - planned.keys())}, {STORE_MANIFEST_NAME} "
            f"does; restore the plan that belongs to this store"
        )
    states: list[ShardState] = []
    is_stale = bool(problems.get(STORE_MANIFEST_NAME))
    for number in sorted(planned.keys() | entries.keys()):
        entry = entries.get(number)
        found = problems.get(shard_manifest_name(number), [])
        if entry is not None and entry.data_file is not None:
            found = found + problems.get(entry.data_file, [])
        shard = _Shard(store, manifest, number, entry, planned.get(number))
        state = shard.state(found)
        is_stale = is_stale or shard.is_newer
        if state.is_damaged or state.num_dead_letters:
            states.append(state)
    table = "" if manifest.annotations is None else "; ".join(problems.get(manifest.annotations.file, []))
    return StoreDamage(manifest, plan, tuple(states), is_stale, table)


def _store_manifest(store: OutputFolder) -> StoreManifest:
    try:
        return StoreManifest.from_bytes(store.read_bytes(STORE_MANIFEST_NAME), store.where(STORE_MANIFEST_NAME))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{store} holds no {STORE_MANIFEST_NAME}: no store, or of an unfinished run, which the command that began "
            f"it finishes"
        ) from None


def _plan_of(store: OutputFolder, manifest: StoreManifest) -> Plan | None:
    """The plan of an extracted store; other stores have none."""
    if manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX) or "copy" in manifest.config:
        return None
    plan = read_plan(store)
    if plan is None:
        raise ValueError(
            f"{store.where(PLAN_NAME)} is missing, so the images that the store should hold are unknown; restore it"
        )
    return plan


class _Shard:
    """One shard being looked at.

    Attributes:
        is_newer: whether it has a newer attempt than the store manifest lists: a run that was killed before its end.
    """

    def __init__(
        self,
        store: OutputFolder,
        manifest: StoreManifest,
        number: int,
        entry: ShardEntry | None,
        planned: PlannedShard | None,
    ) -> None:
        self._store, self._manifest, self._number = store, manifest, number
        self._entry, self._planned = entry, planned
        self._files: list[str] = []
        self.is_newer = False

    def state(self, problems: list[str]) -> ShardState:
        """State of the shard; `problems` are those of its files by `verify_store`, one line each."""
        manifest, is_readable = self._usable_manifest()
        present: set[str] = set()
        broken: dict[str, str] = {}
        if is_readable and manifest is not None and manifest.data_file is not None:
            try:
                # The newer attempt was not looked at by `verify_store`, which goes by the store manifest.
                if problems or self._files or self.is_newer:
                    with _opened(self._store, manifest) as reader:
                        present = set(reader.ids())
                        found = ((one, record_problem(reader, row, one)) for row, one in enumerate(reader.ids()))
                        broken = {image_id: what for image_id, what in found if what is not None}
                else:
                    present = {key.decode("utf-8") for key, _ in shard_digests(self._store, manifest)}
            except UnreachableError:
                raise
            except (OSError, ValueError) as error:
                self._complain(manifest.data_file, error)
                is_readable, present, broken = False, set(), {}
        if problems and not (self._files or broken or self.is_newer):
            self._files.append(problems[0])  # the way to the records is damaged (the tree), not they
        members = [] if self._planned is None else [ref.image_id for ref in read_members(self._store, self._planned)]
        failed = set() if manifest is None else {letter.image_id for letter in manifest.dead_letters}
        absent = [image_id for image_id in members if image_id not in present and image_id not in failed]
        unnamed = 0
        if not is_readable and self._entry is not None:  # else it is of a grown plan, whose run has not come so far
            broken, absent = dict.fromkeys(absent, self._files[-1]), []
            unnamed = 0 if self._planned is not None else self._entry.num_records
        files = tuple(self._files)
        return ShardState(self._number, self._planned, manifest, is_readable, files, broken, tuple(absent), unnamed)

    def _usable_manifest(self) -> tuple[ShardManifest | None, bool]:
        """The manifest that counts: the listed one, a newer one, or one made from what else is known; and whether its
        data file may be read."""
        name = shard_manifest_name(self._number)
        entry = self._entry
        try:
            data = self._store.read_bytes(name)
            own = ShardManifest.from_bytes(data, self._store.where(name))
            if entry is not None and hashlib.sha256(data).hexdigest() == entry.manifest_sha256:
                if self._is_of_store(own):
                    return own, True
                self._complain(name, "is of other images or features than plan and store")
                return None, False
            is_other_file = entry is None or own.data_file != entry.data_file
            if is_other_file and self._is_of_store(own) and self._is_readable(own):
                self.is_newer = True
                return own, True
            if entry is not None:
                self._complain(name, "was changed after it was published")
        except UnreachableError:
            raise
        except FileNotFoundError:
            if entry is not None:
                self._complain(name, "is missing")
        except (OSError, ValueError) as error:
            self._complain(name, error)
        return (None, False) if entry is None else self._manifest_of_entry(entry)

    def _complain(self, file: str, what: str | Exception) -> None:
        line = what if isinstance(what, str) else first_line(what)
        self._files.append(f"{file}: {line.rpartition(f'{file}: ')[2]}")

    def _is_of_store(self, manifest: ShardManifest) -> bool:
        return (
            manifest.shard == self._number
            and manifest.fingerprint.feature_space == self._manifest.fingerprint.feature_space
            and (self._planned is None or manifest.members_digest == self._planned.members_digest)
        )

    def _is_readable(self, manifest: ShardManifest) -> bool:
        if manifest.data_file is None:
            return True
        try:
            with _opened(self._store, manifest):
                return True
        except UnreachableError:
            raise
        except (OSError, ValueError):
            return False

    def _manifest_of_entry(self, entry: ShardEntry) -> tuple[ShardManifest, bool]:
        """The lost manifest again, as far as its data file, the store manifest and dead_letters.parquet know it."""
        page_size, num_pages, index = 0, 0, ValuePosition(b"", 0, 0)
        is_readable = True
        if entry.data_file is not None:
            try:
                with self._store.local_file(entry.data_file, entry.data_bytes) as path:
                    page_size, num_pages, index = self._pages_of(entry, path)
            except UnreachableError:
                raise
            except (OSError, ValueError) as error:
                self._complain(entry.data_file, error)
                is_readable = False
        known: dict[str, Any] = asdict(entry)
        del known["manifest"], known["manifest_sha256"]
        manifest = ShardManifest(
            **known,
            attempt="unknown",
            fingerprint=self._manifest.fingerprint,
            members_digest="" if self._planned is None else self._planned.members_digest,
            dead_letters=self._recorded_letters(),
            page_size=page_size,
            num_pages=num_pages,
            index_offset=index.offset,
            index_bytes=index.length,
            feature_dim=self._manifest.feature_dim,
            feature_dtype=self._manifest.feature_dtype,
        )
        return manifest, is_readable

    def _pages_of(self, entry: ShardEntry, path: Path) -> tuple[int, int, ValuePosition]:
        """Page size and count of a data file, and the place of its index; sizes are compared before it is mapped."""
        if not path.is_file():
            raise FileNotFoundError(f"{path}: is missing")
        size = path.stat().st_size
        if size != entry.data_bytes:
            raise ValueError(f"{path}: has {size} bytes, {STORE_MANIFEST_NAME} says {entry.data_bytes}")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = LmdbPages(mapped, str(path))
            places = list(pages.values(INDEX_DATABASE))
        if len(places) != 1:
            raise ValueError(f"{path}: holds {len(places)} offset indexes, expected one")
        return pages.page_size, pages.num_pages, places[0]

    def _recorded_letters(self) -> tuple[DeadLetter, ...]:
        """The dead letters of this shard by the store's list of all of them; none where that is lost too."""
        if self._planned is None:
            return ()
        members = {ref.image_id for ref in read_members(self._store, self._planned)}
        try:
            return tuple(letter for letter in _read_dead_letters(self._store) if letter.image_id in members)
        except (OSError, ValueError) as error:
            log.warning("%s: %s; its images are tried again", DEAD_LETTERS_NAME, first_line(error))
            return ()


def _read_dead_letters(store: OutputFolder) -> Iterator[DeadLetter]:
    """Every row of dead_letters.parquet; errors where it is missing or no such list."""
    columns = [one.name for one in fields(DeadLetter)]
    with dead_letters_file(store) as file:
        for batch in pq.ParquetFile(file).iter_batches(columns=columns):
            for row in batch.to_pylist():
                if sorted(row) != sorted(columns) or not all(isinstance(value, str) for value in row.values()):
                    raise ValueError(f"{store.where(DEAD_LETTERS_NAME)}: a row is no dead letter")
                yield DeadLetter(**row)


@contextmanager
def _opened(store: OutputFolder, manifest: ShardManifest) -> Iterator[ShardReader]:
    """The shard, if its index is the one that the manifest was written for; that of a URL is copied for a while."""
    assert manifest.data_file is not None
    with store.local_file(manifest.data_file, manifest.data_bytes) as path, ShardReader(path, manifest) as reader:
        if content_digest(reader.digests()) != manifest.content_digest:
            raise ValueError(f"{reader.path}: its index gives another content digest than its manifest")
        yield reader


_MAX_PLAN_PROBLEMS = 20


def check_store(
    store: StoreLocation, *, deep: bool = False, shards: str | None = None, scratch: str | None = None
) -> list[Problem]:
    """
    Args:
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
    folder = output_folder(store, scratch)
    progress = Progress("verifying", None, RECORDS)
    try:
        with progress:
            problems = verify_store(folder, deep=deep, progress=progress.to, deep_shards=deep_shards)
    except KeyboardInterrupt:
        if deep:
            shard = shard_of_record(folder, progress.done)
            set_resume_hint(f"the shards before {shard:,} are read, and nothing is changed", shards=f"{shard}-")
        raise
    if deep and not problems:
        with local_store(store, scratch=scratch) as opened:
            entry, what = opened.manifest.annotations, annotation_problem(opened)
        if entry is not None and what is not None:
            problems.append(Problem(entry.file, what, "run the command that wrote the store again"))
    return problems + _plan_problems(folder, range(0) if not deep else deep_shards)


def _plan_problems(store: OutputFolder, deep_shards: range | None) -> list[Problem]:
    """Files of the plan that are gone or changed, the first 20: no image can be added then. plan.json itself is checked
    by `verify_store`.

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
            to_do = "run the same command again, which makes it anew; the records can be read without it"
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
