"""Base of the samplers of all systems, and rows that systems share: a caption beside regions, and text alone.

ViLBERT, its single-stream baseline, InterBERT and ImageBERT share the first: the whole caption in segment 0, cut at its
end; the image's regions in the order of the record; a class distribution or the feature as the target of a region.
VisualBERT keeps the same regions. Rows of text alone are VL-BERT's second corpus (BookCorpus and Wikipedia, jackroos/
VL-BERT pretrain/data/datasets/general_corpus.py and pretrain/data/build.py).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample, as_tensor
from roibeam.pipelines.data.captions.corpus import Corpus, TextColumn
from roibeam.pipelines.data.compatibility import check_vocabulary, check_width
from roibeam.pipelines.data.datasets.rows import BadRow, BadRows
from roibeam.pipelines.data.datasets.text_sets import NO_TEXT, TextLine, read_text_corpus
from roibeam.pipelines.data.record_regions import strongest_regions
from roibeam.pipelines.pretraining.samples.sampling import PairRows, draw_pair
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, EncodedCaption


class RowSize(NamedTuple):
    """Pieces of text and regions of one row of a batch."""

    pieces: int
    regions: int


class Lengths(Protocol):
    """Lengths of the captions and records of a corpus, by row."""

    def pieces(self, row: int) -> int:
        """Number of the tokenizer's pieces of the caption, first and last special token counted."""

    def regions(self, row: int) -> int:
        """Number of regions of the row's record; of several together."""


@dataclass(frozen=True, eq=False)
class CaptionAndRegions:
    """Inputs of one row before anything is hidden. T pieces, R regions, D feature width.

    Attributes:
        regions: (R,) int64, those of the record's regions that are kept.
        features: (R, D), in the type of the store; boxes: (R, 4) float32, pixels.
        matched: whether caption and image belong together; None if the model has no match objective.
    """

    record: RegionRecord
    caption: EncodedCaption
    regions: np.ndarray
    features: Tensor
    boxes: np.ndarray
    matched: bool | None

    def targets(self, predicted: np.ndarray, num_classes: int | None) -> ClassTargets | Tensor:
        """Classes of the regions in `predicted` (R,) bool; with None the features of all."""
        if num_classes is None:
            return self.features.float()
        return ClassTargets.of(self.record, self.regions, predicted, num_classes)

    def sample(
        self,
        text_ids: np.ndarray,
        text_labels: np.ndarray,
        masked: np.ndarray,
        predicted: np.ndarray,
        targets: ClassTargets | Tensor | None,
        **others: Any,
    ) -> PretrainSample:
        """The row with these masks, and other fields of `PretrainSample`."""
        return PretrainSample(
            sample_id=self.record.image_id,
            text_ids=text_ids,
            text_labels=text_labels,
            text_segments=np.zeros(len(text_ids), np.int64),
            features=self.features,
            boxes=self.boxes,
            masked=masked,
            predicted=predicted,
            region_targets=targets,
            height=self.record.height,
            width=self.record.width,
            match=None if self.matched is None else int(self.matched),
            **others,
        )


