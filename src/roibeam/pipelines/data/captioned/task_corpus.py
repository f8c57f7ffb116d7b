"""A task's texts with the records of their images, as samples are made from them: a corpus whose rows may have several
images and say whether they are right."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.reading.staging import StagedStore
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captioned.corpus import Corpus, RecordStore, reader
from roibeam.pipelines.data.captioned.task_texts import Mention, TaskText
from roibeam.pipelines.data.captions.caption_table import CaptionTable

GIVE_BOXES = (
    "extract with the task's boxes (--boxes vcr1images/), or set sampling.aligned_words=none and shown_boxes=all"
)
_NONE = -1  # no second image; not said whether it fits


class TaskRow(NamedTuple):
    """A row's text, see `TaskText`: its beginning, what may follow, whether it is right, which words name regions, and
    which regions the task names."""

    first: str
    following: tuple[str, ...]
    fits: bool | None
    mentions: tuple[Mention, ...] = ()
    shown: tuple[int, ...] | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return self.first, *self.following


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
        mentions, ends = array("i"), array("q", [0])
        which, sets = array("i"), dict[tuple[int, ...] | None, int]()  # the texts of a question show the same regions

        def first_images() -> Iterable[tuple[int, str]]:
            for places, text in rows:
                seconds.append(places[1] if len(places) > 1 else _NONE)
                fits.append(_NONE if text.fits is None else int(text.fits))
                mentions.extend(number for mention in text.mentions for number in mention)
                ends.append(len(mentions) // len(Mention._fields))
                which.append(sets.setdefault(text.shown, len(sets)))
                yield places[0], text.text

        super().__init__(ids, first_images())
        self._seconds, self._fits = np.array(seconds, np.int64), np.array(fits, np.int8)
        self._mentions, self._ends = np.array(mentions, np.int32).reshape(-1, len(Mention._fields)), np.array(ends)
        self._which_shown, self._shown, self.as_pair = which, list(sets), as_pair

    def text(self, row: int) -> TaskRow:
        first, *following = self._captions[row].split("\n")
        fits = int(self._fits[row])
        mentions = self._mentions[self._ends[row] : self._ends[row + 1]].tolist()
        return TaskRow(
            first, tuple(following), None if fits == _NONE else bool(fits),
            tuple(Mention(*each) for each in mentions), self._shown[self._which_shown[row]],
        )  # fmt: skip

    @property
    def has_pairs(self) -> bool:
        """Whether any row has two images."""
        return bool((self._seconds != _NONE).any())

    @property
    def names_regions(self) -> bool:
        """Whether a word of any row names a region."""
        return len(self._mentions) > 0

    def most_named(self) -> np.ndarray:
        """(rows,) int64, the largest number of a region that the row's words name; -1 where they name none."""
        rows = np.repeat(np.arange(len(self)), np.diff(self._ends))
        largest = np.full(len(self), -1)
        np.maximum.at(largest, rows, self._mentions[:, Mention._fields.index("region")])
        return largest

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
        facts = "\n".join(seconds).encode("utf-8") + self._fits.tobytes() + bytes([self.as_pair])
        return facts + (self._ends.tobytes() + self._mentions.tobytes() if self.names_regions else b"")

    def _rows_within(self, wanted: np.ndarray) -> np.ndarray:
        return np.flatnonzero(wanted[self._places] & (wanted[self._seconds] | (self._seconds == _NONE)))

    def _taken(self, rows: np.ndarray) -> Self:
        def texts() -> Iterable[tuple[tuple[int, ...], TaskText]]:
            for row in map(int, rows):
                second = int(self._seconds[row])
                places = (int(self._places[row]), *([] if second == _NONE else [second]))
                text = self.text(row)
                names = tuple(self.ids_of(row))
                yield places, TaskText(self._captions[row], names, text.fits, text.mentions, text.shown)

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
        text = self._texts.text(row)
        if self._reword is None:
            return text
        return text._replace(first=self._reword(text.first), following=tuple(map(self._reword, text.following)))

    def num_images(self, row: int) -> int:
        return len(self._texts.ids_of(row))

    def records(self, row: int) -> list[RegionRecord]:
        """Of all images of the row, in their order."""
        return [self._reads(image_id) for image_id in self._texts.ids_of(row)]


def check_given_boxes(store: FeatureStore) -> None:
    """Raises ValueError where the regions of a store are not all of the boxes that its extraction was given."""
    details = store.fingerprint.details
    if details.get("regions") != "given":
        raise ValueError(
            f"{store.path}: words of the texts name boxes, and the store does not say that its regions are given "
            f"boxes; {GIVE_BOXES}"
        )
    if details.get("region_filters"):
        raise ValueError(
            f"{store.path}: words of the texts name boxes by number, and this copy left some of them out; take the "
            f"store it was copied from, or {GIVE_BOXES}"
        )


def check_named_regions(store: FeatureStore, rows: TaskTable) -> None:
    """Raises ValueError where no word names a region, or regions of the store are not the boxes that words name.

    Of a store that is being copied here as it is read, how many regions a record has shows when it is read.
    """
    if not rows.names_regions:
        raise ValueError(
            "sampling.aligned_words and shown_boxes: no word of these texts names a box, as VCR's do; set "
            "sampling.aligned_words=none and shown_boxes=all"
        )
    check_given_boxes(store)
    if isinstance(store, StagedStore):
        return
    named = rows.most_named()
    regions = rows.by_row(store.num_regions_of(rows.captioned_ids()))
    short = np.flatnonzero(named >= regions)
    if len(short):
        row = int(short[0])
        raise ValueError(
            f"{store.path}: a word names box {named[row]}, counted from 0, of {rows.record_id(row)!r}, which has "
            f"{regions[row]} ({counted(len(short), 'row')} like it); {GIVE_BOXES}"
        )
