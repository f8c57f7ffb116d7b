"""What can be guessed without the picture: a reader that has counted the training split.

A guess rests on what a text says, from the most general to the most special: "how many" -> "how many balls" -> all of
the question. What was seen seldom counts less: each level is mixed with the one above it (Dirichlet smoothing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import log

STRENGTHS = (0.5, 2.0, 8.0, 32.0)  # how many sights the level above is worth; who asks takes the best

Keys = Sequence[Hashable]


class BlindReader:
    """Counts outcomes by keys; each key is a level, the most general one first."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._with: dict[Hashable, Counter[Hashable]] = {}

    def learn(self, keys: Keys, outcome: Hashable) -> None:
        for key in keys:
            self._seen[key] += 1
            self._with.setdefault(key, Counter())[outcome] += 1

    def chances(self, keys: Keys, strength: float) -> dict[Hashable, float]:
        """Of all outcomes that the most general key was seen with, in the order in which they were first seen."""
        outcomes = self._with.get(keys[0], Counter()) if keys else Counter()
        found: dict[Hashable, float] = {outcome: 1 / len(outcomes) for outcome in outcomes}
        for key in keys:
            counts, seen = self._with.get(key), self._seen[key]
            if counts is not None:
                found = {
                    outcome: (counts[outcome] + strength * chance) / (seen + strength)
                    for outcome, chance in found.items()
                }
        return found

    def best(self, keys: Keys, strength: float) -> Hashable | None:
        """The likeliest outcome, None where nothing is known."""
        found = self.chances(keys, strength)
        return max(found, key=lambda outcome: found[outcome]) if found else None

    def evidence(self, facts: Iterable[Keys], strength: float) -> float:
        """Log odds that all these facts are true, each learnt with the outcome True or False."""
        total = 0.0
        for keys in facts:
            chance = min(max(self.chances(keys, strength).get(True, 0.5), 1e-6), 1 - 1e-6)
            total += log(chance / (1 - chance))
        return total
