"""Partial store: a folder that is being written by an import, a copy or `StoreWriter`, now or before a kill.

Checks that the folder may become this store, finds the shards that are finished, goes on with an unfinished one, and
ends the store. A plan is the digest of all that decides what is written; each shard manifest has it in its stats,
the store manifest in its config.
"""

import importlib.util
import itertools
import logging
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from roibeam.features.annotations import (
    CAPTIONS_SUFFIX,
    Annotation,
    captions_file_name,
    read_shard_captions,
    write_annotations,
    write_shard_captions,
)
from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, scratch_folder
from roibeam.features.folders.folder_protocol import (
    ABANDONED_SECONDS,
    LOCK_NAME,
    FileFacts,
    OutputFolder,
    UnreachableError,
)
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, named_fingerprint
from roibeam.features.record.region_record import RegionRecord, record_digest
from roibeam.features.shard.manifest import (
    ANNOTATIONS_NAME,
    DEAD_LETTERS_NAME,
    LOCATIONS_NAME,
    STORE_MANIFEST_NAME,
    ShardManifest,
    ShardSummary,
    StoreManifest,
    shard_manifest_name,
)
from roibeam.features.shard.reader import ShardObject, ShardReader
from roibeam.features.shard.writer import (
    Outcome,
    ShardOutput,
    ShardSequence,
    num_outcomes,
    publish_store,
    write_shard_sequence,
)
from roibeam.features.store_copy import RecordChange
from roibeam.features.writing.writer_input import RecordKind, WriterSettings, check_values, record_of_arrays
from roibeam.messages import plural

log = logging.getLogger(__name__)
_DATA_FILE = re.compile(rf"part-(\d{{5,}})\.[0-9a-f]{{8}}({re.escape(CAPTIONS_SUFFIX)}|\.lmdb)")


def plan_stat(command: str, plan: str) -> dict[str, str]:
    """Entry in the stats of the shard manifests of this "copy", "import" or "write"."""
    return {f"{command}_plan": plan}


def check_sequence_folder(out: Path | OutputFolder, command: str, plan: str) -> None:
    """ValueError when `out` holds anything but what an earlier run of this "copy", "import" or "write"
    wrote; needs the store's lock, where there is one."""
    folder = output_folder(out)
    shards = []
    for name, is_file in _entries(folder):
        if name == LOCK_NAME:
            continue
        other = f"{folder} is not empty and not of a killed {command} ({name!r} is in it); choose a new folder"
        if not is_file:
            raise ValueError(other)
        if name == STORE_MANIFEST_NAME:
            origin = StoreManifest.from_bytes(folder.read_bytes(name), folder.where(name)).config.get(command)
            if not isinstance(origin, dict) or origin.get("plan") != plan:
                raise ValueError(f"{folder} is another store already; choose a new folder, or delete it first")
        elif re.fullmatch(r"part-\d{5,}\.json", name):
            shards.append(name)
        elif not (
            _DATA_FILE.fullmatch(name)
            or name in (DEAD_LETTERS_NAME, ANNOTATIONS_NAME, LOCATIONS_NAME)
            or (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX))
        ):
            raise ValueError(other)
    for name, data in folder.read_many(shards):
        if data is None:
            continue  # removed just now
        if not plan_stat(command, plan).items() <= ShardManifest.from_bytes(data, folder.where(name)).stats.items():
            raise ValueError(
                f"{folder} holds shards of another run ({name}): of other sources or options; choose a "
                f"new folder, or delete it first"
            )


def _entries(folder: OutputFolder) -> Iterator[tuple[str, bool]]:
    """Each name in the folder, and whether it is that of a file."""
    if folder.local_path is None:
        yield from ((name, True) for name in sorted(folder.listing()))
    else:
        for path in sorted(folder.local_path.iterdir()):
            yield path.name, path.is_file() and not path.is_symlink()


