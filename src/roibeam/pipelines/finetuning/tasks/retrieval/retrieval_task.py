"""Retrieval as a task of the frame: a caption, its image and wrong pairs beside; all pairs of a split are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.pipelines.data.captions.captioned_pictures import SPLITS, CaptionedPicture, read_captioned
from roibeam.pipelines.data.fit import check_choice
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.task import SPLITS as OF_SPLITS
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.retrieval.distractors import (
    CAPTION,
    HARD_CAPTION,
    HARD_IMAGE,
    IMAGE,
    Distractors,
    mixes_of,
)
from roibeam.pipelines.finetuning.tasks.retrieval.neighbours import FILE_NAME, hard_neighbours

MULTI_CLASS, BINARY, TRIPLET, ALL_THREE = "multi_class", "binary", "triplet", "all_three"
LOSSES = (MULTI_CLASS, BINARY, TRIPLET, ALL_THREE)
PER_CAPTION, PER_IMAGE = "caption", "image"
_VALIDATION_MIX = ((IMAGE, IMAGE, IMAGE),)


@dataclass(frozen=True)
class RetrievalOptions:
    """
    Attributes:
        distractors: kinds of the wrong pairs of a group, see `distractors.py`; "|" between mixes of which each group
            draws one. ViLBERT's release, as here: a caption, an image, the caption of an image that looks alike.
        loss: over the scores of a group: "multi_class", which pair is right (ViLBERT); "binary", every pair by itself
            (ImageBERT's best; InterBERT's release); "triplet", with the hardest wrong pair; "all_three", their sum.
        per: whether an epoch has a group for each "caption", or for each "image" with one of its captions drawn
            (ImageBERT's epochs are too many for captions).
        most_captions: of an image that is trained on, the first ones; 0 for all. vsepp takes 5 of COCO's, which are 5
            to 7.
    """

    distractors: tuple[str, ...] = (CAPTION, IMAGE, HARD_CAPTION)
    loss: str = MULTI_CLASS
    per: str = PER_CAPTION
    most_captions: int = 0

    def __post_init__(self) -> None:
        check_choice(self, "loss", LOSSES)
        check_choice(self, "per", (PER_CAPTION, PER_IMAGE))
        object.__setattr__(self, "distractors", tuple(self.distractors))  # a file of json has a list
        mixes_of(self.distractors)
        if self.most_captions < 0:
            raise ValueError(f"RetrievalOptions: most_captions must not be negative, got {self.most_captions}")

    @property
    def mixes(self) -> list[list[str]]:
        return mixes_of(self.distractors)

    @property
    def needs_neighbours(self) -> bool:
        return any(kind in (HARD_CAPTION, HARD_IMAGE) for mix in self.mixes for kind in mix)


def open_retrieval(folder: Path, options: RetrievalOptions, labels: Sequence[str] | None) -> DownstreamTask:
    """Retrieval with the files of one data set in `folder`, found by their names.

    While it trains, a run is judged by which of four images a caption of the validation split means; how it retrieves
    is measured on all pairs, by `roibeam predict` and `roibeam score`.
    """

    def read(split: str) -> TaskSplit:
        is_trained = split == "train"
        pictures, path = read_captioned(folder, split, most_captions=options.most_captions if is_trained else 0)
        per_image = options.per == PER_IMAGE and is_trained
        return TaskSplit(list(caption_groups(pictures, per_image=per_image)), (path,))

    def drawn_from(
        groups: Sequence[TaskGroup], store: Any, run: Path | None
    ) -> Callable[[TaskGroup, np.random.Generator], TaskGroup]:
        if run is None:
            return Distractors(groups, _VALIDATION_MIX, ()).draw
        neighbours: Sequence[Sequence[int]] = ()
        if options.needs_neighbours:
            images = list(dict.fromkeys(group.images[0] for group in groups))
            features = store.fingerprint.feature_space
            neighbours = hard_neighbours(store, images, run / FILE_NAME, features=features)  # type: ignore[assignment]
        return Distractors(groups, options.mixes, neighbours, draws_caption=options.per == PER_IMAGE).draw

    return DownstreamTask(
        name="retrieval",
        form=CHOICE,
        loss=options.loss,
        read=read,
        train="train",
        validation="val",
        judge=judge_choice,
        answers=_no_answers,
        write=_no_file,
        splits=SPLITS,
        drawn_from=drawn_from,
        reported_by=OF_SPLITS,
    )


def caption_groups(pictures: Sequence[CaptionedPicture], *, per_image: bool) -> Iterator[TaskGroup]:
    """A group for each caption, or image, with its true pair alone."""
    for picture in pictures:
        facts = {"captions": picture.captions}
        for number, caption in enumerate(picture.captions[: 1 if per_image else None]):
            name = picture.image if per_image else picture.caption_id(number)
            yield TaskGroup(name, (picture.image,), (TaskRow((TaskText((caption,)),)),), target=0, facts=facts)


def judge_choice(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Mapping[str, Measure]:
    """ "R@1 of 4": how many captions score their own image above all others of the group; a tie is a miss."""
    right = [float(each.scores[0] > each.scores[1:].max()) for each in said]
    name = f"R@1 of {max((len(group.rows) for group in groups), default=0)}"
    by_lot = [1 / len(group.rows) for group in groups]
    images = [group.images[0] for group in groups]
    return {name: Measure(name, right, images, guess=lambda: sum(by_lot) / len(by_lot))}


def _no_answers(groups: Sequence[TaskGroup], said: Sequence[Prediction]) -> Iterator[Any]:
    raise ValueError("retrieval has no answers of single groups; its scores are of all pairs")


def _no_file(path: Path, entries: Sequence[Any]) -> None:
    raise ValueError("retrieval has no file of single groups; its scores are of all pairs")
