"""Captions and labels of a store's images: what a plan or other stores say of them, and the table beside the shards
read again. `roibeam.features.writing.annotations_table` writes it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.reading.indexed_ids import IndexedIds
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.remote_reader import shard_digests
from roibeam.features.store import FeatureStore
from roibeam.features.writing.annotations_table import Annotation, table_schema
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.shard_plan import Plan, planned_members

_ROWS_AT_ONCE = 4000


def planned_annotations(
    store: Path | OutputFolder, plan: Plan, manifests: Sequence[ShardManifest]
) -> Iterator[list[Annotation]]:
    """What the plan says of the images that gave a record, a list for each shard.

    Args:
        manifests: of the plan's shards, all finished, in their order.
    """
    members = planned_members(store, plan)
    for shard, manifest in zip(plan.shards, manifests, strict=True):
        failed = {letter.image_id for letter in manifest.dead_letters}
        yield sorted(
            Annotation(member.image_id, member.captions, member.labels)
            for member in itertools.islice(members, shard.num_images)
            if (member.captions or member.labels) and member.image_id not in failed
        )


def merged_annotations(
    stores: Sequence[FeatureStore], out: OutputFolder, manifests: Iterable[ShardManifest]
) -> Iterator[list[Annotation]]:
    """What any of some stores say of the images of the store that is made of them, a list for each of its shards.

    An image that several have gets the captions and labels of all, those of earlier ones first, each once.

    Args:
        manifests: of the new store's shards, whose data lies in `out`.
    """
    if all(store.manifest.annotations is None for store in stores):
        return
    table = ScratchDatabase("CREATE TABLE said (id TEXT, captions TEXT, labels TEXT)")
    rows = (row for store in stores for row in read_annotations(store))
    table.add("INSERT INTO said VALUES (?, ?, ?)", ((row[0], json.dumps(row[1]), json.dumps(row[2])) for row in rows))
    table.rows("CREATE INDEX by_id ON said (id)")
    for manifest in manifests:
        found: list[Annotation] = []
        if manifest.data_file is not None:
            for key, _ in shard_digests(out, manifest):
                image_id = key.decode("utf-8")
                said = table.rows("SELECT captions, labels FROM said WHERE id = ? ORDER BY rowid", (image_id,))
                if said:
                    captions, labels = (
                        tuple(dict.fromkeys(text for row in said for text in json.loads(row[column])))
                        for column in (0, 1)
                    )
                    found.append(Annotation(image_id, captions, labels))
        yield found


def read_annotations(store: FeatureStore) -> Iterator[Annotation]:
    """The rows of a store's table, few at a time in memory; none where it has no table.

    Raises:
        ValueError: when the table is missing, damaged, of another run, or other than its manifest entry says.
    """
    entry = store.manifest.annotations
    if entry is None:
        return
    path = store.annotations_file()
    try:
        with pq.ParquetFile(path) as table:
            if not table.schema_arrow.equals(table_schema()):
                raise ValueError(
                    f"its columns are {', '.join(table.schema_arrow.names)}, expected {table_schema().names}"
                )
            if table.metadata.num_rows != entry.rows:
                raise ValueError(f"it has {table.metadata.num_rows:,} rows, the manifest says {entry.rows:,}")
            for batch in table.iter_batches(_ROWS_AT_ONCE):
                for image_id, captions, labels in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield Annotation(image_id, tuple(captions), tuple(labels))
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path}: {error}; run the command that wrote the store again") from None


def stored_captions(store: FeatureStore) -> Iterator[Caption]:
    """A store's own captions; ValueError where it has none, else errors as `read_annotations`."""
    entry = store.manifest.annotations
    if entry is None or not entry.captions:
        raise ValueError(f"{store.path} has no captions of its own; name a caption file with --captions")
    for row in read_annotations(store):
        for text in row.captions:
            yield Caption(text, row.image_id)


def annotation_of(store: FeatureStore, image_id: str) -> Annotation | None:
    """The row of one image, or None; errors as `read_annotations`."""
    if store.manifest.annotations is None:
        return None
    path = store.annotations_file()
    try:
        found = pq.read_table(path, schema=table_schema(), filters=[("image_id", "=", image_id)]).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: {error}; run the command that wrote the store again") from None
    return Annotation(image_id, tuple(found[0]["captions"]), tuple(found[0]["labels"])) if found else None


def annotation_problem(store: FeatureStore) -> str | None:
    """What is wrong with what a store's table says, or None: rows of no record or of one record twice, other counts."""
    entry = store.manifest.annotations
    if entry is None:
        return None
    ids = store if store.folder.local_path is not None else IndexedIds(store)
    captions = labels = 0
    seen: set[bytes] = set()
    try:
        for row in read_annotations(store):
            if row.image_id not in ids:
                return f"a row is of {row.image_id!r}, which has no record"
            if not row.captions and not row.labels:
                return f"the row of {row.image_id!r} is empty"
            captions += len(row.captions)
            labels += len(row.labels)
            seen.add(hashlib.sha256(row.image_id.encode("utf-8")).digest()[:8])
    except ValueError as error:
        return str(error)
    if (len(seen), captions, labels) != (entry.rows, entry.captions, entry.labels):
        return (
            f"it has {captions:,} captions and {labels:,} labels of {len(seen):,} images, the manifest says "
            f"{entry.captions:,}, {entry.labels:,} and {entry.rows:,}"
        )
    return None
