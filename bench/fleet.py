"""A fleet on paper: an epoch of 3.3 million images read by 64 ranks of 8 workers, one rank lost and restarted.

    python bench/fleet.py [--images N] [--ranks N] [--workers N] [--keep STORE] [--only KIND]

No model and no network are here: what is simulated is who reads what. All 512 places of a worker are taken one after
another, in two processes, by the classes that a run has: `FeatureStore`, `BatchOrder` and `RegionIterable`, which reads
real records of one region of four values from a real store (bench/store_scale.py; it takes long to write, --keep keeps
it); and `SampleOrder`, by which `pretrain` shares out captions, without its captions.

The run stops in mid-epoch: a rank is lost some steps after a checkpoint. What all ranks took since then is thrown
away; they go on from the state that was saved, as many as before, or one less (by `RegionBatchSampler`, which gives
numbers of records). Every image must come once in what counts. Each place tells the seconds from nothing open to its
first batch, and its memory. For BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from store_rounds import status_mb, table
from store_scale import STORE_MANIFEST_NAME, build

from roibeam.features.reading.staging import imbalance, plan_ranks
from roibeam.features.store import FeatureStore

RECORDS = 2000  # of a shard
PROCESSES = 2
AHEAD = 2  # batches that a worker of a DataLoader has made when the run is lost


@dataclass(frozen=True)
class Fleet:
    """
    Attributes:
        batch_size: of a rank.
        saved_at: steps at the checkpoint.
        lost_at: steps when a rank is lost, not before the checkpoint.
    """

    ranks: int
    workers: int
    batch_size: int
    saved_at: int
    lost_at: int

    @staticmethod
    def of(images: int, ranks: int, workers: int, batch_size: int) -> Fleet:
        """Lost at about 0.4 of the epoch, seven steps after a checkpoint."""
        steps = images // (ranks * batch_size)
        saved_at = int(0.4 * steps)
        return Fleet(ranks, workers, batch_size, saved_at, saved_at + 7)

    def places(self, kind: str) -> list[tuple[int, int]]:
        """Rank and worker; where a rank's one sampler serves all its workers, the first worker alone."""
        workers = 1 if kind == "numbers" else self.workers
        return [(rank, worker) for rank in range(self.ranks) for worker in range(workers)]


@dataclass
class Taken:
    """What the places of a worker took, one behind the other.

    Attributes:
        counts: (images,) uint8, how often each image came in what counts.
        first_batch: seconds of each place from nothing open to its first batch.
        anonymous_mb: of the process, after each place.
    """

    counts: np.ndarray
    first_batch: list[float]
    anonymous_mb: list[float]

    @staticmethod
    def together(parts: list[Taken]) -> Taken:
        return Taken(
            sum(part.counts for part in parts[1:]) + parts[0].counts,
            [each for part in parts for each in part.first_batch],
            max((part.anonymous_mb for part in parts), key=max),
        )

    def check(self) -> None:
        missing, twice = int((self.counts == 0).sum()), int((self.counts > 1).sum())
        if missing or twice:
            raise SystemExit(f"{missing:,} images never came, {twice:,} more than once")


# Places of the reader of stores


def store_batches(store: FeatureStore, fleet: Fleet, place: tuple[int, int], state: dict | None) -> Iterator[list[str]]:
    """What one worker of a DataLoader makes, as ids."""
    from torch.utils.data._utils import worker as torch_worker

    from roibeam.features.reading.torch_datasets import RegionIterable

    rank, worker = place
    reader = RegionIterable(
        store, reused_buffers=2, batch_size=fleet.batch_size, rank=rank, num_ranks=fleet.ranks, at_epoch_end="short",
        seed=1,
    )  # fmt: skip
    if state is not None:
        reader.load_state_dict(state)
    # As a DataLoader tells its worker which of them it is; this process forgets it again below.
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=fleet.workers, seed=0, dataset=reader)
    try:
        for batch in reader:
            yield batch["image_ids"]
    finally:
        torch_worker._worker_info = None


def saved_state(store: FeatureStore, fleet: Fleet) -> dict:
    from roibeam.features.reading.torch_datasets import RegionIterable

    reader = RegionIterable(
        store, batch_size=fleet.batch_size, rank=0, num_ranks=fleet.ranks, at_epoch_end="short", seed=1
    )
    return json.loads(json.dumps(reader.state_dict(fleet.saved_at)))


def counted(counts: np.ndarray, ids: list[str]) -> None:
    for image_id in ids:  # see store_scale.image_id
        counts[int(image_id[-12:-7]) * RECORDS + int(image_id[-7:])] += 1


