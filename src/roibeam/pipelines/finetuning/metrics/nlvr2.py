"""NLVR2: accuracy, consistency, and prediction files with lines "identifier,True", no header, no space.

Consistency is the share of groups with every statement right (Suhr et al., arXiv:1811.00491, section 5, as lil-lab/nlvr
nlvr2/eval/metrics.py computes it). A group is an identifier (split-set-pair-sentence) without its third field, not a
sentence's text, which may come again in other sets. The rules "official" treat other lines as the official scripts do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import printable
from roibeam.pipelines.data.datasets.nlvr2 import Nlvr2Statement
from roibeam.pipelines.finetuning.metrics.measure import OFFICIAL, Measure, rows_by_id


class JudgedStatement(NamedTuple):
    """An identifier, whether its statement was judged rightly, and whether it is true; None without a label."""

    identifier: str
    is_right: bool
    is_true: bool | None = None


def group_of(identifier: str) -> str:
    """The identifier without its third field."""
    fields = identifier.split("-")
    fields[2] = ""
    return "-".join(fields)


def nlvr2_measures(statements: Iterable[JudgedStatement]) -> dict[str, Measure]:
    """ "accuracy" over statements and "consistency" over groups, by name. A set of pairs counts as one image."""
    rights: list[float] = []
    sets: list[str] = []
    groups: dict[str, bool] = {}
    labels: dict[str, list[bool | None]] = {}
    for identifier, is_right, is_true in statements:
        rights.append(float(is_right))
        labels.setdefault(group_of(identifier), []).append(is_true)
        sets.append("-".join(identifier.split("-")[:2]))
        group = group_of(identifier)
        groups[group] = groups.get(group, True) and is_right
    set_of_group = ["-".join(group.split("-")[:2]) for group in groups]

    def commonest() -> float:
        trues = sum(label is True for own in labels.values() for label in own) / len(rights)
        return max(trues, 1 - trues)

    def consistent() -> float:
        """Consistency of always one label, or of a coin for each statement if that is better."""
        of_one = max(sum(set(own) == {label} for own in labels.values()) for label in (True, False))
        return max(of_one, sum(0.5 ** len(own) for own in labels.values())) / len(labels)

    consistency = [float(each) for each in groups.values()]
    labelled = all(None not in own for own in labels.values())
    return {
        "accuracy": Measure("accuracy", rights, sets, guess=commonest if labelled else None),
        "consistency": Measure("consistency", consistency, set_of_group, guess=consistent if labelled else None),
    }


_WORDS = ("true", "false")


def write_nlvr2_predictions(path: Path, lines: Iterable[Sequence[Any]]) -> None:
    """Writes a file, whole or not at all: lines parted by newlines, without one at the end, as uclanlp/visualbert.

    Args:
        lines: identifier and answer of each, as a pair or as the list that json makes of one.
    """
    text = "\n".join(f"{identifier},{bool(is_true)}" for identifier, is_true in lines)
    marked = "utf-8-sig" if text.startswith("\ufeff") else "utf-8"  # readers take one mark off the first bytes
    write_bytes_atomically(path, text.encode(marked))


def predictions_of(lines: Iterable[str], identifiers: Sequence[str], source: str, rules: str) -> dict[str, str]:
    """Identifier -> "true" or "false".

    Official rules are those of metrics.py: more columns are ignored, the last of several lines counts, unknown ids (a
    header too) do no harm, and a second column that is neither word stays as it is, so that it is wrong.

    """
    is_official = rules == OFFICIAL
    given: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        cells = line.strip().split(",")
        if len(cells) < 2 or (not is_official and len(cells) > 2):
            raise ValueError(
                f"{source}, line {number}: expected identifier,True or identifier,False, got {_short(line)}"
            )
        word = cells[1].lower()
        if not is_official and word not in _WORDS:
            raise ValueError(
                f"{source}, line {number}: expected True or False right behind the comma, got {_short(cells[1])}"
            )
        given.append((cells[0], word))
    return rows_by_id(source, given, identifiers, unit="statement", rules=rules, allow_unknown=is_official)


def read_nlvr2_predictions(path: str, identifiers: Sequence[str], rules: str) -> dict[str, str]:
    """Identifier -> "true" or "false" of the lines of a file, see `predictions_of`."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return predictions_of(file, identifiers, repr(path), rules)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path!r}: not UTF-8: {error}") from None


def judged_statements(
    statements: Iterable[Nlvr2Statement], predictions: Mapping[str, str]
) -> Iterator[JudgedStatement]:
    """The rows of the metric, in the order of the statements. Raises ValueError for one without a label."""
    for each in statements:
        if each.is_true is None:
            raise ValueError(f"{each.where}: no label; a file without labels can only be checked (--check)")
        is_right = predictions[each.identifier] == str(each.is_true).lower()
        yield JudgedStatement(each.identifier, is_right, each.is_true)


def _short(text: str) -> str:
    return repr(printable(text.rstrip("\r\n")[:60]))
