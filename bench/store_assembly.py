"""Batches of our store beside batches of the peers' formats:
`python bench/store_assembly.py ../shared/bench/bench_store.py [--records 1500] [--batch 64]`.

Every arm turns the same ids into the same six arrays (features, boxes, class and attribute ids and scores), with the
regions of all images padded to the largest of the batch, or ragged: one after another. Ours is `get_batch` into one
`BatchBuffers`. A peer's records are read as its own code reads them, by the harness (bench_store.py), and assembled

- fresh: into new arrays for each batch, as every peer's own collate does;
- reused: into buffers that live on, which no peer does, so that what remains is the format itself. The HDF5 arm then
  reads straight into the buffer (`read_direct`).

Features keep the dtype that the format stores. Warm page cache; the arms take turns (bench/store_rounds.py). Before
anything is timed, each arm's batch is compared with ours: float32 features after rounding to float16, boxes and scores
to the precision that the format stores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from store_formats import EVERY_PEER, LIMIT, OURS, store_parser, written_formats
from store_rounds import Ratio, load_harness, table, take_turns

from roibeam.features.batch import BatchBuffers
from roibeam.features.store import FeatureStore

HDF5 = "h5_big_contiguous"
# The harness's name of a field -> ours in a batch.
FIELDS = {
    "features": "features",
    "boxes": "boxes",
    "cls_id": "class_ids",
    "cls_conf": "class_scores",
    "attr_id": "attribute_ids",
    "attr_conf": "attribute_scores",
}
Batch = dict[str, np.ndarray]


def our_batch(store: FeatureStore, keys: list[str], ragged: bool, buffers: BatchBuffers) -> Batch:
    batch = store.get_batch(keys, fields=("features", "attributes"), ragged=ragged, out=buffers)
    return {name: getattr(batch, ours) for name, ours in FIELDS.items()}


def peer_batch(reader: Any, keys: list[str], ragged: bool, buffers: BatchBuffers | None) -> Batch:
    """The records that a peer's reader gives, copied into one array each field."""
    records = [reader[key] for key in keys]
    counts = [len(record["boxes"]) for record in records]
    firsts, num_rows, most = _places(counts, ragged)
    batch = {}
    for name in FIELDS:
        value = records[0][name]
        rows = _rows(name, (num_rows, *value.shape[1:]), value.dtype, buffers)
        for record, first, count in zip(records, firsts, counts, strict=True):
            rows[first : first + count] = record[name]
            if not ragged:
                rows[first + count : first + most] = 0
        batch[name] = rows if ragged else rows.reshape(len(keys), most, *rows.shape[1:])
    return batch


def hdf5_batch(reader: Any, keys: list[str], ragged: bool, buffers: BatchBuffers) -> Batch:
    """The same without an array between the file and the buffer."""
    places = [reader.ix[key] for key in keys]
    counts = [reader.off[place + 1] - reader.off[place] for place in places]
    firsts, num_rows, most = _places(counts, ragged)
    batch = {}
    for name in FIELDS:
        source = reader.ds[name]
        rows = _rows(name, (num_rows, *source.shape[1:]), source.dtype, buffers)
        for place, first, count in zip(places, firsts, counts, strict=True):
            start = reader.off[place]
            source.read_direct(rows, np.s_[start : start + count], np.s_[first : first + count])
            if not ragged:
                rows[first + count : first + most] = 0
        batch[name] = rows if ragged else rows.reshape(len(keys), most, *rows.shape[1:])
    return batch


def _places(counts: list[int], ragged: bool) -> tuple[list[int], int, int]:
    """First row of each image, all rows, and the most of one image."""
    most = max(counts)
    if not ragged:
        return [index * most for index in range(len(counts))], most * len(counts), most
    ends = np.cumsum(counts).tolist()
    return [0, *ends[:-1]], ends[-1], most


def _rows(name: str, shape: tuple[int, ...], dtype: np.dtype, buffers: BatchBuffers | None) -> np.ndarray:
    return np.empty(shape, dtype) if buffers is None else buffers.array(name, shape, dtype)


