"""Stores hurt in every place that bytes can be wrong, each by one seed, and what a reader must make of them."""

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
        pages: of branch and leaf pages; index: of the offset index.
    """

    folder: Path
    files: dict[str, bytes]
    wanted: dict[str, RegionRecord]
    data_name: str
    pages: tuple[Place, ...]
    rows: tuple[IndexRow, ...]
    index: Place

    @property
    def values(self) -> list[tuple[int, int, int]]:
        """Of META and REGION values and of the index: first byte, end of the header, which a checksum ends, and end."""
        metas = [(row.meta_offset, row.meta_offset + 32, row.meta_offset + row.meta_length) for row in self.rows]
        regions = [
            (row.region_offset, row.region_offset + 48, row.region_offset + row.region_length) for row in self.rows
        ]
        return [*metas, *regions, (self.index[0], self.index[0] + 48, self.index[1])]

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
    kinds = [(at, *struct.unpack_from("<QHH", data, at)) for at in range(2 * PAGE, len(data), PAGE)]
    pages = tuple((at, at + PAGE) for at, number, _, kind in kinds if number == at // PAGE and kind in (1, 2))
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    wanted = {record.image_id: record for record in records}
    index = (manifest.index_offset, manifest.index_offset + manifest.index_bytes)
    return Original(folder, files, wanted, data_name, pages, rows, index)


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


def _hurt_data(
    store: Original, places: Sequence[Place], choose: random.Random, *, may_seal: bool = True
) -> dict[str, bytes]:
    """Every other time with checksums that are right again, as a careful attacker leaves them."""
    original = store.files[store.data_name]
    data = _edited(original, places, choose)
    if may_seal and choose.random() < 0.5:
        for start, body, end in store.values:
            if data[start:end] != original[start:end]:
                data[body - 8 : body] = _checksum(data, start, body, end)
    return {store.data_name: bytes(data)}


def _checksum(data: bytes, start: int, body: int, end: int) -> bytes:
    """That of a value as it is, which is of all but the last eight bytes of its header."""
    return checksum([bytes(data[start : body - 8]), bytes(data[body:end])]).to_bytes(8, "little")


def _is_sealed(store: Original, data: bytes) -> bool:
    """Whether a value or the index was changed and its checksum with it."""
    original = store.files[store.data_name]
    changed = [(start, body, end) for start, body, end in store.values if data[start:end] != original[start:end]]
    return any(data[body - 8 : body] == _checksum(data, start, body, end) for start, body, end in changed)


def _index_places(store: Original) -> list[Place]:
    start, end = store.index
    return [(start, start + 48), *((at, min(at + 320, end)) for at in range(start, end, 320))]


def _hurt_shard_manifest(store: Original, choose: random.Random) -> dict[str, bytes]:
    name = "part-00000.json"
    text = _hurt_json(store.files[name], choose)
    return {name: text, **(_agreeing_manifest(store, name, text, choose) if choose.random() < 0.6 else {})}


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
    # Behind MDB_meta, 152 bytes with the page's header, meta pages hold nothing.
    "lmdb-meta-pages": lambda store, choose: _hurt_data(store, [(0, 152), (PAGE, PAGE + 152)], choose, may_seal=False),
    "branch-and-leaf-pages": lambda store, choose: _hurt_data(store, store.pages, choose, may_seal=False),
    "record-headers": lambda store, choose: _hurt_data(store, [each[:2] for each in store.values[:-1]], choose),
    "feature-bytes": lambda store, choose: _hurt_data(
        store, [(body, end) for _, body, end in store.values[:-1] if body < end], choose
    ),
    "offset-index": lambda store, choose: _hurt_data(store, _index_places(store), choose),
    "shard-manifest": _hurt_shard_manifest,
    "store-manifest": lambda store, choose: {STORE_MANIFEST_NAME: _hurt_json(store.files[STORE_MANIFEST_NAME], choose)},
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
    opened = _said(FeatureStore, store.folder)
    if opened is None:
        assert fast
        return "f"
    data = changed.get(store.data_name)
    sealed = data is not None and _is_sealed(store, data)
    owners = {record.features.tobytes(): image_id for image_id, record in store.wanted.items() if record.num_regions}
    equal = len(opened) == len(store.wanted)
    with opened:
        for image_id, want in store.wanted.items():
            record, meta = _said(opened.get, image_id), _said(opened.meta, image_id)
            view, checked = _said(opened.get, image_id, copy=False), _said(opened.get, image_id, check=True)
            _said(opened.prefetch, [image_id])
            counts = _said(opened.num_regions_of, [image_id])
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
                _said(np.sum, view.features.astype(np.float32))
        ids = _said(lambda: list(opened.ids()))
        walked = _said(lambda: [record.image_id for record in opened])
        every = list(store.wanted)
        equal &= ids == walked == every
        for fields in (("features",), ()):
            batch = _said(opened.get_batch, every, fields=fields, ragged=bool(fields))
            equal &= batch is not None
            if equal and batch is not None and fields:
                assert batch.features.tobytes() == b"".join(store.wanted[one].features.tobytes() for one in every)
    assert equal or deep, "a change of content that deep verification does not find"
    return "f" if fast else "d" if deep else "."


def _said(read: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """What `read` gives, or None when it refuses as it may: with one line that is no bare index or key."""
    try:
        return read(*arguments, **options)
    except (ValueError, OSError, KeyError) as error:
        assert "\n" not in str(error) and len(str(error)) > 20, repr(error)
        return None
