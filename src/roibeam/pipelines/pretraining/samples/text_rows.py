"""Rows of text alone beside captions: VL-BERT's second corpus (BookCorpus and Wikipedia, jackroos/VL-BERT
pretrain/data/datasets/general_corpus.py and pretrain/data/build.py).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np

from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.caption_table import TextColumn
from roibeam.pipelines.data.datasets.rows import BadRow, BadRows
from roibeam.pipelines.data.datasets.text_corpus import NO_TEXT, TextLine, read_text_corpus
from roibeam.pipelines.pretraining.samples.sampler import RowSize

_TEXT_MASKS = 4  # first number of a seed, beside those of task.py


class TextCorpus:
    """The lines with text in them of some files, in file order, in memory as they are plus some 8 bytes each.

    Args:
        files: as `read_text_corpus` reads them.
    Raises:
        ValueError: for a file that is not there or has no text.

    Attributes:
        lines: their text.
        notes: what was left out, for people.
        digest: SHA-256 (hex) of the lines.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.notes: list[str] = []
        self._hash = hashlib.sha256()
        self.lines = TextColumn(text for file in files for text in self._read(Path(file)))
        self.digest = self._hash.hexdigest()

    def _read(self, file: Path) -> Iterator[str]:
        if not file.is_file():
            raise ValueError(f"no such text file: '{file}'")
        bad, found = BadRows("line"), False
        rows: Iterator[TextLine | BadRow] = read_text_corpus(str(file))
        for line in bad.passed(rows):
            found = True
            raw = line.text.encode("utf-8")
            self._hash.update(len(raw).to_bytes(8, "little") + raw)
            yield line.text
        if not found:
            left_out = "".join(f"; {note}" for note in bad.notes())
            raise ValueError(f"{file}: {NO_TEXT}{left_out}")
        self.notes += [f"{file.name}: {note}" for note in bad.notes()]


class TextSampler(Protocol):
    """Of a system that reads text without images."""

    @property
    def most_text_pieces(self) -> int:
        """Of such a row."""

    def text_sample(self, lines: Sequence[str], line: int, random: np.random.Generator) -> PretrainSample:
        """The sample that begins at `line`; everything random is drawn from `random`."""


class TextRows:
    """Which lines stand beside which captions: each caption of each epoch brings the next lines of the corpus with it.

    So batches of any size, on any number of processes, hold the same lines, and each line comes once before one comes
    again. The lines are taken by a stride that spreads any stretch of them over the whole corpus.

    Args:
        lines: of the corpus, at least one.
        num_captions: of one epoch.
        per_caption: lines for each caption; the release has as many of both.
    """

    def __init__(
        self, lines: Sequence[str], sampler: TextSampler, *, num_captions: int, per_caption: float, seed: int
    ) -> None:
        self._lines, self._sampler, self._num_captions, self._seed = lines, sampler, num_captions, seed
        self._per_caption = Fraction(per_caption).limit_denominator(1000)
        golden = round(len(lines) * (math.sqrt(5) - 1) / 2)
        self._stride = next(stride for stride in range(max(golden, 1), len(lines) + 2) if _coprime(stride, len(lines)))
        self._first = int(np.random.default_rng([_TEXT_MASKS, seed]).integers(len(lines)))

    def samples(self, epoch: int, caption: int) -> list[PretrainSample]:
        """Those that come with `caption` (a row of its table) in `epoch`."""
        return [
            self._sampler.text_sample(
                self._lines, self.line(number), np.random.default_rng([_TEXT_MASKS, self._seed, number])
            )
            for number in self._numbers(epoch, caption)
        ]

    def sizes(self, epoch: int, caption: int) -> list[RowSize]:
        """Of those, at most: nearly all are as long as such a row may be."""
        return [RowSize(self._sampler.most_text_pieces, 0)] * len(self._numbers(epoch, caption))

    def _numbers(self, epoch: int, caption: int) -> range:
        place = epoch * self._num_captions + caption
        return range(math.floor(place * self._per_caption), math.floor((place + 1) * self._per_caption))

    def line(self, number: int) -> int:
        """The line of the text sample `number`."""
        return (self._first + number * self._stride) % len(self._lines)


def _coprime(first: int, second: int) -> bool:
    return math.gcd(first, second) == 1
