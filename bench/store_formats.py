"""Our store beside the peers' formats and the flat memory-mapped limit:
`python bench/store_formats.py ../shared/bench/bench_store.py [--records 1500] [--schema full]`.

The harness that is handed in writes the same synthetic records in every format, in the dtype and container of the
peer's own code, and says what a read has to touch. Warm page cache. Random reads, a whole iteration and boxes alone are
timed in one process in which the formats take turns (bench/store_rounds.py); the DataLoader column is the harness's own
phase, 2 workers, one process per format and round, in turn too. Each format passes the harness's gate first: 24 records
equal the source. A format whose package is missing is named and left out. Our store stands there twice: as `get` reads
by default, and with each record's checksums and rules compared, as training reads it.

`make` is the factory for the harness itself (its working directory goes onto the import path, so run it in bench/):
`python ../../shared/bench/bench_store.py run --ours roibeam=store_formats:make`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from store_rounds import MIN_ROUNDS, Ratio, load_harness, table, take_turns

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.writer import ShardWriter, publish_shard, publish_store
from roibeam.features.store import FeatureStore

OURS, CHECKED = "roibeam", "roibeam-checked"
LIMIT = "ideal_memmap"
PEERS = ("uniter_lmdb_msgpack", "mmf_lmdb_pickle", "h5_big_contiguous", "safetensors_shards", "arrow_ipc_mmap")
EVERY_PEER = (*PEERS[:2], "mmf_npy_per_image", *PEERS[2:])
FINGERPRINT = Fingerprint("imported:benchmark")


class StoreFormat:
    """What the harness asks of a format."""

    dtype = "fp16"
    name, peer, note, random = OURS, "ours", "", True
    check = False

    def write(self, records: Iterable[dict[str, Any]], path: str) -> None:
        """One shard and its manifests, published as a run would."""
        with ShardWriter(Path(path) / "part-00000.bench.lmdb", planned_bytes=2**28) as writer:
            for record in records:
                writer.put(region_record(record))
            summary = writer.finish()
        manifest = ShardManifest.from_summary(
            summary, shard=0, attempt="bench", fingerprint=FINGERPRINT, members_digest=""
        )
        publish_shard(path, manifest)
        publish_store(path, [0], fingerprint=FINGERPRINT, config={})

    def open(self, path: str) -> StoreReader:
        return StoreReader(path, check=self.check)


class CheckedStoreFormat(StoreFormat):
    """The same store, each record compared with its checksums as it is read."""

    name, check = CHECKED, True


class StoreReader:
    """Records as the harness's dicts, their large arrays views into the file."""

    def __init__(self, path: str, *, check: bool = False) -> None:
        self.store, self._check = FeatureStore(path), check

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, key: str) -> dict[str, Any]:
        return harness_record(self.store.get(key, copy=False, check=self._check))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(harness_record, self.store.scan(copy=False, check=self._check))

    def get_boxes(self, key: str) -> np.ndarray:
        return self.store.meta(key).boxes

    def get_many(self, keys: list[str]) -> list[dict[str, Any]]:
        return [self[key] for key in keys]

    def close(self) -> None:
        self.store.close()


def make() -> StoreFormat:
    """The factory that `--ours` names."""
    return StoreFormat()


def make_checked() -> StoreFormat:
    return CheckedStoreFormat()


FACTORIES = {OURS: make, CHECKED: make_checked}


def region_record(record: dict[str, Any]) -> RegionRecord:
    """A record of the harness as ours, features and distribution in float16."""
    probabilities = record.get("probs")
    return RegionRecord(
        image_id=record["key"],
        height=record["img_h"],
        width=record["img_w"],
        boxes=np.ascontiguousarray(record["boxes"]),
        features=record["features"].astype(np.float16),
        class_ids=record["cls_id"].astype(np.uint16),
        class_scores=np.ascontiguousarray(record["cls_conf"]),
        attribute_ids=record["attr_id"].astype(np.uint16),
        attribute_scores=np.ascontiguousarray(record["attr_conf"]),
        class_distribution=None if probabilities is None else probabilities.astype(np.float16),
    )


def harness_record(record: RegionRecord) -> dict[str, Any]:
    """A record of ours as the harness's dict."""
    found = {
        "key": record.image_id,
        "img_h": record.height,
        "img_w": record.width,
        "boxes": record.boxes,
        "features": record.features,
        "cls_id": record.class_ids,
        "cls_conf": record.class_scores,
        "attr_id": record.attribute_ids,
        "attr_conf": record.attribute_scores,
    }
    if record.class_distribution is not None:
        found["probs"] = record.class_distribution
    return found


def build_formats(harness: Any, master: Any, names: Iterable[str], work: Path) -> dict[str, Any]:
    """Writes the records in each format to `work / name` and passes each through the gate; a format whose package is
    missing is named on stderr and left out."""
    formats: dict[str, Any] = {}
    for name in names:
        try:
            chosen = make() if name == OURS else harness.REG[name]()
            folder = work / name
            folder.mkdir()
            chosen.write(iter(master), str(folder))
            reader = chosen.open(str(folder))
        except ImportError as error:
            print(f"left out {name}: {error}", file=sys.stderr)
            continue
        harness.gate(master, reader, chosen)
        reader.close()
        del reader
        formats[name] = chosen
    return formats


@contextmanager
def written_formats(
    harness: Any, records: int, schema: str, peers: Sequence[str], work: Path | None
) -> Iterator[tuple[Any, dict[str, Any], Path]]:
    """The harness's records, our format, the limit and these peers' written, and the folder of each format's folder;
    all of it in `work`, and gone afterwards."""
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        # The harness empties the folder it generates into, so it gets one of its own.
        folder = Path(scratch) / "work"
        harness.gen(str(folder), records, schema)
        master = harness.Master(str(folder), schema)
        yield master, build_formats(harness, master, [OURS, LIMIT, *peers], folder), folder


