"""The wrong pairs beside a true one, as each source mixes them, drawn anew in every epoch.

    caption         the same image with a caption of another one
    image           another image with the same caption
    hard_caption    the same image with a caption of an image that looks like it
    hard_image      an image that looks like it with the same caption

"|" parts mixes of which each group draws one: ImageBERT trains half of its groups each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from roibeam.features.counted import counted
from roibeam.pipelines.finetuning.rows import TaskGroup, TaskRow, TaskText

CAPTION, IMAGE, HARD_CAPTION, HARD_IMAGE = "caption", "image", "hard_caption", "hard_image"
KINDS = (CAPTION, IMAGE, HARD_CAPTION, HARD_IMAGE)
EITHER = "|"
# Per image the numbers of those that look like it, the nearest first.
Neighbours = Sequence[Sequence[int]]


class Draws(Protocol):
    """Where the draws come from: a generator, or a file that has those of a published code."""

    def mix(self, count: int) -> int:
        """One of so many mixes."""

    def other(self, own: int, count: int) -> int:
        """One of so many images, not this one."""

    def hard(self, own: int, neighbours: Sequence[int]) -> int:
        """One of the images that look like this one."""

    def caption(self, image: int, count: int) -> int:
        """One of the captions of an image."""


class RandomDraws:
    """Of a generator; all are equally likely."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def mix(self, count: int) -> int:
        return self._one_of(count)

    def other(self, own: int, count: int) -> int:
        other = self._one_of(count - 1)
        return other + int(other >= own)

    def hard(self, own: int, neighbours: Sequence[int]) -> int:
        return int(neighbours[self._one_of(len(neighbours))])

    def caption(self, image: int, count: int) -> int:
        return self._one_of(count)

    def _one_of(self, count: int) -> int:
        return int(self._generator.integers(count))


def mixes_of(words: Sequence[str]) -> list[list[str]]:
    """The mixes that a setting names, one or several.

    Raises:
        ValueError: for an unknown kind, or an empty mix.
    """
    mixes: list[list[str]] = [[]]
    for word in words:
        if word == EITHER:
            mixes.append([])
        elif word in KINDS:
            mixes[-1].append(word)
        else:
            raise ValueError(f"distractors: no kind {word!r}; there are {', '.join(KINDS)}, and {EITHER} between mixes")
    if not all(mixes):
        raise ValueError("distractors: a mix without a wrong pair; name one or more kinds")
    return mixes


class Distractors:
    """Draws the wrong pairs of groups from captions and images of their split.

    Args:
        groups: of the split, joined with the store; each has its true pair alone, `facts["captions"]` are all captions
            of its image.
        mixes: see `mixes_of`.
        neighbours: by number of an image, in the order in which groups name them first; empty where no mix needs them.
        draws_caption: whether a group is of an image, with one of its captions drawn.
    Raises:
        ValueError: for fewer than two images.
    """

    def __init__(
        self,
        groups: Sequence[TaskGroup],
        mixes: Sequence[Sequence[str]],
        neighbours: Neighbours,
        *,
        draws_caption: bool = False,
    ) -> None:
        captions = {group.images[0]: tuple(group.facts["captions"]) for group in groups}
        if len(captions) < 2:
            raise ValueError(f"retrieval: {counted(len(captions), 'image')}; wrong pairs need two or more")
        self._images, self._captions = list(captions), list(captions.values())
        self._number = {image: place for place, image in enumerate(self._images)}
        self._mixes, self._neighbours, self._draws_caption = mixes, neighbours, draws_caption

    def draw(self, group: TaskGroup, generator: np.random.Generator) -> TaskGroup:
        """The group with its wrong pairs behind the true one."""
        return self.drawn(group, RandomDraws(generator))

    def drawn(self, group: TaskGroup, draws: Draws) -> TaskGroup:
        """As `draw`, from draws of any origin; they are asked in the order of the mix, image before caption."""
        own = self._number[group.images[0]]
        if self._draws_caption:
            text = self._a_caption(own, draws)
        else:
            ((text,),) = (row.parts for row in group.rows)
        mix = self._mixes[0] if len(self._mixes) == 1 else self._mixes[draws.mix(len(self._mixes))]
        images, rows = [group.images[0]], [TaskRow((text,))]
        for kind in mix:
            is_hard = kind in (HARD_CAPTION, HARD_IMAGE)
            other = draws.hard(own, self._neighbours[own]) if is_hard else draws.other(own, len(self._images))
            if kind in (CAPTION, HARD_CAPTION):
                rows.append(TaskRow((self._a_caption(other, draws),)))
            else:
                rows.append(TaskRow((text,), (len(images),)))
                images.append(self._images[other])
        return replace(group, images=tuple(images), rows=tuple(rows), target=0)

    def _a_caption(self, image: int, draws: Draws) -> TaskText:
        captions = self._captions[image]
        return TaskText((captions[draws.caption(image, len(captions))],))
