"""What a cold store reads from the device:
`python bench/store_cold.py ../shared/bench/bench_store.py [--records 1500]`.

Two questions: how many bytes boxes alone cost, beside the peers' formats; and how near random batches come to flat
reads of the same ranges of the same file. The arms take turns (bench/store_rounds.py), each with a store opened anew.

Cold means: before each arm every file of its format is fsynced and then dropped from the page cache by
`posix_fadvise(POSIX_FADV_DONTNEED)`, while nothing maps it (mapped pages would stay). `mincore` then counts what is
resident; an arm that begins with more than a hundredth of its bytes in memory is an error. This needs no privilege, but
a disk's or a hypervisor's own cache is not ours to empty. Bytes are `read_bytes` of /proc/self/io: what this process
made the device read, read-ahead included. They stay 0 on tmpfs and some network disks, which is an error here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from store_formats import EVERY_PEER, LIMIT, OURS, store_parser, written_formats
from store_rounds import MIN_ROUNDS, Ratio, load_harness, table, take_turns

from roibeam.features.batch import BatchBuffers
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.reader import ShardReader
from roibeam.features.store import FeatureStore

# Boxes and features of an image lie together; the others keep boxes in a file or an array of their own.
ONE_VALUE = ("uniter_lmdb_msgpack", "mmf_lmdb_pickle")
MAX_RESIDENT = 0.01


def drop(folder: Path) -> None:
    """Takes a folder's files out of the page cache.

    Raises:
        RuntimeError: when they stay there.
    """
    resident = total = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # a dirty page cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            pages = resident_pages(file.fileno())
        resident, total = resident + int(pages.sum()), total + pages.size
    if resident > MAX_RESIDENT * total:
        raise RuntimeError(
            f"{folder}: {resident} of {total} pages are still in memory after they were dropped; is it on a local disk "
            f"(name one with --work), and does no other process read it?"
        )


def resident_pages(descriptor: int) -> np.ndarray:
    """(pages,) bool, which pages of a file are in memory; see mincore(2)."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        found = np.empty(-(-view.size // mmap.PAGESIZE), np.uint8)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(view.size), ctypes.c_void_p(found.ctypes.data)
        )
        del view
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed; this measurement needs Linux")
    return (found & 1).astype(bool)