def store_parser(description: str | None, *, peers: Sequence[str], rounds: int = 7) -> argparse.ArgumentParser:
    """The options of all scripts that are handed the harness."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", type=Path, help="bench_store.py")
    parser.add_argument("--records", type=int, default=1500, help="records of 10 to 100 regions (232 kB each)")
    parser.add_argument("--peers", nargs="*", default=list(peers), help="formats of the harness beside the limit")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each arm; {MIN_ROUNDS} or more")
    parser.add_argument("--work", type=Path, help="folder for the scratch files (some GB), on a local disk")
    return parser


def rate(read: Callable[[], int]) -> Callable[[], float]:
    """What runs `read` once and returns records per second."""

    def run() -> float:
        gc.collect()
        start = time.perf_counter()
        count = read()
        return count / (time.perf_counter() - start)

    return run


def read_columns(harness: Any, master: Any, formats: dict[str, Any], work: Path, rounds: int) -> dict[str, Any]:
    """Column -> format -> records per second of each round."""
    order = np.random.default_rng(1).permutation(master.n).tolist()
    keys = [master.keys[index] for index in order]
    readers = {name: chosen.open(str(work / name)) for name, chosen in formats.items()}

    def sequential(reader: Any) -> int:
        count = 0
        for record in reader:
            harness.touch(record)
            count += 1
        return count

    def random(reader: Any) -> int:
        for key in keys:
            harness.touch(reader[key])
        return len(keys)

    def boxes(reader: Any) -> int:
        for key in keys:
            harness.touch1(reader.get_boxes(key))
        return len(keys)

    columns = {"sequential": sequential, "random": random, "boxes": boxes}
    figures = {}
    for column, read in columns.items():
        arms = {name: rate(lambda reader=reader, read=read: read(reader)) for name, reader in readers.items()}
        figures[column] = take_turns(arms, rounds)
    for reader in readers.values():
        reader.close()
    return figures


def loader_column(harness_path: Path, formats: dict[str, Any], work: Path, schema: str, rounds: int) -> dict[str, Any]:
    """Format -> samples per second of the harness's DataLoader phase in each round."""

    def arm(name: str) -> Callable[[], float]:
        command = [sys.executable, str(harness_path.resolve()), "phase", "--phase", "dl", "--tag", name]
        ours = FACTORIES.get(name)
        command += ["--fmt", f"{name}=store_formats:{ours.__name__}" if ours else name]
        command += ["--work", str(work), "--schema", schema, "--cap", "4"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}

        def run() -> float:
            # In bench/, where the harness finds `store_formats`.
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parent, check=False
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
            if not lines:
                raise RuntimeError(f"the DataLoader phase of {name} failed: {done.stderr[-600:]}")
            return float(np.median(json.loads(lines[-1][2:])["dl"]))

        return run

    return take_turns({name: arm(name) for name in formats}, rounds)


def bars(figures: dict[str, Any], bytes_ratio: float) -> list[tuple[str, ...]]:
    """Rows: what is asked, the bar, what came, verdict."""
    rows = []
    for column in ("random", "sequential", "DataLoader"):
        if column in figures and LIMIT in figures[column]:
            ratio = Ratio(figures[column][OURS], figures[column][LIMIT])
            rows.append((f"{column} over the flat limit", ">= 0.95", str(ratio), ratio.at_least(0.95)))
    peers = [name for name in figures["random"] if name not in (OURS, CHECKED, LIMIT)]
    if peers:
        best = max(peers, key=lambda name: float(np.median(figures["random"][name])))
        ratio = Ratio(figures["random"][OURS], figures["random"][best])
        rows.append((f"random over the best peer ({best})", ">= 1.5", str(ratio), ratio.at_least(1.5)))
    rows.append(("bytes over payload", "<= 1.02", f"{bytes_ratio:.3f}", "met" if bytes_ratio <= 1.02 else "missed"))
    return rows


def main() -> None:
    parser = store_parser(__doc__, peers=PEERS)
    parser.add_argument("--schema", choices=["top1", "full"], default="top1", help="full: with class distribution")
    parser.add_argument("--loader-rounds", type=int, default=MIN_ROUNDS, help="of the DataLoader column; 0: leave out")
    arguments = parser.parse_args()
    harness = load_harness(arguments.harness)
    chosen = (arguments.records, arguments.schema, arguments.peers, arguments.work)
    with written_formats(harness, *chosen) as (master, formats, work):
        formats = {OURS: formats[OURS], CHECKED: make_checked(), **formats}
        (work / CHECKED).symlink_to(work / OURS)
        allocated = {name: harness.du(str(work / name))[0] / master.n / master.payload for name in formats}
        figures = read_columns(harness, master, formats, work, arguments.rounds)
        if arguments.loader_rounds:
            figures["DataLoader"] = loader_column(
                arguments.harness, formats, work, arguments.schema, arguments.loader_rounds
            )
        print(f"{master.n} records, payload {master.payload / 1e3:.1f} kB each, {arguments.rounds} rounds\n")
    head = ("format", "dtype", "x payload", *(f"{column} /s" for column in figures), "random: ours over it")
    rows = []
    for name, chosen in formats.items():
        medians = [f"{float(np.median(column[name])):,.0f}" for column in figures.values()]
        ratio = str(Ratio(figures["random"][OURS], figures["random"][name]))
        rows.append((name, chosen.dtype, f"{allocated[name]:.3f}", *medians, ratio))
    print(table(head, rows), "\n")
    print(table(("asked", "bar", "measured", ""), bars(figures, allocated[OURS])))


if __name__ == "__main__":
    main()
