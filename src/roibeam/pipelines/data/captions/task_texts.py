"""Texts of tasks to pre-train on, with records: VQA's questions, VCR's choices, NLVR2's statements.

Only training splits: results are reported on the texts of the others. Rows of the corpus may have several images, and a
label that says whether they match.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from roibeam.features.reading.staging import StagedStore
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import image_id_of
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus, RecordStore, reader
from roibeam.pipelines.data.datasets.known_files import json_object
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.vcr import read_vcr_questions
from roibeam.pipelines.data.datasets.vqa import ANNOTATIONS, QUESTIONS, read_vqa, vqa_part, vqa_split

VQA, VCR, NLVR2 = "VQA", "VCR", "NLVR2"
TRAINING = "train"
_FIRST_LINE = 2**20  # bytes; VCR's and NLVR2's lines have some kB


class Mention(NamedTuple):
    """A word that names a region.

    Attributes:
        line: of the text, counted from 0.
        word: of the line, counted from 0.
        region: of the first image: the number of the box that the task gives, in its order.
    """

    line: int
    word: int
    region: int


class TaskCorpusText(NamedTuple):
    """One text.

    Attributes:
        text: on its first line the text, or what comes first in it; on each other line something that may follow, of
            which one is drawn for each sample. Words are parted by single spaces.
        fits: label whether the text is right, of VCR's choice and NLVR2's statement.
        mentions: words that name regions: VCR's tags.
        visible: numbers of the visible regions: those that VCR's texts on the image name. None for all.
    """

    text: str
    names: tuple[str, ...]
    fits: bool | None
    mentions: tuple[Mention, ...] = ()
    visible: tuple[int, ...] | None = None

    @property
    def most_words(self) -> int:
        """Words of the text, with the longest of what may follow."""
        first, *following = (len(line.split()) for line in self.text.split("\n"))
        return first + max(following, default=0)

    @property
    def called(self) -> str:
        """See `Caption`."""
        return self.names[0]


class TaskTexts:
    """The texts of one task's training files.

    Args:
        files: of VQA its questions and its annotations, in any order; of VCR train.jsonl; of NLVR2 train.json.
    Raises:
        ValueError: one line, when a file is missing, of another kind or without its partner, or of VQA's other splits.

    Attributes:
        task: `VQA`, `VCR` or `NLVR2`.
        as_pair: what follows stands behind a [SEP], in a segment of its own.
        notes: after `texts`, what was left out.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.notes = [os.path.abspath(file) for file in files], list[str]()
        parts = {_part_of(file): file for file in self.files}
        if parts.keys() == {VCR} or parts.keys() == {NLVR2}:
            (self.task,) = parts
        elif parts.keys() == {QUESTIONS, ANNOTATIONS}:
            self.task = VQA
        elif len(parts) == 1:
            (part,) = parts
            missing = ANNOTATIONS if part == QUESTIONS else QUESTIONS
            raise ValueError(
                f"{parts[part]!r} holds VQA's {part} alone; name its {missing} file too, with another --task-text"
            )
        else:
            raise ValueError(f"--task-text: the files of one task, not of several: {', '.join(map(repr, self.files))}")
        if len(parts) != len(self.files):
            raise ValueError(f"--task-text: one training file of {self.task}, got {', '.join(map(repr, self.files))}")
        self._parts = parts
        self.as_pair = self.task == VCR
        if self.task == VQA:
            for file in self.files:
                _refuse_other_split(vqa_split(file).rstrip("0123456789"), repr(file))

    def texts(self) -> Iterator[TaskCorpusText]:
        """Texts in file order. A VCR question gives eight: each answer behind it, each rationale behind both."""
        self.notes.clear()
        blank = found = 0
        for text in {VQA: self._vqa, VCR: self._vcr, NLVR2: self._nlvr2}[self.task]():
            lines = [line for part in text.text.split("\n") if (line := " ".join(part.split()))]
            if not text.text.split("\n")[0].strip() or len(lines) < min(2, text.text.count("\n") + 1):
                blank += 1
                continue
            found += 1
            yield text._replace(text="\n".join(lines))
        if not found:
            raise ValueError(f"{self.files[0]!r}: no text in it")
        if blank:
            self.notes.append(f"{plural(blank, 'text')} of {self.task} left out: empty, or nothing follows")

    def _vqa(self) -> Iterator[TaskCorpusText]:
        for each in read_vqa(self._parts[QUESTIONS], self._parts[ANNOTATIONS]):
            words = each.question.strip().rstrip("?").split()
            question = f"{' '.join(words)} ?" if words else ""
            yield TaskCorpusText("\n".join([question, *each.answers]), (each.image,), None)

    def _vcr(self) -> Iterator[TaskCorpusText]:
        for each in read_vcr_questions(self._parts[VCR]):
            _refuse_other_split(each.split, each.where)
            image = image_id_of(each.image)
            for context, choice, is_right in each.choices:
                mentions = [
                    Mention(line, word, region)
                    for line, text in enumerate((context, choice))
                    for word, region in text.objects
                ]
                yield TaskCorpusText(
                    f"{context.words}\n{choice.words}", (image,), is_right, tuple(mentions), each.visible
                )

    def _nlvr2(self) -> Iterator[TaskCorpusText]:
        for each in read_nlvr2(self._parts[NLVR2]):
            _refuse_other_split(each.split, each.where)
            if each.is_true is None:
                raise ValueError(f'{each.where}: label must be "True" or "False", got none')
            images = tuple(map(image_id_of, each.images))
            yield TaskCorpusText(" ".join(each.sentence.split()), images, each.is_true)


