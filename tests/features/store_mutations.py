"""Stores hurt in every place that bytes can be wrong, each by one seed, and what a reader must make of them."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from store_examples import make_record, write_store

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.layout import checksum
from roibeam.features.shard.lmdb_file import IndexRow
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardManifest
from roibeam.features.shard.reader import ShardReader
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store

PAGE = 4096
_META_PAGE, _OVERFLOW_PAGE = 0x08, 0x04
_LAST_PAGE_AT = 16 + 120  # of a meta page: page header, then MDB_meta's mm_last_pg
_HOSTILE_VALUES: list[Any] = [
    0, 1, -1, 2, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e308, True, None, "", "x", "0" * 64,
    "f" * 64, "../part-00000.json", "/etc/passwd", "part-00001.json", "manifest.json", "a" * 300, "\ud800", "float32",
    "bfloat16", [], {}, [[]], [{}], {"a": {"a": {}}},
]  # fmt: skip

T = TypeVar("T")
Place = tuple[int, int]  # first byte and end


@dataclasses.dataclass(frozen=True)
class Original:
    """An unhurt store in `folder`; mutations hurt its first shard, or a manifest.

    Attributes:
        files: name -> bytes, of every file, also in its folders.
        wanted: image id -> record.
        pages: of branch and leaf pages; headers, bodies: of META and REGION values; index: of the offset index.
    """

    folder: Path
    files: dict[str, bytes]
    wanted: dict[str, RegionRecord]
    data_name: str
    pages: tuple[Place, ...]
    rows: tuple[IndexRow, ...]
    index: Place

    @property
    def headers(self) -> list[Place]:
        metas = [(row.meta_offset, row.meta_offset + 32) for row in self.rows]
        return metas + [(row.region_offset, row.region_offset + 48) for row in self.rows]

    @property
    def bodies(self) -> list[Place]:
        metas = [(row.meta_offset + 32, row.meta_offset + row.meta_length) for row in self.rows]
        regions = [(row.region_offset + 48, row.region_offset + row.region_length) for row in self.rows]
        return [place for place in metas + regions if place[0] < place[1]]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.files.values()))

    def has_own_features(self, data: bytes, image_id: str) -> bool:
        """Whether the record's REGION value stands unhurt in its place in the first shard, or is in another shard."""
        places = {row.key: slice(row.region_offset, row.region_offset + row.region_length) for row in self.rows}
        place = places.get(image_id.encode())
        return place is None or data[place] == self.files[self.data_name][place]


KINDS: tuple[dict[str, Any], ...] = (
    {}, {"attributes": True}, {"distribution": "top-k"}, {"distribution": "full"}, {"image_feature": True}
)  # fmt: skip


def write_original(folder: Path, kinds: Sequence[dict[str, Any]] = KINDS) -> Original:
    """Two shards; values inside leaf pages and outside of them.

    Args:
        kinds: of the records' blocks, in turn. With one kind alone each format can be given the store.
    """
    last = kinds[0]
    first = [
        _with_shares(make_record(f"s0i{i:02}", 28 if i % 6 == 5 else i % 7, 64, seed=i, **kinds[i % len(kinds)]))
        for i in range(19)
    ]
    second = [_with_shares(make_record(f"s1i{i:02}", 4, 64, seed=100 + i, **last)) for i in range(2)]
    write_store(folder, [first, second])
    store = original_of(folder, first + second)
    data = store.files[store.data_name]
    assert any(struct.unpack_from("<H", data, start + 10) == (1,) for start, _ in store.pages), "no branch page"
    assert any(row.region_length > PAGE // 2 for row in store.rows), "no value outside the leaf pages"
    return store


def original_of(folder: Path, records: Sequence[RegionRecord]) -> Original:
    """What mutations need to know of the store in `folder`, whose records these are."""
    manifest = ShardManifest.read(folder / "part-00000.json")
    data_name = str(manifest.data_file)
    data = (folder / data_name).read_bytes()
    with ShardReader(folder / data_name, manifest) as reader:
        rows = tuple(reader.index_rows())
    pages = []
    for start in range(2 * PAGE, len(data), PAGE):
        number, _, flags = struct.unpack_from("<QHH", data, start)
        if number == start // PAGE and flags in (1, 2):
            pages.append((start, start + PAGE))
    return Original(
        folder,
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()},
        {record.image_id: record for record in records},
        data_name,
        tuple(pages),
        rows,
        (manifest.index_offset, manifest.index_offset + manifest.index_bytes),
    )