class Sampler(ABC):
    """A system's rules: makes a row of a batch from a caption and a record. It keeps nothing between samples.

    Args:
        sampling: a frozen dataclass of the rules' own, section "sampling" of the command line.

    Attributes:
        _max_pieces: where a caption is cut, first and last special token counted; these two stay.
        _words: ids of the tokenizer that masking needs.
        _draws_pairs: whether pairs that do not belong together are drawn.
    """

    def __init__(self, sampling: Any, tokenizer: CaptionTokenizer, model_config: Any, *, num_classes: int) -> None:
        check_vocabulary(model_config, tokenizer)
        self._sampling, self._tokenizer, self._config = sampling, tokenizer, model_config
        self._num_classes, self._draws_pairs = num_classes, True
        self._words = {"mask_id": tokenizer.mask_id, "vocab_size": tokenizer.vocab_size}
        self._max_pieces: int = getattr(sampling, "max_pieces", 0)
        self._negatives = getattr(sampling, "negatives", "caption")
        self._fit(sampling, model_config)

    @abstractmethod
    def _fit(self, sampling: Any, model_config: Any) -> None:
        """Keeps what samples follow from; raises ValueError if rules and model do not fit together."""

    @property
    def draws_images(self) -> bool:
        """Whether a row may have another image than that of its caption."""
        return bool(self._draws_pairs and self._sampling.mismatched_probability and self._negatives != "caption")

    def check(self, record: RegionRecord) -> None:
        """Raises ValueError if records like this one do not fit the model."""
        check_width(self._config, record)

    @abstractmethod
    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        """The row's sample; everything random is drawn from `random`, whose seed is the sample's own."""

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        """Sizes of the rows that `sample` makes with the same arguments, exact or slightly larger, without reading
        captions or records."""
        pair, most = self._pair(corpus, row, random), self._sampling.max_regions
        pieces, regions = lengths.pieces(pair.caption_row), lengths.regions(pair.image_row)
        return [RowSize(min(pieces, self._max_pieces), min(regions, most) if most else regions)]

    def _pair(self, corpus: Corpus, row: int, random: np.random.Generator) -> PairRows:
        if not self._draws_pairs:
            return PairRows(row, row, True)
        mismatched = self._sampling.mismatched_probability
        return draw_pair(corpus, row, random, mismatched_probability=mismatched, negatives=self._negatives)

    def _inputs(self, corpus: Corpus, pair: PairRows, *, with_match: bool = True) -> CaptionAndRegions:
        record, encoded = corpus.record(pair.image_row), self._tokenizer.encode(corpus.caption(pair.caption_row))
        if len(encoded.ids) > self._max_pieces:
            kept = np.append(np.arange(self._max_pieces - 1), len(encoded.ids) - 1)
            encoded = EncodedCaption(encoded.ids[kept], encoded.word_ids[kept])
        regions = strongest_regions(record, self._sampling.max_regions)
        features, matched = as_tensor(record.features[regions]), pair.matched if with_match else None
        return CaptionAndRegions(record, encoded, regions, features, record.boxes[regions], matched)


_TEXT_MASKS = 4  # first number of a seed, beside those of task.py


class TextCorpus:
    """The lines with text in them of some files, in file order, in memory as they are plus some 8 bytes each; notes of
    what was left out; and the SHA-256 (hex) of the lines."""

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
    """A `Sampler` of a system that reads text without images."""

    @property
    def most_text_pieces(self) -> int:
        """Most pieces of a row of text alone."""

    def text_sample(self, lines: Sequence[str], line: int, random: np.random.Generator) -> PretrainSample:
        """The sample that begins at `line`; everything random is drawn from `random`."""


class TextRows:
    """Lines that stand beside each caption: each caption of each epoch brings the next lines of the corpus with it.

    So batches of any size, on any number of processes, hold the same lines, and each line comes once before one comes
    again. The lines are taken by a stride that spreads any stretch of them over the whole corpus.

    Args:
        lines: of the corpus, at least one.
        per_caption: lines for each caption; the release has as many of both.
    """

    def __init__(
        self, lines: Sequence[str], sampler: TextSampler, *, num_captions: int, per_caption: float, seed: int
    ) -> None:
        self._lines, self._sampler, self._num_captions, self._seed = lines, sampler, num_captions, seed
        self._per_caption = Fraction(per_caption).limit_denominator(1000)
        golden = round(len(lines) * (math.sqrt(5) - 1) / 2)
        strides = range(max(golden, 1), len(lines) + 2)
        self._stride = next(stride for stride in strides if math.gcd(stride, len(lines)) == 1)
        self._first = int(np.random.default_rng([_TEXT_MASKS, seed]).integers(len(lines)))

    def samples(self, epoch: int, caption: int) -> list[PretrainSample]:
        """Samples that come with `caption` (a row of its table) in `epoch`."""
        return [
            self._sampler.text_sample(
                self._lines, self.line(number), np.random.default_rng([_TEXT_MASKS, self._seed, number])
            )
            for number in self._numbers(epoch, caption)
        ]

    def sizes(self, epoch: int, caption: int) -> list[RowSize]:
        """Sizes of those, at most: nearly all are as long as such a row may be."""
        return [RowSize(self._sampler.most_text_pieces, 0)] * len(self._numbers(epoch, caption))

    def _numbers(self, epoch: int, caption: int) -> range:
        place = epoch * self._num_captions + caption
        return range(math.floor(place * self._per_caption), math.floor((place + 1) * self._per_caption))

    def line(self, number: int) -> int:
        """The line of the text sample `number`."""
        return (self._first + number * self._stride) % len(self._lines)
