"""Which rank of a cluster reads which shards, so that each has about as many bytes on its disk and over its network."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from roibeam.features.shard.manifest import ShardEntry


def plan_ranks(shards: Sequence[ShardEntry], num_ranks: int) -> list[list[ShardEntry]]:
    """Shards for each rank, balanced by bytes: the largest first, each to the rank that has least.

    The largest share is at most 4/3 of the smallest one possible (R. L. Graham, "Bounds on multiprocessing timing
    anomalies", 1969); with many more shards than ranks it is close to the mean. The same shards give the same plan.

    Returns:
        for each rank its shards with records, by ascending number; without any where there are more ranks than shards.
    Raises:
        ValueError: for less than one rank.
    """
    if num_ranks < 1:
        raise ValueError(f"a plan needs at least one rank, got {num_ranks}")
    filled = sorted(
        (entry for entry in shards if entry.num_records), key=lambda entry: (-entry.data_bytes, entry.shard)
    )
    loads = [(0, rank) for rank in range(num_ranks)]
    plan: list[list[ShardEntry]] = [[] for _ in range(num_ranks)]
    for entry in filled:
        load, rank = heapq.heappop(loads)
        plan[rank].append(entry)
        heapq.heappush(loads, (load + entry.data_bytes, rank))
    return [sorted(entries, key=lambda entry: entry.shard) for entries in plan]


def imbalance(plan: Sequence[Sequence[ShardEntry]]) -> float:
    """Bytes of the fullest rank / mean over all ranks, 1 to their number; 1 for a store without records."""
    loads = [sum(entry.data_bytes for entry in entries) for entries in plan]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0
