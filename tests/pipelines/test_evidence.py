"""The parts of bench/evidence that its verdicts rest on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bench_module import BENCH

from roibeam.pipelines.foundation.overrides import apply_overrides
from roibeam.pipelines.pretraining.systems import system_named


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    """These scripts import each other."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def statistics() -> ModuleType:
    return import_module("evidence.intervals")


def counts(statistics: ModuleType, rates: list[float], *, pictures: int = 400, asked: int = 2) -> Any:
    """A run for each rate, so many of each picture's questions right."""
    random = np.random.default_rng(0)
    right = np.stack([random.binomial(asked, rate, pictures) for rate in rates])
    return statistics.Counts(tuple(range(len(rates))), right, np.full_like(right, asked))


def test_a_difference_counts_when_seeds_and_pictures_agree(statistics: ModuleType) -> None:
    better, worse = counts(statistics, [0.6, 0.62, 0.61]), counts(statistics, [0.5, 0.49, 0.51])
    found = statistics.difference(better, worse)
    assert found.above_0 and found.seeds == 3 and abs(found.value - 0.11) < 0.03
    assert statistics.difference(worse, better).below_0
    same = statistics.difference(better, better)
    assert (same.value, same.low, same.high) == (0, 0, 0) and not same.above_0
    # What one seed has and the others have not is no finding.
    odd = statistics.difference(counts(statistics, [0.9, 0.5, 0.5]), counts(statistics, [0.5, 0.5, 0.5]))
    assert not odd.above_0


def test_intervals_hold_the_truth_about_as_often_as_they_say(statistics: ModuleType) -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(40):
        right = random.binomial(1, 0.3, (1, 300))
        found = statistics.share(statistics.Counts((0,), right, np.ones_like(right)))
        held += found.low <= 0.3 <= found.high
    assert held >= 34  # 95 % of 40 are 38


def test_arms_are_compared_on_the_seeds_that_both_have(statistics: ModuleType) -> None:
    three = counts(statistics, [0.5, 0.6, 0.7])
    one = three.of([2])
    assert one.seeds == (2,) and (one.right == three.right[2:]).all()
    found = statistics.difference(three, one)
    assert found.seeds == 1 and found.value == 0
    assert statistics.difference(three.of([0]), one) is None


def test_a_gain_less_a_gain(statistics: ModuleType) -> None:
    high, low = counts(statistics, [0.8, 0.8]), counts(statistics, [0.5, 0.5])
    found = statistics.difference(high, low, less=(high, low))
    assert found.value == 0 and found.low == found.high == 0


def test_masks_that_tell_are_found_out() -> None:
    patterns = import_module("evidence.mask_patterns")
    random = np.random.default_rng(0)
    matches = random.integers(0, 2, 1200).astype(np.float32)
    blind = (random.random((1200, 20)) < 0.15).astype(np.float32)
    told = blind * matches[:, None]  # what does not belong is never masked
    for seen, low, high in ((blind, 0.42, 0.58), (told, 0.9, 1.0)):
        said = patterns.classify(seen[:600], matches[:600], seen[600:])
        assert low <= float((said == matches[600:]).mean()) <= high


def test_overlap_is_the_largest_iou_with_another_region() -> None:
    largest_overlap = import_module("evidence.questions").largest_overlap
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [0, 0, 10, 9], [50, 50, 60, 60]], np.float32)
    assert largest_overlap(boxes, 0) == pytest.approx(0.9)
    assert largest_overlap(boxes, 1) == pytest.approx(1 / 3)
    assert largest_overlap(boxes, 3) == 0
    assert largest_overlap(boxes[:1], 0) == 0


def test_permuted_captions_are_of_another_picture_each() -> None:
    world = import_module("evidence.worlds")
    other = world.another_picture(range(100, 140), seed=0)
    assert sorted(other) == sorted(other.values()) == list(range(100, 140))
    assert all(one != another for one, another in other.items())


def test_no_picture_is_in_two_splits() -> None:
    sizes = import_module("evidence.worlds").FULL
    splits = [sizes.of(name) for name in ("test", "train", "probe", "validation")]
    assert [number for split in splits for number in split] == list(range(sizes.all))


def test_every_arm_names_what_there_is() -> None:
    arms, worlds = import_module("evidence.arms"), import_module("evidence.worlds")
    seen: set[str] = set()
    for name, arm in arms.ARMS.items():
        assert not arm.needs or arm.needs in seen, f"{name} comes before {arm.needs}"
        seen.add(name)
        assert arm.store == worlds.DETECTOR or arm.store in worlds.PERFECT
        system = system_named(arm.system)
        assert arm.model in system.sizes
        apply_overrides({"sampling": system.sampling()}, arm.sampling)
    assert set(arms.QUICK_ARMS) <= seen


