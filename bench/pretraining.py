"""Samples a second of pre-training through its own loop, and the loader alone: `python bench/pretraining.py --help`.

The loop: batches from a store on disk (warm), made by `--workers` processes, through `TrainStep`: counts, autocast,
forward, backward, clip, optimiser. "waiting" is the share of a step in which it waits for its next batch.
`--end-to-end` reads drawn photos instead and makes their features in the step. `--loader` leaves the model out.
`--all-states` compares a step with one whose last layers compute the states that no loss reads, too.

Records have `--regions` regions of 2048 float16 values and 1,601 class probabilities, captions of `--words` words (two
of them in a row of VisualBERT).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import cv2
import numpy as np
import psutil
import torch
from store_formats import FINGERPRINT
from store_rounds import MIN_ROUNDS, Ratio, status_mb, table, take_turns
from torch import nn

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.shard.writer import ShardWriter, publish_shard, publish_store
from roibeam.features.store import FeatureStore
from roibeam.model import pretraining
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert import model as vilbert
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.pretraining.end_to_end_encoder import row_sizes
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS, System
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.training.loop import make_accelerator
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups
from roibeam.pipelines.training.task import TrainTask
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import TrainStep

CLASSES, WIDTH = 1600, 2048
WORDS = "a man in a blue coat rides his bicycle along the beach while two dogs run after red ball".split()


class Found(NamedTuple):
    """Of one round: samples a second, and the share of the time in which the next batch was waited for."""

    rate: float
    waiting: float


def write_store(folder: Path, count: int, regions: tuple[int, int], width: int, image_hw: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    height, image_width = image_hw
    with ShardWriter(folder / "part-00000.bench.lmdb", planned_bytes=2**28) as writer:
        for index in range(count):
            number = int(draw.integers(regions[0], regions[1] + 1))
            corner = draw.uniform(0, 200, (number, 2))
            extent = draw.uniform(20, min(height, image_width) - 220, (number, 2))
            probabilities = draw.dirichlet(np.full(CLASSES + 1, 0.01), number).astype(np.float16)
            writer.put(
                RegionRecord(
                    image_id=f"{index:06d}",
                    height=height,
                    width=image_width,
                    boxes=np.concatenate([corner, corner + extent], 1).astype(np.float32),
                    features=draw.random((number, width), np.float32).astype(np.float16),
                    class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
                    class_scores=draw.random(number, np.float32),
                    class_distribution=probabilities,
                )
            )
        summary = writer.finish()
    manifest = ShardManifest.from_summary(summary, shard=0, attempt="bench", fingerprint=FINGERPRINT, members_digest="")
    publish_shard(folder, manifest)
    publish_store(folder, [0], fingerprint=FINGERPRINT, config={})


def write_photos(folder: Path, count: int, image_hw: tuple[int, int]) -> None:
    """JPEGs as large as photos are: smooth, with some noise."""
    draw = np.random.default_rng(2)
    folder.mkdir()
    for index in range(count):
        coarse = draw.integers(0, 256, (image_hw[0] // 20, image_hw[1] // 20, 3), np.uint8)
        photo = cv2.resize(coarse, image_hw[::-1], interpolation=cv2.INTER_CUBIC)
        photo = cv2.add(photo, draw.integers(0, 12, photo.shape, np.uint8))
        cv2.imwrite(str(folder / f"{index:06d}.jpg"), photo)


def make_task(
    system: System, arguments: argparse.Namespace, store: FeatureStore, captions: list[str], photos: Path
) -> TrainTask:
    tokenizer: CaptionTokenizer = load_tokenizer("captions", captions)
    rows = CaptionTable(list(store.ids()), ((place // 2, text) for place, text in enumerate(captions)))
    fields = {"vocab_size": 30522, "region_feature_size": store.feature_dim}
    fields |= system.region_label_fields(CLASSES)
    fields |= system.end_to_end_fields if arguments.end_to_end else {}
    config: Any = system.sizes["small" if arguments.toy else "base"](**fields)
    if arguments.all_states:  # with dropout all states are computed
        rates = [name for name in vars(config) if name.endswith("_dropout")]
        config = type(config)(**config.to_diff_dict() | dict.fromkeys(rates, 0.0))
    sampler = system.sampler(system.sampling(), tokenizer, config, num_classes=CLASSES)
    corpus, data = Corpus(store, rows), DataConfig(arguments.batch_size, arguments.workers)
    torch.manual_seed(0)
    model: Any = nn.Identity() if arguments.loader else system.model_class(config)
    model.config = config
    if not arguments.end_to_end:
        return PretrainTask(model, corpus, sampler, data, pad_id=tokenizer.pad_id, seed=0)
    encoder = RegionEncoder(CONFIGS[encoder_name(arguments)], recompute=arguments.recompute)
    joint = EndToEndModel(
        model, encoder.to(memory_format=torch.channels_last), EndToEndChoices(whole_image=system.whole_image)
    )
    return EndToEndTask(
        joint,
        corpus,
        sampler,
        TaskPhotos(
            RecordPhotos(store, rows.captioned_ids(), str(photos)),
            row_sizes(store, rows),
            PhotoRules(read_ahead=arguments.read_ahead),
        ),
        data,
        pad_id=tokenizer.pad_id,
        seed=0,
    )


def encoder_name(arguments: argparse.Namespace) -> str:
    return "toy" if arguments.toy else "vg-r101-c4-600"


def loader_rounds(task: TrainTask, arguments: argparse.Namespace) -> Iterator[Found]:
    stream = task.batches(0, rank=0, num_ranks=1)
    while True:
        start = time.perf_counter()
        for _ in range(arguments.steps):
            next(stream)
        yield Found(arguments.steps * arguments.batch_size / (time.perf_counter() - start), 1.0)


def train_step(task: TrainTask, device: str, precision: str) -> TrainStep:
    config = TrainConfig(steps=10**6, learning_rate=1e-6, optimizer="adamw", device=device, precision=precision)
    accelerator = make_accelerator(config)
    groups = chosen_groups(task.model, task.parameter_groups, config)
    optimizer = build_optimizer(groups, config, device=accelerator.device)
    model, prepared = accelerator.prepare(task.model.train(), optimizer)
    return TrainStep(task, model, prepared, accelerator, config, stop_signal=lambda: 0)


def loop_rounds(task: TrainTask, arguments: argparse.Namespace) -> Iterator[Found]:
    step, device = train_step(task, arguments.device, arguments.precision), torch.device(arguments.device)
    stream = task.batches(0, rank=0, num_ranks=1)
    while True:
        synchronise(device)
        start, waited = time.perf_counter(), 0.0
        for number in range(arguments.steps):
            asked = time.perf_counter()
            batch = next(stream)
            waited += time.perf_counter() - asked
            step.take([batch], number)
            synchronise(device)  # else what the device has still to do would count as waiting, or not at all
        taken = time.perf_counter() - start
        yield Found(arguments.steps * arguments.batch_size / taken, waited / taken)


def cpu_seconds() -> float:
    """Of this process and its workers: what a machine that others use too does not change as much as the clock."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak() -> None:
    """Peaks are of one system each, where the kernel lets a process reset its own."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def measured(name: str, task: TrainTask, arguments: argparse.Namespace) -> tuple[str, ...]:
    forget_peak()
    rounds = (loader_rounds if arguments.loader else loop_rounds)(task, arguments)
    next(rounds)  # warm-up
    before = cpu_seconds()
    found = [next(rounds) for _ in range(arguments.rounds)]
    cpu = (cpu_seconds() - before) / (arguments.rounds * arguments.steps * arguments.batch_size)
    rates = [each.rate for each in found]
    on_device = torch.cuda.max_memory_allocated() / 2**20 if arguments.device == "cuda" else 0
    return (
        name,
        str(arguments.workers),
        f"{median(rates):,.0f}" if median(rates) >= 50 else f"{median(rates):.2f}",
        f"{min(rates):,.1f}..{max(rates):,.1f}",
        "" if arguments.loader else f"{median(each.waiting for each in found):.1%}",
        f"{cpu * 1e6:,.0f}",
        f"{status_mb('VmHWM'):,.0f}",
        f"{on_device:,.0f}" if on_device else "",
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--loader", action="store_true", help="make batches and nothing else")
    parser.add_argument("--end-to-end", action="store_true", help="make the features in the step, from photos")
    parser.add_argument("--toy", action="store_true", help="small models; else base size")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"), help="by autocast [bf16]")
    parser.add_argument("--batch-size", type=int, default=64, help="captions of a step [64]")
    parser.add_argument("--steps", type=int, default=12, help="of one round [12]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"after one to warm up [{MIN_ROUNDS}]")
    parser.add_argument("--workers", type=int, default=2, help="processes that make batches, with stored features [2]")
    parser.add_argument("--read-ahead", type=int, default=4, help="threads that read photos [4]")
    parser.add_argument("--recompute", action="store_true", help="compute the encoder's activations again")
    parser.add_argument("--regions", nargs=2, type=int, default=[36, 36], help="of a record, uniformly [36 36]")
    parser.add_argument("--words", nargs=2, type=int, default=[18, 18], help="of a caption, uniformly [18 18]")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--image-hw", nargs=2, type=int, default=[600, 1000], help="of the photos, pixels [600 1000]")
    parser.add_argument("--all-states", action="store_true", help="what it saves to compute only states that are read")
    arguments = parser.parse_args()
    if arguments.loader and arguments.end_to_end:
        parser.error("--loader is of stored features; end to end, photos are read by threads of the run")
    if arguments.end_to_end:
        arguments.workers = 0
    return arguments


def reading(task: TrainTask, arguments: argparse.Namespace) -> Ratio:
    """Time (CPU time on a CPU) of a step on one batch whose last layers compute all states, over a usual one."""
    step, batch = train_step(task, arguments.device, arguments.precision), next(task.batches(0, rank=0, num_ranks=1))
    device, real = torch.device(arguments.device), pretraining.reading_labels
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def taken(read: Callable[[VLBatch], VLBatch]) -> float:
        with patch.object(pretraining, "reading_labels", read), patch.object(vilbert, "reading_labels", read):
            synchronise(device)
            start = clock()
            step.take([batch], 0)
            synchronise(device)
            return clock() - start

    return Ratio(
        *take_turns({"all": lambda: taken(lambda same: same), "read": lambda: taken(real)}, arguments.rounds).values()
    )


def main() -> None:
    arguments = parsed()
    if arguments.device == "cpu":
        torch.set_num_threads(1 if arguments.loader else torch.get_num_threads())
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{torch.get_num_threads()} threads"
    kind = "loader" if arguments.loader else f"{'toy' if arguments.toy else 'base'}, {arguments.precision}"
    print(f"{device}, torch {torch.__version__}, {kind}, batches of {arguments.batch_size}", flush=True)
    draw = np.random.default_rng(1)
    lengths = draw.integers(arguments.words[0], arguments.words[1] + 1, 2 * arguments.records)
    captions = [" ".join(draw.choice(WORDS, length)) for length in lengths]
    width = CONFIGS[encoder_name(arguments)].feature_dim if arguments.end_to_end else WIDTH
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path, photos, image_hw = Path(folder) / "store", Path(folder) / "photos", tuple(arguments.image_hw)
        path.mkdir()
        write_store(path, arguments.records, tuple(arguments.regions), width, image_hw)
        if arguments.end_to_end:
            write_photos(photos, arguments.records, image_hw)
        for name in arguments.systems:
            # One at a time: workers that wait with full queues would still hold memory.
            with FeatureStore(path) as store:
                for _ in store.scan():  # warm
                    pass
                task = make_task(SYSTEMS[name], arguments, store, captions, photos)
                if arguments.all_states:
                    print(f"{name}: {reading(task, arguments)}", flush=True)
                    continue
                rows.append(measured(name, task, arguments))
            print(" | ".join(rows[-1]), flush=True)
    head = (
        "system",
        "workers",
        "samples/s, median",
        "of the rounds",
        "waiting",
        "CPU us a sample",
        "VmHWM, MB",
        "on the GPU, MB",
    )
    if rows:
        print(table(head, rows))


if __name__ == "__main__":
    main()
