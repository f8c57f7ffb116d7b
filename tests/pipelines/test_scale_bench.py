"""What must hold in the simulation that justifies the size of shards, and in what it draws from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scale
import scale_inputs as inputs


def calm(**changes: Any) -> Any:
    """100 equal workers, 20,000 equal images of a second, nothing else."""
    nothing = dict.fromkeys(("shard_seconds", "slow_share"), 0.0)
    return scale.Cluster(**{"images": 20_000, "workers": 100, "seconds_per_image": 1.0, **nothing, **changes})


def failing(hours: float, **changes: Any) -> Any:
    """The same, and each worker fails in so many hours; another is there after 300 seconds."""
    lives = inputs.Exponential(hours * 3600.0)
    return calm(lives=lives, restart=(inputs.Spread.of([300.0]),), **changes)


def test_without_faults_and_costs_the_time_is_the_ideal_one() -> None:
    outcome = scale.simulate(calm(), 50)
    assert outcome.wall == pytest.approx(outcome.ideal) == pytest.approx(200)
    assert (outcome.shards, outcome.failures, outcome.wasted, outcome.overhead) == (400, 0, 0, 0)
    assert outcome.tail == pytest.approx(0, abs=1e-6)
    cluster = failing(0.5, image_spread=0.1)  # each seed has a run of its own
    assert scale.simulate(cluster, 50, 1) == scale.simulate(cluster, 50, 1) != scale.simulate(cluster, 50, 2)


def test_more_failures_waste_more_and_no_failure_loses_more_than_a_shard() -> None:
    wasted = [0.0]
    for hours in (1.0, 0.25, 1 / 16):
        outcome = scale.simulate(failing(hours, images=200_000), 100)
        assert outcome.wall > outcome.ideal
        assert outcome.failures * 100 >= outcome.wasted > wasted[-1]
        assert outcome.largest_loss <= 100
        wasted.append(outcome.wasted)


def test_on_flink_one_failure_loses_what_all_have_in_work() -> None:
    once = inputs.Spread.of([250.0, 250.0])  # every worker would fail then; the first one's failure stops the others
    cluster = calm(images=200_000, workers=2, seconds_per_image=0.01, again=inputs.Spread.of([30.0]))
    one, all_ = (scale.simulate(replace(cluster, lives=once, flink=flink), 10_000) for flink in (False, True))
    assert one.failures == 2 * all_.failures
    assert one.wasted == pytest.approx(all_.wasted) == pytest.approx(2 * 50 * all_.failures)
    assert all_.wall >= all_.ideal + 30


def test_a_lost_shard_is_begun_anew_only_after_the_engine_has_noticed() -> None:
    cluster = calm(images=100, workers=2, lives=inputs.Spread.of([60.0]), again=inputs.Spread.of([40.0]))
    outcome = scale.simulate(replace(cluster, restart=(inputs.Spread.of([0.0]),)), 50)
    assert outcome.wall == 50  # both end before they fail
    later = scale.simulate(replace(cluster, images=200, restart=(inputs.Spread.of([0.0]),)), 50)
    assert later.failures == 2 and later.wasted == pytest.approx(20) and later.wall == pytest.approx(150)


def test_larger_shards_lose_more_and_smaller_ones_cost_more() -> None:
    cluster = failing(2.0, images=300_000, workers=50, shard_seconds=5.0)
    small, middle, large = (scale.mean_outcome(cluster, size, 3) for size in (10, 200, 5000))
    assert small["wasted"] < middle["wasted"] < large["wasted"]
    assert small["overhead"] > middle["overhead"] > large["overhead"]
    assert middle["wall"] < min(small["wall"], large["wall"])


def test_a_slow_worker_sets_the_end_and_shards_that_never_end_are_given_up() -> None:
    slow = replace(calm(), slow_share=0.01, slow_factor=4.0)
    outcome = scale.simulate(slow, 200)  # each worker has one shard
    assert outcome.wall == pytest.approx(4 * 200) and outcome.tail == pytest.approx(3 * 200)
    cluster = calm(lives=inputs.Spread.of([10.0]), restart=(inputs.Spread.of([1.0]),))
    assert scale.simulate(cluster, 200).wall == np.inf


def test_a_pace_takes_its_seconds_over_a_whole_trace_and_more_where_it_is_slow() -> None:
    pace = inputs.Pace([1.0, 3.0], 10)  # 10 seconds, then 30; 20 of work in each
    assert pace.seconds == 40
    assert pace.end(0, 20) == pytest.approx(10) and pace.end(10, 20) == pytest.approx(40)
    assert pace.end(5, 400) == pytest.approx(405)
    assert pace.end(40, 10) == pytest.approx(45) and pace.end(70, 20) == pytest.approx(80 + (20 - 10 * 2 / 3) / 2)


def test_every_measured_input_has_the_command_that_made_it() -> None:
    read, content = inputs.read_inputs()
    assert all(part["command"].startswith("python bench/scale_measure.py ") for part in content.values())
    text = inputs.told(read, content)
    headings = [line for line in text.splitlines() if not line.startswith(" ")][1:]
    assert headings == ["measured by others, and published:", "assumed:"]
    assert f"{len(content['kills']['kills'])} kills" in text


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "scale.json").write_text(json.dumps({"kills": {}, "pace": {}, "photos": {}}))
    with pytest.raises(ValueError, match="no part 'lifetimes'"):
        inputs.read_inputs(tmp_path / "scale.json")
