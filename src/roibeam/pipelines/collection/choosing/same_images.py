"""Which pictures are one photo: equal bytes, or perceptual hashes that differ in few bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from roibeam.pipelines.collection.pair import Picture
from roibeam.pipelines.collection.pictures.perceptual_hash import NUM_BITS


def groups_of_same(pictures: Sequence[Picture], *, max_bits: int) -> list[int]:
    """For each picture the smallest index of a picture of its group.

    Hashes at most `max_bits` apart agree in one of `max_bits` + 1 bands of bits (pigeonhole), so only pictures that
    share a band are compared; "same" goes on from one to the next.
    """
    leader = list(range(len(pictures)))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    def join(one: int, other: int) -> None:
        one, other = sorted((find(one), find(other)))
        leader[other] = one

    first_of: dict[str, int] = {}
    distinct: dict[int, int] = {}  # hash -> the first picture that has it
    for index, picture in enumerate(pictures):
        join(first_of.setdefault(picture.sha256, index), index)
        join(distinct.setdefault(int(picture.phash, 16), index), index)
    if max_bits:
        for one, other in _near_pairs(list(distinct), max_bits):
            join(distinct[one], distinct[other])
    return [find(index) for index in range(len(pictures))]


def _near_pairs(hashes: Sequence[int], max_bits: int) -> set[tuple[int, int]]:
    """Pairs of different hashes at most so many bits apart."""
    found: set[tuple[int, int]] = set()
    num_bands = min(max_bits + 1, NUM_BITS)
    edges = [band * NUM_BITS // num_bands for band in range(num_bands + 1)]
    for low, high in pairwise(edges):
        buckets: dict[int, list[int]] = defaultdict(list)
        for value in hashes:
            buckets[(value >> low) & ((1 << (high - low)) - 1)].append(value)
        for bucket in buckets.values():
            for position, one in enumerate(bucket):
                for other in bucket[position + 1 :]:
                    if (one ^ other).bit_count() <= max_bits:
                        found.add((one, other))
    return found
