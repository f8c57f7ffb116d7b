"""Dead letters: the images that gave no record, or no file, in one table for people, dead_letters.parquet."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.folders.durable_files import open_regular_file
from roibeam.features.folders.folder_protocol import UNKNOWN_BYTES, OutputFolder
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import DEAD_LETTERS_NAME, PLAN_NAME, STORE_MANIFEST_NAME, DeadLetter, ShardManifest

_ROWS_AT_ONCE = 50_000


def write_dead_letters(store: Path | OutputFolder, manifests: Sequence[ShardManifest]) -> None:
    """Writes the dead letters of all shards, as `write_letters` does."""
    write_letters(store, (letter for manifest in manifests for letter in manifest.dead_letters))


def write_letters(store: Path | OutputFolder, letters: Iterable[DeadLetter]) -> None:
    """Writes the table into a folder, whole; its columns are the fields of `DeadLetter`. Few letters are in memory."""
    schema = pa.schema([(field.name, pa.string()) for field in fields(DeadLetter)])
    remaining = iter(letters)
    with output_folder(store).atomic_path(DEAD_LETTERS_NAME) as aside, pq.ParquetWriter(aside, schema) as table:
        while rows := [asdict(letter) for letter in islice(remaining, _ROWS_AT_ONCE)]:
            table.write_table(pa.Table.from_pylist(rows, schema=schema))


@contextmanager
def dead_letters_file(store: OutputFolder) -> Iterator[BinaryIO]:
    """The table, to be read by parquet's reader; that of a URL is copied for a while."""
    num_bytes = store.num_bytes(DEAD_LETTERS_NAME)
    if num_bytes == UNKNOWN_BYTES:
        yield io.BytesIO(store.read_bytes(DEAD_LETTERS_NAME))
        return
    with store.local_file(DEAD_LETTERS_NAME, num_bytes or 0) as path, open_regular_file(path) as file:
        yield file


def read_letters(store: OutputFolder) -> Iterator[DeadLetter]:
    """The dead letters of all shards that are finished, by shard, also while a run is at work."""
    found = [name for name in store.listing("part-") if re.fullmatch(r"part-\d{5,}\.json", name)]
    if not found and store.num_bytes(STORE_MANIFEST_NAME) is None and store.num_bytes(PLAN_NAME) is None:
        raise ValueError(f"{store}: no feature store: it has no {STORE_MANIFEST_NAME}, no {PLAN_NAME} and no shard")
    for name, data in store.read_many(sorted(found, key=lambda name: (len(name), name))):
        if data is not None:  # else a run took it back after the listing
            yield from ShardManifest.from_bytes(data, store.where(name)).dead_letters
