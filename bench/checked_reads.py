"""What comparing records with their checksums costs: `python bench/checked_reads.py [--rounds 9]`.

Three ways take turns in every round: no record is compared, all are, one in 16 is (`--checksums sample`). They read the
same store, warm, as a training does (views, one float32 copy of the features); `--loader` makes whole batches of a
system, `--loop` takes steps of a small model on the CPU. Figures are CPU seconds of the process, which other processes
of the machine change less than they change the clock; ratios are those of the same round, with 95 % of the medians of
resampled rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from pretraining import CLASSES, WIDTH, WORDS, make_task, write_store
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captions.corpus import CheckedViews
from roibeam.pipelines.data.compatibility import SAMPLE_ONE_IN
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.loop import make_accelerator
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups
from roibeam.pipelines.training.task import TrainTask
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import TrainStep

NEVER = 2**62
WAYS = {"none": NEVER, "all": 1, "sample": SAMPLE_ONE_IN}


def microseconds(store: FeatureStore, one_in: int, work: Callable[[], int]) -> float:
    """CPU time of each record or sample that `work` counts."""
    store.checked_one_in = one_in
    start = time.process_time()
    count = work()
    return 1e6 * (time.process_time() - start) / count


def read_all(store: FeatureStore, order: list[str]) -> int:
    read = CheckedViews(store)
    read(order[0])  # the first one is always compared
    for image_id in order:
        read(image_id).features.astype(np.float32)
    return len(order)


def batches_of(stream: Iterator[object], steps: int, batch_size: int) -> int:
    for _ in range(steps):
        next(stream)
    return steps * batch_size


def steps_of(task: TrainTask, arguments: argparse.Namespace) -> Callable[[], int]:
    config = TrainConfig(steps=10**6, learning_rate=1e-6, optimizer="adamw", device="cpu", precision="fp32")
    accelerator = make_accelerator(config)
    optimizer = build_optimizer(
        chosen_groups(task.model, task.parameter_groups, config), config, device=accelerator.device
    )
    model, prepared = accelerator.prepare(task.model, optimizer)
    step = TrainStep(task, model, prepared, accelerator, config, stop_signal=lambda: 0)
    stream = task.batches(0, rank=0, num_ranks=1)
    model.train()

    def take() -> int:
        for number in range(arguments.steps):
            step.take([next(stream)], number)
        return arguments.steps * arguments.batch_size

    return take


def work_of(store: FeatureStore, arguments: argparse.Namespace) -> Callable[[], int]:
    ids = list(store.ids())
    if not (arguments.loader or arguments.loop):
        order = [ids[place] for place in np.random.default_rng(2).permutation(len(ids))]
        return partial(read_all, store, order)
    draw = np.random.default_rng(1)
    captions = [" ".join(draw.choice(WORDS, 18)) for _ in range(2 * len(ids))]
    task = make_task(SYSTEMS[arguments.system], arguments, store, captions, Path())
    if arguments.loop:
        return steps_of(task, arguments)
    return partial(batches_of, task.batches(0, rank=0, num_ranks=1), arguments.steps, arguments.batch_size)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", action="store_true", help="make batches, in this process")
    parser.add_argument("--loop", action="store_true", help="take steps of a small model")
    parser.add_argument("--base", action="store_true", help="steps of a model of base size")
    parser.add_argument("--system", default="visualbert", choices=SYSTEMS, help="whose batches [visualbert]")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--regions", nargs=2, type=int, default=[36, 36], help="of a record, uniformly [36 36]")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="of one round, with --loader or --loop [10]")
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {MIN_ROUNDS} [9]")
    arguments = parser.parse_args()
    if arguments.rounds < MIN_ROUNDS:
        parser.error(f"--rounds: at least {MIN_ROUNDS}")
    arguments.toy, arguments.end_to_end, arguments.workers = not arguments.base, False, 0
    return arguments


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder), arguments.records, tuple(arguments.regions), WIDTH, (480, 640))
        with FeatureStore(folder) as store:
            work = work_of(store, arguments)
            arms = {name: partial(microseconds, store, one_in, work) for name, one_in in WAYS.items()}
            found = take_turns(arms, arguments.rounds)
    rows = [
        (name, f"{median(times):,.1f}", f"{min(times):,.1f}..{max(times):,.1f}", str(Ratio(times, found["none"])))
        for name, times in found.items()
    ]
    what = "a sample" if arguments.loader or arguments.loop else "a record"
    print(f"{arguments.regions} regions of {WIDTH} float16 values and {CLASSES + 1} probabilities")
    print(table(("compared", f"CPU us {what}, median", "of the rounds", "over none"), rows))


if __name__ == "__main__":
    main()
