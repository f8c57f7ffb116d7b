"""Captions and labels beside a store's shards: the table annotations.parquet, and the caption files of single shards.

The table, which manifest.json names, has the columns image_id (string), captions and labels (lists of strings): one row
for each image that has a record and any of the two, shard by shard, within a shard in key order. Without captions and
labels there is no table. pyarrow is imported when one is written; its readers are in `pipelines.data.captions`.

A shard that `StoreWriter` wrote has its captions in `part-00003.<attempt>.captions.jsonl` too, so that a stopped writer
goes on and a finished store grows: {"image_id": "a", "captions": ["a dog"]}, a line for each image with captions, in
key order.
"""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.folders.durable_files import has_content, open_regular_file, sha256_of, write_bytes_atomically
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.shard.manifest import ANNOTATIONS_NAME, STORE_MANIFEST_NAME, AnnotationsEntry


def checked_annotations(folder: str | os.PathLike[str], entry: AnnotationsEntry) -> Path:
    """The file's path; reads all of it. Raises ValueError when it is missing, no regular file, or not the one that the
    manifest names, in size or content."""
    path = Path(folder) / entry.file
    try:
        with open_regular_file(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            is_it = has_content(file, entry.bytes, entry.sha256)
    except OSError as error:
        what = f"{path}: {error.strerror}; restore it, or run the command that wrote the store again"
        raise ValueError(what) from None
    if not is_it:
        raise ValueError(
            f"{path}: is damaged or of another run: {num_bytes:,} bytes, {STORE_MANIFEST_NAME} names a file of "
            f"{entry.bytes:,} with SHA-256 {entry.sha256[:12]}...; restore it, or run the command that wrote the store "
            f"again"
        )
    return path


class Annotation(NamedTuple):
    """Captions and labels of an image, in the order of their source."""

    image_id: str
    captions: tuple[str, ...]
    labels: tuple[str, ...]


def table_schema() -> Any:
    """The columns, a `pyarrow.Schema`."""
    import pyarrow as pa

    texts = pa.list_(pa.string())
    return pa.schema([("image_id", pa.string()), ("captions", texts), ("labels", texts)])


def write_annotations(store: Path | OutputFolder, shards: Iterable[Sequence[Annotation]]) -> AnnotationsEntry | None:
    """Writes the table into a store's folder, whole; returns its entry for manifest.json.

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
    with folder.atomic_path(ANNOTATIONS_NAME) as aside:
        with pq.ParquetWriter(aside, schema) as table:
            for shard in itertools.chain([first], filled):
                columns = [pa.array([row[place] for row in shard], field.type) for place, field in enumerate(schema)]
                table.write_table(pa.Table.from_arrays(columns, schema=schema))
                rows += len(shard)
                captions += sum(len(row.captions) for row in shard)
                labels += sum(len(row.labels) for row in shard)
        digest, num_bytes = sha256_of(aside), aside.stat().st_size
    return AnnotationsEntry(
        file=ANNOTATIONS_NAME, rows=rows, captions=captions, labels=labels, bytes=num_bytes, sha256=digest
    )


CAPTIONS_SUFFIX = ".captions.jsonl"


def captions_file_name(data_file: str) -> str:
    """Name of the captions file beside `part-00003.<attempt>.lmdb`."""
    return data_file.removesuffix(".lmdb") + CAPTIONS_SUFFIX


def write_shard_captions(data_file: Path, captions: Mapping[str, tuple[str, ...]]) -> None:
    """Writes the file, whole and durable."""
    lines = [json.dumps({"image_id": image_id, "captions": captions[image_id]}) for image_id in sorted(captions)]
    data = "".join(line + "\n" for line in lines).encode("ascii")
    write_bytes_atomically(data_file.with_name(captions_file_name(data_file.name)), data)


def read_shard_captions(data_file: Path) -> dict[str, tuple[str, ...]]:
    """Image id -> captions, in key order; ValueError when the file is missing or damaged."""
    path = data_file.with_name(captions_file_name(data_file.name))
    try:
        rows = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        return {str(row["image_id"]): tuple(map(str, row["captions"])) for row in rows}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        manifest = data_file.name.partition(".")[0] + ".json"
        raise ValueError(
            f"{path}: cannot be read ({why}); restore it, or delete {manifest} and write the images of this shard again"
        ) from None
