"""What must hold in the simulation that justifies the size of shards."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def scale() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    spec = importlib.util.spec_from_file_location("scale", BENCH / "scale.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCH))


def calm(scale: Any, **changes: float) -> Any:
    """100 equal workers, 20,000 equal images of a second, nothing else."""
    nothing = dict.fromkeys(("image_spread", "shard_seconds", "failures_per_hour", "speed_spread", "slow_share"), 0.0)
    return scale.Cluster(**{"images": 20_000, "workers": 100, "seconds_per_image": 1.0, **nothing, **changes})


def test_without_faults_and_costs_the_time_is_the_ideal_one(scale: Any) -> None:
    outcome = scale.simulate(calm(scale), 50)
    assert outcome.wall == pytest.approx(outcome.ideal) == pytest.approx(200)
    assert (outcome.shards, outcome.failures, outcome.wasted, outcome.overhead, outcome.tail) == (400, 0, 0, 0, 0)


def test_the_same_seed_gives_the_same_run(scale: Any) -> None:
    cluster = scale.Cluster(images=100_000)
    assert scale.simulate(cluster, 500, 1) == scale.simulate(cluster, 500, 1) != scale.simulate(cluster, 500, 2)


def test_more_failures_waste_more_and_no_failure_loses_more_than_a_shard(scale: Any) -> None:
    wasted = [0.0]
    for rate in (1.0, 4.0, 16.0):
        cluster = calm(scale, failures_per_hour=rate, images=200_000)
        outcome = scale.simulate(cluster, 100)
        assert outcome.wall > outcome.ideal
        assert outcome.failures * 100 >= outcome.wasted > wasted[-1]
        assert outcome.largest_loss <= 100
        wasted.append(outcome.wasted)


def test_larger_shards_lose_more_and_smaller_ones_cost_more(scale: Any) -> None:
    cluster = scale.Cluster(images=300_000, workers=50, seconds_per_image=1.0, shard_seconds=5.0, failures_per_hour=0.5)
    small, middle, large = (scale.mean_outcome(cluster, size, 3) for size in (10, 200, 5000))
    assert small["wasted"] < middle["wasted"] < large["wasted"]
    assert small["overhead"] > middle["overhead"] > large["overhead"]
    assert middle["wall"] < min(small["wall"], large["wall"])


def test_a_slow_worker_sets_the_end(scale: Any) -> None:
    slow = replace(calm(scale), slow_share=0.01, slow_factor=4.0)
    outcome = scale.simulate(slow, 200)  # each worker has one shard
    assert outcome.wall == pytest.approx(4 * 200) and outcome.tail == pytest.approx(3 * 200)