def finished_shards(out: Path | OutputFolder) -> list[ShardManifest]:
    """The shards from 0 on that are whole in size and index."""
    folder = output_folder(out)
    there = folder.listing("part-")
    names = itertools.takewhile(there.__contains__, map(shard_manifest_name, itertools.count()))
    manifests: list[ShardManifest] = []
    for name, data in folder.read_many(names):
        if data is None:
            break
        manifest = ShardManifest.from_bytes(data, folder.where(name))
        try:
            check_shard_file(folder, manifest)
        except UnreachableError:
            raise
        except (OSError, ValueError) as error:
            log.warning("%s; writing its records again", error)
            break
        manifests.append(manifest)
    if manifests:
        log.info("%s finished by an earlier run", plural(len(manifests), "shard"))
    return manifests


def check_shard_file(folder: OutputFolder, manifest: ShardManifest) -> None:
    """Raises FileNotFoundError or ValueError where the data file of a shard is not whole in size, pages and index."""
    if manifest.data_file is None:
        return
    if folder.local_path is None:
        ShardObject(folder, manifest, check_file=True)
        return
    with ShardReader(folder.local_path / manifest.data_file, manifest):
        pass


def remove_unfinished(out: Path | OutputFolder, finished: Sequence[ShardManifest]) -> None:
    """Removes what is not of a finished shard; needs the store's lock where there is one, and `check_sequence_folder`
    before it.

    At a URL another run of the same command may be between a data file and its manifest: there, data files of shards
    that are not finished stay for a day.
    """
    folder = output_folder(out)
    kept = {LOCK_NAME, STORE_MANIFEST_NAME, DEAD_LETTERS_NAME, ANNOTATIONS_NAME, LOCATIONS_NAME}
    kept |= {shard_manifest_name(manifest.shard) for manifest in finished}
    data_files = [manifest.data_file for manifest in finished if manifest.data_file is not None]
    kept |= {*data_files, *map(captions_file_name, data_files)}
    there = folder.listing()
    names = [name for name in there if name not in kept]
    if folder.local_path is None:
        names = [name for name in names if not _may_be_in_work(name, there[name], len(finished))]
    if any(name.endswith(".json") for name in names):  # a shard of it is going: there is no store until it is back
        folder.delete(STORE_MANIFEST_NAME)
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # manifests first: no shard without data
        folder.delete(name)


def _may_be_in_work(name: str, facts: FileFacts, num_finished: int) -> bool:
    found = _DATA_FILE.fullmatch(name)
    is_old = 0 < facts.written_at < time.time() - ABANDONED_SECONDS
    return found is not None and int(found[1]) >= num_finished and not is_old


@contextmanager
def work_folder(folder: OutputFolder, scratch: str | None = None) -> Iterator[Path]:
    """Folder for a shard's data file: the store's folder itself, or a scratch folder for one at a URL."""
    if folder.local_path is not None:
        was_there = folder.local_path.exists()
        folder.local_path.mkdir(parents=True, exist_ok=True)
        try:
            yield folder.local_path
        except BaseException:
            if not was_there:
                with suppress(OSError):  # it holds something, unless the run was refused at once
                    folder.local_path.rmdir()
            raise
    else:
        with scratch_folder(scratch) as path:
            yield path


