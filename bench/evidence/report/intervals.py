"""Shares, and differences of shares, over pictures and seeds, with 95 % intervals.

A draw of the bootstrap takes seeds and pictures with replacement. Two arms are compared on the same draws: same
pictures, same seeds. Of three runs such draws are too alike: where runs alone differ, they leave 0 out about once in
four. So a difference has a second interval, Student's t over its runs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from evidence.run_answers import read_runs

DRAWS, LEVEL = 2000, 0.95


@dataclass(frozen=True, eq=False)
class Counts:
    """What an arm's runs answered to one question.

    Attributes:
        seeds: (S,) of the runs.
        right, asked: (S, pictures).
    """

    seeds: tuple[int, ...]
    right: np.ndarray
    asked: np.ndarray

    def of(self, seeds: Sequence[int]) -> Counts:
        kept = [self.seeds.index(seed) for seed in seeds]
        return Counts(tuple(seeds), self.right[kept], self.asked[kept])


@dataclass(frozen=True)
class Estimate:
    """A share (0..1) or a difference of two, with its interval; `seeds` runs stand behind it.

    Attributes:
        low, high: over pictures and runs, by the bootstrap.
        over_runs: low and high over the runs alone, by Student's t; None of one run.
    """

    value: float
    low: float
    high: float
    seeds: int
    over_runs: tuple[float, float] | None = None


Answers = Mapping[str, Mapping[str, Counts]]  # by "<store>/<arm>" and question


def read_answers(results: Path, *, commands: Mapping[str, str] | None = None) -> tuple[Answers, list[dict[str, Any]]]:
    """Of all runs in `results`; and what they say of themselves.

    Args:
        commands: by "<store>/<arm>"; runs of another command, or of none of these arms, are not read. None reads all.
    """
    runs = list(read_runs(results).values())
    if commands is not None:
        runs = [run for run in runs if run["command"] == commands.get(arm_id(run))]
    runs.sort(key=lambda run: (arm_id(run), run["seed"]))
    answers: dict[str, dict[str, Counts]] = {}
    for arm in dict.fromkeys(map(arm_id, runs)):
        mine = [run for run in runs if arm_id(run) == arm]
        questions = dict.fromkeys(name for run in mine for name in run["tallies"])
        answers[arm] = {name: _counts([run for run in mine if name in run["tallies"]], name) for name in questions}
    return answers, runs


def arm_id(run: Mapping[str, Any]) -> str:
    return f"{run['store']}/{run['arm']}"


def _counts(runs: Sequence[Mapping[str, Any]], question: str) -> Counts:
    right, asked = (np.array([run["tallies"][question][part] for run in runs]) for part in ("right", "asked"))
    return Counts(tuple(run["seed"] for run in runs), right, asked)


def share(counts: Counts) -> Estimate:
    return _estimate(share_of(counts), _drawn(counts), len(counts.seeds))


def difference(one: Counts, other: Counts | float) -> Estimate | None:
    """One share less the other, over the seeds that both have; None where there is none.

    Args:
        other: a number is a share that is known, such as what chance reaches.
    """
    if isinstance(other, float):
        found, runs = share(one), _over_runs(_of_each(one) - other)
        return Estimate(found.value - other, found.low - other, found.high - other, found.seeds, runs)
    seeds = [seed for seed in one.seeds if seed in other.seeds]
    if not seeds:
        return None
    first, second = one.of(seeds), other.of(seeds)
    value = share_of(first) - share_of(second)
    runs = _over_runs(_of_each(first) - _of_each(second))
    return _estimate(value, _drawn(first) - _drawn(second), len(seeds), runs)


def share_of(counts: Counts) -> float:
    return _ratio(counts.right.sum(), counts.asked.sum())


def _of_each(counts: Counts) -> np.ndarray:
    """(S,) the share of each run."""
    return np.array([_ratio(*each) for each in zip(counts.right.sum(axis=1), counts.asked.sum(axis=1), strict=True)])


def _over_runs(values: np.ndarray) -> tuple[float, float] | None:
    """The 95 % interval of the mean of (S,) values, as other runs would have it; None of one."""
    if len(values) < 2:
        return None
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def _drawn(counts: Counts) -> np.ndarray:
    """(DRAWS,) shares; the same seeds and pictures for all counts of as many seeds and pictures."""
    weights, runs = _draws(*counts.right.shape)
    # One product for both; counts are so small that float32 is exact enough.
    drawn = weights @ np.concatenate([counts.right, counts.asked]).T.astype(np.float32)
    kinds = drawn[:, : len(counts.seeds)], drawn[:, len(counts.seeds) :]
    right, asked = (np.take_along_axis(part, runs, axis=1).sum(axis=1, dtype=float) for part in kinds)
    return np.divide(right, asked, out=np.full(len(right), np.nan), where=asked > 0)


@functools.lru_cache(maxsize=8)
def _draws(seeds: int, pictures: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each draw has each picture, (DRAWS, pictures), and which runs it has, (DRAWS, seeds)."""
    random = np.random.default_rng(0)
    weights = np.empty((DRAWS, pictures), np.float32)
    runs = np.empty((DRAWS, seeds), np.int64)
    for draw in range(DRAWS):
        weights[draw] = np.bincount(random.integers(pictures, size=pictures), minlength=pictures)
        runs[draw] = random.integers(seeds, size=seeds)
    return weights, runs


def _ratio(right: float, asked: float) -> float:
    return float(right / asked) if asked else float("nan")


def _estimate(value: float, drawn: np.ndarray, seeds: int, over_runs: tuple[float, float] | None = None) -> Estimate:
    known = drawn[~np.isnan(drawn)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (float("nan"),) * 2
    return Estimate(value, float(low), float(high), seeds, over_runs)