def take_from_store(
    folder: Path, fleet: Fleet, places: list[tuple[int, int]], state: dict | None, images: int
) -> Taken:
    """The places up to where the run was lost, or from a state to the end of the epoch."""
    from roibeam.features.reading import torch_datasets  # noqa: F401  # before the clock runs

    taken = Taken(np.zeros(images, np.uint8), [], [])
    for place in places:
        start = time.perf_counter()
        with FeatureStore(folder) as store:
            batches = store_batches(store, fleet, place, state)
            own = range(place[1], fleet.lost_at, fleet.workers)  # numbers of the rank's batches before it was lost
            for number, ids in enumerate(batches if state is not None else islice(batches, len(own) + AHEAD)):
                if not number:
                    taken.first_batch.append(time.perf_counter() - start)
                if state is not None or (number < len(own) and own[number] < fleet.saved_at):
                    counted(taken.counts, ids)
            batches.close()  # type: ignore[attr-defined]
        taken.anonymous_mb.append(status_mb("RssAnon"))
    return taken


def take_from_numbers(
    folder: Path, fleet: Fleet, places: list[tuple[int, int]], state: dict | None, images: int
) -> Taken:
    """As `take_from_store`, by the sampler that hands numbers of records to workers: nothing is read."""
    from roibeam.features.reading.torch_datasets import RegionBatchSampler

    taken = Taken(np.zeros(images, np.uint8), [], [])
    for rank, _ in places:
        start = time.perf_counter()
        with FeatureStore(folder) as store:
            sampler = RegionBatchSampler(
                store, batch_size=fleet.batch_size, rank=rank, num_ranks=fleet.ranks, at_epoch_end="short", seed=1
            )
            if state is not None:
                sampler.load_state_dict(state)
            for number, batch in enumerate(sampler if state is not None else islice(sampler, fleet.lost_at)):
                if not number:
                    taken.first_batch.append(time.perf_counter() - start)
                if state is not None or number < fleet.saved_at:
                    taken.counts[batch] += 1
        taken.anonymous_mb.append(status_mb("RssAnon"))
    return taken


# Places of the order of captions


def take_from_order(
    folder: Path | None, fleet: Fleet, places: list[tuple[int, int]], state: dict | None, images: int
) -> Taken:
    """As `take_from_store`; the state is a number of samples."""
    from roibeam.pipelines.training.sample_order import SampleOrder

    taken = Taken(np.zeros(images, np.uint8), [], [])
    first_sample = 0 if state is None else int(state["next_sample"])
    for rank, worker in places:
        start = time.perf_counter()
        order = SampleOrder(images, (1, 1))
        batches = order.batches(first_sample, batch_size=fleet.batch_size, rank=rank, num_ranks=fleet.ranks)
        number = worker
        for batch in islice(batches, worker, None, fleet.workers):
            if number == worker:
                taken.first_batch.append(time.perf_counter() - start)
            if state is None and number >= fleet.lost_at:
                break
            if state is not None or number < fleet.saved_at:
                taken.counts[[at for epoch, at in batch if epoch == 0]] += 1
            if state is not None and batch[-1][0] > 0:
                break  # the next epoch has begun
            number += fleet.workers
        taken.anonymous_mb.append(status_mb("RssAnon"))
    return taken


TAKES = {"store": take_from_store, "numbers": take_from_numbers, "order": take_from_order}


def in_processes(kind: str, folder: Path | None, fleet: Fleet, state: dict | None, images: int) -> Taken:
    shares = [fleet.places(kind)[at::PROCESSES] for at in range(PROCESSES)]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        asked = [pool.apply_async(TAKES[kind], (folder, fleet, share, state, images)) for share in shares]
        return Taken.together([each.get() for each in asked])


def lived_through(kind: str, folder: Path | None, fleet: Fleet, rest: Fleet, state: dict, images: int) -> list[Taken]:
    """Both parts of the epoch, all images of which came once together."""
    before = in_processes(kind, folder, fleet, None, images)
    after = in_processes(kind, folder, rest, state, images)
    Taken(before.counts + after.counts, [], []).check()
    return [before, after]


# One rank as it is: a DataLoader with its processes


def real_first_batch(folder: Path, fleet: Fleet, state: dict | None) -> float:
    """Seconds from nothing open until a rank's DataLoader gives its first batch."""
    from torch.utils.data import DataLoader

    from roibeam.features.reading.torch_datasets import RegionIterable

    start = time.perf_counter()
    reader = RegionIterable(
        FeatureStore(folder), batch_size=fleet.batch_size, rank=3, num_ranks=fleet.ranks, at_epoch_end="short", seed=1
    )
    if state is not None:
        reader.load_state_dict(state)
    next(iter(DataLoader(reader, batch_size=None, num_workers=fleet.workers, multiprocessing_context="fork")))
    return time.perf_counter() - start


