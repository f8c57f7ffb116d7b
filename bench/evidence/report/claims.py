"""What the papers say, as a table, and what was found: claims.tsv beside this file, one row for each claim.

A person writes the columns of `WRITTEN` and "remark". `make evidence` fills in those of `FOUND` and touches no other.
The table is of tab-separated cells without quotes. A second attempt is a row of its own, with an arm of its own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from evidence.report.intervals import Answers, Counts, Estimate, difference, share_of
from roibeam.messages import name_hint

PAPERS = ("VL-BERT", "ViLBERT", "VisualBERT", "ImageBERT", "InterBERT")
EXPECTED = ("more", "less", "alike", "no more")  # the first, than the second
FLOOR = "floor"  # in place of the second arm: what a blind reader reaches
SHOWN, NOT_SHOWN, OTHER_WAY, NOT_RUN = "shown", "not shown", "the other way", "not run"
HINT, HINT_AGAINST = "hint", "hint against"  # the interval leaves 0 out, but runs are one, or too different
ALIKE_POINTS = 2.0  # two shares are alike when the whole interval of their difference lies so near to 0
MOST_SHORT, MOST_WORDS = 46, 40
CONTROL = "no claim of the paper"  # so begins the place of a control of ours


class Bound(Protocol):
    """What a blind and a perfect reader reach at a question: shares, 0..1, or None where there is none."""

    @property
    def floor(self) -> float | None: ...
    @property
    def ceiling(self) -> float | None: ...
    @property
    def how(self) -> str: ...


@dataclass(frozen=True)
class Claim:
    """A row as a person writes it.

    Attributes:
        id: unique, such as "vlbert-text-corpus".
        paper: one of `PAPERS`.
        place: table, figure or section of the paper.
        short: a few words for a plot.
        sentence: what the paper says.
        first_arm, first_question: "<store>/<arm>", and what it is asked.
        second_arm, second_question: to be compared with it; `FLOOR` as the arm is a blind reader.
        expected: one of `EXPECTED`.
        remark: a person's, such as the likely reason, or a second attempt.
    """

    id: str
    paper: str
    place: str
    short: str
    sentence: str
    first_arm: str
    first_question: str
    second_arm: str
    second_question: str
    expected: str
    remark: str = ""

    @property
    def compares_trainings(self) -> bool:
        """Whether two arms are asked the same question."""
        return self.second_arm != FLOOR and self.first_question == self.second_question

    @property
    def is_control(self) -> bool:
        """Whether it is ours, and tests no sentence of a paper."""
        return self.place.startswith(CONTROL)


@dataclass(frozen=True)
class Found:
    """What the runs say of a claim; shares and their difference in percent and percent points.

    Attributes:
        low, high: the interval over pictures and runs.
        runs_low, runs_high: over runs alone; None of one run.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    runs_low: float | None
    runs_high: float | None
    seeds: int


@dataclass(frozen=True)
class Judged:
    """A claim and what was found; None where a run of it is missing."""

    claim: Claim
    found: Found | None

    @property
    def verdict(self) -> str:
        if self.found is None:
            return NOT_RUN
        found, expected = self.found, self.claim.expected
        verdict = _verdict(expected, found.low, found.high)
        if verdict == NOT_SHOWN:
            return NOT_SHOWN
        has_runs = found.runs_low is not None and found.runs_high is not None
        if has_runs and _verdict(expected, found.runs_low, found.runs_high) == verdict:
            return verdict
        return HINT if verdict == SHOWN else HINT_AGAINST


WRITTEN = tuple(field.name for field in fields(Claim) if field.name != "remark")
FOUND = (*(field.name for field in fields(Found)), "verdict")
COLUMNS = (*WRITTEN, *FOUND, "remark")


def read_claims(path: Path) -> list[Claim]:
    """
    Raises:
        ValueError: for another head, a row of another length, or what `_problem` finds in a row; one line.
    """
    with path.open(encoding="utf-8", newline="") as text:
        head, *rows = list(csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)) or [[]]
    if tuple(head) != COLUMNS:
        raise ValueError(f"{path}: its columns must be {', '.join(COLUMNS)}; found {', '.join(head) or 'none'}")
    claims: list[Claim] = []
    for number, row in enumerate(rows, 2):
        if len(row) != len(COLUMNS):
            raise ValueError(f"{path}, line {number}: {len(COLUMNS)} cells expected, {len(row)} found")
        cells = dict(zip(COLUMNS, row, strict=True))
        claim = Claim(**{name: cells[name] for name in (*WRITTEN, "remark")})
        if problem := _problem(claim, [other.id for other in claims]):
            raise ValueError(f"{path}, line {number} ({claim.id}): {problem}")
        claims.append(claim)
    return claims