class SequenceStore:
    """A store that a "copy" or an "import" writes as shards 0, 1, 2, ..., after those that an earlier run of the same
    plan finished. Needs the store's lock where there is one.

    Args:
        work: local folder of a data file that is being written, see `work_folder`.
        plan: digest of all that decides what is written.
        sizes: arguments of `ShardSequence`, and its `before_publish`.
    Attributes:
        num_kept: those of them that an earlier run finished.
    Raises:
        ValueError: when the folder holds anything but a part of this store.
    """

    def __init__(
        self, folder: OutputFolder, work: Path, command: str, plan: str, fingerprint: Fingerprint, **sizes: Any
    ) -> None:
        check_sequence_folder(folder, command, plan)
        self._folder, self._fingerprint = folder, fingerprint
        self.manifests = finished_shards(folder)
        self.num_kept = len(self.manifests)
        self.num_done = sum(map(num_outcomes, self.manifests))
        remove_unfinished(folder, self.manifests)
        self._sequence = ShardSequence(
            ShardOutput(folder, work),
            fingerprint=fingerprint,
            source=plan,
            first_shard=self.num_kept,
            stats=plan_stat(command, plan),
            **sizes,
        )

    @property
    def num_repeats(self) -> int:
        """Entries that were left out because an earlier one has the same."""
        return sum(manifest.stats["equal_repeats"] for manifest in self.manifests)

    @property
    def failures(self) -> Counter[str]:
        return Counter(letter.reason for manifest in self.manifests for letter in manifest.dead_letters)

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Writes the outcomes that come after the first `num_done`."""
        self.manifests.extend(write_shard_sequence(outcomes, self._sequence))

    def publish(self, **facts: Any) -> StoreManifest:
        """`publish_store` of all its shards; `facts` are the other arguments of that."""
        shards = range(len(self.manifests))
        published = publish_store(self._folder, shards, fingerprint=self._fingerprint, **facts)
        remove_unfinished(self._folder, self.manifests)
        return published


COMMAND = "write"  # as `plan_stat` and the store's config have it


class FinishedShards:
    """
    Args:
        folder: of the store; needs the store's lock. What a stopped writer left half is removed.
    Raises:
        ValueError: when the folder holds anything but what a writer with these settings wrote, or a shard is damaged.
    """

    def __init__(self, folder: Path, settings: WriterSettings) -> None:
        self._folder = folder
        check_folder(folder, settings)
        self.manifests: list[ShardManifest] = []
        self._shard_of: dict[str, int] = {}  # image id -> place in `manifests`
        self._read: tuple[int, dict[str, bytes], dict[str, tuple[str, ...]]] | None = None  # of one shard
        for path in sorted(folder.glob("part-*.json"), key=lambda path: (len(path.name), path.name)):
            manifest = ShardManifest.read(path)
            self.add(manifest, _ids(folder, manifest))
        self.num_earlier = len(self.manifests)
        remove_unfinished(folder, self.manifests)
        self._drop_stale_manifest()

    def _drop_stale_manifest(self) -> None:
        """Deletes manifest.json if it lists a deleted shard: there is no store until the writer is done."""
        path = self._folder / STORE_MANIFEST_NAME
        found = {manifest.shard for manifest in self.manifests}
        if path.exists() and not {entry.shard for entry in StoreManifest.read(path).shards} <= found:
            path.unlink()

    def add(self, manifest: ShardManifest, image_ids: Iterable[str]) -> None:
        """Takes up a shard that was published just now."""
        self._shard_of.update(dict.fromkeys(image_ids, len(self.manifests)))
        self.manifests.append(manifest)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._shard_of

    def __len__(self) -> int:
        return len(self._shard_of)

    def ids(self) -> Iterator[str]:
        """Image ids in the order of the shards."""
        return iter(self._shard_of)

    @property
    def next_number(self) -> int:
        return self.manifests[-1].shard + 1 if self.manifests else 0

    def is_earlier(self, image_id: str) -> bool:
        """Whether the image was there when the folder was opened."""
        return self._shard_of.get(image_id, self.num_earlier) < self.num_earlier

    def stored(self, image_id: str) -> tuple[bytes, tuple[str, ...]]:
        """Record digest and captions of an image that is there; caches one shard's."""
        place = self._shard_of[image_id]
        if self._read is None or self._read[0] != place:
            manifest = self.manifests[place]
            assert manifest.data_file is not None
            with ShardReader(self._folder / manifest.data_file, manifest) as reader:
                digests = {key.decode("utf-8"): digest for key, digest in reader.digests()}
            self._read = place, digests, self._captions(manifest)
        return self._read[1][image_id], self._read[2].get(image_id, ())

    def kind(self) -> RecordKind | None:
        """Kind of the records that are there; None without any."""
        if not self.manifests:
            return None
        first = self.manifests[0]
        return RecordKind.from_json(first.stats.get("kind"), str(self._folder / shard_manifest_name(first.shard)))

    def has_classes(self) -> bool | None:
        """Whether class ids of the records were given; None if unknown."""
        stated = [manifest.stats.get("classes") for manifest in self.manifests]
        return next((bool(each) for each in stated if each is not None), None)

    def annotations(self) -> Iterator[list[Annotation]]:
        """The rows of each shard, in key order."""
        for manifest in self.manifests:
            yield [Annotation(image_id, texts, ()) for image_id, texts in self._captions(manifest).items()]

    def _captions(self, manifest: ShardManifest) -> dict[str, tuple[str, ...]]:
        if not manifest.stats.get("captions"):
            return {}
        assert manifest.data_file is not None
        return read_shard_captions(self._folder / manifest.data_file)


