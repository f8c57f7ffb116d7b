"""How fast one process makes batches of VQA and VCR, ready for a model: `python bench/finetuning_loader.py`.

The store is on disk and warm: 10 to 60 regions an image, 2048 float16 values and 1,601 class probabilities each. Every
question is of an image of its own, in a shuffled order. A question of VQA has 10 to 36 words, of a vocabulary of 8,000
drawn as words are (the n-th as often as 1 / n), one of 3,129 answers; a row of VCR 12 to 40, four of which name boxes,
and the images are shown by 4 to 10 boxes of the file. Batches are those of training: 64 questions of VQA, half of them
mirrored as VL-BERT trains; 16 of VCR, with four answers each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretraining import WIDTH, write_store
from store_rounds import MIN_ROUNDS, table

from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.rows import AUTO, CHOICE, LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

BARS = {"vqa": 2000, "vcr": 500}  # questions/s
BATCH = {"vqa": 64, "vcr": 16}
REGIONS, IMAGE_HW = (10, 60), (480, 640)
ANSWERS = 3129
_LETTERS = "aeiouklmnprst"


class Words:
    """Draws words as texts have them."""

    def __init__(self, seed: int, count: int = 8000) -> None:
        self._draw = np.random.default_rng(seed)
        lengths = self._draw.integers(2, 10, count)
        letters = np.array(list(_LETTERS))
        self.known = sorted({"".join(self._draw.choice(letters, length)) for length in lengths})
        weights = 1 / np.arange(1, len(self.known) + 1)
        self._weights = weights / weights.sum()

    def some(self, least: int, most: int) -> list[str]:
        return list(self._draw.choice(self.known, int(self._draw.integers(least, most + 1)), p=self._weights))

    def number(self, least: int, most: int) -> int:
        return int(self._draw.integers(least, most + 1))


def vqa_groups(store: FeatureStore, words: Words) -> list[TaskGroup]:
    """A question is one word with blanks in it, as the files have them."""
    return [
        TaskGroup(
            str(number), (image,), (TaskRow((TaskText((" ".join(words.some(10, 36)) + "?",)),)),),
            {words.number(0, ANSWERS - 1): 1.0, words.number(0, ANSWERS - 1): 0.3}, mirrored=number % 2 == 1,
        )
        for number, image in enumerate(store.ids())
    ]  # fmt: skip


def vcr_groups(store: FeatureStore, words: Words) -> list[TaskGroup]:
    """Words come cut, with the boxes that they name."""
    groups = []
    for number, image in enumerate(store.ids()):
        boxes = store.meta(image).boxes[: words.number(4, 10)]

        def text(least: int, most: int, count: int = len(boxes)) -> TaskText:
            some = words.some(least, most)
            tags = [words.number(0, count - 1) if place < 2 else -1 for place in range(len(some))]
            return TaskText(tuple(some), tuple(tags))

        question = text(5, 14)
        rows = tuple(TaskRow((question, text(4, 22))) for _ in range(4))
        groups.append(TaskGroup(str(number), (image,), rows, words.number(0, 3), boxes=(boxes,)))
    return groups


def make_batches(system: str, task: str, store: FeatureStore, tokenizer: CaptionTokenizer) -> GroupBatches:
    form, loss = (LABEL, "bce") if task == "vqa" else (CHOICE, "softmax")
    named = SYSTEMS[system]
    asked = OutputSpec(form, ANSWERS if task == "vqa" else 1)
    fields = named.needed_fields(asked, AUTO)
    config: Any = named.sizes["small"](vocab_size=30522, region_feature_size=WIDTH, **fields)
    return GroupBatches(named, config, tokenizer, LayoutOptions(), asked, store, loss=loss_named(form, loss))


def rate(batches: GroupBatches, groups: Sequence[TaskGroup], size: int, seed: int, clock: Callable[[], float]) -> float:
    """Questions/s of one pass in an order of its own."""
    order = np.random.default_rng(seed).permutation(len(groups))
    start = clock()
    for first in range(0, len(order) - size + 1, size):
        batches.batch([groups[place] for place in order[first : first + size]])
    return (len(order) // size * size) / (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000, help="of the store")
    parser.add_argument("--folder", type=Path, help="where the store goes [default: the temporary folder]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of CPU time: for a machine that is busy")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        place = Path(name) / "store"
        place.mkdir()
        write_store(place, arguments.images, REGIONS, WIDTH, IMAGE_HW)
        with FeatureStore(place) as store:
            words = Words(1)
            tokenizer = load_tokenizer("captions", [" ".join(words.known)] * 2)
            groups = {"vqa": vqa_groups(store, words), "vcr": vcr_groups(store, words)}
            arms = {(task, system): make_batches(system, task, store, tokenizer) for task in BARS for system in SYSTEMS}
            found: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
            for turn in range(arguments.rounds + 1):
                for (task, system), batches in arms.items():
                    each = rate(batches, groups[task], BATCH[task], turn, clock)
                    if turn:  # the first warms up
                        found[task, system].append(each)
    rows = []
    for (task, system), rates in found.items():
        median = float(np.median(rates))
        verdict = "met" if median >= BARS[task] else "missed"
        spread = f"{min(rates):,.0f}..{max(rates):,.0f}"
        rows.append((task, system, f"{median:,.0f}", spread, f"{BARS[task]:,}: {verdict}"))
    print(table(("task", "system", "questions/s", "of the rounds", "bar"), rows))


if __name__ == "__main__":
    main()
