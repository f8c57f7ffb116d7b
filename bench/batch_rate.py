"""Samples a second that pre-training's batches are made with, the model left out: `python bench/batch_rate.py`.

A store on disk of records with 2048 numbers (float16) and 1,601 class probabilities a region, warm in the page cache;
captions of 14 words. Batches of 64 as the loop gets them: words cut into pieces, masks, negatives, targets, padding;
made in this process (0) and by 1 and 2 workers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from store_formats import FINGERPRINT
from store_rounds import MIN_ROUNDS, table, take_turns
from torch import nn

from features import FeatureStore, RegionRecord, ShardManifest, ShardWriter, publish_shard, publish_store
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.systems import SYSTEMS
from pipelines.pretraining.task import DataConfig, PretrainTask
from pipelines.tokenizer import CaptionTokenizer, load_tokenizer

WIDTH, CLASSES, BATCH = 2048, 1600, 64
WORDS = "a man in a blue coat rides his bicycle along the beach while two dogs run after red ball".split()
BATCHES = 12  # in one measurement


def write_store(folder: Path, count: int, regions: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    with ShardWriter(folder / "part-00000.bench.lmdb", planned_bytes=2**28) as writer:
        for index in range(count):
            number = int(draw.integers(regions[0], regions[1] + 1))
            corner = draw.uniform(0, 200, (number, 2))
            probabilities = draw.dirichlet(np.full(CLASSES + 1, 0.01), number).astype(np.float16)
            writer.put(
                RegionRecord(
                    image_id=f"{index:06d}",
                    height=480,
                    width=640,
                    boxes=np.concatenate([corner, corner + draw.uniform(20, 200, (number, 2))], 1).astype(np.float32),
                    features=draw.random((number, WIDTH), np.float32).astype(np.float16),
                    class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
                    class_scores=draw.random(number, np.float32),
                    class_distribution=probabilities,
                )
            )
        summary = writer.finish()
    manifest = ShardManifest.from_summary(summary, shard=0, attempt="bench", fingerprint=FINGERPRINT, members_digest="")
    publish_shard(folder, manifest)
    publish_store(folder, [0], fingerprint=FINGERPRINT, config={})


def make_task(name: str, store: FeatureStore, tokenizer: CaptionTokenizer, captions: list[str], workers: int) -> Any:
    system = SYSTEMS[name]
    fields = {"vocab_size": tokenizer.vocab_size, **system.region_label_fields(CLASSES, WIDTH)}
    config = system.sizes["small"](**fields)
    rows = CaptionTable(list(store.ids()), ((place // 2, text) for place, text in enumerate(captions)))
    sampler = system.sampler(system.sampling(), tokenizer, config, num_classes=CLASSES)
    # The model plays no part in making batches.
    return PretrainTask(
        nn.Identity(), Corpus(store, rows), sampler, DataConfig(BATCH, workers), pad_id=tokenizer.pad_id, seed=0
    )


def rate(stream: Iterator[Any]) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        for _ in range(BATCHES):
            next(stream)
        return BATCHES * BATCH / (time.perf_counter() - start)

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--regions", nargs=2, type=int, default=[10, 100], help="of a record, uniformly [10 100]")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw = np.random.default_rng(1)
    captions = [" ".join(draw.choice(WORDS, 14)) for _ in range(2 * arguments.records)]
    tokenizer = load_tokenizer("captions", captions)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder), arguments.records, tuple(arguments.regions))
        for name in arguments.systems:
            for workers in arguments.workers:
                # One at a time: workers that wait with full queues would still hold memory.
                with FeatureStore(folder) as store:
                    for _ in store.scan():  # warm
                        pass
                    task = make_task(name, store, tokenizer, captions, workers)
                    arm = rate(task.batches(0, rank=0, num_ranks=1))
                    found = take_turns({name: arm}, arguments.rounds)[name]
                rows.append((name, str(workers), f"{median(found):,.0f}", f"{min(found):,.0f}..{max(found):,.0f}"))
                print(" | ".join(rows[-1]), flush=True)
    print(table(("system", "workers", "samples/s, median", "of the rounds"), rows))


if __name__ == "__main__":
    main()
