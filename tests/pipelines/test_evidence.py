"""The parts of bench/evidence that its verdicts rest on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
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


def test_every_arm_names_what_there_is() -> None:
    runs = import_module("evidence.arms")
    seen: set[str] = set()
    for name, arm in runs.ARMS.items():
        assert not arm.after or arm.after in seen, f"{name} comes before {arm.after}"
        seen.add(name)
        system = system_named(arm.system)
        assert arm.model in system.sizes
        settings = [f"{name}={value}" for name, value in arm.settings.items() if name.startswith("sampling.")]
        apply_overrides({"sampling": system.sampling()}, settings)
    assert set(runs.QUICK_ARMS) <= seen


# --- small runs of the arms that `make evidence-quick` leaves out ---


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    world = import_module("evidence.worlds")
    made = world.World(tmp_path_factory.mktemp("evidence"), world.Sizes(test=20, train=50, probe=10))
    made.make(print)
    return made


@pytest.mark.soak(cases=True)
@pytest.mark.parametrize(
    "arm",
    [
        "vlbert-stored", "vlbert-encoder", "vlbert-pixels-frozen", "vlbert-pixels-trained", "probe-pretrained",
        "imagebert-two-stages", "interbert-plain",
    ],
)  # fmt: skip
def test_an_arm_is_trained_and_answers(small_world: Any, monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    evidence, arms = import_module("evidence.__main__"), import_module("evidence.arms").ARMS
    monkeypatch.setattr(evidence, "QUICK_STEPS", 2)
    results = small_world.work / "results"
    results.mkdir(exist_ok=True)
    made = evidence.Evidence(small_world, results, arms=[arm], seeds=[0], quick=True)
    for name in (arms[arm].after, arm):
        if name and not made.folder(evidence.Run(name, 0)).exists():
            made.one(evidence.Run(name, 0))
    answers = json.loads((results / f"{arm}-0.json").read_text())
    asked = {name.split()[0].split("_")[0] for name, tally in answers["tallies"].items() if sum(tally["asked"])}
    assert asked >= {measure.split()[0] for measure in arms[arm].measures if measure != "retrieval"}
