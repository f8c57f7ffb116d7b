"""Captions and labels of images, from files and from stores.

Caption files are rows of (which image, caption): COCO, Karpathy and SBU .json, users' own lists as .json or tables,
.tsv with local paths or URLs, and the lists of Flickr8k and Flickr30k. A store has those of its plan, or of the stores
it was made of, in the table beside its shards, which `roibeam.features.annotations` writes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.annotations import Annotation, table_schema
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.reading.temporary_copy import IndexedIds
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.reader import shard_digests
from roibeam.features.store import FeatureStore
from roibeam.messages import printable
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.datasets import caption_lists, coco, image_list, karpathy
from roibeam.pipelines.data.datasets.known_files import BY_EXTENSION, json_kind, kind_of, refuse_others
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION, BadRow, BadRows, CaptionRow, UrlRow
from roibeam.pipelines.data.shard_plan import Plan, planned_members

_KINDS = frozenset(("coco", "karpathy", "sbu", "caption-list", "flickr30k", *BY_EXTENSION))
_BY_EXTENSION = {
    ".tsv": "tsv", ".csv": "image-list", ".jsonl": "image-list", ".parquet": "image-list", ".token": "flickr30k",
}  # fmt: skip
# `ImageFinder` takes a name as it stands first, and cuts its extension where no image is called so.
_AS_WRITTEN = "with-extension"


class Caption(NamedTuple):
    """One caption.

    Attributes:
        name: what the file calls its image; None where that is a URL, which is no image's name.
        row: of the list that images are downloaded from, from 0: what `roibeam download` and img2dataset name them by.
            None in files of other kinds.
    """

    text: str
    name: str | None
    row: int | None = None

    @property
    def called(self) -> str:
        """Name of the image in the file, for messages."""
        return f"row {self.row}" if self.name is None else self.name


_SMALL_FILE = 1 << 20  # bytes


class CaptionFile:
    """Reads one caption file; of a Karpathy split only train and restval: results are reported on the rest.

    A .tsv is read row by row; the lists of a .json are in memory while it is read.

    Args:
        split: of a Karpathy split, one of its splits in place of train and restval: for evaluation.
        caption_column: of a .tsv, see `conceptual_captions.columns_of`; "" to find it.
    """

    def __init__(self, location: str, *, split: str | None = None, caption_column: str = "") -> None:
        if not os.path.isfile(location):
            raise ValueError(f"no such caption file: {location!r}")
        self.location = os.path.abspath(location)
        refuse_others(location, _KINDS)
        extension = os.path.splitext(location)[1].lower()
        kind = json_kind(location) if extension == ".json" else kind_of(location)
        self.kind = _BY_EXTENSION.get(extension, "") if kind in BY_EXTENSION else kind
        if not self.kind:
            with open(location, encoding="utf-8", errors="replace") as file:
                line = printable(file.readline().strip(), 60)
            raise ValueError(
                f"{location!r}: got lines such as {line!r}, without captions (a list of images to keep out of training "
                f"goes to --held-out list=FILE); expected a captions .json of COCO, Karpathy (training "
                f"takes its train and restval, validation its val) or SBU, or {caption_lists.EXPECTED}; a "
                f"caption .tsv, a line each: the caption, a tab, the photo; a table of photos and captions as .csv, "
                f".jsonl or .parquet; or a list of Flickr8k or Flickr30k"
            )
        if caption_column and self.kind != "tsv":
            raise ValueError(f"{location!r}: --caption-column {caption_column} is for a .tsv; leave it out")
        self._columns: caption_lists.TsvColumns | None = None
        if self.kind == "tsv":
            root = os.path.dirname(self.location)
            self._columns = caption_lists.columns_of(self.location, caption_column, root=root)
        if split is not None and self.kind != "karpathy":
            raise ValueError(f"{location!r} has no splits, a Karpathy file has; leave --split {split} out")
        if split is not None and split not in karpathy.SPLITS:
            raise ValueError(f"--split {split!r}: choose one of {', '.join(karpathy.SPLITS)}")
        self.split = split
        self._splits = karpathy.TRAINING_SPLITS if split is None else (split,)
        self.notes: list[str] = []
        self.other_splits: list[str] = []
        self._bad: list[BadRows] = []

    def __iter__(self) -> Iterator[Caption]:
        return self.captions()

    def check(self) -> None:
        """Reads the first caption, as a check before long work; of a large file, which takes long itself, nothing."""
        if os.path.getsize(self.location) <= _SMALL_FILE:
            next(self.captions(), None)

    def captions(self) -> Iterator[Caption]:
        """Captions in file order. Afterwards `notes` has what was left out, and `other_splits` the images of a
        Karpathy file that are in other splits.

        Raises:
            ValueError: at the entry that cannot be read, or at the end if there was no caption.
        """
        self.notes.clear()
        self.other_splits.clear()
        self._bad.clear()
        num_captions = 0
        for caption in self._captions():
            num_captions += 1
            yield caption
        self.notes += [note for bad in self._bad for note in bad.notes()]
        bad = [each for each in self._bad if each]
        if not num_captions and bad and all(each.are_empty_captions for each in bad):
            raise ValueError(f"{self.location}: all of its captions are empty; give captions with words in them")
        if not num_captions:
            raise ValueError(
                f"{self.location!r}: no captions in it (an instances file has boxes only; a table needs a column "
                "called caption)" + "".join(f"; {note}" for note in self.notes)
            )

    def _captions(self) -> Iterator[Caption]:
        if self.kind == "coco":
            found = coco.read_coco(self.location, id_rule=_AS_WRITTEN)
            for image_id, text in found.captions:
                yield Caption(text, image_id)
            self._bad += found.bad
        elif self.kind == "karpathy":
            num_left_out, bad = 0, karpathy.bad_entries(self.location)
            for image in karpathy.read_karpathy(self.location, id_rule=_AS_WRITTEN, bad=bad):
                if image.split in self._splits:
                    for text in image.captions(bad):
                        yield Caption(text, image.image_id)
                else:
                    num_left_out += len(image.sentences)
                    self.other_splits.append(image.image_id)
            if self._splits == karpathy.TRAINING_SPLITS:
                self.notes += karpathy.evaluation_note(num_left_out)
            self._bad.append(bad)
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[Caption]:
        is_sbu = self.kind == "sbu"
        rows: Iterator[CaptionRow | UrlRow | image_list.ListRow | BadRow]
        if self.kind in caption_lists.CAPTION_READERS:
            rows = caption_lists.CAPTION_READERS[self.kind](self.location, id_rule=_AS_WRITTEN)
        elif self.kind == "image-list":
            rows = image_list.read_image_list(self.location, os.path.dirname(self.location), id_rule=_AS_WRITTEN)
        else:
            rows = caption_lists.read_caption_rows(self.location, id_rule=_AS_WRITTEN, columns=self._columns)
        bad = BadRows("entry" if self.kind in ("sbu", "caption-list") else "line")
        usable: Iterator[CaptionRow | UrlRow | image_list.ListRow] = bad.passed(rows)
        for row in usable:
            if isinstance(row, CaptionRow):
                yield Caption(row.caption, row.image_id, row.line - 1 if is_sbu else None)
            elif isinstance(row, UrlRow):
                header = self._columns.header if self._columns else 0  # no row, to what downloads the list
                yield Caption(row.caption, None, row.line - 1 - header)
            else:
                yield from (Caption(text, row.image_id) for text in row.captions)
                for _ in range(row.empty_captions):
                    bad.add(BadRow(row.line, EMPTY_CAPTION))
        self._bad.append(bad)


class CaptionFiles:
    """Several caption files of the same images, one after the other: as of one `CaptionFile`."""

    def __init__(self, files: Sequence[CaptionFile]) -> None:
        self._files = files
        self.location = " and ".join(file.location for file in files)
        self.notes: list[str] = []
        self.other_splits: list[str] = []

    def captions(self) -> Iterator[Caption]:
        """See `CaptionFile.captions`."""
        self.notes.clear()
        self.other_splits.clear()
        for file in self._files:
            yield from file.captions()
            self.notes += [f"{os.path.basename(file.location)}: {note}" for note in file.notes]
            self.other_splits += file.other_splits


def is_tsv(captions: str) -> bool:
    """Whether a file of captions has columns."""
    return captions.lower().endswith(".tsv")


def given_file(captions: str, *, caption_column: str) -> CaptionFile:
    """A caption file, one of several perhaps: `caption_column` is for those that have columns."""
    return CaptionFile(captions, caption_column=caption_column if is_tsv(captions) else "")


def read_captions(location: str) -> tuple[list[Caption], list[str]]:
    """All captions of a file that memory can hold, and notes on what was left out; errors as `CaptionFile`."""
    file = CaptionFile(location)
    return list(file.captions()), file.notes


_ROWS_AT_ONCE = 4000


def planned_annotations(
    folder: OutputFolder, plan: Plan, manifests: Sequence[ShardManifest]
) -> Iterator[list[Annotation]]:
    """Captions and labels by the plan, of the images that gave a record; a list for each shard.

    Args:
        manifests: of the plan's shards, all finished, in their order.
    """
    members = planned_members(folder, plan)
    for shard, manifest in zip(plan.shards, manifests, strict=True):
        failed = {letter.image_id for letter in manifest.dead_letters}
        yield sorted(
            Annotation(member.image_id, member.captions, member.labels)
            for member in itertools.islice(members, shard.num_images)
            if (member.captions or member.labels) and member.image_id not in failed
        )


class AnnotationTable:
    """Captions and labels by image id, in a scratch database.

    An image that comes several times has the captions and labels of all, those of earlier ones first, each once; one
    that comes once has its own.
    """

    def __init__(self, rows: Iterable[Annotation]) -> None:
        self._table = ScratchDatabase("CREATE TABLE annotations (id TEXT, captions TEXT, labels TEXT)")
        self._table.add(
            "INSERT INTO annotations VALUES (?, ?, ?)",
            ((row[0], json.dumps(row[1]), json.dumps(row[2])) for row in rows),
        )
        self._table.rows("CREATE INDEX by_id ON annotations (id)")

    def of(self, image_id: str) -> Annotation:
        kept = self._table.rows("SELECT captions, labels FROM annotations WHERE id = ? ORDER BY rowid", (image_id,))
        texts = ([text for row in kept for text in json.loads(row[column])] for column in (0, 1))
        return Annotation(image_id, *(tuple(each if len(kept) == 1 else dict.fromkeys(each)) for each in texts))


def merged_annotations(
    rows: Iterable[Annotation], out: OutputFolder, manifests: Iterable[ShardManifest]
) -> Iterator[list[Annotation]]:
    """Captions and labels of the images of a new store; a list for each of its shards.

    Args:
        rows: of all that it was made of, see `AnnotationTable`.
        manifests: of the new store's shards, whose data lies in `out`.
    """
    first = next(rows := iter(rows), None)
    if first is None:
        return
    table = AnnotationTable(itertools.chain([first], rows))
    for manifest in manifests:
        keys = () if manifest.data_file is None else shard_digests(out, manifest)
        found = (table.of(key.decode("utf-8")) for key, _ in keys)
        yield [row for row in found if row.captions or row.labels]


def read_annotations(store: FeatureStore) -> Iterator[Annotation]:
    """The rows of a store's table, few at a time in memory; none where it has no table."""
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
    """Problem of a store's table, or None: rows of no record or of one record twice, other counts."""
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
