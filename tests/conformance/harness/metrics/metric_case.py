"""A metric's case: a .json with inputs (files beside it), options and expected values, each compared with ours.

A value that the official code printed is compared at its decimals: ours, not rounded, lies within half a unit of the
last.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.case_files import MAX_JSON_BYTES, is_number, read_case_json
from harness.checks import Case, Check, Family, OpenFolder, failed, guarded

Ours = Mapping[str, Any]

# Expected values that ours do not equal, and why. Each is told in the list of what was compared.
NOTED: Mapping[str, str] = MappingProxyType(
    {
        "overall_python3": "noted: Python 3 rounds halves to even; the published numbers are those of Python 2",
        "both_python3": "noted: the published numbers are those of Python 2",
        "differ_at": "noted: where Python 2 and 3 differ",
        "second_after_first_on_one_object": "noted: a fault, the official object changes its own answers",
        "information_only": "noted: an unstable sort orders equal scores; differs between versions of numpy",
        "product_of_rates_which_is_wrong": "noted: the wrong rule",
        "qa_to_r_if_conditioned_on_the_predicted_answer_which_is_wrong": "noted: the wrong rule",
        "consistency_if_grouped_by_sentence_text_which_is_wrong": "noted: the wrong rule",
    }
)
# What a reference writes in the place of a number that cannot be computed.
_UNDEFINED = ("ZeroDivisionError", "undefined", "nan")
_PRINTED = "printed"  # stands in the name of what a code printed
_DECIMALS = ("printed_digits", "decimals")  # options with its decimals: one number, or one for each expected name
_MOST_DECIMALS = 17


class WrittenNumber(float):
    """A number of a .json file that knows with how many decimals it stands there: three of 0.500."""

    decimals: int

    def __new__(cls, text: str) -> WrittenNumber:
        made = super().__new__(cls, text)
        exponent = Decimal(text).as_tuple().exponent
        made.decimals = max(-exponent, 0) if isinstance(exponent, int) else 0
        return made


@dataclass(frozen=True)
class MetricCase:
    """One case, its files found through `inputs`."""

    path: Path  # of the case
    inputs: Mapping[str, str]
    # options, expected: as it has them
    options: Mapping[str, Any]
    expected: Mapping[str, Any]

    def file(self, name: str) -> Path:
        """Of an input; ValueError for one that the case does not have."""
        if name not in self.inputs:
            raise ValueError(f"{self.path}: no input {name!r}; it has {', '.join(self.inputs)}")
        return self.path.parent / self.inputs[name]

    def content(self, name: str) -> Any:
        """The json of an input."""
        path = self.file(name)
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"{path}: over {MAX_JSON_BYTES} bytes")
        try:
            return json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: no json: {error}") from None


def read_metric_case(path: Path) -> MetricCase | None:
    """None for a file that is no case: one without inputs, options and expected. Raises ValueError for a case whose
    inputs are not names of files beside it."""
    try:
        content = read_case_json(path, parse_float=WrittenNumber)
    except ValueError:
        return None  # a list, or lines: what a case reads says so itself
    if not {"inputs", "options", "expected"} <= content.keys():
        return None
    inputs, options, expected = content["inputs"], content["options"], content["expected"]
    if not all(isinstance(each, dict) for each in (inputs, options, expected)):
        raise ValueError(f"{path}: inputs, options and expected must be objects")
    if not all(isinstance(each, str) and Path(each).name == each for each in inputs.values()):
        raise ValueError(f"{path}: inputs must be names of files beside it")
    return MetricCase(path, inputs, options, expected)


def caught(compute: Callable[[], Any]) -> Any:
    """What it gives, or the ValueError with which ours refuses."""
    try:
        return compute()
    except ValueError as error:
        return error


@dataclass
class _Group:
    """What was found below one name of `expected`."""

    share: float  # of the reference, by which a number of ours may differ
    # One of the last decimal that is printed, by half of which it may differ too; 0 for what is not printed
    unit: float
    leaves: int = 0
    largest: float = 0.0
    misses: list[str] = field(default_factory=list)


# Case, name of what is expected -> decimals with which the official code prints it; None for what it does not print.
Decimals = Callable[[MetricCase, str], int | None]


def compared(ours: Ours, case: MetricCase, tolerance: Callable[[str], float], decimals: Decimals) -> Iterator[Check]:
    """A check for each name of `expected`, over all leaves below it.

    Args:
        tolerance: of a name; numbers may differ by that share of the reference, or that much where it is 0.
        decimals: of what is printed, where neither the name nor the case says that it is.
    """
    for name, theirs in case.expected.items():
        if name in NOTED:
            yield Check(name, 0.0, 0.0, "not compared", True, NOTED[name])
            continue
        if name not in ours:
            yield failed(name, "unknown: nothing of ours was compared with it")
            continue
        group = _Group(tolerance(name), _printed_unit(case, name, theirs, decimals(case, name)))
        _compare(ours[name], theirs, name, group)
        note = f"{len(group.misses)} of {group.leaves} miss: {group.misses[0]}" if group.misses else ""
        rule = f"of {group.leaves} values"
        if group.unit:
            rule = f"half a unit as printed, {rule}"
        yield Check(name, group.largest, group.unit / 2 or group.share, rule, not group.misses, note)


def _printed_unit(case: MetricCase, name: str, theirs: Any, known: int | None) -> float:
    """One of the last decimal that is printed: as the case declares it, else the last that any value of the name has in
    the file, or that its code is known to print. 0 for what is not printed."""
    option, declared = next(((each, case.options[each]) for each in _DECIMALS if each in case.options), ("", None))
    if isinstance(declared, dict):
        declared = declared.get(name)
    elif known is None and _PRINTED not in name:
        return 0.0
    if declared is None:
        if known is None and _PRINTED not in name:
            return 0.0
        declared = max(_written_decimals(theirs), known or 0)
    if type(declared) is not int or not 0 <= declared <= _MOST_DECIMALS:
        raise ValueError(f"{case.path}: {option} must be a whole number from 0 to {_MOST_DECIMALS}, got {declared!r}")
    return 10.0**-declared


def _written_decimals(value: Any) -> int:
    """The most that any number below has."""
    if isinstance(value, dict | list):
        return max(map(_written_decimals, value.values() if isinstance(value, dict) else value), default=0)
    return min(value.decimals, _MOST_DECIMALS) if isinstance(value, WrittenNumber) else 0


def _compare(ours: Any, theirs: Any, where: str, group: _Group) -> None:
    if isinstance(theirs, dict) and "error" in theirs:
        group.leaves += 1
        if not isinstance(ours, ValueError):
            group.misses.append(f"{where}: ours accepts what the reference refuses")
        elif "listed" in theirs:
            found = re.search(r"([\d,]+) \w+ without a row", str(ours))
            missing = None if found is None else int(found[1].replace(",", ""))
            _compare(missing, theirs["listed"], f"{where}/listed", group)
    elif isinstance(theirs, dict) and isinstance(ours, Mapping):
        for name, value in theirs.items():
            if name in NOTED:
                continue
            if name in ours:
                _compare(ours[name], value, f"{where}/{name}", group)
            else:
                group.misses.append(f"{where}/{name}: ours has none")
        if more := [name for name in ours if name not in theirs]:
            group.misses.append(f"{where}: ours has {more[0]!r} too")
    elif isinstance(theirs, list) and isinstance(ours, list | tuple):
        if len(ours) != len(theirs):
            group.misses.append(f"{where}: {len(theirs)} values where ours has {len(ours)}")
        for index, (value, other) in enumerate(zip(ours, theirs, strict=False)):
            _compare(value, other, f"{where}[{index}]", group)
    else:
        group.leaves += 1
        _compare_leaf(ours, theirs, where, group)


def _compare_leaf(ours: Any, theirs: Any, where: str, group: _Group) -> None:
    if theirs in _UNDEFINED and (ours is None or isinstance(ours, ValueError)):
        return
    if isinstance(ours, ValueError):
        group.misses.append(f"{where}: ours refuses: {ours}")
        return
    if is_number(ours) and is_number(theirs):
        distance, size = abs(ours - theirs), abs(theirs) or 1.0
        error = distance if group.unit else distance / size
        group.largest = max(group.largest, error if math.isfinite(error) else math.inf)
        if distance <= group.unit / 2 + group.share * size:
            return
    elif type(ours) is type(theirs) and ours == theirs:
        return
    group.misses.append(f"{where}: ours {ours!r:.80}, reference {theirs!r:.80}")


def metric_family(
    name: str,
    kinds: Mapping[str, Callable[[MetricCase], Ours]],
    tolerance: Callable[[str], float],
    *,
    marks: frozenset[str],
    decimals: Decimals = lambda case, name: None,
) -> Family:
    """A family whose folder holds cases in json and the files that they name.

    Args:
        kinds: by the input that only this kind of case has, "" for a case without any: computes what a case expects,
            not rounded.
        tolerance, decimals: as of `compared`.
        marks: inputs that tell its cases from other families'.
    """

    def checks(path: Path) -> Iterator[Check]:
        case = read_metric_case(path)
        if case is None:
            raise ValueError(f"{path}: expected inputs, options and expected")

        def run() -> Iterator[Check]:
            compute = next((kinds[each] for each in kinds if each in (case.inputs or {"": ""})), None)
            if compute is None:
                named = ", ".join(case.inputs) or "none"
                raise ValueError(f"{path}: no known kind of case has the inputs {named}")
            try:
                ours = compute(case)
            except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError) as error:
                raise ValueError(f"{path}: not laid out as known cases are: {type(error).__name__}: {error}") from None
            yield from compared(ours, case, tolerance, decimals)

        yield from guarded("inputs", run)

    def open_folder(folder: Path) -> OpenFolder:
        cases, inputs = [], set[str]()
        for path in sorted(folder.glob("*.json")):
            case = None if path.name.startswith(".") else read_metric_case(path)
            if case is not None:
                cases.append(Case(path.name, functools.partial(checks, path)))
                inputs.update(case.inputs.values())
        return OpenFolder(tuple(cases), frozenset(inputs))

    def recognises(folder: Path) -> bool:
        cases = (read_metric_case(path) for path in sorted(folder.glob("*.json")))
        return any(case is not None and marks & case.inputs.keys() for case in cases)

    return Family(name, recognises, open_folder)
