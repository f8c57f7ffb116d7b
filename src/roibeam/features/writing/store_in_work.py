"""A folder that `StoreWriter` is writing: what is there, the shard that was begun, and how it ends."""

from __future__ import annotations

import importlib.util
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roibeam.features.counted import counted
from roibeam.features.record.digest import record_digest
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint
from roibeam.features.record.imported import named_fingerprint
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import ShardManifest, ShardSummary, StoreManifest
from roibeam.features.shard.publish import publish_store
from roibeam.features.shard.record_change import RecordChange
from roibeam.features.shard.sequence import ShardSequence
from roibeam.features.writing.annotations_table import write_annotations
from roibeam.features.writing.finished_shards import COMMAND, FinishedShards
from roibeam.features.writing.given_arrays import check_values, record_of_arrays
from roibeam.features.writing.record_kind import RecordKind
from roibeam.features.writing.sequence_folder import plan_stat
from roibeam.features.writing.shard_captions import write_shard_captions
from roibeam.features.writing.writer_settings import WriterSettings

log = logging.getLogger(__name__)
_MOST_PLANNED_BYTES = 2**30  # of a shard; the map of LMDB grows where there is more


class StoreInWork:
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
        self._begun: dict[str, tuple[str, ...]] = {}  # captions of each image of the shard that was begun
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
            shards = counted(len(self._shards.manifests), "shard")
            log.info("%s: %s in %s there already", folder, counted(len(self._shards), "image"), shards)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._begun or image_id in self._shards

    def __len__(self) -> int:
        return len(self._shards) + len(self._begun)

    def ids(self) -> Iterator[str]:
        """Those of finished shards first."""
        yield from self._shards.ids()
        yield from self._begun

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
        """Whether an earlier writer wrote this image.

        Raises:
            ValueError: when it wrote other content under the id.
        """
        image_id = record.image_id
        if not self._shards.is_earlier(image_id):
            return False
        digest, said = self._shards.stored(image_id)
        if digest != record_digest(record) or said != captions:
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
            self._begun[record.image_id] = captions
            self._take_up(self._sequence.put(record))
            self._is_whole = True

    def finish(self) -> StoreManifest:
        """Publishes the shard that was begun, and the store."""
        self._check_whole()
        self._take_up(self._sequence.finish())
        if not len(self):
            log.warning("%s: no image was written; the store is empty", self._folder)
        settings = self._settings
        known = (
            {}
            if settings.classes is not None or settings.num_classes is None
            else {"num_classes": settings.num_classes}
        )
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
        """Publishes the shard that was begun, after an exception, which nothing here may hide."""
        begun = counted(len(self._begun), "image")
        if not self._is_whole:
            log.warning("%s: the last shard is lost, with %s: writing one of them failed", self._folder, begun)
            return
        try:
            self._take_up(self._sequence.finish())
        except (OSError, ValueError) as error:
            log.warning("%s: the last shard is lost, with %s: %s", self._folder, begun, error)

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise ValueError(
                f"{self._folder}: a record could not be written before; leave the with block and open it again"
            )

    def discard(self) -> None:
        """Removes what is left of a shard that was begun."""
        self._sequence.discard()

    def _take_up(self, manifest: ShardManifest | None) -> None:
        if manifest is not None:
            self._shards.add(manifest, self._begun)
            self._begun = {}

    def _before_publish(self, path: Path | None, summary: ShardSummary) -> dict[str, Any]:
        """Writes the captions of a shard, whose manifest then says how many there are."""
        assert path is not None and self._kind is not None
        captions = {image_id: texts for image_id, texts in self._begun.items() if texts}
        if captions:
            write_shard_captions(path, captions)
        return {
            "kind": self._kind.to_json(),
            "classes": self._has_classes,
            "captions": sum(map(len, captions.values())),
        }


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C is heard after the block: with half a record in it a shard would be lost."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)
