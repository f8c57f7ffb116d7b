"""Blind and perfect readers of the toy world, which say what answers of a model are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence.readers import bounds as readers
from evidence.readers import hidden_words as words
from evidence.readers.caption_pairs import PairReader
from evidence.readers.hidden_regions import _RegionReader
from evidence.readers.read_world import ReadWorld, expected_recall
from evidence.worlds import FULL, QUICK

from roibeam.pipelines.toyworld.caption_likelihood import KnownWays, read_wording
from roibeam.pipelines.toyworld.scene import find_relations


@pytest.fixture(scope="module")
def world() -> Any:
    return ReadWorld(test=25, scenes=200)


def test_recall_counts_equal_scores_as_lots() -> None:
    scores = np.array([[2.0, 1, 1], [3, 1, 0], [1, 1, 1]])  # first; second; one of three
    assert expected_recall(scores, 1) == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert expected_recall(scores, 2) == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_matching_counts_own_and_other_pictures_alike() -> None:
    assert readers.matching_right(np.array([[2.0, 0, 0], [0, 2, 2], [0, 0, 0]]), 1) == pytest.approx(
        (2 / 3 + 5 / 6) / 2
    )


def test_a_word_is_hidden_and_only_sentences_stand_for_it() -> None:
    found = dict(words.hidden_words("a striped red ball"))
    assert sorted(found) == ["ball", "red", "striped"]
    assert len(found["ball"]) == 24 and found["ball"]["cup"] == "a striped red cup"
    assert "orange" in found["red"] and "small" not in found["red"]  # the writer says size first
    chances = {"red": 0.25, "blue": 0.25, "green": 0.1}
    texts = {word: word for word in chances}
    assert [words.share_right(word, texts, chances.__getitem__) for word in chances] == [0.5, 0.5, 0]


def test_what_a_caption_says_of_a_hidden_region_is_the_mean_over_what_it_may_look_like(world: Any) -> None:
    """Held against the likelihood of every scene that has some look of some class in its place."""
    reader = _RegionReader(world)
    kinds = {}
    for picture in world.pictures:
        kinds.setdefault(picture.captions[0].kind, picture)
    assert len(kinds) >= 5
    for picture in kinds.values():
        scene, text = picture.scene, picture.captions[0].text
        number = picture.captions[0].objects[0]
        thing = scene.objects[number]
        sizes = [name for name in thing.attributes if name in ("small", "large")]
        found = reader.by_caption(picture, number)
        assert found[reader.names.index(thing.category)] > 0
        for name in (thing.category, "ball", "hoop", "moon", "frame"):
            expected, opening = 0.0, read_wording(text).chance
            for look, share in reader.looks[name].shares.items():
                other = replace(thing, category=name, attributes=(*look, *sizes))
                variant = replace(scene, objects=(*scene.objects[:number], other, *scene.objects[number + 1 :]))
                expected += share * KnownWays([(variant, find_relations(variant))]).likelihood(text)[0]
            said = opening * found[reader.names.index(name)]
            assert said == pytest.approx(expected, rel=0.01), (text, name)


def test_two_captions_of_one_picture_are_told_without_seeing_it(world: Any) -> None:
    reader = PairReader(world, 80)
    asked = ["two hats", "a red ball and a key", "a boat on the water"]
    odds = reader.odds(asked, ["a boat on the sand", "two hats", "a boat on the water"])
    assert odds[0, 1] == odds[2, 2] == -np.inf  # the writer says nothing twice
    texts = [picture.captions[0].text for picture in world.pictures]
    odds = reader.odds(texts, [picture.captions[1].text for picture in world.pictures])
    assert readers.matching_right(odds, 0) > 0.6


def test_bounds_of_all_questions_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "QUICK_SCENES", 150)
    monkeypatch.setattr(readers, "_QUICK_FITTED", 60)
    few, path = replace(QUICK, test=8), tmp_path / "results" / "bounds.json"
    found = readers.bounds(few, path)
    for name, bound in found.items():
        assert 0 <= bound.floor <= bound.ceiling <= 1, (name, bound)
    recalls = {f"{way}_r{cut}{how}" for way in ("text_to_image", "image_to_text") for cut in (1, 5, 10)
               for how in ("", " beside")}  # fmt: skip
    regions = {f"regions {text} text{how}" for text in ("with", "without")
               for how in ("", " alone", " touching", " covered")}  # fmt: skip
    others = {"words true", "words wrong", "words alone", "matching", "patterns", "matching beside"}
    assert {name for name in {*recalls, *regions, *others} - set(found) if "covered" not in name} == set()
    assert set(found) <= {*recalls, *regions, *others}
    written = json.loads(path.read_text())
    written["bounds"]["matching"]["ceiling"] = 0.75
    path.write_text(json.dumps(written))
    assert readers.bounds(few, path)["matching"].ceiling == 0.75
    assert readers.origin(few) != readers.origin(replace(QUICK, test=9))  # then they are made anew


def test_the_committed_bounds_are_of_the_full_sizes() -> None:
    written = json.loads(readers.BOUNDS.read_text())
    assert written["computed_from"] == readers.origin(FULL)
