"""What a collection leaves for others.

pairs.parquet   kept pairs, all that is known of each
pairs.tsv       caption TAB address of the image: a list that `roibeam download` reads
local.tsv       caption TAB photos/ab/<pair id>.jpg: what `roibeam extract` reads, with the pair's id as image id
photos/         the images of kept pairs, links to the fetched files
dropped.parquet what aggregation dropped, with reasons
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.folders.durable_files import fsync_folder, write_bytes_atomically
from roibeam.pipelines.collection.choosing.aggregation import DroppedPair
from roibeam.pipelines.collection.pair import Pair

PAIRS_NAME, LIST_NAME, LOCAL_NAME, PHOTOS_NAME = "pairs.parquet", "pairs.tsv", "local.tsv", "photos"
DROPPED_NAME = "dropped.parquet"
_COLUMNS = [
    ("pair_id", pa.string()), ("caption", pa.string()), ("text_source", pa.string()), ("image", pa.string()),
    ("image_url", pa.string()), ("page_url", pa.string()), ("host", pa.string()), ("place", pa.string()),
    ("robots", pa.string()), ("num_pages", pa.int32()), ("language", pa.string()), ("language_score", pa.float32()),
    ("width", pa.int32()), ("height", pa.int32()), ("num_bytes", pa.int64()), ("sha256", pa.string()),
    ("phash", pa.string()), ("nsfw", pa.float32()), ("racy", pa.float32()), ("natural", pa.float32()),
    ("score", pa.float32()),
]  # fmt: skip
_SCHEMA = pa.schema(_COLUMNS)
_DROPPED_SCHEMA = pa.schema([*_COLUMNS, ("reason", pa.string()), ("detail", pa.string())])
_BATCH = 10_000


def photo_name(pair: Pair) -> str:
    """Below OUT: "photos/3f/3f2a....jpg"; named by the pair's id alone."""
    suffix = os.path.splitext(pair.picture.path)[1].lower()
    return f"{PHOTOS_NAME}/{pair.pair_id[:2]}/{pair.pair_id}{suffix}"


def write_pairs(out: Path, kept: Sequence[Pair], dropped: Sequence[DroppedPair]) -> None:
    """Writes all of the above; what an earlier run left under these names goes."""
    _link_photos(out, kept)
    _write_table(out / PAIRS_NAME, _SCHEMA, (_row(pair, photo_name(pair)) for pair in kept))
    ordered = sorted(dropped, key=lambda each: (each.reason.value, each.pair.picture.url))
    rows = (_row(each.pair, "") | {"reason": each.reason.value, "detail": each.detail} for each in ordered)
    _write_table(out / DROPPED_NAME, _DROPPED_SCHEMA, rows)
    for name, places in ((LIST_NAME, (pair.picture.url for pair in kept)), (LOCAL_NAME, map(photo_name, kept))):
        lines = [f"{_one_line(pair.text.text)}\t{place}\n" for pair, place in zip(kept, places, strict=True)]
        write_bytes_atomically(out / name, "".join(lines).encode())
    fsync_folder(out)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _row(pair: Pair, image: str) -> dict[str, object]:
    picture = pair.picture
    return {
        "pair_id": pair.pair_id, "caption": pair.text.text, "text_source": pair.text.source.value, "image": image,
        "image_url": picture.url, "page_url": pair.page_url, "host": urlsplit(pair.page_url).hostname or "",
        "place": pair.place, "robots": pair.robots, "num_pages": pair.num_pages, "language": pair.language,
        "language_score": pair.language_score, "width": picture.width, "height": picture.height,
        "num_bytes": picture.num_bytes, "sha256": picture.sha256, "phash": picture.phash, "nsfw": picture.nsfw,
        "racy": picture.racy, "natural": picture.natural, "score": pair.score,
    }  # fmt: skip


def _write_table(path: Path, schema: pa.Schema, rows: Iterable[dict[str, object]]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with pq.ParquetWriter(aside, schema) as writer:
        for batch in _batches(rows):
            writer.write_table(pa.Table.from_pylist(batch, schema))
    os.replace(aside, path)


def _batches(rows: Iterable[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    batch: list[dict[str, object]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _link_photos(out: Path, kept: Sequence[Pair]) -> None:
    """Makes OUT/photos what `kept` says; a copy where the file system has no links."""
    folder = out / PHOTOS_NAME
    wanted = {photo_name(pair): pair.picture.path for pair in kept}
    if folder.is_dir():
        for path in folder.glob("*/*"):
            if path.relative_to(out).as_posix() not in wanted:
                path.unlink()
    for name, source in wanted.items():
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            continue
        try:
            os.link(source, place)
        except OSError:
            shutil.copyfile(source, place)
