"""The engine with a detector that costs nothing: `python bench/engine.py [--images 2000] [--rounds 5]`.

Draws 640x480 JPEGs and extracts them again and again, decode to shard on disk (fsync, shard manifest), with a fake
detector that answers at once with 36 to 100 regions of 2048 values from a pool. Arms that take turns:

    plain     `extract_shard`, shard after shard, in this thread
    beam      the same shards through `run_extraction` with the local runner, store manifest included
    +classes  either of them with the class distribution of 1,601 classes stored as well, as is the default

Prints images/s and the processor time of each stage per image; with `--memory 5000` the memory along a run instead.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
from store_rounds import MIN_ROUNDS, status_mb, table, take_turns

from roibeam.extraction.engine import detector_calls
from roibeam.extraction.engine import region_iterator as engine
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.regions import Regions
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard import writer as shard
from roibeam.features.shard.lmdb_file import GrowingLmdb
from roibeam.features.shard.writer import ShardWriter
from roibeam.pipelines.common import locations
from roibeam.pipelines.data.shard_plan import Plan, extend_plan
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.beam_extraction import run_extraction
from roibeam.pipelines.extract.request import RunnerChoice
from roibeam.pipelines.extract.shard import shard_job
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob
from roibeam.pipelines.extract.shard.shard_job import place_detector, shared_fingerprint
from roibeam.pipelines.extract.shard.store_folder import StoreText

HEIGHT, WIDTH = 480, 640
FEATURE_DIM, NUM_CLASSES = 2048, 1600
POOL = 32
BARS = {"plain": 150, "plain +classes": 150, "beam": 135, "beam +classes": 135}  # images/s
SPEC = DetectorSpec(CONFIGS["vg-r101-c4"], SELECTIONS["butd-10-100"], "random:1", threads=1)


class InstantDetector:
    """Answers with regions that were made beforehand, whatever the photo shows."""

    feature_dim, num_classes, num_attributes = FEATURE_DIM, NUM_CLASSES, 400

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._pool = [_regions(int(count), random) for count in random.integers(36, 101, POOL)]
        self._calls = 0

    def describe(self) -> dict[str, Any]:
        return {"config": {}, "conventions": {}, "selection": {}, "numerics": {"mode": "fake"}}

    def __call__(
        self,
        images: Sequence[np.ndarray],
        /,
        *,
        boxes: Sequence[np.ndarray | None] | None = None,
        whole_image: bool = False,
    ) -> list[Regions]:
        first = self._calls
        self._calls += len(images)
        return [self._pool[number % POOL] for number in range(first, self._calls)]


def _regions(count: int, random: np.random.Generator) -> Regions:
    corners = random.random((count, 2, 2), np.float32) * [[WIDTH / 2, HEIGHT / 2]]
    probabilities = random.random((count, NUM_CLASSES + 1), np.float32) ** 8
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return Regions(
        boxes=np.concatenate([corners[:, 0], corners[:, 0] + corners[:, 1]], axis=1).astype(np.float32),
        features=random.gamma(0.5, 2.0, (count, FEATURE_DIM)).astype(np.float32),
        class_ids=probabilities[:, :-1].argmax(axis=1),
        class_scores=probabilities[:, :-1].max(axis=1),
        attribute_ids=random.integers(0, 400, count),
        attribute_scores=random.random(count, np.float32),
        class_probabilities=probabilities,
        proposal_ids=np.arange(count),
    )


def draw_photos(folder: Path, count: int) -> list[ImageRef]:
    """JPEGs of about 100 kB, as COCO's are: windows of one large picture of smooth and fine structure."""
    random = np.random.default_rng(1)
    coarse = random.integers(0, 256, (60, 80, 3), np.uint8)
    large = cv2.resize(coarse, (4 * WIDTH, 4 * HEIGHT), interpolation=cv2.INTER_CUBIC).astype(np.int16)
    picture = np.clip(large + random.integers(-10, 11, large.shape, np.int16), 0, 255).astype(np.uint8)
    images = []
    for number in range(count):
        top, left = (number * 37) % (3 * HEIGHT), (number * 101) % (3 * WIDTH)
        path = folder / f"{number:06d}.jpg"
        window = picture[top : top + HEIGHT, left : left + WIDTH]
        path.write_bytes(cv2.imencode(".jpg", window, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
        images.append(ImageRef(path.stem, str(path)))
    return images


class Run:
    """One store of the photos, planned anew for each extraction."""

    def __init__(self, folder: Path, images: list[ImageRef], shard_size: int, options: ExtractOptions) -> None:
        self._folder, self._images, self._shard_size, self._options = folder, images, shard_size, options
        self._fingerprint = shared_fingerprint(SPEC, options, None, False)

    @contextmanager
    def planned(self) -> Iterator[tuple[ExtractJob, Plan]]:
        store = self._folder / "store"
        source = {"kind": "folder", "location": str(self._folder), "image_root": str(self._folder), "id_rule": "none"}
        settings = {"feature_space": self._fingerprint.details}
        plan = extend_plan(LocalFolder(store), None, source=source, settings=settings, images=self._images,
                           shard_size=self._shard_size)  # fmt: skip
        space = self._fingerprint.feature_space
        try:
            yield ExtractJob(str(store), str(self._folder), SPEC, self._options, space, None, False), plan
        finally:
            shutil.rmtree(store)

    def plain(self) -> float:
        """Images/s of the shards one after another."""
        with self.planned() as (job, plan):
            start = time.perf_counter()
            for planned in plan.shards:
                result = shard_job.extract_shard(job, planned)
                assert result.num_records == planned.num_images, result
            return len(self._images) / (time.perf_counter() - start)

    def beam(self) -> float:
        """Images/s through Beam's local runner, its start and the store manifest included."""
        with self.planned() as (job, plan):
            text = StoreText({}, Vocabulary(None, None), self._fingerprint)
            start = time.perf_counter()
            run_extraction(job, plan, text, RunnerChoice())
            return len(self._images) / (time.perf_counter() - start)


class StageTimes:
    """Processor time of the calls that a stage is known by, over all threads; a call inside another counts once."""

    STAGES: tuple[tuple[str, Any, str], ...] = (
        ("read", locations, "read_local_file"),
        ("decode", detector_calls, "decode_image"),
        ("fake detector", InstantDetector, "__call__"),
        ("make the record", engine, "to_record"),
        ("encode it", shard, "encode_regions"),
        ("digest it (SHA-256)", shard, "record_digest"),
        ("put it into LMDB", GrowingLmdb, "put"),
        ("commit", GrowingLmdb, "commit"),
        ("finish the shard (fsync, index)", ShardWriter, "finish"),
    )

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._inside = threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, owner, attribute in self.STAGES:
                timed = self._timed(name, getattr(owner, attribute))
                stack.enter_context(mock.patch.object(owner, attribute, timed))
            yield

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            around = getattr(self._inside, "stages", 0.0)  # of stages within the one that called this
            self._inside.stages = 0.0
            start = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                seconds = time.thread_time() - start
                with self._lock:
                    self._seconds[name] += seconds - self._inside.stages
                self._inside.stages = around + seconds

        return timed

    def rows(self, num_images: int, process_seconds: float) -> list[tuple[str, str]]:
        rows = [(name, self._seconds[name]) for name, _, _ in self.STAGES]
        rows.append(("threads, queues, everything else", process_seconds - sum(seconds for _, seconds in rows)))
        rows.append(("all of the process", process_seconds))
        return [(name, f"{1e3 * seconds / num_images:.3f}") for name, seconds in rows]


def speeds(folder: Path, num_images: int, shard_size: int, rounds: int, decode_threads: int) -> None:
    """Prints images/s of the arms and the stages' processor time."""
    images = draw_photos(folder, num_images)
    runs = {
        text: Run(folder, images, shard_size, ExtractOptions(distribution=distribution, decode_threads=decode_threads))
        for text, distribution in (("", "none"), (" +classes", "full"))
    }
    arms: dict[str, Callable[[], float]] = {}
    for text, run in runs.items():
        arms |= {"plain" + text: run.plain, "beam" + text: run.beam}
    figures = take_turns(arms, rounds)
    rows = []
    for name, rates in figures.items():
        median = float(np.median(rates))
        verdict = "met" if median >= BARS[name] else "missed"
        rows.append((name, f"{median:.0f}", f"{min(rates):.0f}..{max(rates):.0f}", f"{BARS[name]}: {verdict}"))
    print(table(("arm", "images/s, median", "rounds", "bar"), rows))
    stages = []
    for run in runs.values():
        times = StageTimes()
        before = time.process_time()
        with times.watching():
            run.plain()
        stages.append(times.rows(num_images, time.process_time() - before))
    both = [(name, one, two) for (name, one), (_, two) in zip(*stages, strict=True)]
    print("\n" + table(("ms of processor time per image", "without classes", "with"), both))


def memory_curve(folder: Path, num_images: int, shard_size: int, points: int = 10) -> list[tuple[int, float]]:
    """(images done, MB of anonymous memory of this process: the most since the point before), through Beam."""
    images = draw_photos(folder, num_images)
    place_detector(SPEC, InstantDetector())
    run = Run(folder, images, shard_size, ExtractOptions())
    curve: list[tuple[int, float]] = []
    done, peak = 0, 0.0
    put = ShardWriter.put

    def counted_put(writer: ShardWriter, record: RegionRecord) -> None:
        nonlocal done, peak
        put(writer, record)
        done += 1
        if done % 10 == 0:
            peak = max(peak, status_mb("RssAnon"))
        if done * points // num_images > len(curve):
            curve.append((done, peak))
            peak = 0.0

    with mock.patch.object(ShardWriter, "put", counted_put):
        run.beam()
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--shard-size", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--decode-threads", type=int, default=2)
    parser.add_argument("--memory", type=int, metavar="IMAGES", help="measure memory instead, over so many images")
    parser.add_argument("--folder", type=Path, help="where photos and stores go [default: the temporary folder]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.memory:
            curve = memory_curve(Path(name), arguments.memory, arguments.shard_size)
            print(table(("images", "MB"), [(f"{done:,}", f"{megabytes:.0f}") for done, megabytes in curve]))
        else:
            place_detector(SPEC, InstantDetector())
            speeds(Path(name), arguments.images, arguments.shard_size, arguments.rounds, arguments.decode_threads)


if __name__ == "__main__":
    main()