def _with_shares(record: RegionRecord) -> RegionRecord:
    """With a full distribution whose rows sum up to 1, of classes that it has: most formats take no other record."""
    full = record.class_distribution
    if not isinstance(full, np.ndarray):
        return record
    shares = full.astype(np.float64) / full.astype(np.float64).sum(1, keepdims=True)
    class_ids = record.class_ids % np.uint16(full.shape[1] - 1)
    return dataclasses.replace(record, class_distribution=shares.astype(np.float16), class_ids=class_ids)


def _edited(data: bytes, places: Sequence[Place], choose: random.Random) -> bytearray:
    """`data` with a few changes inside `places`: bits, bytes, numbers, and pieces of one place copied to another."""
    changed = bytearray(data)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        start, end = choose.choice(places)
        # Half of the time near the beginning, where the numbers are that others hang on.
        at = start + choose.randrange(min(end - start, 64) if choose.random() < 0.5 else end - start)
        kind = choose.randrange(7)
        piece = b""
        if kind == 0:
            piece = bytes([choose.randrange(256)])
        elif kind == 1:
            piece = bytes([changed[at] ^ 1 << choose.randrange(8)])
        elif kind == 2:
            piece = choose.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"\0" * 2, choose.randbytes(8)])
        elif kind == 3:
            number = choose.choice([choose.randrange(70), choose.randrange(PAGE), choose.randrange(len(data))])
            piece = struct.pack("<I", number)
        elif kind == 4:
            piece = struct.pack("<H", choose.choice([choose.randrange(70), choose.randrange(PAGE)]))
        elif kind == 5:
            other = choose.choice(places)[0] + at - start
            piece = data[other : other + 16]
        else:  # a whole place as another one is: a page or a header written to the wrong address
            other, other_end = choose.choice(places)
            at, piece = start, data[other:other_end]
        changed[at : min(at + len(piece), end)] = piece[: max(end - at, 0)]
    assert len(changed) == len(data)
    return changed


def _hurt_meta_pages(store: Original, choose: random.Random) -> dict[str, bytes]:
    # Behind MDB_meta, 152 bytes with the page's header, meta pages hold nothing.
    return {store.data_name: bytes(_edited(store.files[store.data_name], [(0, 152), (PAGE, PAGE + 152)], choose))}


def _hurt_tree_pages(store: Original, choose: random.Random) -> dict[str, bytes]:
    return {store.data_name: bytes(_edited(store.files[store.data_name], store.pages, choose))}


def _hurt_headers(store: Original, choose: random.Random) -> dict[str, bytes]:
    return _hurt_values(store, store.headers, choose)


def _hurt_features(store: Original, choose: random.Random) -> dict[str, bytes]:
    return _hurt_values(store, store.bodies, choose)


def _hurt_values(store: Original, places: list[Place], choose: random.Random) -> dict[str, bytes]:
    """Every other time with checksums that are right again, as a careful attacker leaves them."""
    original = store.files[store.data_name]
    data = _edited(original, places, choose)
    if choose.random() < 0.5:
        for row in store.rows:
            _seal(original, data, (row.meta_offset, row.meta_offset + row.meta_length), 24)
            _seal(original, data, (row.region_offset, row.region_offset + row.region_length), 40)
    return {store.data_name: bytes(data)}


def _hurt_index(store: Original, choose: random.Random) -> dict[str, bytes]:
    original = store.files[store.data_name]
    start, end = store.index
    arrays = [(at, min(at + 320, end)) for at in range(start, end, 320)]
    data = _edited(original, [(start, start + 48), *arrays], choose)
    if choose.random() < 0.5:
        _seal(original, data, store.index, 40)
    return {store.data_name: bytes(data)}


def _seal(original: bytes, data: bytearray, place: Place, checksum_at: int) -> None:
    """Puts the right checksum into a value that was changed."""
    value = bytes(data[slice(*place)])
    if value != original[slice(*place)]:
        data[place[0] + checksum_at : place[0] + checksum_at + 8] = checksum(
            [value[:checksum_at], value[checksum_at + 8 :]]
        ).to_bytes(8, "little")


