"""Search in a store by vectors: exact, photo by photo in little memory; and an index on disk that makes it short.

    FILE         index of faiss: inverted lists of unit vectors, 8 bits a number
    FILE.json    content digest of the store, recall against exact search, and a seal over both files

An index chooses photos; their similarities are then computed exactly. faiss trusts the files that it reads, so FILE
is read only if its seal was made with the key of this user, which lies in roibeam's cache folder.
"""

import hashlib
import heapq
import hmac
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.folders.durable_files import cache_folder, write_json_atomically
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import PHOTOS, Progress, duration

REGIONS, WHOLES, BOTH = "regions", "whole photos", "regions and whole photos"  # vectors that are compared
WHOLE = -1  # in place of a region's number
_MEASURED = 256  # photos that tell the rate
logger = logging.getLogger(__name__)


class Hit(NamedTuple):
    """A region; of a photo the one with the best cosine, or `WHOLE`."""

    image_id: str
    region: int
    score: float


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32; a row of zeros stays."""
    found = np.asarray(vectors, np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), 1e-12)


def _vectors(records: Iterable[RegionRecord], which: str) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
    """Place, id, (N,) numbers of regions and (N, D) unit vectors of each record that has any."""
    for place, record in enumerate(records):
        parts = [] if which == WHOLES else [(np.arange(record.num_regions), record.features)]
        if which != REGIONS and record.image_feature is not None:
            parts.append((np.array([WHOLE]), record.image_feature[None]))
        if sum(len(numbers) for numbers, _ in parts):
            numbers, vectors = zip(*parts, strict=True)
            yield place, record.image_id, np.concatenate(numbers), unit(np.concatenate(vectors))


def nearest(
    records: Iterable[RegionRecord], queries_QD: np.ndarray, top: int, which: str, *, by_photo: bool = False
) -> list[Hit]:
    """The vectors with the highest mean cosine over the queries, the best first, of equal ones the first.

    Args:
        by_photo: photos in place of vectors, by the best cosine of each query with one of theirs.
    """
    queries = unit(queries_QD)

    def hits() -> Iterator[Hit]:
        for _, image_id, numbers, vectors in _vectors(records, which):
            cosines_NQ = vectors @ queries.T
            scores = cosines_NQ.mean(axis=1)
            if by_photo:
                numbers, scores = numbers[cosines_NQ.max(1).argmax()][None], cosines_NQ.max(axis=0).mean()[None]
            yield from map(Hit, itertools.repeat(image_id), numbers.tolist(), scores.tolist())

    return heapq.nlargest(top, hits(), key=lambda hit: hit.score)


def scanned(store: FeatureStore, what: str = "search") -> Iterator[RegionRecord]:
    """All records, compared with their checksums. The cost is logged once the first ones are done."""
    begin = time.perf_counter()
    with Progress(what, len(store), PHOTOS) as progress:
        for number, record in enumerate(progress.counting(store.scan(copy=False, check=True)), start=1):
            yield record
            if number == min(_MEASURED, len(store)):
                log_cost(what, len(store), number / (time.perf_counter() - begin), done=number)


def log_cost(what: str, photos: int, per_second: float, *, done: int = 0) -> None:
    """Logs "search: 8,000 photos, 1,234 photos/s, about 6 s left"."""
    left = duration((photos - done) / per_second)
    logger.info("%s: %s, %s, about %s left", what, PHOTOS.plural(photos), PHOTOS.rate(per_second), left)


_RECALL_QUERIES, _RECALL_TOP = 100, 10
_LEAST_OF_LIST, _SAMPLE_OF_LIST, _REGION_BITS = 40, 64, 16
_LEAST_DEPTH, _DEPTH = 64, 4  # vectors that the index gives, in all and for one that is wanted
_KEY_BYTES = 32
_ROUNDING = 1e-5  # of a cosine in float32


class VectorIndex:
    """An index that this user made; `facts` are those of the file beside it."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        import faiss

        self.which, recall = facts["which"], facts.get("recall", 0.0)
        read: Any = faiss.read_index
        self._found = read(str(file), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        self._found.nprobe = min(self._found.nlist, 2 * int(np.ceil(self._found.nlist**0.5)))
        self.words = (
            f"index {file}: {self._found.ntotal:,} vectors in {plural(self._found.nlist, 'list')}; it finds "
            f"{100 * recall:.1f} % of what exact search finds, {_RECALL_TOP} each for {_RECALL_QUERIES} vectors"
        )

    def records(
        self, store: FeatureStore, queries_QD: np.ndarray, top: int, photos_wanted: int = 1
    ) -> Iterator[RegionRecord]:
        """The records with the vectors nearest to some of the queries."""
        depth, photos = max(_LEAST_DEPTH, _DEPTH * top), np.zeros(0, np.int64)
        while len(photos) < photos_wanted and depth < 2 * self._found.ntotal:
            numbers = self._found.search(unit(queries_QD), min(depth, self._found.ntotal))[1]
            photos, depth = np.unique(numbers[numbers >= 0] >> _REGION_BITS), 2 * depth
        firsts = np.cumsum([0, *store.shard_sizes])
        shards = np.searchsorted(firsts, photos, side="right") - 1
        places = np.stack([shards, photos - firsts[shards]], axis=1)
        return (store.get(each, copy=False, check=True) for each in store.ids_at(places))


def opened_index(file: Path, store: FeatureStore, which: str) -> VectorIndex:
    """The index, built where it is not there or is of other contents. Raises ValueError for a file that this user did
    not make, and an index of other vectors."""
    facts: dict[str, Any] = {"which": which}
    side = file.with_name(f"{file.name}.json")
    if file.exists():
        facts = read_json_object(side, max_bytes=2**16) if side.is_file() else {}
        seal = str(facts.pop("seal", "")).encode("utf-8", "replace")
        if not hmac.compare_digest(seal, _seal(file, facts).encode()):
            raise ValueError(
                f"--index {file}: was changed, or is no index that you made here, and faiss trusts what it reads; name "
                f"another file, or remove this one to build it again"
            )
    if facts["which"] != which:
        raise ValueError(f"--index {file}: is of {facts['which']}, and {which} are looked for; name another file")
    if facts.get("store") != store.manifest.content_digest:
        if "store" in facts:
            logger.warning("index %s: is of another store, or this one has changed; it is built again", file)
        facts = _build(file, store, which)
        write_json_atomically(side, {**facts, "seal": _seal(file, facts)})
    return VectorIndex(file, facts)


def _seal(file: Path, facts: dict[str, Any]) -> str:
    """HMAC-SHA256 of an index and its facts, by the key of this user, which is drawn at first use."""
    place = cache_folder() / "index.key"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent) as new, suppress(FileExistsError):
            new.write(os.urandom(_KEY_BYTES))
            new.flush()
            os.link(new.name, place)  # whole, or not there
    key, words = place.read_bytes(), repr(sorted(facts.items())).encode()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{place}: has {len(key)} bytes, expected {_KEY_BYTES}; remove it, and the index")
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hmac.new(key, words, "sha256")).hexdigest()