def check_folder(folder: Path, settings: WriterSettings) -> None:
    """ValueError when the folder holds anything but what a writer with these settings wrote; only reads."""
    before = _plan_found(folder)
    difference = settings.difference(before) if isinstance(before, str) else ""
    if difference:
        raise ValueError(
            f"{folder} was begun with {difference}; open it with the same settings, or choose a new folder"
        )
    check_sequence_folder(folder, COMMAND, settings.plan)


def _plan_found(folder: Path) -> object:
    if (folder / STORE_MANIFEST_NAME).exists():
        origin = StoreManifest.read(folder / STORE_MANIFEST_NAME).config.get(COMMAND)
        return origin.get("plan") if isinstance(origin, dict) else None
    for path in sorted(folder.glob("part-*.json")):
        return ShardManifest.read(path).stats.get(next(iter(plan_stat(COMMAND, ""))))
    return None


def _ids(folder: Path, manifest: ShardManifest) -> list[str]:
    name = f"part-{manifest.shard:05d}"
    try:
        if manifest.data_file is None or not re.fullmatch(rf"{name}\.[0-9a-f]+\.lmdb", manifest.data_file):
            raise ValueError(f"{folder / name}.json: names no data file of its own")
        with ShardReader(folder / manifest.data_file, manifest) as reader:
            return list(reader.ids())
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}; or delete {name}.json and write its images again") from None


_MOST_PLANNED_BYTES = 2**30  # of a shard; the map of LMDB grows where there is more


