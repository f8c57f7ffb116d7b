"""Exports to parquet and WebDataset beside pyarrow and webdataset, and what reads them beside our reader:
`python bench/export_speed.py [--records 1500] [--rounds 9]`; memory: `--flat 100000`.

Records have 36 regions of 2,048 numbers in float16, drawn. Arms take turns (bench/store_rounds.py); writing is that of
the command without its reading back, since pyarrow reads nothing back. pyarrow writes the same columns from memory.
"""

import argparse
import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from store_rounds import Ratio, status_mb, table, take_turns

from roibeam.features.exchange.formats import format_named
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines.extract.stores.store_export import export_store

HEAD = ("arm", "records/s", "ratio to the first")


def drawn(count: int, regions: int, width: int) -> Iterator[RegionRecord]:
    random = np.random.default_rng(0)
    boxes = np.tile(np.array([[1, 2, 300, 200]], np.float32), (regions, 1))
    for number in range(count):
        features = random.standard_normal((regions, width), np.float32).astype(np.float16)
        ids, scores = random.integers(0, 1600, regions).astype(np.uint16), random.random(regions, np.float32)
        yield RegionRecord(f"{number:09}", 480, 640, boxes, features, ids, scores)


def timed(work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return measure


def compare(title: str, arms: dict[str, Callable[[], object]], rounds: int, records: int) -> None:
    figures = take_turns({name: timed(work) for name, work in arms.items()}, rounds)
    first = next(iter(figures.values()))
    rows = [(name, f"{records / np.median(each):,.0f}", str(Ratio(first, each))) for name, each in figures.items()]
    print(f"\n{title}\n\n{table(HEAD, rows)}", flush=True)


def fresh(folder: Path, name: str) -> Path:
    path = folder / f"again{format_named(name).suffixes[0]}"
    path.unlink(missing_ok=True)
    return path


def webdataset_writes(records: list[RegionRecord], path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(path)) as sink:
        for record in records:
            buffer = io.BytesIO()
            np.savez(buffer, features=record.features, boxes=record.boxes, class_ids=record.class_ids)
            size = {"image_id": record.image_id, "width": 640, "height": 480}
            sink.write({"__key__": record.image_id, "npz": buffer.getvalue(), "json": size})


def main(folder: Path, options: argparse.Namespace) -> None:
    import datasets
    import webdataset

    write_store(folder / "store", drawn(options.records, 36, 2048), feature_space="drawn", num_classes=1600)
    parquet, tar = (format_named(name) for name in ("parquet", "webdataset"))
    with FeatureStore(folder / "store") as store:
        records: Any = list(store.scan(copy=False))
        batches = list(parquet.batches(records))  # type: ignore[attr-defined]
        columns = [name for name in batches[0].schema.names if name not in ("features", "boxes", "class_scores")]

        def by_pyarrow() -> None:
            with pq.ParquetWriter(folder / "plain.parquet", batches[0].schema, use_dictionary=columns) as file:
                for batch in batches:
                    file.write_batch(batch)

        compare("write", {
            "pyarrow": by_pyarrow,
            "roibeam, parquet": lambda: parquet.write(store.scan(copy=False, check=True), fresh(folder, "parquet")),
            "webdataset": lambda: webdataset_writes(records, folder / "plain.tar"),
            "roibeam, webdataset": lambda: tar.write(store.scan(copy=False, check=True), fresh(folder, "webdataset")),
        }, options.rounds, options.records)  # fmt: skip
        made = datasets.load_dataset("parquet", data_files=str(folder / "again.parquet"), split="train",
                                     cache_dir=str(folder / "cache")).with_format("numpy")  # fmt: skip
        tars = webdataset.WebDataset(str(folder / "again.tar"), shardshuffle=False).decode()
        compare("read all features", {
            "roibeam, store": lambda: [record.features.sum() for record in store.scan(copy=False)],
            "datasets": lambda: [row["features"].sum() for row in made],
            "webdataset": lambda: [sample["npz"]["features"].sum() for sample in tars],
            "pyarrow, parquet": lambda: pq.read_table(folder / "again.parquet", columns=["features"]),
        }, options.rounds, options.records)  # fmt: skip


def flat(folder: Path, count: int) -> None:
    """Most memory of this process during exports of a tenth of the records and of all; pages of mapped files, which
    the kernel takes back, do not count."""
    most = [0.0]
    threading.Thread(target=watch, args=(most,), daemon=True).start()
    for share in (10, 1):
        store = folder / f"store{share}"
        write_store(store, drawn(count // share, 36, 64), feature_space="drawn", num_classes=1600)
        for name in ("parquet", "webdataset"):
            most[0] = 0
            export_store(store, folder / f"{name}{share}", format_name=name)
            print(f"{name}, {count // share:,} records: {most[0]:,.0f} MB", flush=True)


def watch(most: list[float]) -> None:
    while True:
        most[0] = max(most[0], status_mb("RssAnon"))
        time.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--flat", type=int)
    with tempfile.TemporaryDirectory() as scratch:
        given = parser.parse_args()
        main(Path(scratch), given) if given.flat is None else flat(Path(scratch), given.flat)
