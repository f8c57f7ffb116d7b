"""What counting neighbouring words finds without any picture, on the very words that an evaluation hides.

A level to compare with, and no model: one that is trained on words alone reads the whole text, and may find more.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.common.statistics.neighbour_counts import UNKNOWN, NeighbourCounts, count_neighbours
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

MOST_TEXTS = 100_000  # a few seconds of one core
_MOST_PIECES = 2_000_000
_DRAWN = 7  # first number of a seed: keeps this random stream apart from the others of a run


class HiddenWords:
    """The words that an evaluation asked about, each with the words beside it as far as the model is shown them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sample_ids: list[str] = []
        self._triples: list[np.ndarray] = []

    def see(self, batch: VLBatch) -> None:
        if batch.text_labels is None:
            return
        labels = batch.text_labels.numpy(force=True)
        hidden = labels != IGNORE_INDEX
        is_shown = batch.text_mask.numpy(force=True).astype(bool) & ~hidden
        shown = np.pad(
            np.where(is_shown, batch.text_ids.numpy(force=True), UNKNOWN), ((0, 0), (1, 1)), constant_values=UNKNOWN
        )
        rows, places = hidden.nonzero()
        self._triples.append(np.stack([shown[rows, places], labels[rows, places], shown[rows, places + 2]], axis=1))
        self._sample_ids += [batch.sample_ids[row] for row in rows]
        alone = [False] * batch.batch_size if batch.text_only is None else batch.text_only.tolist()
        self._names += ["text_only_word_accuracy" if alone[row] else "masked_word_accuracy" for row in rows]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
        """Of each word: the accuracy that it belongs to, the id of its sample, and its left neighbour, itself and its
        right neighbour; `UNKNOWN` for one that is hidden too."""
        for name, sample_id, triple in zip(self._names, self._sample_ids, np.concatenate(self._triples), strict=True):
            left, word, right = map(int, triple)
            yield name, sample_id, (left, word, right)


class _All(Container[str]):
    def __contains__(self, sample_id: object) -> bool:
        return True


ALL: Container[str] = _All()
NONE: Container[str] = frozenset()


def words_alone(
    hidden: HiddenWords, counts: NeighbourCounts, tokenizer: CaptionTokenizer, *, counted: Container[str]
) -> dict[str, float]:
    """The share of the hidden words that their neighbours tell, 0..1, by the name of the accuracy.

    Args:
        counts: of the captions that the model was trained on, in pieces of `tokenizer`.
        counted: ids of the samples whose captions are among those: such a word itself is taken out of the counts.
    """
    found: dict[str, list[bool]] = {}
    for name, sample_id, (left, word, right) in hidden:
        sides = (tokenizer.sep_id if side == tokenizer.cls_id else side for side in (left, right))
        guessed = counts.guess(*sides, without=word if sample_id in counted else None)
        found.setdefault(name, []).append(guessed == word)
    return {name: sum(right) / len(right) for name, right in found.items()}


def count_words(
    columns: Sequence[Sequence[str]], tokenizer: CaptionTokenizer, *, seed: int, most_texts: int = MOST_TEXTS
) -> NeighbourCounts:
    """Counts so many texts, drawn by seed, or all; both ends of a text are [SEP].

    Args:
        columns: texts of each source; at least one text.
        most_texts: fewer of long ones, so that they have about two million pieces at most.
    """
    ends = np.cumsum([len(column) for column in columns])
    starts, total = ends - [len(column) for column in columns], int(ends[-1])
    drawn = np.random.default_rng([_DRAWN, seed]).choice(total, min(total, most_texts), replace=False)

    def rows() -> Iterator[np.ndarray]:
        pieces = 0
        for number in drawn.tolist():
            column = int(np.searchsorted(ends, number, side="right"))
            # A task's text has several lines, which are told apart.
            for line in columns[column][number - int(starts[column])].split("\n"):
                ids = tokenizer.encode(line).ids
                ids[0] = tokenizer.sep_id
                yield ids
                pieces += len(ids)
            if pieces > _MOST_PIECES:
                return

    return count_neighbours(rows())
