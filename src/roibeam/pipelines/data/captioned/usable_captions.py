"""Captions that can be trained on, and a count of those that cannot or will be cut."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import xxhash

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.data.captioned.task_texts import TaskText
from roibeam.pipelines.data.captions.caption_files import Caption

_REPEATED = 0.1  # share from which it is told: two people may say the same of a picture

AnyCaption = TypeVar("AnyCaption", Caption, TaskText)


class UsableCaptions:
    """Leaves out captions of white space alone, as the readers of line-by-line files do.

    Args:
        most_pieces: that the system reads of a caption, [CLS] and [SEP] counted; None where it does not say.
    """

    def __init__(self, most_pieces: int | None) -> None:
        self._most_words = None if most_pieces is None else most_pieces - 2
        self._empty = self._long = self._longest = 0
        self._first = ""
        self._seen = array("Q")  # 8 bytes for each caption

    def passed(
        self,
        captions: Iterable[AnyCaption],
        words_of: Callable[[AnyCaption], int] = lambda each: len(each.text.split()),
    ) -> Iterator[AnyCaption]:
        """The others; to be read once.

        Args:
            words_of: how many words of one are read.
        """
        for caption in captions:
            words = words_of(caption)
            if words:
                self._longest = max(self._longest, words)
                self._long += self._most_words is not None and words > self._most_words
                if isinstance(caption, Caption):  # a task's texts come again with other images
                    same = f"{caption.row if caption.name is None else caption.name}\0{caption.text}"
                    self._seen.append(xxhash.xxh3_64_intdigest(same.encode("utf-8", "surrogatepass")))
                yield caption
                continue
            if not self._empty:
                self._first = f"row {caption.row}" if caption.name is None else caption.name
            self._empty += 1

    def notes(self) -> list[str]:
        """For people. Words are counted between white space: what has fewer may still be too many pieces."""
        notes = []
        if self._empty:
            of = printable(self._first, 80)
            notes.append(f"{counted(self._empty, 'empty caption')} left out (the first is of {of})")
        again = len(self._seen) - len(np.unique(np.array(self._seen, np.uint64)))
        if again > _REPEATED * len(self._seen):
            notes.append(
                f"{counted(again, 'caption')} of {len(self._seen):,} come again word for word, of the same image"
            )
        if self._long:
            notes.append(
                f"{counted(self._long, 'caption')} of more than {self._most_words} words will be cut; the longest has "
                f"{self._longest:,}"
            )
        return notes
