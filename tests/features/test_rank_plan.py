"""Shards shared out among ranks: each once, balanced by bytes."""

from __future__ import annotations

import numpy as np
import pytest

from roibeam.features.reading.staging import plan_ranks
from roibeam.features.shard.manifest import ShardEntry


def shard(number: int, data_bytes: int, num_records: int = 1) -> ShardEntry:
    return ShardEntry(
        shard=number, manifest=f"part-{number:05d}.json", data_file="x", num_records=num_records, num_regions=1,
        data_bytes=data_bytes, first_id="a", last_id="b", content_digest="", manifest_sha256="",
    )  # fmt: skip


@pytest.mark.parametrize("num_ranks", [1, 3, 7, 64])
def test_every_shard_goes_to_one_rank_and_loads_are_even(num_ranks: int) -> None:
    sizes = np.random.default_rng(0).integers(50, 400, 1650)
    shards = [shard(number, int(size)) for number, size in enumerate(sizes)]
    plan = plan_ranks(shards, num_ranks)
    assert sorted(entry.shard for entries in plan for entry in entries) == list(range(1650))
    assert all(entries == sorted(entries, key=lambda entry: entry.shard) for entries in plan)
    loads = [sum(entry.data_bytes for entry in entries) for entries in plan]
    assert max(loads) <= 1.02 * sum(loads) / num_ranks and min(loads) >= 0.98 * sum(loads) / num_ranks
    assert plan == plan_ranks(shards[::-1], num_ranks)


def test_empty_shards_and_more_ranks_than_shards() -> None:
    plan = plan_ranks([shard(0, 10), shard(1, 0, num_records=0), shard(2, 5)], 4)
    assert [[entry.shard for entry in entries] for entries in plan] == [[0], [2], [], []]
    with pytest.raises(ValueError, match="at least one rank"):
        plan_ranks([], 0)
