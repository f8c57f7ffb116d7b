"""Shares, and differences of shares, over pictures and seeds, with 95 % bootstrap intervals.

A draw takes seeds and pictures with replacement: what is claimed would have to hold with other pictures and other runs.
Two arms are compared on the same draws: same pictures, same seeds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DRAWS, LEVEL = 2000, 0.95


@dataclass(frozen=True, eq=False)
class Counts:
    """What an arm's runs answered to one question.

    Attributes:
        seeds: (S,) of the runs.
        right, asked: (S, pictures) int64.
    """

    seeds: tuple[int, ...]
    right: np.ndarray
    asked: np.ndarray

    def of(self, seeds: Sequence[int]) -> Counts:
        kept = [self.seeds.index(seed) for seed in seeds]
        return Counts(tuple(seeds), self.right[kept], self.asked[kept])


@dataclass(frozen=True)
class Estimate:
    """A share (0..1) or a difference of two, with its interval; `seeds` runs stand behind it."""

    value: float
    low: float
    high: float
    seeds: int

    @property
    def above_0(self) -> bool:
        return self.low > 0

    @property
    def below_0(self) -> bool:
        return self.high < 0


Answers = Mapping[str, Mapping[str, Counts]]  # by arm and question


def read_answers(
    results: Path, *, commands: Mapping[str, str] | None = None
) -> tuple[Answers, list[dict[str, object]]]:
    """Of all runs in a folder; and what they say of themselves.

    Args:
        commands: by arm; runs of another command, or of none of these arms, are not read. None reads all.
    """
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob("*.json"))]
    if commands is not None:
        runs = [run for run in runs if run["command"] == commands.get(run["arm"])]
    answers: dict[str, dict[str, Counts]] = {}
    for arm in dict.fromkeys(run["arm"] for run in runs):
        mine = sorted((run for run in runs if run["arm"] == arm), key=lambda run: run["seed"])
        answers[arm] = {
            name: Counts(
                tuple(run["seed"] for run in mine),
                *(np.array([run["tallies"][name][part] for run in mine]) for part in ("right", "asked")),
            )
            for name in mine[0]["tallies"]
        }
    return answers, runs


def share(counts: Counts) -> Estimate:
    return _estimate(_ratio(counts.right.sum(), counts.asked.sum()), _drawn(counts), len(counts.seeds))


def difference(one: Counts, other: Counts, *, less: tuple[Counts, Counts] | None = None) -> Estimate | None:
    """One share less the other, over the seeds that both have; None where there is none.

    Args:
        less: two more, whose difference is taken off.
    """
    parts = [one, other, *(less or ())]
    seeds = [seed for seed in one.seeds if all(seed in part.seeds for part in parts)]
    if not seeds:
        return None
    parts = [part.of(seeds) for part in parts]
    signs = (1, -1, -1, 1)[: len(parts)]
    values = [_ratio(part.right.sum(), part.asked.sum()) for part in parts]
    drawn = sum(sign * _drawn(part) for sign, part in zip(signs, parts, strict=True))
    return _estimate(sum(s * v for s, v in zip(signs, values, strict=True)), np.asarray(drawn), len(seeds))


def _drawn(counts: Counts) -> np.ndarray:
    """(DRAWS,) shares; the same seeds and pictures for all counts of as many seeds and pictures."""
    weights, runs = _draws(*counts.right.shape)
    right, asked = (
        np.take_along_axis(weights @ part.T, runs, axis=1).sum(axis=1) for part in (counts.right, counts.asked)
    )
    return np.array([_ratio(*each) for each in zip(right, asked, strict=True)])


@functools.lru_cache(maxsize=2)
def _draws(seeds: int, pictures: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each draw has each picture, (DRAWS, pictures), and which runs it has, (DRAWS, seeds)."""
    random = np.random.default_rng(0)
    weights = np.empty((DRAWS, pictures), np.int64)
    runs = np.empty((DRAWS, seeds), np.int64)
    for draw in range(DRAWS):
        weights[draw] = np.bincount(random.integers(pictures, size=pictures), minlength=pictures)
        runs[draw] = random.integers(seeds, size=seeds)
    return weights, runs


def _ratio(right: float, asked: float) -> float:
    return float(right / asked) if asked else float("nan")


def _estimate(value: float, drawn: np.ndarray, seeds: int) -> Estimate:
    known = drawn[~np.isnan(drawn)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (float("nan"),) * 2
    return Estimate(value, float(low), float(high), seeds)
