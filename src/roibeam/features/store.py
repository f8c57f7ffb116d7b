"""A store of region features: image id in, record out, whatever shard it lies in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from roibeam.features.annotations import checked_annotations
from roibeam.features.batch import BatchBuffers, RegionBatch, RegionFilter, assemble, check_fields
from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import LocalFolder, note_links
from roibeam.features.record.fingerprint import Fingerprint, has_classes
from roibeam.features.record.notebook import notebook_html, table_html
from roibeam.features.record.region_drawing import MAX_REGIONS as MAX_DRAWN
from roibeam.features.record.region_drawing import PhotoLike, draw_regions, name_of, photo_pixels, sheet, strongest
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import RegionMeta
from roibeam.features.shard.manifest import PLAN_NAME, STORE_MANIFEST_NAME, ShardEntry, StoreManifest, checked_manifest
from roibeam.features.shard.reader import ShardReader
from roibeam.messages import check_list, plural

# Limits of a store's display in a notebook.
_LISTED_RECORDS = 5
_LISTED_CLASSES = 4
_LOOKS_LIKE_A_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)")  # a path has one slash of its two


class FeatureStore:
    """Reads a finished store; safe to fork, to pickle (the copy opens its own files) and to use from threads.

    Args:
        path: folder with `manifest.json`.
        max_open_shards: shards open at once, each one file descriptor; the least recently used is let go beyond that.
            Never more than a quarter of the files that the process may have open (`ulimit -n`).
    Attributes:
        checked_one_in: roibeam's own training and evaluation compare one in so many records with its checksums. Other
            readers set `check=` instead.
    Raises:
        FileNotFoundError: when there is no manifest, saying whether a run is unfinished.
        ValueError: when the manifest is damaged or of another version.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_open_shards: int = 128) -> None:
        if max_open_shards < 1:
            raise ValueError(f"max_open_shards must be at least 1, got {max_open_shards}")
        self.path = Path(path)
        self._root = Path(os.path.abspath(path))  # a notebook may change its folder
        self._max_open_shards = max_open_shards
        self.checked_one_in = 1
        self.manifest = _read_manifest(self.path)
        note_links(str(self._root))
        # Sorted by first id: the shards that can hold an id are among those starting at or before it, and walking back
        # from there ends where no earlier shard reaches as far. Ranges overlap when a store has grown.
        shards = [entry for entry in self.manifest.shards if entry.first_id is not None and entry.last_id is not None]
        self._by_first_id = sorted(shards, key=lambda entry: entry.first_id or "")
        self._first_ids = [entry.first_id or "" for entry in self._by_first_id]
        self._last_ids = [entry.last_id or "" for entry in self._by_first_id]
        self._reach = list(accumulate(self._last_ids, max))
        self._open: _OpenShards | None = _OpenShards()

    @property
    def folder(self) -> OutputFolder:
        """Folder of the store; `str()` of it is its name in messages."""
        return LocalFolder(self.path)

    @property
    def _here(self) -> Path:
        """The folder as it was named, while that name leads to it."""
        return self.path if os.path.abspath(self.path) == str(self._root) else self._root

    @property
    def fingerprint(self) -> Fingerprint:
        return self.manifest.fingerprint

    @property
    def vocabulary(self) -> dict[str, list[str] | None]:
        """{"classes": names in id order or None, "attributes": the same}."""
        return self.manifest.vocabulary

    @property
    def feature_dim(self) -> int:
        """D; 0 in a store without records."""
        return self.manifest.feature_dim

    @property
    def feature_dtype(self) -> str | None:
        """Key of `FEATURE_DTYPES`; None in a store without records."""
        return self.manifest.feature_dtype

    @property
    def num_regions(self) -> int:
        """Regions of all records together."""
        return self.manifest.num_regions

    def __len__(self) -> int:
        return self.manifest.num_records

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and self._find(image_id) is not None

    def __getitem__(self, image_id: str) -> RegionRecord:
        """The record, with arrays of its own; errors as `get`."""
        return self.get(image_id)

    def __iter__(self) -> Iterator[RegionRecord]:
        """Every record once, with arrays of its own: shard after shard, inside a shard in key order."""
        return self.scan()

    def scan(self, *, copy: bool = True, check: bool = False) -> Iterator[RegionRecord]:
        """Every record in the order of `__iter__`; arguments and errors as `get`. Checked ones must be found by
        their ids too, else no lookup is made."""
        for entry in self._filled_shards():
            for record in self._reader(entry).scan(copy=copy, check=check):
                if check and record.image_id not in self:
                    raise ValueError(
                        f"{self.path / entry.manifest}: holds record {record.image_id!r}, {STORE_MANIFEST_NAME} does "
                        f"not lead to it; verify the store"
                    )
                yield record

    def get(self, image_id: str, *, copy: bool = True, check: bool = False) -> RegionRecord:
        """One record.

        Args:
            copy: False gives read-only views into the file, which stays mapped as long as they live.
            check: verify checksums and field rules of the record (reads every byte).
        Raises:
            KeyError: naming id and store, when the store does not hold it.
            ValueError: naming the file, when it is damaged, or the store is closed.
        """
        reader, row = self._place(image_id)
        return reader.record_at(row, image_id=image_id, copy=copy, check=check)

    def meta(self, image_id: str, *, check: bool = False) -> RegionMeta:
        """Boxes, classes and scores, without touching the features. Raises KeyError or ValueError as `get`.

        Args:
            check: compare them with their checksum.
        """
        reader, row = self._place(image_id)
        return reader.meta_at(row, check=check)

    def num_regions_of(self, image_ids: Iterable[str]) -> np.ndarray:
        """(n,) int32, how many regions each record has, from the offset indexes alone; errors as `get`."""
        check_list(image_ids, "image_ids")
        places = map(self._place, image_ids)
        return np.array([reader.num_regions_at(row) for reader, row in places], np.int32)

    def get_batch(
        self,
        image_ids: Sequence[str],
        *,
        fields: Collection[str] = ("features",),
        ragged: bool = False,
        regions: RegionFilter | None = None,
        check: bool = False,
        out: BatchBuffers | None = None,
    ) -> RegionBatch:
        """Records of some images as one batch of arrays; each stored byte is read once and written once.

        Args:
            image_ids: at least one; an image may be named twice.
            fields: to read beside boxes, class ids and scores: "features", "attributes",
                "class_distribution", "image_feature". With () no page of the large values is touched.
            ragged: regions of all images one after another, instead of padded to the most that one has.
            regions: keeps some of each record's regions.
            check: as of `get`; of the records read, which are those of `fields`.
            out: memory to assemble in; the arrays of the batch before are overwritten.
        Raises:
            KeyError, ValueError: as `get`; ValueError also for a field that a record lacks, and for `regions` where
                the store has no class scores.
        """
        check_list(image_ids, "image_ids")
        check_fields(fields)
        self.check_filter(regions)
        ids = list(image_ids)
        records: Iterable[RegionRecord | RegionMeta]
        if fields:
            records = (self.get(image_id, copy=False, check=check) for image_id in ids)
        else:
            records = (self.meta(image_id, check=check) for image_id in ids)
        return assemble(ids, records, fields=fields, ragged=ragged, regions=regions, out=out)

    def check_filter(self, regions: RegionFilter | None) -> None:
        """Raises ValueError for a filter of regions where the store's class scores only fill their place."""
        if regions is not None and not has_classes(self.fingerprint):
            raise ValueError(f"{self.path}: its regions have no class scores, so {regions!r} cannot choose among them")

    def prefetch(self, image_ids: Iterable[str], *, fields: Collection[str] = ("features",)) -> None:
        """Prefetches what `get_batch` with these `fields` will read, and returns at once: name the next batch before
        you assemble this one. Errors as `get_batch`."""
        check_list(image_ids, "image_ids")
        check_fields(fields)
        for image_id in image_ids:
            reader, row = self._place(image_id)
            reader.prefetch_at(row, large=bool(fields))

    @property
    def shard_sizes(self) -> list[int]:
        """Records of each shard, in the order of the manifest; what `id_at` counts by."""
        return [entry.num_records for entry in self.manifest.shards]

    def id_at(self, shard: int, row: int) -> str:
        """The image id at a row, in key order, of the `shard`-th shard of the manifest.

        Raises:
            IndexError: for a place that is none.
            ValueError: as `get`.
        """
        entry = self.manifest.shards[shard]
        if not 0 <= row < entry.num_records:
            raise IndexError(f"{self.path}: shard {shard} has {entry.num_records} records, asked for row {row}")
        return self._reader(entry).record_key(row).decode("utf-8")

    def shards_covering(self, image_id: str) -> Iterator[ShardEntry]:
        """The shards whose range of ids an image lies in: no other can hold it."""
        # str compares by code point, which is the order of UTF-8 bytes.
        at = bisect_right(self._first_ids, image_id) - 1
        while at >= 0 and self._reach[at] >= image_id:
            if self._last_ids[at] >= image_id:
                yield self._by_first_id[at]
            at -= 1

    def ids_at(self, places: np.ndarray) -> list[str]:
        """The image ids at (n, 2) places of shard and row, such as `EpochOrder` gives; errors as `id_at`."""
        return [self.id_at(shard, row) for shard, row in places.tolist()]

    def ids(self) -> Iterator[str]:
        """Image ids in the order of `__iter__`."""
        for entry in self._filled_shards():
            yield from self._reader(entry).ids()

    def annotations_file(self) -> Path:
        """The table of captions and labels, checked to be the one that the manifest names; see `checked_annotations`.
        Raises ValueError when there is none, or another."""
        if self.manifest.annotations is None:
            raise ValueError(f"{self.path}: its images have no captions and no labels")
        return checked_annotations(self._here, self.manifest.annotations)

    def draw(
        self, image_id: str, photo: PhotoLike | None, *, max_regions: int = MAX_DRAWN, scale: float = 1.0
    ) -> np.ndarray:
        """The photo with the regions of its record on it, named by the store; arguments and result as of
        `RegionRecord.draw`.

            cv2.imwrite("cat.png", store.draw("cat", "photos/cat.jpg"))

        A store whose regions have no classes (some imported ones) numbers them instead. Raises KeyError, ValueError,
        OSError as `get` and `RegionRecord.draw`."""
        record = self.get(image_id, copy=False, check=True)  # it is displayed as true
        image_hw = (record.height, record.width)
        turned = self.manifest.config.get("detector", {}).get("conventions", {}).get("exif_orientation")
        pixels = sheet(image_hw) if photo is None else photo_pixels(photo, image_hw, image_id, exif_orientation=turned)
        if has_classes(self.fingerprint):
            classes, attributes = self.manifest.classes, self.manifest.attributes
            return record.draw(pixels, classes=classes, attributes=attributes, max_regions=max_regions, scale=scale)
        numbers = np.arange(record.num_regions)
        return draw_regions(
            pixels,
            record.boxes,
            labels=[str(number) for number in numbers],
            class_ids=numbers,
            scores=record.class_scores,
            max_regions=max_regions,
            scale=scale,
        )

    def to_dataset(self) -> Any:
        """The records as a `datasets.Dataset` of Hugging Face, with the columns of `store export --format parquet` but
        captions and labels.

        It lies in the cache of datasets, under a digest of records and names, and is mapped, not held in memory."""
        import pyarrow as pa
        from datasets import Dataset, config

        from roibeam.features.exchange.export_output import atomic_path
        from roibeam.features.exchange.parquet_shards import FORMAT

        facts = {"fingerprint": self.fingerprint.to_json(), **self.vocabulary}
        content = json.dumps([self.manifest.content_digest, facts]).encode("utf-8")
        path = Path(config.HF_DATASETS_CACHE) / "roibeam" / f"{hashlib.sha256(content).hexdigest()}.arrow"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            batches = FORMAT.of_store(facts, None, None).batches(self.scan(copy=False, check=True))
            first = next(batches, None)
            if first is None:
                raise ValueError(f"{self.path} holds no record, so there is no data set")
            with atomic_path(path, replaces=True) as aside, pa.ipc.new_stream(str(aside), first.schema) as stream:
                for batch in chain([first], batches):
                    stream.write_batch(batch)
        return Dataset.from_file(str(path))

    def to_pandas(self) -> Any:
        """Boxes and classes as a `pandas.DataFrame`, a row for each region; features are not read. Columns: image_id,
        region (its number in the record), x1, y1, x2, y2 (pixels); class_id, class and score where the store has
        classes. Memory: about 100 bytes for a region."""
        import pandas

        return pandas.DataFrame(self._regions())

    def to_polars(self) -> Any:
        """`to_pandas` as a `polars.DataFrame`."""
        import polars

        return polars.DataFrame(self._regions())

    def _regions(self) -> dict[str, Any]:
        ids = list(self.ids())
        metas = [self.meta(image_id, check=True) for image_id in ids]
        counts = [meta.num_regions for meta in metas]
        boxes = np.concatenate([np.zeros((0, 4), np.float32), *(meta.boxes for meta in metas)])
        found: dict[str, Any] = {
            "image_id": np.repeat(np.array(ids, object), counts),
            "region": np.concatenate([np.arange(0), *map(np.arange, counts)]),
            **{name: boxes[:, side] for side, name in enumerate(("x1", "y1", "x2", "y2"))},
        }
        if has_classes(self.fingerprint):
            class_ids = np.concatenate([np.zeros(0, np.uint16), *(meta.class_ids for meta in metas)])
            names = {each: name_of(each, self.manifest.classes, "class") for each in np.unique(class_ids).tolist()}
            found |= {"class_id": class_ids, "class": np.array([names[each] for each in class_ids.tolist()], object)}
            found["score"] = np.concatenate([np.zeros(0, np.float32), *(meta.class_scores for meta in metas)])
        return found

    def close(self) -> None:
        """Lets all shards go; views read with `copy=False` stay valid. Reading afterwards is a ValueError."""
        self._open = None

    def __enter__(self) -> Self:
        if self._open is None:
            raise ValueError(f"{self.path}: this store is closed; open it again with FeatureStore(folder)")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        num_records, num_shards = plural(len(self), "record"), plural(len(self.manifest.shards), "shard")
        return f"FeatureStore({str(self.path)!r}, {num_records} in {num_shards})"

    def _repr_html_(self) -> str:
        """Counts, names and the first records; those only of a store that is open."""
        manifest = self.manifest
        ids = [] if self._open is None else list(islice(self.ids(), _LISTED_RECORDS))
        rows = []
        for image_id in ids:
            meta = self.meta(image_id)
            rows.append((image_id, f"{meta.width} x {meta.height}", f"{meta.num_regions:,}", self._best_classes(meta)))
        table = table_html(("first records", "pixels", "regions", "best regions"), rows) if rows else ""
        per_image = f"{self.num_regions / max(len(self), 1):.1f} per image"
        facts = [
            ("records", f"{len(self):,}, {plural(manifest.num_dead_letters, 'dead letter')}"),
            ("regions", f"{self.num_regions:,}, {per_image}"),
            ("features", f"{self.feature_dim} x {self.feature_dtype}" if self.feature_dtype else "none"),
            ("classes", _names_in_short(manifest.classes)),
            ("attributes", _names_in_short(manifest.attributes)),
        ]
        note = "" if not ids else f"store[{ids[0]!r}] is a record, store.draw({ids[0]!r}, photo) a picture of it"
        return notebook_html(repr(self), facts=facts, table=table, note=note)

    def _best_classes(self, meta: RegionMeta) -> str:
        if not has_classes(self.fingerprint):
            return "no classes"
        ids = [int(meta.class_ids[region]) for region in strongest(meta.class_scores, _LISTED_CLASSES)]
        return ", ".join(dict.fromkeys(name_of(each, self.manifest.classes, "class") for each in ids))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_open"] = self._open is not None  # whether, not which: open files do not travel
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = _OpenShards() if state["_open"] else None

    def _filled_shards(self) -> Iterator[ShardEntry]:
        return (entry for entry in self.manifest.shards if entry.num_records)

    def _place(self, image_id: str) -> tuple[ShardReader, int]:
        if not isinstance(image_id, str):
            raise TypeError(
                f"image ids are texts, got {image_id!r:.80}; RegionDataset(store)[0] reads by number, and "
                f"store.get_batch([...]) many images"
            )
        place = self._find(image_id)
        if place is None:
            raise KeyError(f"image id {image_id!r} is not in the store {self.path} ({len(self)} records)")
        return place

    def _find(self, image_id: str) -> tuple[ShardReader, int] | None:
        """The shard that holds `image_id` and its row there: looks into all shards whose range covers it."""
        # str compares by code point, which is the order of UTF-8 bytes.
        at = bisect_right(self._first_ids, image_id) - 1
        last_ids, reach = self._last_ids, self._reach
        while at >= 0 and reach[at] >= image_id:
            if last_ids[at] >= image_id:
                reader = self._reader(self._by_first_id[at])
                row = reader.find(image_id)
                if row >= 0:
                    return reader, row
            at -= 1
        return None

    def _reader(self, entry: ShardEntry) -> ShardReader:
        shards = self._open
        if shards is None:
            raise ValueError(f"{self.path}: this store is closed")
        if shards.forks != _forks:
            self._open = shards = _OpenShards()  # after a fork: nothing of the parent's is used, its lock included
        reader = shards.readers.get(entry.shard)
        if reader is not None:
            try:
                shards.readers.move_to_end(entry.shard)
            except KeyError:  # another thread has let it go just now; it can be read as long as it is held here
                return reader
            return reader
        with shards.lock:
            reader = shards.readers.get(entry.shard)
            if reader is None:
                reader = self._open_shard(entry)
                shards.readers[entry.shard] = reader
                while len(shards.readers) > min(self._max_open_shards, shards.most):
                    # Dropped, not closed: another thread may be reading it, and views may live. The last
                    # user unmaps it.
                    shards.readers.popitem(last=False)
            shards.readers.move_to_end(entry.shard)
            return reader

    def _open_shard(self, entry: ShardEntry) -> ShardReader:
        path = self._here / entry.manifest
        manifest, _ = checked_manifest(lambda name: read_regular_file(self._here / name), entry, str(path), exact=False)
        if (manifest.feature_dim, manifest.feature_dtype) != (self.feature_dim, self.feature_dtype):
            raise ValueError(
                f"{path}: has features {manifest.feature_dim} {manifest.feature_dtype}, {STORE_MANIFEST_NAME} says "
                f"{self.feature_dim} {self.feature_dtype}; verify the store"
            )
        if manifest.data_file is None:
            raise ValueError(f"{path}: has no record, {STORE_MANIFEST_NAME} says {entry.num_records}; verify the store")
        return ShardReader(self._here / manifest.data_file, manifest)