def _build(file: Path, store: FeatureStore, which: str) -> dict[str, Any]:
    """Trains, fills and writes an index, in two passes over the store; returns its facts, with the share of the nearest
    vectors of some queries that it leads to; as good ones count too."""
    import faiss

    total = len(store) if which == WHOLES else store.num_regions
    lists = max(1, min(round(total**0.5), total // _LEAST_OF_LIST))
    step, parts, before = max(1, total // (_SAMPLE_OF_LIST * lists)), list[np.ndarray](), 0
    for _, _, numbers, vectors in _vectors(scanned(store, "drawing a sample"), which):
        parts.append(vectors[-before % step :: step].copy())  # a view would keep them all
        before += len(numbers)
    if not parts:
        raise ValueError(f"{store.path} has no vectors of {which}")
    sample = np.concatenate(parts)
    queries = sample[:: max(1, len(sample) // _RECALL_QUERIES)][:_RECALL_QUERIES]
    dimension, bits, cosine = sample.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    found = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dimension), dimension, lists, bits, cosine)
    found.train(sample)
    best = np.zeros((len(queries), 0), np.float32)
    for place, _, numbers, vectors in _vectors(scanned(store, "filling the index"), which):
        found.add_with_ids(vectors, (place << _REGION_BITS) + numbers.astype(np.int64) - WHOLE)
        best = -np.sort(-np.concatenate([best, queries @ vectors.T], axis=1), axis=1)[:, :_RECALL_TOP]
    with atomic_path(file, replaces=True) as aside:
        faiss.write_index(found, str(aside))
    facts, right = {"store": store.manifest.content_digest, "which": which}, 0
    index = VectorIndex(file, facts)
    for query_1D, exact in zip(queries[:, None], best, strict=True):
        hits = nearest(index.records(store, query_1D, _RECALL_TOP), query_1D, _RECALL_TOP, which)
        right += sum(hit.score >= float(exact[-1]) - _ROUNDING for hit in hits)
    return {**facts, "recall": right / int(best.size)}
