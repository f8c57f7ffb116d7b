"""A few records of a store at a URL, spread over it, read one by one: for its report."""

from __future__ import annotations

from collections.abc import Iterator

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import ShardManifest, StoreManifest
from roibeam.features.shard.remote_reader import ShardObject

MAX_RECORDS = 120  # four small reads each


class SampledRecords:
    """Up to `MAX_RECORDS` records, in the middle of equal parts of the store.

    Raises:
        OSError, ValueError: naming the file that cannot be read.
    """

    def __init__(self, folder: OutputFolder, manifest: StoreManifest) -> None:
        self._folder = folder
        total = manifest.num_records
        count = min(total, MAX_RECORDS)
        positions = [(2 * i + 1) * total // (2 * count) for i in range(count)]
        self._records: dict[str, RegionRecord] = {}
        first = 0
        for entry in manifest.shards:
            rows = [position - first for position in positions if first <= position < first + entry.num_records]
            first += entry.num_records
            if rows:
                data = folder.read_bytes(entry.manifest)
                shard = ShardObject(folder, ShardManifest.from_bytes(data, folder.where(entry.manifest)))
                for record in map(shard.record_at, rows):
                    self._records[record.image_id] = record

    def __len__(self) -> int:
        return len(self._records)

    def ids(self) -> Iterator[str]:
        """In the order of the store."""
        return iter(self._records)

    def get(self, image_id: str, *, copy: bool) -> RegionRecord:
        """One of them; KeyError for another. They are copies already."""
        return self._records[image_id]
