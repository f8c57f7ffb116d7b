"""VCR: accuracy of answers, of rationales given the right answer, and of both; and the leaderboard file.

Source: Zellers et al. (arXiv:1811.10830, section 3), as rowanz/r2c models/eval_q2ar.py computes it. The file is a .csv
with annot_id, answer_0 to answer_3 and rationale_conditioned_on_a0_0 to rationale_conditioned_on_a3_3, twenty
probabilities for each question (models/eval_for_leaderboard.py). Columns are read by name, rows by annot_id.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import printable
from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES, VcrLabels
from roibeam.pipelines.finetuning.metrics.measure import Measure

# One of four answers and one of four rationales is right.
CHANCE: Mapping[str, float] = MappingProxyType(
    {"Q->A": 1 / NUM_CHOICES, "QA->R": 1 / NUM_CHOICES, "Q->AR": 1 / NUM_CHOICES**2}
)


class ChosenRow(NamedTuple):
    """A question: numbers of the choices taken, of the right ones, and its image.

    `rationale` is what was taken when the right answer was given. None without a prediction.
    """

    answer: int | None
    rationale: int | None
    right_answer: int
    right_rationale: int
    image: str


def best_choice(scores: Sequence[float]) -> int:
    """The number of the highest score; the first of equal ones."""
    return int(np.argmax(np.asarray(scores, dtype=np.float64)))


def vcr_measures(rows: Iterable[ChosenRow]) -> dict[str, Measure]:
    """ "Q->A", "QA->R" and "Q->AR", by name. The last is counted question by question: no product of the other two.

    Each is over the rows with its predictions, and left out without any.
    """
    hits: dict[str, list[tuple[float, str]]] = {"Q->A": [], "QA->R": [], "Q->AR": []}
    for row in rows:
        is_answered, is_reasoned = row.answer == row.right_answer, row.rationale == row.right_rationale
        if row.answer is not None:
            hits["Q->A"].append((float(is_answered), row.image))
        if row.rationale is not None:
            hits["QA->R"].append((float(is_reasoned), row.image))
        if None not in (row.answer, row.rationale):
            hits["Q->AR"].append((float(is_answered and is_reasoned), row.image))
    return {
        name: Measure(
            name, [hit for hit, _ in found], [image for _, image in found], guess=partial(CHANCE.__getitem__, name)
        )
        for name, found in hits.items()
        if found
    }


ID = "annot_id"
ANSWERS = tuple(f"answer_{choice}" for choice in range(NUM_CHOICES))
RATIONALES = tuple(
    tuple(f"rationale_conditioned_on_a{answer}_{choice}" for choice in range(NUM_CHOICES))
    for answer in range(NUM_CHOICES)
)
COLUMNS = (ID, *ANSWERS, *(name for group in RATIONALES for name in group))


class VcrScores(NamedTuple):
    """Scores of the four answers of a question, and of the four rationales for each; () without predictions."""

    answers: tuple[float, ...]
    rationales: tuple[tuple[float, ...], ...]


def read_vcr_results(path: str, *, whole: bool = True) -> Iterator[tuple[str, VcrScores]]:
    """(annot_id, scores) of each row.

    Args:
        whole: whether answers and rationales must both be there, as for the leaderboard; else a file of one of them is
            read too.
    Raises:
        ValueError: naming a column that is missing, doubled or unknown, or the line with a value that is no number.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            groups = _columns_of(header, path, whole=whole)
            place = {name: header.index(name) for group in groups for name in group}
            for cells in lines:
                if not cells:
                    continue
                where = f"{path!r}, line {lines.line_num}"
                if len(cells) != len(header):
                    raise ValueError(f"{where}: {len(cells)} cells, expected {len(header)} as in the first line")
                scores = {name: _number(cells[at], name, where) for name, at in place.items()}
                answers, *reasons = (tuple(scores[name] for name in group) for group in groups)
                yield cells[header.index(ID)], VcrScores(answers, tuple(each for each in reasons if each))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path!r}: cannot be read as .csv: {error}") from None