def check_store(store: object) -> None:
    """Raises TypeError for what is no open store, such as its folder."""
    if not isinstance(store, FeatureStore):
        raise TypeError(f"store: expected a FeatureStore, got {store!r}; open it with FeatureStore(folder) first")


def _names_in_short(names: tuple[str, ...] | None) -> str:
    if names is None:
        return "ids only"
    return f"{len(names):,}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"


# Forks between this process and the one that imported this module; cheaper to read than the process's number.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


_PHOTOS = (".jpg", ".jpeg", ".png")
_SHARE_OF_FILES = 4  # other stores of the process, its workers' pipes and its libraries need some too


class _OpenShards:
    """The open shards of one process, least recently used first; `most` is how many its limit of open files allows."""

    def __init__(self) -> None:
        self.forks = _forks
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit // _SHARE_OF_FILES)
        self.lock = threading.Lock()
        self.readers: OrderedDict[int, ShardReader] = OrderedDict()


def _read_manifest(folder: Path) -> StoreManifest:
    try:
        return StoreManifest.read(folder / STORE_MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        if next(folder.glob("part-*.json"), None) is not None:
            look = f"; roibeam progress {folder} tells whether it is at work" if (folder / PLAN_NAME).exists() else ""
            raise FileNotFoundError(
                f"{folder}: has shards but no {STORE_MANIFEST_NAME}: the run that writes it has not finished: "
                f"run the same command again{look}"
            ) from None
        if url := _LOOKS_LIKE_A_URL.match(str(folder)):
            raise FileNotFoundError(
                f"{url[1]}://{url[2]} is a URL, and a store is read from a folder: copy it with roibeam store copy"
            ) from None
        raise FileNotFoundError(f"{folder}: no feature store here ({_instead(folder)}); is the path right?") from None


def _instead(folder: Path) -> str:
    """Description of what is there in place of a store."""
    if folder.is_file():
        return f"it is a file; a store is a folder with {STORE_MANIFEST_NAME}"
    if not folder.is_dir():
        return "nothing is there"
    if next(folder.iterdir(), None) is None:
        return "the folder is empty"
    if (folder / PLAN_NAME).exists():
        return "a run of roibeam extract has begun it and finished nothing: run the same command again"
    if (folder / "checkpoints").is_dir():
        return f"{STORE_MANIFEST_NAME} is missing; it is the folder of a training run"
    if any(path.suffix.lower() in _PHOTOS for path in islice(folder.iterdir(), 100)):
        return f"{STORE_MANIFEST_NAME} is missing, and photos are there, of which roibeam extract makes a store"
    return f"{STORE_MANIFEST_NAME} is missing"
