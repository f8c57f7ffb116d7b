"""Items of retrieval as both ViLBERT releases and InterBERT make them (data_retrieval*), with their own draws.

What is drawn beside a true pair is a mix of `RetrievalOptions`. Here stands how a release lays an item out, and how a
case shows its draws.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.case_files import ArrayError
from harness.checks import Check
from harness.finetuning.item_files import FILES, ItemCase
from roibeam.pipelines.data.datasets.karpathy import CaptionedPicture, read_retrieval_lines
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.tasks.retrieval import Distractors, RandomDraws, RetrievalOptions, caption_groups

_OF_RANDOM_IMAGE = 2  # its row in a group of the release's mix


class _FileDraws(RandomDraws):
    """`RandomDraws` that were noted when the release ran: what, and which number it gave."""

    def __init__(self, drawn: Sequence[Any], groups: Sequence[TaskGroup], pool: np.ndarray) -> None:
        self._drawn, self._pool = [(str(what), int(number)) for what, number in drawn], pool
        self._images = list(dict.fromkeys(group.images[0] for group in groups))
        self._entries = [(group.images[0], int(group.id.rpartition("#")[2])) for group in groups]

    @property
    def left(self) -> int:
        """Draws that were not asked for."""
        return len(self._drawn)

    def mix(self, count: int) -> int:
        raise ValueError("the releases have one mix")

    def other(self, own: int, count: int) -> int:
        """The release draws until it is another image."""
        while (found := self._images.index(str(self._next("choice")))) == own:
            pass
        return found

    def hard(self, own: int, neighbours: Sequence[int]) -> int:
        return int(self._pool[own][self._next("pool_index")])

    def caption(self, image: int, count: int) -> int:
        name, number = self._entries[self._next("choice")]
        if name != self._images[image]:
            raise ValueError(f"the caption that was drawn is of the image {name}, ours is {self._images[image]}")
        return number

    def _next(self, what: str) -> int:
        if not self._drawn or self._drawn[0][0] != what:
            raise ValueError(f"ours draws a {what} where the release drew {self._drawn[:1] or 'nothing'}")
        return self._drawn.pop(0)[1]


def checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items."""
    lines = list(read_retrieval_lines(case.written("all.jsonline")))
    groups = list(caption_groups([CaptionedPicture(*line) for line in lines], per_image=False))
    pool = case.take("in/hard_pool", len(lines), None)
    for name in (f"{FILES}hard_negative.pkl.as.json", f"{FILES}cache/hard_negative.pkl.as.json"):
        if case.json(name)["train_hard_pool"] != pool.tolist():
            raise ArrayError(name, "has other neighbours than in/hard_pool")
    records = {image: case.record(image, image) for image, _ in lines}
    batches = case.vilbert_batches(records, OutputSpec(CHOICE))
    distractors = Distractors(groups, RetrievalOptions().mixes, [row[1:] for row in pool.tolist()])
    is_interbert = any(name.endswith(".multimodal_mask") for name in case.names)
    items = []
    for group, drawn in zip(groups, case.options["drawn"], strict=True):
        draws = _FileDraws(drawn, groups, pool)
        inputs = batches.batch([distractors.drawn(group, draws)]).inputs.without_sharing()
        if draws.left:
            raise ArrayError("config", f"{draws.left} draws of the caption {group.id} that ours does not ask for")
        items.append(_item(case.vilbert_leaves(inputs), group, is_interbert=is_interbert))
    yield from case.list_checks(items)


def _item(found: dict[str, np.ndarray], group: TaskGroup, *, is_interbert: bool) -> dict[str, np.ndarray]:
    """Leaves of one item, (4, ...) each but its number and, of ViLBERT, its target."""
    found["image_id"] = np.array(int(group.images[0]))
    if is_interbert:
        both, target = [found["image_mask"], found["input_mask"]], np.arange(len(found["text"])).clip(max=1)
        return {**found, "target": target, "multimodal_mask": np.concatenate(both, axis=1)}
    # A slip of both ViLBERT releases: behind the random image's regions stand those of the first image, masked.
    behind = found["image_mask"][_OF_RANDOM_IMAGE] == 0
    for leaf in ("features_first8", "features_row_sum", "spatials"):
        found[leaf][_OF_RANDOM_IMAGE, behind] = found[leaf][0, behind]
    return {**found, "target": np.array(group.target)}