class PartialStore:
    """
    Args:
        folder: whose lock is held.
    Raises:
        ValueError: as `FinishedShards`.
    """

    def __init__(self, folder: Path, settings: WriterSettings) -> None:
        self._folder, self._settings = folder, settings
        self._shards = FinishedShards(folder, settings)
        self._kind, self._has_classes = self._shards.kind(), self._shards.has_classes()
        self._open_captions: dict[str, tuple[str, ...]] = {}  # captions of each image of the open shard
        self._is_whole = True  # False while a record is written: a file with half of one is no shard
        self._change = RecordChange(settings.dtype)
        self._sequence = ShardSequence(
            folder,
            fingerprint=Fingerprint(IMPORTED_PREFIX + settings.feature_space),
            source=settings.plan,
            shard_size=None,
            shard_bytes=settings.shard_bytes,
            planned_bytes=min(settings.shard_bytes, _MOST_PLANNED_BYTES),
            first_shard=self._shards.next_number,
            stats=plan_stat(COMMAND, settings.plan),
            before_publish=self._before_publish,
        )
        if self._shards.manifests:
            shards = plural(len(self._shards.manifests), "shard")
            log.info("%s: %s in %s there already", folder, plural(len(self._shards), "image"), shards)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._open_captions or image_id in self._shards

    def __len__(self) -> int:
        return len(self._shards) + len(self._open_captions)

    def ids(self) -> Iterator[str]:
        """Image ids, those of finished shards first."""
        yield from self._shards.ids()
        yield from self._open_captions

    def record(self, image: str | RegionRecord, arrays: Mapping[str, Any]) -> RegionRecord:
        """The record as it is to be stored, checked against settings and earlier records.

        Args:
            arrays: `RegionArrays` beside an id, nothing beside a record.
        Raises:
            ValueError: naming image and array.
        """
        if isinstance(image, RegionRecord):
            if arrays:
                names = ", ".join(arrays)
                raise ValueError(f"record {image.image_id!r} has its arrays already; {names} was given beside it")
            check_values(image)
            # Every record has ids and scores; zeros are what one without them has.
            has_classes = True if image.class_ids.any() or image.class_scores.any() else None
            record = image
        else:
            record = record_of_arrays(image, arrays)
            has_classes = arrays.get("class_ids") is not None if record.num_regions else None
        record = self._change.apply(record)
        is_without = has_classes is None and not self._has_classes
        self._settings.check(record, has_classes=False if is_without else has_classes)
        kind = RecordKind.of(record)
        if self._kind is not None:
            self._kind.check(kind, record.image_id)
        if None not in (has_classes, self._has_classes) and has_classes != self._has_classes:
            which = (
                "has class_ids, those before it have none" if has_classes else "has no class_ids, those before it have"
            )
            raise ValueError(f"record {record.image_id!r}: {which}; give them for all images or for none")
        self._kind = kind
        self._has_classes = has_classes if self._has_classes is None else self._has_classes
        return record

    def is_there(self, record: RegionRecord, captions: tuple[str, ...]) -> bool:
        """Whether an earlier writer wrote this image; ValueError when it wrote other content under the id."""
        image_id = record.image_id
        if not self._shards.is_earlier(image_id):
            return False
        digest, stored_captions = self._shards.stored(image_id)
        if digest != record_digest(record) or stored_captions != captions:
            what = "arrays" if digest != record_digest(record) else "captions"
            raise ValueError(
                f"{self._folder} has image {image_id!r} with other {what} already; leave it out, or choose a new folder"
            )
        return True

    def put(self, record: RegionRecord, captions: tuple[str, ...]) -> None:
        """Adds what `record` gave; errors as of `StoreWriter.write`."""
        self._check_whole()
        if record.image_id in self:
            raise ValueError(f"{self._folder} has image {record.image_id!r} already; ids are unique in a store")
        if captions and importlib.util.find_spec("pyarrow") is None:
            raise ValueError("captions are stored in a parquet file, for which pyarrow is missing: pip install pyarrow")
        with _interrupts_wait():
            self._is_whole = False
            self._open_captions[record.image_id] = captions
            self._take_up(self._sequence.put(record))
            self._is_whole = True

    def finish(self) -> StoreManifest:
        """Publishes the open shard, and the store."""
        self._check_whole()
        self._take_up(self._sequence.finish())
        if not len(self):
            log.warning("%s: no image was written; the store is empty", self._folder)
        settings = self._settings
        known = {"num_classes": settings.num_classes} if settings.classes is None and settings.num_classes else {}
        return publish_store(
            self._folder,
            [manifest.shard for manifest in self._shards.manifests],
            fingerprint=named_fingerprint(
                settings.feature_space,
                classes=bool(self._has_classes) or settings.known_classes is not None,
                attributes=self._kind is not None and self._kind.attributes,
                feature_dtype=None if self._kind is None else self._kind.feature_dtype,
            ),
            config={
                COMMAND: {"feature_space": settings.feature_space, "plan": settings.plan},
                **known,
                **settings.source,
            },
            classes=settings.classes,
            attributes=settings.attributes,
            annotations=write_annotations(self._folder, self._shards.annotations()),
        )

    def keep(self) -> None:
        """Publishes the open shard after an exception, which nothing here may hide."""
        images = plural(len(self._open_captions), "image")
        if not self._is_whole:
            log.warning("%s: the last shard is lost, with %s: writing one of them failed", self._folder, images)
            return
        try:
            self._take_up(self._sequence.finish())
        except (OSError, ValueError) as error:
            log.warning("%s: the last shard is lost, with %s: %s", self._folder, images, error)

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise ValueError(
                f"{self._folder}: a record could not be written before; leave the with block and open it again"
            )

    def discard(self) -> None:
        """Removes what is left of an open shard."""
        self._sequence.discard()

    def _take_up(self, manifest: ShardManifest | None) -> None:
        if manifest is not None:
            self._shards.add(manifest, self._open_captions)
            self._open_captions = {}

    def _before_publish(self, path: Path | None, summary: ShardSummary) -> dict[str, Any]:
        """Writes the captions of a shard; returns their number, for its manifest."""
        assert path is not None and self._kind is not None
        captions = {image_id: texts for image_id, texts in self._open_captions.items() if texts}
        if captions:
            write_shard_captions(path, captions)
        return {
            "kind": self._kind.to_json(),
            "classes": self._has_classes,
            "captions": sum(map(len, captions.values())),
        }


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delays Ctrl-C until after the block: with half a record in it a shard would be lost."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)
