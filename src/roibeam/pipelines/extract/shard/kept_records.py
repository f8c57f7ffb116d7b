"""The whole records of a shard that is written anew because some of its images failed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.record.digest import content_digest
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.record_check import record_problem

log = logging.getLogger(__name__)


class KeptRecords:
    """Records by image id; every one of them was looked at. None at all without a reader."""

    def __init__(self, reader: ShardReader | None = None) -> None:
        self._reader = reader
        self._rows: dict[str, int] = {}
        for row, image_id in enumerate(() if reader is None else reader.ids()):
            assert reader is not None
            what = record_problem(reader, row, image_id)
            if what is None:
                self._rows[image_id] = row
            else:
                log.warning("record %r: %s; extracting it again", image_id, what)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._rows

    def record(self, image_id: str) -> RegionRecord:
        assert self._reader is not None
        return self._reader.record_at(self._rows[image_id], image_id=image_id, copy=False)


@contextmanager
def kept_records(folder: OutputFolder, manifest: ShardManifest | None) -> Iterator[KeptRecords]:
    """Those of the attempt that a manifest names; none for None, and where its file is damaged as a whole. A file at a
    URL is copied to the scratch folder for a while."""
    if manifest is None or manifest.data_file is None:
        yield KeptRecords()
        return
    with folder.local_file(manifest.data_file, manifest.data_bytes) as path:
        try:
            reader = ShardReader(path, manifest)
            if content_digest(reader.digests()) != manifest.content_digest:
                raise ValueError(f"{path}: its index gives another content digest than its manifest")
            kept = KeptRecords(reader)
        except UnreachableError:
            raise
        except (OSError, ValueError) as error:
            log.warning("%s; extracting its shard again", error)
            kept = KeptRecords()
        yield kept
