"""One stored record, looked at as a whole: through its key, its checksums and its digest."""

from __future__ import annotations

from roibeam.features.record.digest import record_digest
from roibeam.features.shard.reader import ShardReader


def record_problem(reader: ShardReader, row: int, image_id: str) -> str | None:
    """What is wrong with a record, every byte of it read; None when it is whole."""
    try:
        if reader.row_of(image_id) != row:
            return "a lookup in the offset index finds another record"
        record = reader.record_at(row, copy=False, check=True)
    except KeyError:
        return "a lookup in the offset index does not find it"
    except ValueError as error:
        return str(error).partition("\n")[0].removeprefix(f"{reader.path}: ").removeprefix(f"record {image_id!r}: ")
    ((_, digest),) = reader.digests(row, row + 1)
    return None if record_digest(record) == digest else "its content has another digest than the index says"
