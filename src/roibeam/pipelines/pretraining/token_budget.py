"""Batches that keep a token budget: how long rows are, known without reading features, and the captions of one step as
batches of alike lengths, shared out among processes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captioned.corpus import Corpus
from roibeam.pipelines.data.captions.caption_table import CaptionTable
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

# Into so many bands of alike region counts a step is cut before its words are looked at; what pads least is taken.
_BANDS = (1, 2, 4, 8)
_UNKNOWN = -1


class RowLengths:
    """Captions are cut into pieces when their length is first asked for, and their number is kept: 4 bytes a row.

    Args:
        num_regions: (rows,) int, of each row's record, see `count_regions`.
    """

    def __init__(self, corpus: Corpus, num_regions: np.ndarray, tokenizer: CaptionTokenizer) -> None:
        self._corpus, self._num_regions, self._tokenizer = corpus, num_regions, tokenizer
        self._pieces = np.full(len(corpus), _UNKNOWN, np.int32)

    @property
    def most_regions(self) -> int:
        """Of any record."""
        return int(self._num_regions.max())

    def pieces(self, row: int) -> int:
        """Of the row's caption, first and last special token counted."""
        if self._pieces[row] == _UNKNOWN:
            self._pieces[row] = self._tokenizer.count_pieces(self._corpus.caption(row))
        return int(self._pieces[row])

    def regions(self, row: int) -> int:
        """Of the row's record."""
        return int(self._num_regions[row])


def count_regions(sources: Iterable[tuple[FeatureStore, CaptionTable]]) -> np.ndarray:
    """(rows,) int32, of the record of each row, or of several together, source behind source; from the stores' offset
    indexes alone."""
    counts = []
    for store, rows in sources:
        counts.append(rows.by_row(store.num_regions_of(rows.captioned_ids())))
    return np.concatenate(counts)


def padded_tokens(sizes: np.ndarray) -> int:
    """Words and regions of a batch, padding counted.

    Args:
        sizes: (captions, 3) int: rows of the batch that a caption brings, the most pieces and the most regions of one.
    """
    return int(sizes[:, 0].sum() * (sizes[:, 1].max() + sizes[:, 2].max()))


def plan_step(sizes: np.ndarray, *, max_tokens: int, max_captions: int, processes: int) -> list[list[np.ndarray]]:
    """Micro-batches of one step: every caption in one of them, as many for each process, all of about one size.

    It depends on its arguments alone, so all processes come to the same plan.

    Args:
        sizes: (captions, 3) int as of `padded_tokens`.
        max_tokens: of a padded micro-batch. A caption that has more by itself is a micro-batch of its own.
        max_captions: of a micro-batch.
        processes: of which the number of captions is a multiple.
    Returns:
        for each process its micro-batches, the largest first; each the numbers of its captions, ascending.
    """
    assert len(sizes) % processes == 0
    tried = [(order, _greedy(sizes, order, max_tokens, max_captions)) for order in _orders(sizes)]
    order, batches = min(tried, key=lambda each: sum(padded_tokens(sizes[batch]) for batch in each[1]))
    # Never more than there are captions, if these can be shared out evenly.
    wanted = -(-len(batches) // processes) * processes
    batches = _evened(sizes, order, max_tokens, max_captions, wanted)
    while len(batches) < wanted:
        splittable = (at for at, batch in enumerate(batches) if len(batch) > 1)
        at = max(splittable, key=lambda at: padded_tokens(sizes[batches[at]]))
        batches[at : at + 1] = np.array_split(batches[at], 2)
    batches.sort(key=lambda each: (-padded_tokens(sizes[each]), each[0]))
    shares: list[list[np.ndarray]] = [[] for _ in range(processes)]
    for at, batch in enumerate(batches):
        turn, place = divmod(at, processes)
        # There and back, so that no process always gets the larger one.
        shares[place if turn % 2 == 0 else processes - 1 - place].append(np.sort(batch))
    return shares


def _orders(sizes: np.ndarray) -> list[np.ndarray]:
    """Ways to put captions of alike sizes beside each other: bands of region counts, in each up or down by pieces."""
    by_regions = np.lexsort((-sizes[:, 1], -sizes[:, 2]))
    orders = []
    for count in _BANDS:
        bands = [band[np.argsort(-sizes[band, 1], kind="stable")] for band in np.array_split(by_regions, count)]
        orders.append(np.concatenate([band if at % 2 == 0 else band[::-1] for at, band in enumerate(bands)]))
    return orders


def _greedy(sizes: np.ndarray, order: np.ndarray, max_tokens: int, max_captions: int) -> list[np.ndarray]:
    """Cuts where the next caption would be too much."""
    cuts, first, rows, pieces, regions = [], 0, 0, 0, 0
    listed = sizes[order].tolist()
    for at, (own_rows, own_pieces, own_regions) in enumerate(listed):
        rows, pieces, regions = rows + own_rows, max(pieces, own_pieces), max(regions, own_regions)
        if at > first and (rows * (pieces + regions) > max_tokens or at - first == max_captions):
            cuts.append(at)
            first, rows, pieces, regions = at, own_rows, own_pieces, own_regions
    return np.split(order, cuts)


def _evened(sizes: np.ndarray, order: np.ndarray, max_tokens: int, max_captions: int, most: int) -> list[np.ndarray]:
    """The cut with the smallest budget that still makes no more than `most` batches."""
    low, high = 0, max_tokens  # too small, and small enough
    while high - low > max(1, max_tokens // 64):
        middle = (low + high) // 2
        if len(_greedy(sizes, order, middle, max_captions)) <= most:
            high = middle
        else:
            low = middle
    return _greedy(sizes, order, high, max_captions)
