"""What a token budget (`--set data.max_tokens`) is worth: `python bench/token_budget.py`.

The store of `pretraining.py` (10 to 100 regions a record), captions of 4 to 30 words. Steps of 64 captions in two ways:
four batches of 16 as they come, and batches of alike lengths with no more tokens than the largest of these. Of each
the padded share of words and regions, the micro-batches of a step, and samples a second of making batches alone and of
training steps (model of size `small`, fp32, fused AdamW, batches made in the same process). Ways take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pretraining import CLASSES, WIDTH, WORDS, write_store
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

from roibeam.features.store import FeatureStore
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import BudgetedTask, PretrainTask, RowLengths, count_regions
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.task import steps_of

IMAGE_HW = (480, 640)
PADDING_STEPS = 8  # that padded shares are of
Steps = Iterator[Sequence[VLBatch]]


def make_task(
    name: str, store: FeatureStore, tokenizer: CaptionTokenizer, captions: list[str], data: DataConfig
) -> PretrainTask:
    system = SYSTEMS[name]
    torch.manual_seed(0)
    config: Any = system.sizes["small"](
        vocab_size=tokenizer.vocab_size, region_feature_size=WIDTH, **system.region_label_fields(CLASSES)
    )
    rows = CaptionTable(list(store.ids()), ((place // 2, text) for place, text in enumerate(captions)))
    corpus, model = Corpus(store, rows), system.model_class(config)
    sampler = system.sampler(system.sampling(), tokenizer, config, num_classes=CLASSES)
    common: dict[str, Any] = {"pad_id": tokenizer.pad_id, "seed": 0}
    if not data.max_tokens:
        return PretrainTask(model, corpus, sampler, data, **common)
    lengths = RowLengths(corpus, count_regions([(store, rows)]), tokenizer)
    return BudgetedTask(model, corpus, sampler, data, lengths=lengths, **common)


def steps(task: PretrainTask, captions: int) -> Steps:
    return steps_of(task, 0, accumulation=captions // task.batch_size, rank=0, num_ranks=1)


def padding(stream: Steps) -> tuple[float, float, int]:
    """Padded share of words and regions; micro-batches of a step; words and regions of the largest."""
    real, padded, batches = 0, [], 0
    for step in islice(stream, PADDING_STEPS):
        batches += len(step)
        for batch in step:
            real += int(batch.text_mask.sum() + batch.region_mask.sum())
            padded.append(batch.batch_size * (batch.text_ids.shape[1] + batch.region_mask.shape[1]))
    return 1 - real / sum(padded), batches / PADDING_STEPS, max(padded)


def batch_rate(stream: Steps, captions: int) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        next(stream)
        next(stream)
        return 2 * captions / (time.perf_counter() - start)

    return measure


def step_rate(task: PretrainTask, stream: Steps, captions: int) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-6, fused=True)

    def measure() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        step = next(stream)
        counts = [task.counts(batch) for batch in step]
        for batch in step:
            losses = task.losses(task.model, batch).losses
            shares = [term.total / max(1, sum(each[name] for each in counts)) for name, term in losses.items()]
            torch.stack(shares).sum().backward()
        optimizer.step()
        return captions / (time.perf_counter() - start)

    return measure


def told(rates: Sequence[float]) -> str:
    return f"{median(rates):,.0f} ({min(rates):,.0f}..{max(rates):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["vlbert", "visualbert", "imagebert"], choices=SYSTEMS)
    parser.add_argument("--step", type=int, default=64, help="captions of a step [64]")
    parser.add_argument("--at-once", type=int, default=16, help="captions of a batch as they come [16]")
    parser.add_argument("--regions", nargs=2, type=int, default=[10, 100], help="of a record, uniformly [10 100]")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    arguments = parser.parse_args()
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(2.4, 0.4, 2 * arguments.records), 4, 30).astype(int)
    captions = [" ".join(draw.choice(WORDS, length)) for length in lengths]
    tokenizer = load_tokenizer("captions", captions)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder), arguments.records, tuple(arguments.regions), WIDTH, IMAGE_HW)
        with FeatureStore(folder) as store:
            for _ in store.scan():  # warm
                pass
            for name in arguments.systems:
                step, data = arguments.step, DataConfig(arguments.at_once)
                tasks = {"as they come": make_task(name, store, tokenizer, captions, data)}
                paddings = {"as they come": padding(steps(tasks["as they come"], step))}
                data = DataConfig(step, max_tokens=paddings["as they come"][2])
                tasks["budget"] = make_task(name, store, tokenizer, captions, data)
                paddings["budget"] = padding(steps(tasks["budget"], step))
                streams = {way: steps(task, step) for way, task in tasks.items()}
                arms = {way: batch_rate(stream, step) for way, stream in streams.items()}
                made = take_turns(arms, arguments.rounds)
                arms = {way: step_rate(tasks[way], stream, step) for way, stream in streams.items()}
                trained = take_turns(arms, arguments.rounds)
                ratios = {way: Ratio(trained[way], trained["as they come"]) for way in tasks}
                for way, (share, batches, largest) in paddings.items():
                    counts = (f"{share:.0%}", f"{batches:.1f}", f"{largest:,}")
                    rows.append((name, way, *counts, told(made[way]), told(trained[way]), str(ratios[way])))
                    print(" | ".join(rows[-1]), flush=True)
    heads = (
        "system",
        "batches",
        "padded",
        "in a step",
        "tokens, at most",
        "batches, samples/s",
        "steps, samples/s",
        "ratio",
    )
    print(table(heads, rows))


if __name__ == "__main__":
    main()
