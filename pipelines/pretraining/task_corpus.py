"""A task's texts with the records of their images, as samples are made from them: a corpus whose rows may have several
images and say whether they are right."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from features.record import RegionRecord
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.corpus import Corpus, RecordStore, reader
from pipelines.task_texts import TaskText

_NONE = -1  # no second image; not said whether it fits


class TaskRow(NamedTuple):
    """A row's text, see `TaskText`: its beginning, what may follow, and whether it is right."""

    first: str
    following: tuple[str, ...]
    fits: bool | None


class TaskTable(CaptionTable):
    """A caption table whose captions are texts of a task.

    Args:
        ids: of the records, in the store's order.
        rows: (places of the text's one or two images in `ids`, text).
        as_pair: see `TaskTexts`.
    """

    def __init__(
        self, ids: Sequence[str], rows: Iterable[tuple[tuple[int, ...], TaskText]], *, as_pair: bool = False
    ) -> None:
        seconds, fits = array("q"), array("b")

        def first_images() -> Iterable[tuple[int, str]]:
            for places, text in rows:
                seconds.append(places[1] if len(places) > 1 else _NONE)
                fits.append(_NONE if text.fits is None else int(text.fits))
                yield places[0], text.text

        super().__init__(ids, first_images())
        self._seconds, self._fits = np.array(seconds, np.int64), np.array(fits, np.int8)
        self.as_pair = as_pair

    def text(self, row: int) -> TaskRow:
        first, *following = self._captions[row].split("\n")
        fits = int(self._fits[row])
        return TaskRow(first, tuple(following), None if fits == _NONE else bool(fits))

    def ids_of(self, row: int) -> list[str]:
        """Of its images, in their order."""
        places = [int(self._places[row]), int(self._seconds[row])]
        return [self._ids[place] for place in places if place != _NONE]

    def captioned_ids(self) -> list[str]:
        places = np.unique(np.concatenate([self._places, self._seconds]))
        return [self._ids[int(place)] for place in places if place != _NONE]

    def by_row(self, of_images: np.ndarray) -> np.ndarray:
        """As of `CaptionTable`; the sum over the images of the row."""
        numbers = np.zeros(len(self._ids) + 1, of_images.dtype)  # the last is of no second image, whose place is -1
        places = np.unique(np.concatenate([self._places, self._seconds]))
        numbers[places[places != _NONE]] = of_images
        return numbers[self._places] + numbers[self._seconds]

    def facts(self) -> bytes:
        """What tells two tables of the same texts and first images apart, for a digest."""
        seconds = [self._ids[int(place)] if place != _NONE else "" for place in self._seconds]
        return "\n".join(seconds).encode("utf-8") + self._fits.tobytes() + bytes([self.as_pair])

    def _rows_within(self, wanted: np.ndarray) -> np.ndarray:
        return np.flatnonzero(wanted[self._places] & (wanted[self._seconds] | (self._seconds == _NONE)))

    def _taken(self, rows: np.ndarray) -> Self:
        def texts() -> Iterable[tuple[tuple[int, ...], TaskText]]:
            for row in map(int, rows):
                second = int(self._seconds[row])
                places = (int(self._places[row]), *([] if second == _NONE else [second]))
                yield places, TaskText(self._captions[row], tuple(self.ids_of(row)), self.text(row).fits)

        return type(self)(self._ids, texts(), as_pair=self.as_pair)


class TaskCorpus(Corpus):
    """Rows of a `TaskTable` with their records."""

    def __init__(self, store: RecordStore, rows: TaskTable) -> None:
        super().__init__(store, rows)
        self._reads, self._texts = reader(store), rows

    @property
    def as_pair(self) -> bool:
        return self._texts.as_pair

    def text(self, row: int) -> TaskRow:
        return self._texts.text(row)

    def num_images(self, row: int) -> int:
        return len(self._texts.ids_of(row))

    def records(self, row: int) -> list[RegionRecord]:
        """Of all images of the row, in their order."""
        return [self._reads(image_id) for image_id in self._texts.ids_of(row)]