def bytes_read() -> int:
    """Bytes that this process made the devices read so far."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no read_bytes; this measurement needs Linux")


class Cold:
    """Runs something on a dropped folder; keeps what was read, round by round, beside the seconds it returns."""

    def __init__(self, folder: Path, work: Callable[[], None]) -> None:
        self._folder, self._work = folder, work
        self.megabytes: list[float] = []

    def __call__(self) -> float:
        drop(self._folder)
        before, start = bytes_read(), time.perf_counter()
        self._work()
        seconds = time.perf_counter() - start
        self.megabytes.append((bytes_read() - before) / 1e6)
        return seconds


def boxes_of_format(chosen: Any, folder: Path, keys: list[str]) -> None:
    """Opens a format and reads the boxes of these images."""
    reader = chosen.open(str(folder))
    for key in keys:
        reader.get_boxes(key).sum()
    reader.close()


def flat_reads(path: Path, ranges: list[tuple[int, int]], batch: int, *, ask_ahead: bool) -> None:
    """pread of (offset, bytes) ranges into one buffer, without read-ahead; with `ask_ahead` a batch's ranges are asked
    for (POSIX_FADV_WILLNEED) while the batch before is read."""
    buffer = memoryview(bytearray(max(count for _, count in ranges)))
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(0, len(ranges), batch):
            # The first batch asks for itself too.
            asked = ranges[at + batch if at else 0 : at + 2 * batch] if ask_ahead else []
            for start, count in asked:
                os.posix_fadvise(file.fileno(), start, count, os.POSIX_FADV_WILLNEED)
            for start, count in ranges[at : at + batch]:
                if os.preadv(file.fileno(), [buffer[:count]], start) != count:
                    raise OSError(f"{path}: a read of {count} bytes at {start} came back short")


def store_batches(folder: Path, keys: list[str], batch: int, *, ask_ahead: bool, fields: tuple[str, ...]) -> None:
    """Batches of a store opened anew, into one set of buffers."""
    buffers = BatchBuffers()
    with FeatureStore(folder) as store:
        for at in range(0, len(keys), batch):
            if ask_ahead:
                store.prefetch(keys[at + batch if at else 0 : at + 2 * batch])
            store.get_batch(keys[at : at + batch], fields=fields, ragged=True, out=buffers)


def value_ranges(folder: Path, keys: list[str]) -> tuple[Path, list[tuple[int, int]], list[tuple[int, int]]]:
    """The data file of a store of one shard, and (offset, bytes) of the META and REGION values of these images."""
    manifest = ShardManifest.read(folder / "part-00000.json")
    assert manifest.data_file is not None
    path = folder / manifest.data_file
    with ShardReader(path, manifest) as reader:
        rows = {row.key.decode(): row for row in reader.index_rows()}
    metas = [(rows[key].meta_offset, rows[key].meta_length) for key in keys]
    return path, metas, [(rows[key].region_offset, rows[key].region_length) for key in keys]


def main() -> None:
    parser = store_parser(__doc__, peers=EVERY_PEER, rounds=MIN_ROUNDS)
    parser.add_argument("--reads", type=int, default=512, help="records read of them, in random order")
    parser.add_argument("--batch", type=int, default=64, help="records asked for at once")
    arguments = parser.parse_args()
    harness = load_harness(arguments.harness)
    chosen = (arguments.records, "top1", arguments.peers, arguments.work)
    with written_formats(harness, *chosen) as (master, formats, work):
        order = np.random.default_rng(3).permutation(master.n)[: arguments.reads].tolist()
        keys = [master.keys[index] for index in order]
        print(f"{len(keys)} of {master.n} records, batches of {arguments.batch}, {arguments.rounds} rounds\n")
        _boxes_alone(formats, work, keys, arguments.batch, arguments.rounds)
        _random_batches(work / OURS, keys, arguments.batch, arguments.rounds)


def _boxes_alone(formats: dict[str, Any], work: Path, keys: list[str], batch: int, rounds: int) -> None:
    path, metas, _ = value_ranges(work / OURS, keys)
    arms = {
        name: Cold(work / name, lambda name=name, chosen=chosen: boxes_of_format(chosen, work / name, keys))
        for name, chosen in formats.items()
    }
    flat = "flat reads of our ranges"
    arms[flat] = Cold(work / OURS, lambda: flat_reads(path, metas, batch, ask_ahead=False))
    seconds = take_turns(arms, rounds)
    read = {name: arm.megabytes[-rounds:] for name, arm in arms.items()}
    if not all(read[OURS]):
        raise RuntimeError(f"{work}: the device read nothing; name a folder on a local disk with --work")
    rows = []
    for name in arms:
        ratio = str(Ratio(read[name], read[OURS]))
        rows.append((name, _median(read[name], 2), _median([1e3 * value for value in seconds[name]], 0), ratio))
    print(table(("boxes alone, cold", "MB read", "ms", "bytes over ours"), rows), "\n")
    asked = []
    for what, names in (("formats", [*formats]), ("formats with an image in one value", list(ONE_VALUE))):
        peers = [name for name in names if name in read and name not in (OURS, LIMIT)]
        if peers:
            best = min(peers, key=lambda name: float(np.median(read[name])))
            ratio = Ratio(read[best], read[OURS])
            asked.append((f"fewer bytes than the best of the {what} ({best})", ">= 20", str(ratio), ratio.at_least(20)))
    if asked:
        print(table(("asked", "bar", "measured", ""), asked), "\n")


def _random_batches(folder: Path, keys: list[str], batch: int, rounds: int) -> None:
    path, metas, regions = value_ranges(folder, keys)
    both = [place for pair in zip(metas, regions, strict=True) for place in pair]
    wanted = sum(count for _, count in both) / 1e6
    ours, flat = "`get_batch`, the next batch prefetched", "flat reads, the next batch asked for"
    arms = {
        ours: Cold(folder, lambda: store_batches(folder, keys, batch, ask_ahead=True, fields=("features",))),
        "`get_batch` alone": Cold(
            folder, lambda: store_batches(folder, keys, batch, ask_ahead=False, fields=("features",))
        ),
        flat: Cold(folder, lambda: flat_reads(path, both, 2 * batch, ask_ahead=True)),
        "flat reads alone": Cold(folder, lambda: flat_reads(path, both, 2 * batch, ask_ahead=False)),
    }
    seconds = take_turns(arms, rounds)
    rows = []
    for name, arm in arms.items():
        rate = [wanted / value for value in seconds[name]]
        amplification = [value / wanted for value in arm.megabytes[-rounds:]]
        rows.append((name, _median(rate, 0), _median(amplification, 2), str(Ratio(seconds[name], seconds[ours]))))
    print(table(("random batches, cold", "MB/s", "read over wanted", "seconds over ours"), rows), "\n")
    best = min((name for name in arms if name.startswith("flat")), key=lambda name: float(np.median(seconds[name])))
    ratio = Ratio(seconds[ours], seconds[best])
    print(table(("asked", "bar", "measured", ""), [(f"seconds over {best}", "<= 1.1", str(ratio), ratio.at_most(1.1))]))


def _median(values: list[float], digits: int) -> str:
    return f"{float(np.median(values)):,.{digits}f}"


if __name__ == "__main__":
    main()
