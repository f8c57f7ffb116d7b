"""Bytes of a shard per record against the payload: `python bench/store_bytes.py [--records 300]`.

Payload of a record with K regions: K x (2048 x 2 features + 16 box + 2 class + 4 score + 2 attribute + 4 score) + 8.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.writer import ShardWriter

WIDTH = 2048


def record(index: int, num_regions: int) -> RegionRecord:
    """Zeros of the right shapes: nothing is compressed, so values do not matter."""
    return RegionRecord(
        image_id=f"{index:012d}",
        height=480,
        width=640,
        boxes=np.zeros((num_regions, 4), np.float32),
        features=np.zeros((num_regions, WIDTH), np.float16),
        class_ids=np.zeros(num_regions, np.uint16),
        class_scores=np.zeros(num_regions, np.float32),
        attribute_ids=np.zeros(num_regions, np.uint16),
        attribute_scores=np.zeros(num_regions, np.float32),
    )


def measure(count: int, regions_of: Callable[[int], int]) -> tuple[float, float]:
    """Payload and file bytes per record."""
    payload = 0
    with tempfile.TemporaryDirectory() as folder, ShardWriter(Path(folder) / "s.lmdb", planned_bytes=2**24) as writer:
        for index in range(count):
            payload += regions_of(index) * (WIDTH * 2 + 28) + 8
            writer.put(record(index, regions_of(index)))
        return payload / count, writer.finish().data_bytes / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300, help="records of each shard")
    count = parser.parse_args().records
    spread = np.random.default_rng(0).integers(10, 101, count)
    print("| regions | payload B/record | file B/record | overhead |\n|---|---|---|---|")
    rows: list[tuple[str, Callable[[int], int]]] = [
        ("36", lambda index: 36),
        ("100", lambda index: 100),
        ("uniform in 10..100", lambda index: int(spread[index])),
    ]
    for name, regions_of in rows:
        payload, file = measure(count, regions_of)
        print(f"| {name} | {payload:,.0f} | {file:,.0f} | {100 * (file / payload - 1):.2f} % |", flush=True)


if __name__ == "__main__":
    main()