def _hurt_shard_manifest(store: Original, choose: random.Random) -> dict[str, bytes]:
    name = "part-00000.json"
    text = _hurt_json(store.files[name], choose)
    return {name: text, **(_agreeing_manifest(store, name, text, choose) if choose.random() < 0.6 else {})}


def _hurt_store_manifest(store: Original, choose: random.Random) -> dict[str, bytes]:
    return {STORE_MANIFEST_NAME: _hurt_json(store.files[STORE_MANIFEST_NAME], choose)}


def _hurt_length(store: Original, choose: random.Random) -> dict[str, bytes]:
    """The data file cut or prolonged; every other time its manifests, and its meta pages, agree with the new length."""
    data = bytearray(store.files[store.data_name])
    size = choose.choice([choose.randrange(len(data)), choose.randrange(len(data) // PAGE) * PAGE, len(data) - 1])
    if choose.random() < 0.4:
        size = len(data) + choose.choice([1, PAGE, choose.randrange(1, 3 * PAGE)])
        data += choose.choice([bytes(size - len(data)), data[: size - len(data)]])
    del data[size:]
    if choose.random() < 0.5:
        return {store.data_name: bytes(data)}
    name = "part-00000.json"
    manifest = json.loads(store.files[name])
    whole = size % PAGE == 0
    manifest |= {"data_bytes": size, "page_size": PAGE if whole else 1, "num_pages": size // (PAGE if whole else 1)}
    if whole and size > 2 * PAGE and choose.random() < 0.7:
        for start in (0, PAGE):
            struct.pack_into("<Q", data, start + _LAST_PAGE_AT, size // PAGE - 1)
    if choose.random() < 0.5:  # an index that is whole, at the new end
        index = store.files[store.data_name][slice(*store.index)]
        place = choose.randrange(1, max(size - len(index), 2))
        data[place : place + len(index)] = index
        del data[size:]
        manifest["index_offset"] = place
    text = json.dumps(manifest).encode()
    return {store.data_name: bytes(data), name: text, **_agreeing_manifest(store, name, text, choose)}


def _hurt_json(text: bytes, choose: random.Random) -> bytes:
    if choose.random() < 0.4:
        changed = _edited(text, [(0, len(text))], choose)
        if choose.random() < 0.2:
            del changed[choose.randrange(len(changed)) :]
        return bytes(changed)
    content = json.loads(text)
    for _ in range(choose.choice([1, 1, 2])):
        holder, key = choose.choice(list(_leaves(content)))
        kind = choose.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and type(holder[key]) is int:
            holder[key] += choose.choice([-1, 1, PAGE, -PAGE])
        elif kind == 2:
            other, at = choose.choice(list(_leaves(content)))
            holder[key] = copy.deepcopy(other[at])
        elif kind == 3 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = choose.choice(_HOSTILE_VALUES)
    return json.dumps(content).encode()


def _leaves(content: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of everything inside a JSON value, containers too."""
    keys = range(len(content)) if isinstance(content, list) else list(content)
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found.append((content, key))
        if isinstance(content[key], list | dict):
            found += _leaves(content[key])
    return found or [({"": None}, "")]


def _agreeing_manifest(store: Original, name: str, text: bytes, choose: random.Random) -> dict[str, bytes]:
    """The store manifest as it would be if `text` were the shard's manifest."""
    content = json.loads(store.files[STORE_MANIFEST_NAME])
    entry = content["shards"][0]
    entry["manifest_sha256"] = hashlib.sha256(text).hexdigest()
    if choose.random() < 0.5:
        try:
            shard = json.loads(text)
            entry |= {key: shard[key] for key in entry if key in shard}
            for total in ("num_records", "num_regions"):
                content[total] = sum(one[total] for one in content["shards"])
        except (ValueError, TypeError):  # no longer JSON, or of other types
            pass
    return {STORE_MANIFEST_NAME: json.dumps(content).encode()}


FAMILIES: dict[str, Callable[[Original, random.Random], dict[str, bytes]]] = {
    "lmdb-meta-pages": _hurt_meta_pages,
    "branch-and-leaf-pages": _hurt_tree_pages,
    "record-headers": _hurt_headers,
    "feature-bytes": _hurt_features,
    "offset-index": _hurt_index,
    "shard-manifest": _hurt_shard_manifest,
    "store-manifest": _hurt_store_manifest,
    "length": _hurt_length,
}


def hurt(store: Original, family: str, seed: int) -> dict[str, bytes]:
    """The files that mutation `seed` changes, with their new content."""
    return FAMILIES[family](store, random.Random(f"{family} {seed}"))


def examine(store: Original, changed: dict[str, bytes]) -> str:
    """Reads the store in every way, its files changed; asserts what must hold and tells who noticed.

    Returns:
        "f" when the fast verification finds the change, "d" when only the deep one does, "." when neither does: then
        every record reads as it was written.
    """
    fast = [problem for problem in verify_store(store.folder) if not problem.leftover]
    deep = [problem for problem in verify_store(store.folder, deep=True) if not problem.leftover]
    for problem in (*fast, *deep):
        assert "\n" not in problem.what, problem
    assert deep or not fast, fast
    opened = _said(lambda: FeatureStore(store.folder))
    if opened is None:
        assert fast
        return "f"
    data = changed.get(store.data_name)
    sealed = data is not None and _is_sealed(store, data)
    owners = {record.features.tobytes(): image_id for image_id, record in store.wanted.items() if record.num_regions}
    equal = len(opened) == len(store.wanted)
    with opened:
        for image_id, want in store.wanted.items():
            record = _said(lambda image_id=image_id: opened.get(image_id))
            view = _said(lambda image_id=image_id: opened.get(image_id, copy=False))
            checked = _said(lambda image_id=image_id: opened.get(image_id, check=True))
            meta = _said(lambda image_id=image_id: opened.meta(image_id))
            _said(lambda image_id=image_id: opened.prefetch(image_id))
            counts = _said(lambda image_id=image_id: opened.num_regions_of([image_id]))
            equal &= checked is not None and checked.equals(want) and view is not None and meta is not None
            equal &= counts is not None and counts.tolist() == [want.num_regions]
            assert (record is None) == (view is None)
            if record is not None:
                assert view is not None and record.equals(view) and record.image_id == image_id
                assert record.features.shape[1] == opened.feature_dim
                # Where another's features were written to a record's own place, that is what is read there.
                if data is None or store.has_own_features(data, image_id):
                    owner = owners.get(record.features.tobytes(), image_id)
                    assert owner == image_id, f"{image_id} has the features of {owner}"
            # Recomputed checksums can cover any value; only `deep` compares with the digests.
            assert checked is None or sealed or checked.equals(want), image_id
            if view is not None:
                _said(lambda view=view: float(view.features.astype(np.float32).sum()))
        ids = _said(lambda: list(opened.ids()))
        walked = _said(lambda: [record.image_id for record in opened])
        equal &= ids == walked == list(store.wanted)
        every = list(store.wanted)
        for fields in (("features",), ()):
            batch = _said(lambda fields=fields: opened.get_batch(every, fields=fields, ragged=bool(fields)))
            equal &= batch is not None
            if equal and batch is not None and fields:
                assert batch.features.tobytes() == b"".join(store.wanted[one].features.tobytes() for one in every)
    assert equal or deep, "a change of content that deep verification does not find"
    return "f" if fast else "d" if deep else "."


def _is_sealed(store: Original, data: bytes) -> bool:
    """Whether a value or the index was changed and its checksum with it."""
    original = store.files[store.data_name]
    places = [(row.meta_offset, row.meta_offset + row.meta_length, 24) for row in store.rows]
    places += [(row.region_offset, row.region_offset + row.region_length, 40) for row in store.rows]
    for start, end, at in [*places, (*store.index, 40)]:
        value = data[start:end]
        right = checksum([value[:at], value[at + 8 :]]).to_bytes(8, "little")
        if value != original[start:end] and value[at : at + 8] == right:
            return True
    return False


def _said(read: Callable[[], T]) -> T | None:
    """What `read` gives, or None when it refuses as it may: with one line that is no bare index or key."""
    try:
        return read()
    except (ValueError, OSError, KeyError) as error:
        assert "\n" not in str(error) and len(str(error)) > 20, repr(error)
        return None
