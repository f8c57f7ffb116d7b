"""What a family of reference arrays gives the runner: cases, each of which yields checks, and the ways to compare.

Every check is a largest error and the tolerance it must not pass.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from harness.case_files import ArrayError, Arrays
from harness.tolerances import Allclose, Closeness

_STEPS = (1, 4, 16, 64, 128)  # strides at which reference arrays are thinned out


@dataclass(frozen=True)
class Check:
    """What one array of a case says."""

    array: str  # its name in the file
    error: float  # largest error, in the unit of the tolerance; infinity where nothing could be compared
    tolerance: float  # largest error allowed
    rule: str  # what error and tolerance mean, a few words
    passed: bool  # the verdict. Not always `error <= tolerance`: see `near`.
    note: str = ""  # what a person needs to understand a miss, or ""


@dataclass(frozen=True)
class Case:
    """One file of a family's folder that holds something to reproduce."""

    file: str  # its name in the folder
    # Computes and compares; raises ValueError or OSError when the file cannot be used
    run: Callable[[], Iterable[Check]]
    # What it needs and this machine does not have, two words such as "photo missing"; it cannot be run then
    lacks: str = ""


@dataclass(frozen=True)
class OpenFolder:
    """What a family made of its folder."""

    cases: tuple[Case, ...]  # in the order they are best run in
    inputs: frozenset[str]  # names of the files that cases read (photos, options). Any other file is an unknown case.


@dataclass(frozen=True)
class Family:
    """One kind of reference folder; each lives in a module of its own."""

    name: str  # of the folder
    recognises: Callable[[Path], bool]  # whether a folder of another name is laid out like this family's
    # Reads the options and lists the cases; raises ValueError or OSError when they make no sense
    open_folder: Callable[[Path], OpenFolder]


def failed(array: str, note: str) -> Check:
    """A miss of something that could not be compared."""
    return Check(array, math.inf, 0.0, "must be comparable", False, note)


def within(array: str, error: float, tolerance: float, rule: str, note: str = "") -> Check:
    """error <= tolerance; a NaN is a miss."""
    return Check(array, error, tolerance, rule, bool(error <= tolerance), note)


def equal(array: str, got: object, want: np.ndarray) -> Check:
    """The same shape and numbers; the error is the number of differing elements."""
    ours = _numbers(got)
    theirs = _numbers(want)
    if ours.shape != theirs.shape:
        return failed(array, _shapes(ours, theirs))
    different = int((ours != theirs).sum())
    note = "" if not different else f"first at {_first(ours != theirs)}: {_values(ours, theirs, ours != theirs)}"
    return within(array, different, 0, "elements that differ", note)


def near(array: str, got: object, want: np.ndarray, closeness: Closeness) -> Check:
    """|ours - theirs| <= max_rel * max|theirs| + rtol * |theirs| for every element.

    The error shown is max |ours - theirs| / max |theirs|; it may pass `max_rel` where `rtol` allows it.
    """
    unit = np.abs(_numbers(want)).max(initial=0.0)
    check = _by_element(array, got, want, unit, closeness.max_rel, "of max|reference|", rtol=closeness.rtol)
    if check.passed and check.error > closeness.max_rel:
        return dataclasses.replace(check, note=f"within the relative {closeness.rtol:g}")
    return check


def close(array: str, got: object, want: np.ndarray, closeness: Allclose) -> Check:
    """|ours - theirs| <= allowed * (1 + |theirs|) for every element.

    The error shown is the largest |ours - theirs| / (1 + |theirs|).
    """
    return _by_element(array, got, want, 1 + np.abs(_numbers(want)), closeness.allowed, "of 1 + |reference|")


def apart(array: str, got: object, want: np.ndarray, allowed: float, where: np.ndarray | None = None) -> Check:
    """|ours - theirs| <= allowed for every element.

    Args:
        where: of the first axes of both, True where the numbers mean something; None for everywhere.
    """
    return _by_element(array, got, want, 1.0, allowed, "absolute", where=where)


def _by_element(
    array: str,
    got: object,
    want: np.ndarray,
    unit: Any,
    tolerance: float,
    rule: str,
    *,
    rtol: float = 0.0,
    where: np.ndarray | None = None,
) -> Check:
    """|ours - theirs| <= tolerance * unit + rtol * |theirs|, in float64; a NaN on either side is a miss.

    Args:
        unit: of the error shown; one number, or one for each element; where it is 0, the error is absolute.
    """
    ours, theirs = _numbers(got), _numbers(want)
    if ours.shape != theirs.shape:
        return failed(array, _shapes(ours, theirs))
    if where is not None:
        if ours.shape[: where.ndim] != where.shape:
            return failed(array, f"has {theirs.shape}, of which {where.shape} is known to be real")
        ours, theirs = ours[where], theirs[where]
    if not ours.size:
        return within(array, 0.0, tolerance, rule, "no element")
    distance = np.abs(ours - theirs)
    errors, misses = distance / np.where(unit, unit, 1.0), ~(distance <= tolerance * unit + rtol * np.abs(theirs))
    note = ""
    if misses.any():
        note = f"{int(misses.sum())} of {misses.size} miss, first at {_first(misses)}: {_values(ours, theirs, misses)}"
    return Check(array, float(errors.max()), tolerance, rule, not misses.any(), note)


def near_thinned(array: str, got: object, want: np.ndarray, closeness: Closeness) -> Check:
    """As `near`, where the reference kept one index in 1, 4, 16, 64 or 128 of some axes of ours."""
    ours = np.asarray(got)
    if ours.ndim != want.ndim:
        return failed(array, _shapes(ours, want))
    picks = []
    for length, kept in zip(ours.shape, want.shape, strict=True):
        steps = [step for step in _STEPS if -(-length // step) == kept]
        if not steps:
            return failed(array, f"{_shapes(ours, want)}, at no step of {', '.join(map(str, _STEPS))}")
        picks.append(slice(None, None, steps[0]))
    return near(array, ours[tuple(picks)], want, closeness)


def unread(arrays: Arrays, inputs: tuple[str, ...] = ()) -> Iterator[Check]:
    """A miss for each array that was not read.

    Args:
        inputs: beginnings of names that may be left.
    """
    for name in arrays.unread:
        if not name.startswith(inputs):
            yield failed(name, "unknown array: nothing was compared with it")


def guarded(array: str, checks: Callable[..., Iterable[Check]], *given: Any) -> Iterator[Check]:
    """The checks of one group; what cannot be read or computed becomes a miss named `array`, and other groups run."""
    try:
        yield from checks(*given)
    except (ValueError, OSError) as error:
        yield failed(error.array if isinstance(error, ArrayError) else array, str(error))


def _numbers(value: object) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _shapes(ours: np.ndarray, theirs: np.ndarray) -> str:
    return f"shape {tuple(theirs.shape)} where ours is {tuple(ours.shape)}"


def _first(misses: np.ndarray) -> str:
    return str([int(i) for i in np.argwhere(misses)[0]]) if misses.ndim else "the number itself"


def _values(ours: np.ndarray, theirs: np.ndarray, misses: np.ndarray) -> str:
    return f"ours {ours[misses][0]:.8g}, reference {theirs[misses][0]:.8g}"


def numpy_of(tensor: Tensor) -> np.ndarray:
    """On the CPU, without its graph."""
    return np.asarray(tensor.detach().cpu().numpy())
