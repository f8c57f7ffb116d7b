"""What the rules of a system offer to the task, whatever the system."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captioned.corpus import Corpus
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class RowSize(NamedTuple):
    """Pieces of text and regions of one row of a batch."""

    pieces: int
    regions: int


class Lengths(Protocol):
    """Of the captions and records of a corpus, by row."""

    def pieces(self, row: int) -> int:
        """As the tokenizer cuts the caption, first and last special token counted."""

    def regions(self, row: int) -> int:
        """Of the row's record; of several together."""


class Sampler(Protocol):
    """A system's rules: how a caption and a record become one row of a batch. It keeps nothing between samples.

    Rules are classes made with (sampling, tokenizer, model_config, num_classes); the first is a frozen dataclass of
    their own, section "sampling" of the command line.
    """

    def __init__(self, sampling: Any, tokenizer: CaptionTokenizer, model_config: Any, *, num_classes: int) -> None: ...

    @property
    def draws_images(self) -> bool:
        """Whether a row may show another image than that of its caption."""

    def check(self, record: RegionRecord) -> None:
        """Raises ValueError when records like this one do not fit the model."""

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        """The row's sample; everything random is drawn from `random`, whose seed is the sample's own."""

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        """Of the rows that `sample` makes with the same arguments, without reading captions or records: as large, or a
        little larger."""
