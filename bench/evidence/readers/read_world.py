"""What a reader of captions may know: the pictures for testing, and many other scenes that stand for the world."""

from __future__ import annotations

from math import prod

import numpy as np

from evidence.worlds import SEED
from roibeam.pipelines.toyworld.caption_likelihood import KnownWays, Wording, read_wording
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.scene import Relation, Scene, find_relations, generate
from roibeam.pipelines.toyworld.truth import Noun


class ReadWorld:
    """
    Args:
        test: how many pictures are asked about, from number 0 on.
        scenes: how many others stand for the world; they follow in number.
    """

    def __init__(self, test: int, scenes: int) -> None:
        self.pictures: list[Picture] = [describe(generate(SEED, index)) for index in range(test)]
        self.texts = [picture.captions[0].text for picture in self.pictures]
        self.known = KnownWays((picture.scene, picture.relations) for picture in self.pictures)
        self.others: list[tuple[Scene, tuple[Relation, ...]]] = []
        for index in range(test, test + scenes):
            scene = generate(SEED, index).scene
            self.others.append((scene, find_relations(scene)))
        self.other_ways = KnownWays(self.others)
        self._noun_chances: dict[Noun, float] = {}

    def probability(self, text: str) -> float:
        """About that of a caption, whatever the scene.

        How often the other scenes make one say such things of such categories, and how often things of each category
        are named with such attributes: the attributes are taken as independent. The plain mean of the likelihood over
        the scenes predicts hidden words worse (25 % instead of 30 %), even with 20,000 of them: sentences are rare.
        """
        wording = read_wording(text)
        return wording.chance * self._frame_mass(wording) * prod(map(self._said, wording.nouns)) / len(self.others)

    def _frame_mass(self, wording: Wording) -> float:
        """The chances of a frame; of three things, which is rare: as if the second relation stood by itself."""
        if len(wording.nouns) < 3:
            return self._mass(wording.frame, len(wording.nouns))
        first, second = wording.frame.split(" that is ")
        middle = wording.nouns[1].category
        masses = [self._mass(frame, 2) for frame in (first, f"{middle} {second}")]
        alone = self._mass(middle, 1)
        return masses[0] * masses[1] / alone / 10 if alone else 0.0

    def _mass(self, frame: str, nouns: int) -> float:
        return float(self.other_ways.rows(Wording(frame, (Noun("", frozenset()),) * nouns, 1)).chances.sum())

    def _said(self, noun: Noun) -> float:
        """How likely a thing of its category is named so."""
        if noun not in self._noun_chances:
            self._noun_chances[noun] = self._mean_said(noun)
        return self._noun_chances[noun]

    def _mean_said(self, noun: Noun) -> float:
        rows = self.other_ways.rows(Wording(noun.category, (noun,), 1))
        found = self.other_ways.noun_chances(noun.attributes, rows.objects[:, 0])
        return float(found.mean()) if len(found) else 0.0


def expected_recall(scores: np.ndarray, at: int) -> float:
    """Of rankings by score whose ties are broken by lot, 0 to 1.

    Args:
        scores: (N, N), a row for each question; the right answer stands on the diagonal.
    """
    own = np.diagonal(scores)[:, None]
    before, same = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    return float(np.clip((at - before) / same, 0, 1).mean())
