"""Regions of pictures that have several names each, found once for each picture.

NLVR2 names a picture after the pair it is in: 64,000 names for 15,500 pictures, which the toy detector would look at
four times each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.writer import ShardSequence, publish_store, write_shard_sequence
from roibeam.features.store import FeatureStore

_SHARD_SIZE = 4000


def files_below(folder: Path) -> Sequence[Path]:
    """Their places in it, in order."""
    return sorted(each.relative_to(folder) for each in folder.rglob("*") if each.is_file())


def names_of_pictures(folder: Path) -> Mapping[Path, Sequence[str]]:
    """One file of each picture -> all its names: places of files below `folder`, without ending. Several names of a
    picture are links to one file."""
    found: dict[int, list[Path]] = {}
    for place in files_below(folder):
        found.setdefault((folder / place).stat().st_ino, []).append(place)
    return {places[0]: [str(each.with_suffix("")) for each in places] for places in found.values()}


def link_files(folder: Path, places: Collection[Path], out: Path) -> None:
    """A folder of links to these files of `folder`."""
    begun = out.parent.with_name(f"{out.parent.name}.part")
    shutil.rmtree(begun, ignore_errors=True)
    for place in places:
        (begun / place).parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / place, begun / place)
    out.parent.mkdir(exist_ok=True)
    begun.rename(out)


def write_repeated(source: Path, out: Path, names: Iterable[Sequence[str]]) -> None:
    """The store `source`, each of its records under all names of its picture.

    Args:
        names: of each picture; `source` has the first of them.
    """
    begun = out.with_name(f"{out.name}.part")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    with FeatureStore(source) as store:
        manifest = store.manifest
        sequence = ShardSequence(
            begun, fingerprint=manifest.fingerprint, source="repeated", shard_size=_SHARD_SIZE, shard_bytes=None,
            planned_bytes=sum(entry.data_bytes for entry in manifest.shards),
        )  # fmt: skip
        shards = list(write_shard_sequence(_records(store, names), sequence))
        publish_store(
            begun, range(len(shards)), fingerprint=manifest.fingerprint, config=manifest.config,
            classes=manifest.classes, attributes=manifest.attributes,
        )  # fmt: skip
    begun.rename(out)


def _records(store: FeatureStore, names: Iterable[Sequence[str]]) -> Iterator[RegionRecord]:
    first = {name: named[0] for named in names for name in named}
    for name in sorted(first):
        yield replace(store[first[name]], image_id=name)