def check(batch: Batch, ours: Batch, arm: str) -> None:
    """Raises ValueError when a batch is not ours."""
    for name, want in ours.items():
        got = batch[name]
        if name == "features":
            same = np.array_equal(got.astype(np.float16), want)
        elif name in ("boxes", "cls_conf", "attr_conf"):
            # UNITER stores boxes as float16 fractions of the image and scores as float16.
            same = got.shape == want.shape and bool(np.abs(got - want).max() <= (1.0 if name == "boxes" else 1e-3))
        else:
            same = np.array_equal(got, want)
        if not same:
            raise ValueError(f"{arm}: {name} of the first batch differs from ours; the comparison would be unfair")


def main() -> None:
    parser = store_parser(__doc__, peers=EVERY_PEER)
    parser.add_argument("--batch", type=int, default=64, help="images of a batch")
    arguments = parser.parse_args()
    harness = load_harness(arguments.harness)
    chosen = (arguments.records, "top1", arguments.peers, arguments.work)
    with written_formats(harness, *chosen) as (master, formats, work):
        order = np.random.default_rng(2).permutation(master.n).tolist()
        keys = [master.keys[index] for index in order]
        batches = [keys[at : at + arguments.batch] for at in range(0, len(keys), arguments.batch)]
        readers = {name: chosen.open(str(work / name)) for name, chosen in formats.items()}
        figures = {}
        for form in ("padded", "ragged"):
            assemble = _arms(readers, ragged=form == "ragged")
            ours = {name: array.copy() for name, array in assemble[OURS](batches[0]).items()}
            for arm, make in assemble.items():
                check(make(batches[0]), ours, arm)
            timed = {arm: _timed(make, batches) for arm, make in assemble.items()}
            figures[form] = take_turns(timed, arguments.rounds)
        for reader in readers.values():
            reader.close()
        print(f"{master.n} records in batches of {arguments.batch}, {arguments.rounds} rounds\n")
    _report(figures)


def _arms(readers: dict[str, Any], *, ragged: bool) -> dict[str, Callable[[list[str]], Batch]]:
    arms: dict[str, Callable[[list[str]], Batch]] = {}
    for name, reader in readers.items():
        buffers = BatchBuffers()
        if name == OURS:
            arms[name] = lambda keys, reader=reader, out=buffers: our_batch(reader.store, keys, ragged, out)
            continue
        reused = hdf5_batch if name == HDF5 else peer_batch
        arms[f"{name}, fresh"] = lambda keys, reader=reader: peer_batch(reader, keys, ragged, None)
        arms[f"{name}, reused"] = lambda keys, reader=reader, make=reused, out=buffers: make(reader, keys, ragged, out)
    return arms


def _timed(make: Callable[[list[str]], Batch], batches: list[list[str]]) -> Callable[[], float]:
    """Images per second of one pass over the batches."""

    def run() -> float:
        start = time.perf_counter()
        for keys in batches:
            make(keys)
        return sum(map(len, batches)) / (time.perf_counter() - start)

    return run


def _report(figures: dict[str, dict[str, list[float]]]) -> None:
    head: list[str] = ["assembled by"]
    for form in figures:
        head += [f"{form} images/s", "ours over it"]
    rows = []
    for arm in figures["padded"]:
        row = [arm]
        for columns in figures.values():
            row += [f"{float(np.median(columns[arm])):,.0f}", str(Ratio(columns[OURS], columns[arm]))]
        rows.append(tuple(row))
    print(table(tuple(head), rows), "\n")
    asked = []
    for form, columns in figures.items():
        for ending, what in ((", fresh", "as the peers do"), (", reused", "given buffers that live on")):
            peers = [arm for arm in columns if arm.endswith(ending) and not arm.startswith(LIMIT)]
            if peers:
                best = max(peers, key=lambda arm: float(np.median(columns[arm])))
                ratio = Ratio(columns[OURS], columns[best])
                asked.append((f"{form}, best peer {what} ({best})", ">= 1.5", str(ratio), ratio.at_least(1.5)))
    if asked:
        print(table(("asked", "bar", "measured", ""), asked))


if __name__ == "__main__":
    main()
