"""The table of captions and labels beside a store's shards: annotations.parquet, named by manifest.json.

Columns: image_id (string), captions and labels (lists of strings). One row for each image that has a record, and any of
the two; shard by shard, within a shard in key order. A store whose images have none has no table. pyarrow is imported
when a table is written: a store without captions can be written on a bare machine.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.shard.manifest import ANNOTATIONS_NAME, AnnotationsEntry


class Annotation(NamedTuple):
    """What is known of an image beside its pixels; captions and labels in the order of their source."""

    image_id: str
    captions: tuple[str, ...]
    labels: tuple[str, ...]


def table_schema() -> Any:
    """The columns, a `pyarrow.Schema`."""
    import pyarrow as pa

    texts = pa.list_(pa.string())
    return pa.schema([("image_id", pa.string()), ("captions", texts), ("labels", texts)])


def write_annotations(store: Path | OutputFolder, shards: Iterable[Sequence[Annotation]]) -> AnnotationsEntry | None:
    """Writes the table into a store's folder, whole; returns what manifest.json shall say of it.

    An old table is removed where no image has anything: then there is none, and None is returned.

    Args:
        shards: the rows of each shard in key order, one shard at a time in memory.
    """
    folder = output_folder(store)
    filled = (shard for shard in shards if shard)
    first = next(filled, None)
    if first is None:
        folder.delete(ANNOTATIONS_NAME)
        return None

    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = table_schema()
    rows = captions = labels = 0
    with folder.written_aside(ANNOTATIONS_NAME) as aside:
        with pq.ParquetWriter(aside, schema) as table:
            for shard in itertools.chain([first], filled):
                columns = [pa.array([row[place] for row in shard], field.type) for place, field in enumerate(schema)]
                table.write_table(pa.Table.from_arrays(columns, schema=schema))
                rows += len(shard)
                captions += sum(len(row.captions) for row in shard)
                labels += sum(len(row.labels) for row in shard)
        with aside.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            num_bytes = os.fstat(file.fileno()).st_size
    return AnnotationsEntry(
        file=ANNOTATIONS_NAME, rows=rows, captions=captions, labels=labels, bytes=num_bytes, sha256=digest
    )