def memory_of_one(kind: str, folder: Path, ranks: int, images: int) -> None:
    """Prints anonymous MB beyond the imports of one place among so many ranks, at its first batch and its hundredth."""
    import torch.utils.data  # noqa: F401

    from roibeam.features.reading.torch_datasets import RegionIterable  # noqa: F401
    from roibeam.pipelines.training.sample_order import SampleOrder

    base, found = status_mb("RssAnon"), []
    fleet = Fleet(ranks, 8, 64, 0, 0)
    store = FeatureStore(folder) if kind == "store" else None
    if store is not None:
        batches: Iterator = store_batches(store, fleet, (ranks - 1, 7), None)
    else:
        batches = SampleOrder(images, (1, 1)).batches(0, batch_size=64, rank=ranks - 1, num_ranks=ranks)
    for number, _ in enumerate(islice(batches, 100)):
        if not number:
            found.append(status_mb("RssAnon") - base)
    print(json.dumps([*found, status_mb("RssAnon") - base]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3_300_000, help=f"a multiple of {RECORDS}")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank")
    parser.add_argument("--keep", type=Path, help="folder of the store; made where it is missing, and left there")
    parser.add_argument("--only", choices=[*TAKES], action="append", help="of the ways to read; may be given again")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    images, fleet = arguments.images, Fleet.of(*(getattr(arguments, name) for name in FLEET_OPTIONS))
    if arguments.memory:
        memory_of_one(arguments.memory, arguments.keep, fleet.ranks, images)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "store"
        if not (folder / STORE_MANIFEST_NAME).exists():
            build(folder, images // RECORDS, RECORDS)
        report(folder, fleet, images, arguments.only or [*TAKES])


HEAD = (
    "what", "part of the epoch", "ms to a first batch, median", "most", "MB after a tenth of the places, after all",
    "s in all",
)  # fmt: skip
FLEET_OPTIONS = ("images", "ranks", "workers", "batch_size")


def report(folder: Path, fleet: Fleet, images: int, kinds: list[str]) -> None:
    start = time.perf_counter()
    with FeatureStore(folder) as store:
        if len(store) != images:
            raise SystemExit(f"{folder}: holds {len(store):,} images; name another --keep")
        state = saved_state(store, fleet)
        plan = plan_ranks(store.manifest.shards, fleet.ranks)
        print(f"store opened, shards planned for {fleet.ranks} ranks: {time.perf_counter() - start:.2f} s, ", end="")
        print(f"fullest over mean {imbalance(plan):.3f}")
    print(f"{images:,} images; checkpoint after {fleet.saved_at:,} steps, a rank lost after {fleet.lost_at:,}\n")
    rows = []
    less = Fleet(fleet.ranks - 1, fleet.workers, fleet.batch_size, 0, 0)
    for kind, what, rest in (
        ("store", "records of a store", fleet), ("store", "records of a store", less),
        ("numbers", "their numbers", fleet), ("numbers", "their numbers", less),
        ("order", "captions of `pretrain`, by number", fleet), ("order", "captions of `pretrain`, by number", less),
    ):  # fmt: skip
        if kind not in kinds:
            continue
        start = time.perf_counter()
        parts = lived_through(kind, folder, fleet, rest, state, images)
        seconds = time.perf_counter() - start
        for part, ranks, when in zip(parts, (fleet, rest), ("start", "restart"), strict=True):
            waits = np.array(part.first_batch) * 1e3
            memory = part.anonymous_mb
            rows.append(
                (what, f"{when}, {ranks.ranks} ranks", f"{np.median(waits):.0f}", f"{waits.max():.0f}",
                 f"{memory[len(memory) // 10]:.0f} to {memory[-1]:.0f}", f"{seconds:.0f}")
            )  # fmt: skip
            print(table(HEAD, rows[-1:]), flush=True)
    print("\nevery image came once, in all of:\n\n" + table(HEAD, rows) + "\n")
    for when, given in (("start", None), ("restart", state)):
        print(f"a rank's DataLoader, {fleet.workers} processes, {when}: {real_first_batch(folder, fleet, given):.2f} s")
    rows = []
    for kind in ("store", "order"):
        for ranks in (1, 8, fleet.ranks):
            command = [sys.executable, __file__, "--memory", kind, "--keep", str(folder), "--ranks", str(ranks)]
            done = subprocess.run(
                [*command, "--images", str(images)], stdout=subprocess.PIPE, text=True, check=True
            )  # fmt: skip
            rows.append((kind, str(ranks), *(f"{each:.1f}" for each in json.loads(done.stdout))))
    print("\n" + table(("a worker of", "ranks", "MB at its first batch", "MB at its hundredth"), rows))


if __name__ == "__main__":
    main()
