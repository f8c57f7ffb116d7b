"""Which pictures are one photo: equal bytes, or perceptual hashes that differ in few bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

from roibeam.pipelines.collection.pictures.perceptual_hash import NUM_BITS, tells_something

_AGREEING_BANDS = 2


def groups_of_same(phashes_N: np.ndarray, digests_N2: np.ndarray, *, max_bits: int) -> np.ndarray:
    """For each picture the smallest index of a picture of its group; "same" goes on from one to the next.

    Args:
        phashes_N: (N,) uint64, perceptual hashes.
        digests_N2: (N, 2) uint64, of the pictures' bytes.
        max_bits: hashes that differ in at most so many of 64 bits are one photo's; hashes that tell nothing are not
            compared.
    Returns:
        (N,) int64.
    """
    leaders = np.arange(len(phashes_N))
    if not len(leaders):
        return leaders

    def find(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = leaders[leaders[index]]
            index = int(leaders[index])
        return index

    def join(one: int, other: int) -> None:
        first, second = sorted((find(one), find(other)))
        leaders[second] = first

    told = np.flatnonzero(tells_something(phashes_N))
    for values, axis, places in ((digests_N2, 0, leaders.copy()), (phashes_N[told], None, told)):
        _, first, which = np.unique(values, axis=axis, return_index=True, return_inverse=True)
        firsts = first[which.ravel()]
        for index in np.flatnonzero(firsts != np.arange(len(firsts))):
            join(int(places[index]), int(places[firsts[index]]))
    hashes, first = np.unique(phashes_N[told], return_index=True)
    first = told[first]
    for ones, others in _near_pairs(hashes, max_bits):
        for one, other in zip(first[ones].tolist(), first[others].tolist(), strict=True):
            join(one, other)
    return np.fromiter((find(index) for index in range(len(leaders))), np.int64, len(leaders))


def _near_pairs(hashes: np.ndarray, max_bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places of different hashes at most so many bits apart, some at a time; a pair may come again.

    Of `max_bits` + 2 bands of bits, hashes at most `max_bits` apart agree in two (pigeonhole). So only those that agree
    in two bands are compared, of ten million some five each time; the memory is that of a few copies of `hashes`.
    """
    if not max_bits:
        return
    num_bands = max_bits + _AGREEING_BANDS
    edges = [band * NUM_BITS // num_bands for band in range(num_bands + 1)]
    masks = [((1 << high) - 1) ^ ((1 << low) - 1) for low, high in pairwise(edges)]
    for bands in combinations(masks, _AGREEING_BANDS):
        keys = hashes & np.uint64(sum(bands))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        places = np.arange(len(keys))
        for step in range(1, len(keys)):  # each with the one so many places behind it, while their keys are equal
            places = places[places + step < len(keys)]
            places = places[keys[places] == keys[places + step]]
            if not len(places):
                break
            ones, others = order[places], order[places + step]
            near = np.bitwise_count(hashes[ones] ^ hashes[others]) <= max_bits
            yield ones[near], others[near]
