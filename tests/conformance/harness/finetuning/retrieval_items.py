"""Items of retrieval as both ViLBERT releases and InterBERT make them (data_retrieval*), with their own draws.

What is drawn beside a true pair is a mix of `RetrievalOptions`. Here stands how a release lays an item out, and how a
case shows its draws.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from harness.case_files import ArrayError, Arrays
from harness.checks import Check
from harness.finetuning.item_files import (
    FILES,
    MAX_SIZE,
    filled,
    json_of,
    list_checks,
    size_option,
    stored_record,
    write_item_file,
)
from roibeam.features.store import FeatureStore
from roibeam.model.common.regions import elements_with_whole_image
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.encoder import vilbert_small
from roibeam.pipelines.data.datasets.karpathy import CaptionedPicture, read_retrieval_lines
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.systems.named_systems import system_named
from roibeam.pipelines.finetuning.systems.options import LONGEST, RELEASE_CUT, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.tasks.retrieval import Distractors, RandomDraws, RetrievalOptions, caption_groups
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

_LINES = f"{FILES}all.jsonline"
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


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    options = arrays.take_json_object("config")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", Path(folder, "vocab.txt")))
        lines = list(read_retrieval_lines(write_item_file(arrays, _LINES, Path(folder, "all.jsonline"))))
    groups = list(caption_groups([CaptionedPicture(*line) for line in lines], per_image=False))
    pool = arrays.take("in/hard_pool", len(lines), None)
    for name in (f"{FILES}hard_negative.pkl.as.json", f"{FILES}cache/hard_negative.pkl.as.json"):
        if json_of(arrays, name)["train_hard_pool"] != pool.tolist():
            raise ArrayError(name, "has other neighbours than in/hard_pool")
    records = {line.image_id: stored_record(arrays, line.image_id, line.image_id) for line in lines}
    pieces, regions = (size_option(options, name) for name in ("max_seq_length", "max_region_num"))
    layout = LayoutOptions(
        max_pieces=pieces,
        cut=LONGEST if "multitask" in arrays.path.stem else RELEASE_CUT,
        max_regions=regions - 1,  # one slot is the whole image's
        region_order="file",
        whole_image="all",
    )
    width = next(iter(records.values())).features.shape[1]
    config = vilbert_small(vocab_size=tokenizer.vocab_size, region_feature_size=width, max_position_embeddings=MAX_SIZE)
    batches = GroupBatches(
        system_named("vilbert"), config, tokenizer, layout, OutputSpec(CHOICE), cast(FeatureStore, records), loss=None
    )
    distractors = Distractors(groups, RetrievalOptions().mixes, [row[1:] for row in pool.tolist()])
    is_interbert = any(name.endswith(".multimodal_mask") for name in arrays.names)
    items = []
    for group, drawn in zip(groups, options["drawn"], strict=True):
        draws = _FileDraws(drawn, groups, pool)
        inputs = batches.batch([distractors.drawn(group, draws)]).inputs.without_sharing()
        if draws.left:
            raise ArrayError("config", f"{draws.left} draws of the caption {group.id} that ours does not ask for")
        items.append(_item(inputs, group, pieces, regions, is_interbert=is_interbert))
    yield from list_checks(arrays, items)


def _item(inputs: VLBatch, group: TaskGroup, pieces: int, regions: int, *, is_interbert: bool) -> dict[str, np.ndarray]:
    """Leaves of one item, (4, ...) each."""
    image = elements_with_whole_image(inputs, count="all")
    found = {
        "features_first8": filled(image.features[..., :8].numpy(), regions, axis=1),
        "features_row_sum": filled(image.features.numpy().astype(np.float64).sum(axis=-1), regions, axis=1),
        "spatials": filled(image.locations.numpy(), regions, axis=1),
        "image_mask": filled(image.mask.numpy().astype(np.int64), regions, axis=1),
        "text": filled(inputs.text_ids.numpy(), pieces, axis=1),
        "input_mask": filled(inputs.text_mask.numpy().astype(np.int64), pieces, axis=1),
        "segment_ids": filled(inputs.text_segments.numpy(), pieces, axis=1),
        "image_id": np.array(int(group.images[0])),
    }
    rows = len(found["text"])
    if is_interbert:
        both = [found["image_mask"], found["input_mask"]]
        return {**found, "target": np.arange(rows).clip(max=1), "multimodal_mask": np.concatenate(both, axis=1)}
    # A slip of both ViLBERT releases: behind the random image's regions stand those of the first image, masked.
    behind = found["image_mask"][_OF_RANDOM_IMAGE] == 0
    for leaf in ("features_first8", "features_row_sum", "spatials"):
        found[leaf][_OF_RANDOM_IMAGE, behind] = found[leaf][0, behind]
    return {**found, "target": np.array(group.target)}