def _refuse_other_split(split: str, where: str) -> None:
    if split != TRAINING:
        raise ValueError(f"{where}: of the split {split!r}, on which results are reported; give the training file")


def _part_of(file: str) -> str:
    """Part of a task's texts that a file holds."""
    if not os.path.isfile(file):
        raise ValueError(f"no such file: {file!r}")
    with open(file, "rb") as opened:
        first = json_object(opened.readline(_FIRST_LINE).decode("utf-8-sig", "replace")) or {}
    if "img_fn" in first:
        return VCR
    if "identifier" in first:
        return NLVR2
    part = vqa_part(file)
    if part is None:
        raise ValueError(
            f"{file!r}: expected the questions or annotations of VQA, train.jsonl of VCR or train.json of NLVR2"
        )
    return part


GIVE_BOXES = (
    "extract with the task's boxes (--boxes vcr1images/), or set sampling.aligned_words=none and shown_boxes=all"
)
_NONE = -1  # no second image; no label whether it fits


class TaskCorpusRow(NamedTuple):
    """A row's text, see `TaskCorpusText`: its beginning, what may follow, whether it is right, words that name regions,
    and the visible regions."""

    first: str
    following: tuple[str, ...]
    fits: bool | None
    mentions: tuple[Mention, ...] = ()
    visible: tuple[int, ...] | None = None

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
        self, ids: Sequence[str], rows: Iterable[tuple[tuple[int, ...], TaskCorpusText]], *, as_pair: bool = False
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
                which.append(sets.setdefault(text.visible, len(sets)))
                yield places[0], text.text

        super().__init__(ids, first_images())
        self._seconds, self._fits = np.array(seconds, np.int64), np.array(fits, np.int8)
        self._mentions, self._ends = np.array(mentions, np.int32).reshape(-1, len(Mention._fields)), np.array(ends)
        self._visible_numbers, self._visible_sets, self.as_pair = which, list(sets), as_pair

    def text(self, row: int) -> TaskCorpusRow:
        first, *following = self._captions[row].split("\n")
        fits = int(self._fits[row])
        mentions = self._mentions[self._ends[row] : self._ends[row + 1]].tolist()
        return TaskCorpusRow(
            first, tuple(following), None if fits == _NONE else bool(fits),
            tuple(Mention(*each) for each in mentions), self._visible_sets[self._visible_numbers[row]],
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
        """Ids of its images, in their order."""
        places = [int(self._places[row]), int(self._seconds[row])]
        return [self._ids[place] for place in places if place != _NONE]

    def captioned_ids(self) -> list[str]:
        places = np.unique(np.concatenate([self._places, self._seconds]))
        return [self._ids[int(place)] for place in places if place != _NONE]

    def by_row(self, of_images: np.ndarray) -> np.ndarray:
        """`CaptionTable.by_row`, summed over the images of the row."""
        numbers = np.zeros(len(self._ids) + 1, of_images.dtype)  # the last is of no second image, whose place is -1
        places = np.unique(np.concatenate([self._places, self._seconds]))
        numbers[places[places != _NONE]] = of_images
        return numbers[self._places] + numbers[self._seconds]

    def facts(self) -> bytes:
        """Bytes of all beside texts and first images, for a digest of the table."""
        seconds = [self._ids[int(place)] if place != _NONE else "" for place in self._seconds]
        facts = "\n".join(seconds).encode("utf-8") + self._fits.tobytes() + bytes([self.as_pair])
        return facts + (self._ends.tobytes() + self._mentions.tobytes() if self.names_regions else b"")

    def _rows_within(self, is_kept: np.ndarray) -> np.ndarray:
        return np.flatnonzero(is_kept[self._places] & (is_kept[self._seconds] | (self._seconds == _NONE)))

    def _taken(self, rows: np.ndarray) -> Self:
        def texts() -> Iterable[tuple[tuple[int, ...], TaskCorpusText]]:
            for row in map(int, rows):
                second = int(self._seconds[row])
                places = (int(self._places[row]), *([] if second == _NONE else [second]))
                text = self.text(row)
                names = tuple(self.ids_of(row))
                yield places, TaskCorpusText(self._captions[row], names, text.fits, text.mentions, text.visible)

        return type(self)(self._ids, texts(), as_pair=self.as_pair)


class TaskCorpus(Corpus):
    """Rows of a `TaskTable` with their records."""

    def __init__(self, store: RecordStore, rows: TaskTable) -> None:
        super().__init__(store, rows)
        self._reads, self._texts = reader(store), rows

    @property
    def as_pair(self) -> bool:
        return self._texts.as_pair

    def text(self, row: int) -> TaskCorpusRow:
        text = self._texts.text(row)
        if self._reword is None:
            return text
        return text._replace(first=self._reword(text.first), following=tuple(map(self._reword, text.following)))

    def num_images(self, row: int) -> int:
        return len(self._texts.ids_of(row))

    def records(self, row: int) -> list[RegionRecord]:
        """Records of all images of the row, in their order."""
        return [self._reads(image_id) for image_id in self._texts.ids_of(row)]


def check_given_boxes(store: FeatureStore) -> None:
    """Raises ValueError where the regions of a store are not all of the boxes that its extraction was given."""
    details = store.fingerprint.details
    if details.get("regions") != "given":
        raise ValueError(
            f"{store.path}: words of the texts name boxes, and the store does not record that its regions are given "
            f"boxes; {GIVE_BOXES}"
        )
    if details.get("region_filters"):
        raise ValueError(
            f"{store.path}: words of the texts name boxes by number, and this copy left some of them out; take the "
            f"store it was copied from, or {GIVE_BOXES}"
        )


def check_named_regions(store: FeatureStore, rows: TaskTable) -> None:
    """Raises ValueError where no word names a region, or regions of the store are not the boxes that words name.

    In a store that is copied as it is read, the number of a record's regions is known when it is read.
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
            f"{regions[row]} ({plural(len(short), 'row')} like it); {GIVE_BOXES}"
        )