def test_only_what_is_missing_or_of_another_command_is_run(tmp_path: Path) -> None:
    runs, arms, worlds = (import_module(f"evidence.{name}") for name in ("runs", "arms", "worlds"))
    world = worlds.World(tmp_path, worlds.QUICK)
    made = runs.Runs(world, tmp_path / "results", arms=["perfect/text-only", "perfect/vilbert"], seeds=[0, 1])
    (tmp_path / "results" / "perfect").mkdir(parents=True)
    commands = {0: made.command(arms.ARMS["perfect/vilbert"]), 1: "roibeam pretrain with other steps"}
    for seed, command in commands.items():
        made.result(made.all[2 + seed]).write_text(json.dumps({"command": command, "seconds": 100.0}))
    assert [run.name for run in made.missing()] == ["perfect/text-only-0", "perfect/text-only-1", "perfect/vilbert-1"]
    text = made.all[0].arm
    assert made.seconds(made.missing()) == pytest.approx(2 * runs.SECONDS_A_STEP * text.steps + 100)


def test_a_page_is_made_of_what_is_there(tmp_path: Path) -> None:
    page = import_module("evidence.page")
    sizes = import_module("evidence.worlds").Sizes(test=30, train=60, probe=5)
    results, arms = (
        tmp_path / "results",
        {
            "visualbert": {"words true": 6, "words wrong": 3, "matching": 5, "patterns": 5},
            "visualbert-permuted": {"words true": 3, "words wrong": 3, "matching": 5},
            "text-only": {"words alone": 3},
        },
    )
    results.mkdir()
    for arm, rights in arms.items():
        for seed in range(2):
            tallies = {name: {"right": [right] * 30, "asked": [10] * 30} for name, right in rights.items()}
            text = {"arm": arm, "seed": seed, "command": f"roibeam {arm}", "seconds": 60, "tallies": tallies}
            (results / f"{arm}-{seed}.json").write_text(json.dumps(text))
    earlier = {"arm": "text-only", "seed": 2, "command": "of an earlier arm", "seconds": 60, "tallies": {}}
    (results / "text-only-2.json").write_text(json.dumps(earlier))
    commands = {arm: f"roibeam {arm}" for arm in arms}
    written = page.write_page(results, tmp_path / "evidence.md", sizes=sizes, steps=70, commands=commands).read_text()
    assert "Only 2 of 3 seeds of some runs" in written
    assert "| VisualBERT | 60.0 [60.0 .. 60.0] | 30.0 [30.0 .. 30.0] | +30.0 [+30.0 .. +30.0] more |" in written
    assert "6 runs so far" in written and "ViLBERT |" not in written
    assert (tmp_path / "evidence_words.svg").read_text().count("<circle") == 4


# --- small runs of the arms that `make evidence-quick` leaves out ---


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    worlds = import_module("evidence.worlds")
    made = worlds.World(tmp_path_factory.mktemp("evidence"), worlds.Sizes(test=20, train=50, probe=10, validation=10))
    made.make(["perfect", worlds.DETECTOR], print)
    return made


@pytest.mark.soak(cases=True)
@pytest.mark.parametrize(
    "arm",
    [
        "perfect/vlbert-base", "perfect/visualbert-from-text", "perfect/imagebert-no-matching",
        "perfect/imagebert-two-stages", "perfect/interbert-plain", "perfect/vilbert-shallow",
        "perfect/interbert-from-text",
        "detector/vlbert-stored", "detector/vlbert-frozen", "detector/vlbert-trained",
    ],
)  # fmt: skip
def test_an_arm_is_trained_and_answers(small_world: Any, monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    runs, arms = import_module("evidence.runs"), import_module("evidence.arms").ARMS
    monkeypatch.setattr(runs, "QUICK_STEPS", 2)
    made = runs.Runs(small_world, small_world.work / "results", arms=[arm], seeds=[0], quick=True)
    for name in (arms[arm].needs, arm):
        if name:
            made.one(runs.Run(arms[name], 0))
    answers = json.loads(made.result(made.all[0]).read_text())
    asked = {name.split()[0].split("_")[0] for name, tally in answers["tallies"].items() if sum(tally["asked"])}
    asked |= {word for name in answers["tallies"] for word in name.split()[1:]}
    assert asked >= {measure.split()[0] for measure in arms[arm].measures if measure != "retrieval"}