def _problem(claim: Claim, earlier: Collection[str]) -> str | None:
    """The first thing that is wrong in a row by itself."""
    empty = [name for name in WRITTEN if not getattr(claim, name).strip()]
    words = len(claim.sentence.split())
    tests = {
        f"{' and '.join(empty)}: nothing is written there": empty,
        "an earlier row has the same id": claim.id in earlier,
        f"paper {_unknown(claim.paper, PAPERS)}": claim.paper not in PAPERS,
        f"expected {_unknown(claim.expected, EXPECTED)}": claim.expected not in EXPECTED,
        f"short has {len(claim.short)} letters, at most {MOST_SHORT} fit": len(claim.short) > MOST_SHORT,
        f"sentence has {words} words, at most {MOST_WORDS} are read": words > MOST_WORDS,
        f"first_arm: {FLOOR!r} can only be second": claim.first_arm == FLOOR,
        "both sides are the same": (claim.first_arm, claim.first_question) == (claim.second_arm, claim.second_question),
    }
    return next((text for text, wrong in tests.items() if wrong), None)


def check_names(path: Path, claims: Sequence[Claim], *, arms: Collection[str], questions: Collection[str]) -> None:
    """Every arm and question of the claims must be one of these.

    Args:
        arms: "<store>/<arm>"; `FLOOR` is one more.
    Raises:
        ValueError: for the first name that is not; one line.
    """
    for number, claim in enumerate(claims, 2):
        for column, known in (
            ("first_arm", arms),
            ("second_arm", {*arms, FLOOR}),
            ("first_question", questions),
            ("second_question", questions),
        ):
            name = getattr(claim, column)
            if name not in known:
                raise ValueError(f"{path}, line {number} ({claim.id}): {column} {_unknown(name, known)}")


def judge(claim: Claim, answers: Answers, bounds: Mapping[str, Bound]) -> Judged:
    """
    Args:
        bounds: by question, for claims whose second side is `FLOOR`.
    """
    first = answers.get(claim.first_arm, {}).get(claim.first_question)
    second: Counts | float | None
    if claim.second_arm == FLOOR:
        bound = bounds.get(claim.second_question)
        second = None if bound is None else bound.floor
    else:
        second = answers.get(claim.second_arm, {}).get(claim.second_question)
    if first is None or second is None:
        return Judged(claim, None)
    estimate = difference(first, second)
    if estimate is None or math.isnan(estimate.value):
        return Judged(claim, None)
    return Judged(claim, _found(estimate, first, second))


def _found(estimate: Estimate, first: Counts, second: Counts | float) -> Found:
    """Both shares over the seeds that the difference is of."""
    if isinstance(second, float):
        shares = share_of(first), second
    else:
        both = [seed for seed in first.seeds if seed in second.seeds]
        shares = share_of(first.of(both)), share_of(second.of(both))
    return Found(
        first=100 * shares[0],
        second=100 * shares[1],
        difference=100 * estimate.value,
        low=100 * estimate.low,
        high=100 * estimate.high,
        runs_low=None if estimate.over_runs is None else 100 * estimate.over_runs[0],
        runs_high=None if estimate.over_runs is None else 100 * estimate.over_runs[1],
        seeds=estimate.seeds,
    )


def _verdict(expected: str, low: float, high: float) -> str:
    """What one interval says."""
    if expected == "alike":
        if low >= -ALIKE_POINTS and high <= ALIKE_POINTS:
            return SHOWN
        return OTHER_WAY if low > 0 or high < 0 else NOT_SHOWN
    if expected == "no more" and high <= ALIKE_POINTS:
        return SHOWN
    if expected == "no more":
        return OTHER_WAY if low > 0 else NOT_SHOWN
    if expected == "less":
        low, high = -high, -low
    return SHOWN if low > 0 else OTHER_WAY if high < 0 else NOT_SHOWN


def write_claims(path: Path, judged: Sequence[Judged]) -> None:
    """The table with what was found; all that a person wrote stays as it was."""
    rows = [COLUMNS, *(row_of(each) for each in judged)]
    aside = path.with_name(f"{path.name}.part")
    with aside.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n").writerows(rows)
    aside.rename(path)


def row_of(judged: Judged) -> list[str]:
    """Its cells, in the order of `COLUMNS`."""
    return [*(getattr(judged.claim, name) for name in WRITTEN), *_cells(judged), judged.claim.remark]


def _cells(judged: Judged) -> Iterator[str]:
    show: Mapping[str, Callable[[float], str]] = {
        "first": "{:.1f}".format,
        "second": "{:.1f}".format,
        "seeds": "{:d}".format,
    }
    for field in fields(Found):
        value = None if judged.found is None else getattr(judged.found, field.name)
        yield "" if value is None else show.get(field.name, points)(value)
    yield judged.verdict


def points(value: float) -> str:
    """A difference in percent points, with its sign; never "-0.0"."""
    return f"{round(value, 1) + 0.0:+.1f}"


def _unknown(name: str, known: Collection[str]) -> str:
    return f"{name!r} is unknown; {name_hint(name, known)}"
