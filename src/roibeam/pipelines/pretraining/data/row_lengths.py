"""How long rows of a corpus are, without reading features: what batches of a token budget are planned from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roibeam.features.store import FeatureStore
from roibeam.pipelines.inputs.captioned.corpus import Corpus
from roibeam.pipelines.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.sources.captions.caption_table import CaptionTable

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
