"""The text of a row: its parts in pieces, between the special pieces that a system puts there, cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.finetuning.rows import PartPieces, PieceCoder, TaskText
from roibeam.pipelines.finetuning.systems.layout_options import BEFORE_SEP, LAST, LONGEST, RELEASE
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class Span(NamedTuple):
    """Pieces that stand together.

    Attributes:
        ids: (n,) int64.
        segment: of all of them.
        tags: (n,) int64, number of the box that a piece names, -1 for none.
        words: (n,) int64, word of the span that a piece is of, -1 for a special piece.
        is_text: whether they may be cut; special pieces stay.
    """

    ids: np.ndarray
    segment: int
    tags: np.ndarray
    words: np.ndarray
    is_text: bool

    def kept(self, count: int) -> Span:
        """The first `count` pieces."""
        return self._replace(ids=self.ids[:count], tags=self.tags[:count], words=self.words[:count])


class RowText(NamedTuple):
    """(T,) int64 each: piece ids, segments, the box that a piece names, the word of the row that it is of; -1: none."""

    ids: np.ndarray
    segments: np.ndarray
    tags: np.ndarray
    words: np.ndarray

    def kept(self, count: int) -> RowText:
        """The first `count` pieces."""
        return RowText(*(each[:count] for each in self))


class Pieces:
    """Spans of one tokenizer."""

    def __init__(self, tokenizer: CaptionTokenizer) -> None:
        self._tokenizer = tokenizer
        self._single: dict[tuple[int, int], Span] = {}

    @property
    def coder(self) -> PieceCoder:
        """For a task that cuts its texts itself."""
        return PieceCoder(self._tokenizer.pieces, self._tokenizer.piece)

    def part(self, part: TaskText | PartPieces, segment: int = 0) -> Span:
        """A part of the text; every piece of a word has the tag of the word."""
        if isinstance(part, PartPieces):
            return Span(part.ids, segment, part.tags, part.words, is_text=True)
        words = [self._tokenizer.pieces(word) for word in part.words]
        lengths = [len(word) for word in words]
        ids = words[0] if len(words) == 1 else np.concatenate([np.zeros(0, np.int64), *words])
        tags = np.repeat(np.array(part.tags, np.int64), lengths) if part.tags else np.full(len(ids), -1, np.int64)
        return Span(ids, segment, tags, np.repeat(np.arange(len(words)), lengths), is_text=True)

    def cls(self) -> Span:
        return self._one(self._tokenizer.cls_id, 0)

    def sep(self, segment: int = 0) -> Span:
        return self._one(self._tokenizer.sep_id, segment)

    def mask(self, segment: int = 0) -> Span:
        return self._one(self._tokenizer.mask_id, segment)

    def _one(self, piece: int, segment: int) -> Span:
        """A special piece; all rows share it."""
        found = self._single.get((piece, segment))
        if found is None:
            found = self._single[piece, segment] = _special([piece], segment)
        return found

    def question_mark(self, question: Span) -> Span:
        """A "?" behind a text that has none."""
        mark = self._tokenizer.pieces("?")
        ends_with_it = len(mark) > 0 and np.array_equal(question.ids[-len(mark) :], mark)
        return _special([] if ends_with_it else mark, question.segment)


def lay_out(spans: Sequence[Span], max_pieces: int, cut: str) -> RowText:
    """The spans one after the other, cut to `max_pieces`.

    Args:
        cut: one of `CUTS` of layout_options.py.
    Raises:
        ValueError: when the special pieces alone are more.
    """
    least = sum(len(span.ids) for span in spans if not span.is_text)
    if least > max_pieces:
        raise ValueError(f"max_pieces {max_pieces}: the special pieces of a row alone are {least}")
    over = sum(len(span.ids) for span in spans) - max_pieces
    if over <= 0:
        return _joined(spans)
    if cut == RELEASE:
        return _joined(spans).kept(max_pieces)
    if cut == BEFORE_SEP:
        end = spans[-1].ids.size
        before = _joined(spans[:-1]).kept(max_pieces - end)
        return RowText(*(np.concatenate(both) for both in zip(before, _joined(spans[-1:]), strict=True)))
    lengths = {place: len(span.ids) for place, span in enumerate(spans) if span.is_text}
    for _ in range(over):
        filled = [place for place, length in lengths.items() if length]
        if cut == LONGEST:
            loser = max(filled, key=lambda place: (lengths[place], place))
        else:
            loser = filled[-1] if cut == LAST else filled[0]
        lengths[loser] -= 1
    return _joined([span.kept(lengths.get(place, len(span.ids))) for place, span in enumerate(spans)])


def places_of_phrases(words: Sequence[int], text: RowText) -> list[int]:
    """The last piece of each word that stands for a phrase; of one that was cut off, the last piece that is left."""
    found = []
    for word in words:
        before = np.flatnonzero((text.words >= 0) & (text.words <= word))
        found.append(int(before[-1]) if len(before) else 0)
    return found


def places_in_row(words: Sequence[int], whole: RowText, num_pieces: int, num_regions: int) -> list[int]:
    """Where VisualBERT's release looks for phrases in a row whose text was cut: where they stand in the whole text.

    What follows the pieces that are left, the last of them [SEP], are the regions. Behind the last region the release
    reads padding, or stops, as the batch has it; here that is [SEP].

    Source: uclanlp/visualbert dataloaders/flickr_dataset.py (`e_pos_after_subword`), bert_data_utils.py
    (`perform_truncate`), pytorch_pretrained_bert/modeling.py (`batched_index_select`).

    Args:
        whole: the text before it was cut.
        num_pieces, num_regions: of the row.
    """
    places = places_of_phrases(words, whole)
    return [place if place < num_pieces + num_regions else num_pieces - 1 for place in places]


def cut_words(words: Sequence[int], whole: RowText, text: RowText) -> int:
    """How many of these words of a text of one part have lost a piece."""
    return sum(int((whole.words == word).sum()) > int((text.words == word).sum()) for word in words)


def naming_words(text: RowText) -> int:
    """Words that name a box and have a piece."""
    return len(np.unique(text.words[text.tags >= 0]))


def _joined(spans: Sequence[Span]) -> RowText:
    return RowText(
        np.concatenate([span.ids for span in spans]),
        np.repeat([span.segment for span in spans], [len(span.ids) for span in spans]),
        np.concatenate([span.tags for span in spans]),
        _numbered(spans),
    )


def _numbered(spans: Sequence[Span]) -> np.ndarray:
    """Numbers of words of several spans, one after the other."""
    found, before = [], 0
    for span in spans:
        words = span.words
        if not span.is_text:  # has no words
            found.append(words)
            continue
        found.append(np.where(words < 0, -1, words + before) if before else words)
        before += int(words.max(initial=-1)) + 1
    return np.concatenate(found)


def _special(ids: Sequence[int] | np.ndarray, segment: int) -> Span:
    nothing = np.full(len(ids), -1, np.int64)
    return Span(np.asarray(ids, np.int64), segment, nothing, nothing, is_text=False)
