"""Rows of text beside images, and groups of rows, as a downstream task gives them to a system.

A task (tasks/) makes groups and knows no system; a system (systems/) lays a row out and knows no task. This file is all
that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.data.record_regions import swap_left_right

LABEL, CHOICE, REGION, PHRASE = "label", "choice", "region", "phrase"
# Output of a row: one of many labels; one score; a score for each region; the same for each of its phrases.
FORMS = (LABEL, CHOICE, REGION, PHRASE)
# Words that are grounded in the region that they name: as the system has it, all that name one, or none.
AUTO, GROUNDED, UNGROUNDED = "auto", "words", "none"
GROUNDINGS = (AUTO, GROUNDED, UNGROUNDED)


@dataclass(frozen=True)
class TaskText:
    """One part of a row's text, such as a question or one of its answers.

    Attributes:
        words: to be cut into pieces. A text that its files do not separate is one word with blanks in it.
        tags: for each word the number of the box of the row's image that it names, -1 for none; () = no word names any.
    """

    words: tuple[str, ...]
    tags: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tags and len(self.tags) != len(self.words):
            raise ValueError(f"TaskText: {len(self.tags)} tags for {len(self.words)} words")

    @property
    def text(self) -> str:
        return " ".join(self.words)


class PartPieces(NamedTuple):
    """A part of a row's text in word pieces, for a task that cuts its texts itself; (n,) int64 each.

    Attributes:
        words: word of the part that each piece is of; -1 for none.
        tags: number of the box that each names, -1 for none.
    """

    ids: np.ndarray
    words: np.ndarray
    tags: np.ndarray

    def kept(self, start: int, stop: int) -> PartPieces:
        return PartPieces(*(each[start:stop] for each in self))


class PieceCoder(NamedTuple):
    """A tokenizer: text -> (n,) ids without special pieces; id -> the piece."""

    encode: Callable[[str], np.ndarray]
    piece: Callable[[int], str]


@dataclass(frozen=True)
class TaskRow:
    """Text and images that are read together.

    Attributes:
        parts: the text, the context first: a question, then an answer.
        images: numbers of the group's images; two for a statement about two images, none for a text alone.
        phrases: of PHRASE, for each phrase the number of the word of the first part that stands for it.
    """

    parts: tuple[TaskText, ...]
    images: tuple[int, ...] = (0,)
    phrases: tuple[int, ...] = ()


def text_row(*texts: str, images: tuple[int, ...] = (0,)) -> TaskRow:
    """A row of texts that their files do not separate into words."""
    return TaskRow(tuple(TaskText((text,)) for text in texts), images)


@dataclass(frozen=True)
class TaskGroup:
    """Rows that are judged together, such as a question with its four answers; never split.

    Attributes:
        id: of its prediction, as in the result file.
        images: ids of its images, as in the store; read, embedded and convolved once. () for texts alone.
        rows: of equal form.
        target: label, as in the task's file; None without one.
        boxes: for each image boxes given with the task (R, 4) x1 y1 x2 y2 in pixels, inputs beside or instead of the
            stored ones, or none.
        whole_image: (4,) x1 y1 x2 y2 in pixels, where the image as a whole is the first of the regions that are chosen
            among; None elsewhere. Alike for all groups of a task.
        is_open: whether a model predicts it; without a choice a group is answered without one, and needs no record.
        facts: for result files, figures and pages; "region_targets" are rules of this group's targets.
        mirrored: whether its images are mirrored left to right. Its text is of the mirrored images already; boxes are
            those of the images as they are, and are mirrored with them.
        swapped: whether its images are those of another group, so that boxes that its words name need not be there.
        draws: seed of what is hidden for auxiliary targets; () hides nothing.
    """

    id: str
    images: tuple[str, ...]
    rows: tuple[TaskRow, ...]
    target: Any = None
    boxes: Sequence[Any] = ()
    whole_image: Any = None
    is_open: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    mirrored: bool = False
    swapped: bool = False
    draws: tuple[int, ...] = ()


def mirrored_rows(rows: Iterable[TaskRow]) -> tuple[TaskRow, ...]:
    """Rows beside mirrored images: left and right change places in their texts, as in VL-BERT's release.

    The release changes the words "left" and "right" alone; here "leftmost" becomes "rightmost" too.
    """
    return tuple(
        replace(row, parts=tuple(replace(part, words=tuple(map(swap_left_right, part.words))) for part in row.parts))
        for row in rows
    )
