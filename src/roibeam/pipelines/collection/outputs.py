"""Output files of a collection.

pairs.parquet   kept pairs, with all fields of each
pairs.tsv       caption TAB address of the image: a list that `roibeam download` reads
local.tsv       caption TAB photos/ab/<pair id>.jpg: input of `roibeam extract`, with the pair's id as image id
photos/         the images of kept pairs, links to the fetched files
dropped.parquet pairs that aggregation dropped, with reasons
"""

import filecmp
import os
import re
import shutil
from collections.abc import Collection as SomeOf
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.folders.local_folder import output_folder
from roibeam.pipelines.collection.aggregation import Aggregated
from roibeam.pipelines.collection.pairs import Pair

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
_BATCH = 1000
T = TypeVar("T")


def photo_name(pair: Pair) -> str:
    """Path below OUT: "photos/3f/3f2a....jpg"; named by the pair's id alone."""
    suffix = os.path.splitext(pair.picture.path)[1].lower()
    return f"{PHOTOS_NAME}/{pair.pair_id[:2]}/{pair.pair_id}{suffix}"


def write_pairs(out: Path, pairs: Aggregated) -> None:
    """Writes all of the above in place of an earlier run's files. Few pairs are in memory at a time."""
    _remove_other_photos(out, pairs)
    folder = output_folder(out)
    with (
        folder.atomic_path(PAIRS_NAME) as table,
        folder.atomic_path(LIST_NAME) as addresses,
        folder.atomic_path(LOCAL_NAME) as local,
        pq.ParquetWriter(table, _SCHEMA) as writer,
        addresses.open("w", encoding="utf-8", newline="\n") as addresses_file,
        local.open("w", encoding="utf-8", newline="\n") as local_file,
    ):
        for batch in _batches(pairs.kept()):
            names = [photo_name(pair) for pair in batch]
            for pair, name in zip(batch, names, strict=True):
                _link(pair.picture.path, out / name)
                text = re.sub(r"\s+", " ", pair.text.text)
                addresses_file.write(f"{text}\t{pair.picture.url}\n")
                local_file.write(f"{text}\t{name}\n")
            writer.write_table(pa.Table.from_pylist(list(map(_row, batch, names)), _SCHEMA))
    with folder.atomic_path(DROPPED_NAME) as table, pq.ParquetWriter(table, _DROPPED_SCHEMA) as writer:
        for dropped in _batches(pairs.dropped()):
            rows = [_row(each.pair, "") | {"reason": each.reason.value, "detail": each.detail} for each in dropped]
            writer.write_table(pa.Table.from_pylist(rows, _DROPPED_SCHEMA))
    fsync_folder(out)


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


def _batches(things: Iterable[T]) -> Iterator[list[T]]:
    left = iter(things)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _remove_other_photos(out: Path, pairs: Aggregated) -> None:
    """Removes files of no kept pair from OUT/photos; a folder of it is in memory at a time."""
    folders = {path.name: path for path in (out / PHOTOS_NAME).glob("*") if path.is_dir()}
    if not folders:
        return
    # Kept pairs come by id, so those of one folder stand together.
    for name, kept in groupby(map(photo_name, pairs.kept()), key=lambda name: name.split("/")[1]):
        wanted = {each.rpartition("/")[2] for each in kept}
        _empty(folders.pop(name, None), wanted)
    for folder in folders.values():
        _empty(folder, frozenset())


def _empty(folder: Path | None, wanted: SomeOf[str]) -> None:
    for path in () if folder is None else folder.iterdir():
        if path.name not in wanted:
            path.unlink()


def _link(source: str, place: Path) -> None:
    """Makes `place` the file `source`; a copy where the file system has no links."""
    if place.exists():
        if os.path.samefile(source, place) or filecmp.cmp(source, place, shallow=False):
            return
        place.unlink()  # damaged, and `source` was fetched again
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, place)
    except OSError:
        with output_folder(place.parent).atomic_path(
            place.name
        ) as aside:  # a run that is killed here leaves no half of a picture
            shutil.copyfile(source, aside)