def probabilities(scores: np.ndarray) -> np.ndarray:
    """(..., 4) float32 softmax probabilities of the choices, for a model of any loss, as all releases write them."""
    shifted = np.asarray(scores, np.float32)
    exponents = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True))


def joined_scores(
    answers: Mapping[str, Any] | None, rationales: Mapping[str, Any] | None, questions: Sequence[str]
) -> Iterator[tuple[str, VcrScores]]:
    """(annot_id, scores) of each question in order, from scores of answers (4,) and of rationales (4, 4).

    The two may be of one model or of two; None without predictions, whose scores are then (). Raises ValueError for a
    question that one of them lacks, or another number of values.
    """
    for name in questions:
        chosen = () if answers is None else _shaped(answers, name, "answers", (NUM_CHOICES,)).tolist()
        reasons = () if rationales is None else _shaped(rationales, name, "rationales", (NUM_CHOICES,) * 2).tolist()
        yield name, VcrScores(tuple(chosen), tuple(tuple(row) for row in reasons))


def write_vcr_results(path: Path, rows: Iterable[tuple[str, VcrScores]]) -> None:
    """Writes the leaderboard's file, whole or not at all: (annot_id, scores) of each row, in their order.

    Columns of answers or rationales without predictions are left out. Raises ValueError without a row.
    """
    given = list(rows)
    if not given:
        raise ValueError(f"{str(path)!r}: no question to write")
    first = given[0][1]
    columns = [
        *(ANSWERS if first.answers else ()),
        *(name for group in RATIONALES for name in group if first.rationales),
    ]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([ID, *columns])
    for name, scores in given:
        lines.writerow([name, *scores.answers, *(value for group in scores.rationales for value in group)])
    write_bytes_atomically(path, text.getvalue().encode("utf-8"))


def chosen_rows(labels: Iterable[VcrLabels], scores: dict[str, VcrScores]) -> Iterator[ChosenRow]:
    """The rows of the metric, in the order of the labels; rationales are those for the RIGHT answer.

    Raises ValueError for a question without labels, as those of the test file are.
    """
    for each in labels:
        if each.answer is None or each.rationale is None:
            raise ValueError(f"{each.where}: no labels; the test file has none and can only be checked (--check)")
        found = scores[each.annot_id]
        yield ChosenRow(
            best_choice(found.answers) if found.answers else None,
            best_choice(found.rationales[each.answer]) if found.rationales else None,
            each.answer, each.rationale, each.image,
        )  # fmt: skip


def _columns_of(header: Sequence[str], path: str, *, whole: bool) -> list[tuple[str, ...]]:
    """The columns of answers, then those of rationales for each answer; () for columns that the file lacks."""
    parts = [[ANSWERS], list(RATIONALES)]
    kept = [whole or any(name in header for group in part for name in group) for part in parts]
    if not any(kept):
        kept = [True, True]
    expected = [
        ID,
        *(name for part, is_kept in zip(parts, kept, strict=True) for group in part for name in group if is_kept),
    ]
    missing = [name for name in expected if name not in header]
    odd = [name for name in dict.fromkeys(header) if name not in COLUMNS or header.count(name) > 1]
    if missing or odd:
        problems = [f"no column {missing[0]} ({len(missing)} missing)"] if missing else []
        problems += [f"column {printable(odd[0])!r} is unknown or doubled"] if odd else []
        raise ValueError(
            f"{path!r}: {' and '.join(problems)}; expected {ID}, answer_0..3 and rationale_conditioned_on_a0_0..a3_3"
        )
    return [group if is_kept else () for part, is_kept in zip(parts, kept, strict=True) for group in part]


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: {name} must be a number, got {printable(text[:40])!r}")
    return value


def _shaped(given: Mapping[str, Any], name: str, what: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in given:
        raise ValueError(f"{name}: no scores of its {what}; the file needs them for each question")
    found = np.asarray(given[name])
    if found.shape != shape:
        raise ValueError(f"{name}: scores {found.shape} of its {what}, expected {shape}")
    return found
