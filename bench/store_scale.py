"""Opening a large store: `python bench/store_scale.py [--shards 1650] [--records 2000] [--keep DIR]`.

Writes a store of that many shards by `ShardWriter`, `publish_shard` and `publish_store`, each record of one region of
four values: what opening and looking up cost depends on ids and shards, not on features. At the default size, 3.3
million ids, that takes some ten minutes and 2 GB; with --keep the store stays and is used again. Then, each in a
process of its own under `ulimit -n 1024`:

- import: the memory of a process that only imports `features`, the base of the others;
- open: seconds of `FeatureStore(path)` with the manifest in the page cache, median of the repetitions in one process
  and the first, and the memory after it;
- every shard: one id of each, in random order; then --lookups random ids; memory afterwards, descriptors, seconds.

Memory is counted twice: anonymous pages (RssAnon), which each worker has for itself and the bar is about, and resident
pages of mapped files (RssFile), which are the page cache and shared by all workers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from store_rounds import status_mb, table

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardManifest, data_file_name
from roibeam.features.shard.writer import ShardWriter, publish_shard, publish_store
from roibeam.features.store import FeatureStore

DESCRIPTORS = 1024
FINGERPRINT = Fingerprint("imported:benchmark")


def image_id(shard: int, row: int) -> str:
    """Ascending over shards and rows, as a plan of sorted ids cuts them."""
    return f"train2014/COCO_train2014_{shard:05d}{row:07d}"


def build(folder: Path, shards: int, records: int) -> None:
    """Writes the store; shards that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    one = {
        "boxes": np.array([[0, 0, 1, 1]], np.float32),
        "features": np.ones((1, 4), np.float16),
        "class_ids": np.zeros(1, np.uint16),
        "class_scores": np.ones(1, np.float32),
    }
    for shard in range(shards):
        if (folder / f"part-{shard:05d}.json").exists():
            continue
        data = folder / data_file_name(shard, "bench")
        data.unlink(missing_ok=True)  # of a run that was stopped
        with ShardWriter(data, planned_bytes=512 * records) as writer:
            for row in range(records):
                writer.put(RegionRecord(image_id=image_id(shard, row), height=2, width=2, **one))
            summary = writer.finish()
        manifest = ShardManifest.from_summary(
            summary, shard=shard, attempt="bench", fingerprint=FINGERPRINT, members_digest="0" * 64
        )
        publish_shard(folder, manifest)
    publish_store(folder, range(shards), fingerprint=FINGERPRINT, config={"shards": shards, "records": records})


def measure(folder: Path, phase: str, repetitions: int, lookups: int) -> dict[str, float]:
    """What one process of its own finds; see the module's docstring."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    found: dict[str, float] = {}
    if phase != "import":
        times = []
        for _ in range(repetitions if phase == "open" else 1):
            start = time.perf_counter()
            store = FeatureStore(folder)
            times.append(time.perf_counter() - start)
        found |= {"first_ms": 1e3 * times[0], "open_ms": 1e3 * float(np.median(times))}
        if phase == "every shard":
            _look_up(store, lookups, found)
        else:
            _ = len(store)  # alive while its memory is counted
    return found | {"anonymous_mb": status_mb("RssAnon"), "file_mb": status_mb("RssFile")}


def _look_up(store: FeatureStore, lookups: int, found: dict[str, float]) -> None:
    generator = random.Random(0)
    sizes = store.shard_sizes
    order = generator.sample(range(len(sizes)), len(sizes))
    start = time.perf_counter()
    for shard in order:
        if store.meta(image_id(shard, generator.randrange(sizes[shard]))).num_regions != 1:
            raise RuntimeError(f"shard {shard} gave a record that was not written")
    found["shards_reached"] = len(order)
    found["ms_per_shard"] = 1e3 * (time.perf_counter() - start) / len(order)
    start = time.perf_counter()
    for _ in range(lookups):
        shard = generator.randrange(len(sizes))
        store.num_regions_of([image_id(shard, generator.randrange(sizes[shard]))])
    found["ms_per_lookup"] = 1e3 * (time.perf_counter() - start) / max(lookups, 1)
    found["descriptors"] = len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1650)
    parser.add_argument("--records", type=int, default=2000, help="of each shard")
    parser.add_argument("--lookups", type=int, default=20_000, help="random ids after one of each shard")
    parser.add_argument("--repetitions", type=int, default=21, help="of opening")
    parser.add_argument("--keep", type=Path, help="folder of the store; made where it is missing, and left there")
    parser.add_argument("--phase", choices=["import", "open", "every shard"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(measure(arguments.keep, arguments.phase, arguments.repetitions, arguments.lookups)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "store"
        start = time.perf_counter()
        if not (folder / STORE_MANIFEST_NAME).exists():
            build(folder, arguments.shards, arguments.records)
        seconds = time.perf_counter() - start
        with FeatureStore(folder) as store:
            shards, ids = len(store.shard_sizes), len(store)
        if (shards, ids) != (arguments.shards, arguments.shards * arguments.records):
            raise SystemExit(f"{folder}: holds {ids} ids in {shards} shards, asked for others; name another --keep")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{ids:,} ids in {shards:,} shards, {size / 1e6:,.0f} MB, built in {seconds:.0f} s", end="")
        print(f"; manifest {(folder / STORE_MANIFEST_NAME).stat().st_size / 1e6:.2f} MB\n")
        found = {}
        for phase in ("import", "open", "every shard"):
            command = [sys.executable, __file__, "--phase", phase, "--keep", str(folder)]
            command += ["--repetitions", str(arguments.repetitions), "--lookups", str(arguments.lookups)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{phase}: failed: {done.stderr[-800:]}")
            found[phase] = json.loads(done.stdout)
    _report(found, shards)


def _report(found: dict[str, dict[str, float]], shards: int) -> None:
    base, opened, reached = found["import"], found["open"], found["every shard"]
    rows = []
    for phase, values in found.items():
        over = [f"{values[name] - base[name]:+.1f}" for name in ("anonymous_mb", "file_mb")]
        rows.append((phase, f"{values['anonymous_mb']:.1f}", over[0], f"{values['file_mb']:.1f}", over[1]))
    print(table(("process", "anonymous MB", "over import", "mapped files MB", "over import"), rows), "\n")
    print(f"opening: first {opened['first_ms']:.1f} ms, median {opened['open_ms']:.1f} ms")
    print(
        f"one id of every shard: {reached['ms_per_shard']:.2f} ms each; random ids: {reached['ms_per_lookup']:.3f} ms"
    )
    print(f"descriptors open at the end, of {DESCRIPTORS}: {reached['descriptors']:.0f}\n")
    memory = max(values["anonymous_mb"] for values in (opened, reached)) - base["anonymous_mb"]
    asked = [
        ("opening, ms", "< 50", f"{opened['open_ms']:.1f}", _verdict(opened["open_ms"] < 50)),
        ("anonymous MB of a worker", "< 20", f"{memory:.1f}", _verdict(memory < 20)),
        (
            f"shards reached, ulimit -n {DESCRIPTORS}",
            f"{shards:,}",
            f"{reached['shards_reached']:,.0f}",
            _verdict(reached["shards_reached"] == shards),
        ),
    ]
    print(table(("asked", "bar", "measured", ""), asked))


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
