"""Do two captions speak of one picture? What can be told without seeing any, and so must not count as seeing.

VisualBERT is asked so: a true caption of a picture stands beside the one that is asked about. Several features tell
how much likelier two captions are of one scene than of two. A logistic regression puts them together. It is fitted to
captions of scenes that no feature was counted from. Another reader may do better: this is a level that was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evidence.readers.read_world import ReadWorld
from roibeam.pipelines.toyworld.caption_likelihood import Wording, read_wording
from roibeam.pipelines.toyworld.captions import GROUND_PHRASES, NUMBERS, write_captions
from roibeam.pipelines.toyworld.truth import Noun
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS, THEMES

_STEPS, _RIDGE = 30, 1e-3
_SHRINK = 0.5  # A ratio counts for as many scenes as chance would make have both nouns; so many more speak for 1.


@dataclass(frozen=True, eq=False)
class _Read:
    """Captions and what they say: (C, N) rows of `nouns` or -1, categories (C, K) 0 or 1, ground (C,) or -1, themes
    (C, T), each caption's likelihood under each theme."""

    nouns: np.ndarray
    categories: np.ndarray
    grounds: np.ndarray
    themes: np.ndarray
    texts: Sequence[str]


class PairReader:
    """
    Args:
        fitted: how many of the world's other scenes the regression is fitted to; the features come from the rest.
    """

    def __init__(self, world: ReadWorld, fitted: int) -> None:
        own = world.others[-fitted:]
        self._rest = [scene for scene, _ in world.others[:-fitted]]
        self._ways = world.other_ways
        self._theme_of = np.array([list(THEMES).index(scene.theme) for scene in self._rest])
        self._nouns: dict[Noun, int] = {}
        self._said: list[np.ndarray] = []
        pairs = [write_captions(*one)[:2] for one in own]
        pairs = [pair for pair in pairs if len(pair) == 2]
        features = self._features([pair[0].text for pair in pairs], [pair[1].text for pair in pairs])
        count = len(pairs)
        self._middle, self._spread = features.mean((0, 1)), features.std((0, 1)) + 1e-6
        weights = np.full((count, count), 1 / (count - 1))
        np.fill_diagonal(weights, 1)
        self._weights = _regression(self._terms(features), np.eye(count).ravel(), weights.ravel())

    def odds(self, asked: Sequence[str], beside: Sequence[str]) -> np.ndarray:
        """(A, B) natural logarithms: how much likelier each two are of one scene than of two."""
        found = self._terms(self._features(asked, beside)) @ self._weights
        odds: np.ndarray = found.reshape(len(asked), len(beside))
        odds[np.array(asked)[:, None] == np.array(beside)[None]] = -np.inf  # the writer says nothing twice
        return odds

    def _terms(self, features: np.ndarray) -> np.ndarray:
        """(pairs, terms): the features, products of each two, and 1."""
        scaled = ((features - self._middle) / self._spread).reshape(-1, features.shape[-1])
        upper = np.triu_indices(scaled.shape[1])
        return np.concatenate([scaled, scaled[:, upper[0]] * scaled[:, upper[1]], np.ones((len(scaled), 1))], axis=1)

    def _features(self, asked: Sequence[str], beside: Sequence[str]) -> np.ndarray:
        """(A, B, features)."""
        one, other = self._read(asked), self._read(beside)
        each = self._ratios(one.nouns, other.nouns).reshape(len(asked), len(beside), -1)
        same = one.categories @ other.categories.T
        grounds = (one.grounds[:, None] >= 0) & (other.grounds[None] >= 0)
        alike = one.grounds[:, None] == other.grounds[None]
        themes = np.bincount(self._theme_of, minlength=len(THEMES)) / len(self._theme_of)
        theme = np.log(np.einsum("at,bt,t->ab", one.themes, other.themes, themes))
        likely = self._likelihoods(one.texts), self._likelihoods(other.texts)
        both = (likely[0] @ likely[1].T / len(self._rest) > 0).astype(float)
        parts = [
            theme,
            each.max(axis=2),
            each.min(axis=2),
            each.sum(axis=2),
            same,
            both,
            grounds & alike,
            grounds & ~alike,
        ]
        return np.stack([np.asarray(part, np.float64) for part in parts], axis=2)

    def _ratios(self, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        """(A, B, 3, 3) natural logarithms: how much likelier two nouns are of one scene than of two; 0 where there is
        none.

        Args:
            ones, others: (A, 3) and (B, 3) numbers of nouns, -1 for none.
        """
        (first, at), (second, beside) = (np.unique(nouns, return_inverse=True) for nouns in (ones, others))
        said = [np.stack([self._said[number] for number in numbers]) for numbers in (first, second)]
        scenes = [(part > 0).sum(axis=1) for part in said]
        said = [part / np.maximum(part.mean(axis=1, keepdims=True), 1e-9) for part in said]
        expected = np.outer(*scenes) / len(self._rest)
        ratios = np.log((said[0] @ said[1].T / len(self._rest) * expected + _SHRINK) / (expected + _SHRINK))
        ratios[first < 0] = 0
        ratios[:, second < 0] = 0
        found: np.ndarray = ratios[
            at.reshape(ones.shape)[:, None, :, None], beside.reshape(others.shape)[None, :, None]
        ]
        return found

    def _likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, scenes) float32, each row's mean 1."""
        found = np.array([self._ways.likelihood(text)[: len(self._rest)] for text in texts], np.float32)
        return found / np.maximum(found.mean(axis=1, keepdims=True), 1e-12)

    def _read(self, texts: Sequence[str]) -> _Read:
        wordings = [read_wording(text) for text in texts]
        nouns = np.full((len(texts), 3), -1)
        categories = np.zeros((len(texts), len(CATEGORIES)))
        grounds = np.full(len(texts), -1)
        themes = np.ones((len(texts), len(THEMES)))
        for row, wording in enumerate(wordings):
            named = wording.nouns or (_counted(wording.frame),)
            for place, noun in enumerate(named):
                nouns[row, place] = self._number_of(noun)
                categories[row, list(CATEGORIES).index(noun.category)] = 1
            for number, phrase in enumerate(GROUND_PHRASES.values()):
                if wording.frame.endswith(phrase):
                    grounds[row] = number
            themes[row] = self._themes(wording, named)
        return _Read(nouns, categories, grounds, themes, texts)

    def _themes(self, wording: Wording, named: Sequence[Noun]) -> np.ndarray:
        """(themes,) how much likelier than on average such things and such a ground are in each."""
        found = np.ones(len(THEMES))
        size = np.bincount(self._theme_of, minlength=len(THEMES))
        for noun in named:
            said = self._said[self._number_of(Noun(noun.category, frozenset()))]
            share = np.bincount(self._theme_of, said, len(THEMES)) / size
            found *= share / max(float(said.mean()), 1e-9)
        for ground, phrase in GROUND_PHRASES.items():
            if wording.frame.endswith(phrase):
                here = np.array([scene.ground == ground for scene in self._rest], np.float64)
                found *= np.bincount(self._theme_of, here, len(THEMES)) / size / here.mean()
        return found + 1e-3

    def _number_of(self, noun: Noun) -> int:
        """Its row in the table of how likely each scene has it named; made when it is first met."""
        if noun not in self._nouns:
            rows = self._ways.rows(Wording(noun.category, (noun,), 1))
            chances = rows.chances * self._ways.noun_chances(noun.attributes, rows.objects[:, 0])
            self._said.append(np.bincount(rows.scenes, chances, len(self._rest))[: len(self._rest)].astype(np.float32))
            self._nouns[noun] = len(self._nouns)
        return self._nouns[noun]


def _counted(frame: str) -> Noun:
    """The noun of "two red ball"."""
    *words, category = frame.split()
    assert words[0] in NUMBERS.values()
    return Noun(category, frozenset(word for word in words if word in COLOURS))


def _regression(terms: np.ndarray, right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Newton's steps of a logistic regression, (terms,)."""
    found = np.zeros(terms.shape[1])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(terms @ found, -30, 30)))
        slope = terms.T @ (weights * (right - chance)) - _RIDGE * found
        curve = (terms * (weights * chance * (1 - chance))[:, None]).T @ terms + _RIDGE * np.eye(len(found))
        step = np.linalg.solve(curve, slope)
        found += step
        if np.abs(step).max() < 1e-4:
            break
    return found
