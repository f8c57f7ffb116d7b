"""The images that gave no record, or no file, in one table for people: dead_letters.parquet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.shard.manifest import DEAD_LETTERS_NAME, DeadLetter, ShardManifest

_ROWS_AT_ONCE = 50_000


def write_dead_letters(store: Path | OutputFolder, manifests: Sequence[ShardManifest]) -> None:
    """Writes the dead letters of all shards, as `write_letters` does."""
    write_letters(store, (letter for manifest in manifests for letter in manifest.dead_letters))


def write_letters(store: Path | OutputFolder, letters: Iterable[DeadLetter]) -> None:
    """Writes the table into a folder, whole; its columns are the fields of `DeadLetter`. Few letters are in memory."""
    schema = pa.schema([(field.name, pa.string()) for field in fields(DeadLetter)])
    remaining = iter(letters)
    with output_folder(store).written_aside(DEAD_LETTERS_NAME) as aside, pq.ParquetWriter(aside, schema) as table:
        while rows := [asdict(letter) for letter in islice(remaining, _ROWS_AT_ONCE)]:
            table.write_table(pa.Table.from_pylist(rows, schema=schema))
