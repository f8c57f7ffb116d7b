"""Counts of words and their neighbours, and the guess they give of a word between two others.

Stupid back-off (Brants and others 2007, "Large Language Models in Machine Translation", section 4) of a gap in place of
a next word: the share of each word between these two neighbours; where these two were never counted so, its shares
beside each of them, averaged; where neither was, its share of all words. As the guess is the best word alone, the
factor by which shares of a lower order are made smaller is not needed. numpy only.
"""

from collections.abc import Iterable

import numpy as np

UNKNOWN = -1  # a hidden neighbour
_ROOM = 2**20  # words are numbers below: two neighbours and a word fit into an int64
MOST_PIECES = _ROOM


class NeighbourCounts:
    """Counts of each word between two others.

    Args:
        triples: (n, 3) int, left neighbour, word, right neighbour; each triple once. Numbers in 0..2**20 - 1.
        times: (n,) int, how often each was counted.
    """

    def __init__(self, triples: np.ndarray, times: np.ndarray) -> None:
        self.triples, self.times = triples, times
        left, word, right = triples.T.astype(np.int64)
        self._between = _Words(left * _ROOM + right, word, times)
        self._after, self._before = _Words(left, word, times), _Words(right, word, times)
        self._any = _Words(np.zeros_like(word), word, times)

    def guess(self, left: int, right: int, *, without: int | None = None) -> int:
        """Returns the most likely word between two neighbours (`UNKNOWN` for a hidden one), which may be unknown; the
        lowest number of equal ones, -1 where nothing was counted. `without` is counted once less between these two."""
        if left != UNKNOWN and right != UNKNOWN:
            words, times = self._between.of(left * _ROOM + right, without)
            if len(words):
                return int(words[times.argmax()])
        sides = [self._after.of(left, without)] if left != UNKNOWN else []
        sides += [self._before.of(right, without)] if right != UNKNOWN else []
        sides = [side for side in sides if len(side[0])] or [self._any.of(0, without)]
        words, place = np.unique(np.concatenate([words for words, _ in sides]), return_inverse=True)
        shares = np.concatenate([times / max(times.sum(), 1) for _, times in sides])
        return int(words[np.bincount(place, shares).argmax()]) if len(words) else -1


class _Words:
    """Words by their neighbours.

    Args:
        beside, words, times: (n,) int, of each triple.
    """

    def __init__(self, beside: np.ndarray, words: np.ndarray, times: np.ndarray) -> None:
        self._keys, place = np.unique(beside * _ROOM + words, return_inverse=True)
        self._times = np.bincount(place, times, len(self._keys)).astype(np.int64)

    def of(self, beside: int, without: int | None) -> tuple[np.ndarray, np.ndarray]:
        """(n,) words in rising order, and (n,) how often; without one of a word."""
        start, end = np.searchsorted(self._keys, [beside * _ROOM, (beside + 1) * _ROOM])
        words, times = self._keys[start:end] % _ROOM, self._times[start:end]
        if without is None:
            return words, times
        times = times - (words == without)
        return words[times > 0], times[times > 0]


def count_neighbours(rows: Iterable[np.ndarray]) -> NeighbourCounts:
    """Counts words between their neighbours.

    Args:
        rows: (T,) int each, words of one text in their order. The first and the last mark the ends of the text, and
            are only neighbours.
    """
    found = [np.stack([row[:-2], row[1:-1], row[2:]], axis=1) for row in rows if len(row) > 2]
    triples = np.concatenate(found).astype(np.int64) if found else np.zeros((0, 3), np.int64)
    keys, times = np.unique((triples[:, 0] * _ROOM + triples[:, 2]) * _ROOM + triples[:, 1], return_counts=True)
    left, right, word = keys // _ROOM**2, keys // _ROOM % _ROOM, keys % _ROOM
    return NeighbourCounts(np.stack([left, word, right], axis=1).astype(np.int32), times.astype(np.int32))
