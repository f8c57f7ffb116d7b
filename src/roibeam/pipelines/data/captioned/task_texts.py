"""The texts of a task, to pre-train on: VQA's questions with answers, VCR's with choices, NLVR2's statements.

Only training splits: the texts of the others are what results are reported on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.counted import counted
from roibeam.pipelines.common.files.image_ids import image_id_of
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.vcr_texts import read_vcr_questions
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


class TaskText(NamedTuple):
    """One text.

    Attributes:
        text: on its first line the text, or what comes first in it; on each other line something that may follow, of
            which one is drawn for each sample. Words are parted by single spaces.
        names: what the task calls its images.
        fits: whether the text is right, where the task says so: VCR's choice, NLVR2's statement.
        mentions: words that name regions, where the task says so: VCR's tags.
        shown: numbers of the regions that the task's texts name, of all that it says of the image: VCR's. None for all.
    """

    text: str
    names: tuple[str, ...]
    fits: bool | None
    mentions: tuple[Mention, ...] = ()
    shown: tuple[int, ...] | None = None

    @property
    def most_words(self) -> int:
        """Of the text, with the longest of what may follow."""
        first, *following = (len(line.split()) for line in self.text.split("\n"))
        return first + max(following, default=0)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def row(self) -> None:
        """See `Caption`: a task's images are called by name."""


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

    def texts(self) -> Iterator[TaskText]:
        """Texts in file order. Of a VCR question eight: each answer behind it, each rationale behind it and its answer.

        Raises:
            ValueError: at the entry that is not as the task writes it, or is of another split; at the end when there
                was no text.
        """
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
            self.notes.append(f"{counted(blank, 'text')} of {self.task} left out: empty, or nothing follows")

    def _vqa(self) -> Iterator[TaskText]:
        for each in read_vqa(self._parts[QUESTIONS], self._parts[ANNOTATIONS]):
            words = each.question.strip().rstrip("?").split()
            question = f"{' '.join(words)} ?" if words else ""
            yield TaskText("\n".join([question, *each.answers]), (each.image,), None)

    def _vcr(self) -> Iterator[TaskText]:
        for each in read_vcr_questions(self._parts[VCR]):
            _refuse_other_split(each.split, each.where)
            image = image_id_of(each.image)
            for context, choice, is_right in each.choices:
                mentions = [
                    Mention(line, word, region)
                    for line, text in enumerate((context, choice))
                    for word, region in text.objects
                ]
                yield TaskText(f"{context.words}\n{choice.words}", (image,), is_right, tuple(mentions), each.shown)

    def _nlvr2(self) -> Iterator[TaskText]:
        for each in read_nlvr2(self._parts[NLVR2]):
            _refuse_other_split(each.split, each.where)
            if each.is_true is None:
                raise ValueError(f'{each.where}: label must be "True" or "False", got none')
            images = tuple(map(image_id_of, each.images))
            yield TaskText(" ".join(each.sentence.split()), images, each.is_true)


def _refuse_other_split(split: str, where: str) -> None:
    if split != TRAINING:
        raise ValueError(f"{where}: of the split {split!r}, on which results are reported; give the training file")


def _part_of(file: str) -> str:
    """Which of the files a task's texts come in."""
    if not os.path.isfile(file):
        raise ValueError(f"no such file: {file!r}")
    with open(file, "rb") as opened:
        first = _object(opened.readline(_FIRST_LINE))
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


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
