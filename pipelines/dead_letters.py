"""The images of a store that have no record, in one table for people: dead_letters.parquet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from features.manifest import TEMPORARY_SUFFIX, DeadLetter, ShardManifest

DEAD_LETTERS_NAME = "dead_letters.parquet"


def write_dead_letters(path: Path, manifests: Sequence[ShardManifest]) -> None:
    """Writes the table aside and renames it; its columns are the fields of `DeadLetter`."""
    rows = [asdict(letter) for manifest in manifests for letter in manifest.dead_letters]
    schema = pa.schema([(field.name, pa.string()) for field in fields(DeadLetter)])
    aside = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), aside)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
