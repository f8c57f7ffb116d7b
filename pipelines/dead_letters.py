"""The images that gave no record, or no file, in one table for people: dead_letters.parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from features.manifest import TEMPORARY_SUFFIX, DeadLetter, ShardManifest

DEAD_LETTERS_NAME = "dead_letters.parquet"
_ROWS_AT_ONCE = 50_000


def write_dead_letters(path: Path, manifests: Sequence[ShardManifest]) -> None:
    """Writes the dead letters of all shards, as `write_letters` does."""
    write_letters(path, (letter for manifest in manifests for letter in manifest.dead_letters))


def write_letters(path: Path, letters: Iterable[DeadLetter]) -> None:
    """Writes the table aside and renames it; its columns are the fields of `DeadLetter`. Few letters are in memory."""
    schema = pa.schema([(field.name, pa.string()) for field in fields(DeadLetter)])
    aside = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    remaining = iter(letters)
    with pq.ParquetWriter(aside, schema) as table:
        while rows := [asdict(letter) for letter in islice(remaining, _ROWS_AT_ONCE)]:
            table.write_table(pa.Table.from_pylist(rows, schema=schema))
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
