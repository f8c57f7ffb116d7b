"""Records that every exchange format can be asked to hold, and what the tests of all of them do alike."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_child import in_a_child, limit_memory, traced_peak, watch, watched
from store_examples import numbers

from roibeam.features.exchange.formats import FeatureFormat, format_named
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat

_SLACK = 2**18  # errors with their tracebacks


def measured(
    image_id: str = "image", num_regions: int = 3, *, seed: int = 0, rows: bool = True, attributes: bool = True
) -> RegionRecord:
    """A record as a detector gives it, float16 features: its class is the best one of its row of 6 and background."""
    corners = numbers(seed, num_regions, 2) * 100
    probabilities = numbers(seed + 1, num_regions, 7).astype(np.float32) + 0.05
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    ids = probabilities[:, :-1].argmax(axis=1)
    return RegionRecord(
        image_id=image_id,
        height=480,
        width=640,
        boxes=np.concatenate([corners, corners + 50], axis=1).astype(np.float32),
        features=(numbers(seed + 2, num_regions, 8) * 4).astype(np.float16),
        class_ids=ids.astype(np.uint16),
        class_scores=np.ascontiguousarray(probabilities[np.arange(num_regions), ids]),
        attribute_ids=(numbers(seed + 3, num_regions) * 400).astype(np.uint16) if attributes else None,
        attribute_scores=numbers(seed + 4, num_regions).astype(np.float32) if attributes else None,
        class_distribution=probabilities.astype(np.float16) if rows else None,
    )


class Runs:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


# Two images to be hurt: one's id and features do not turn into the other's by a few bytes.
PAIR = (measured("first-image"), measured("second-photo", seed=9))


def place(folder: Path, name: str, stem: str = "features") -> Path:
    """A new path that the format takes."""
    return folder / f"{stem}{(format_named(name).suffixes or ('',))[0]}"


def outcomes(found: FeatureFormat, path: Path, dtype: str = "float16") -> list[RegionRecord | DeadLetter | Repeat]:
    with found.open(path) as file:
        return list(file.outcomes(dtype))


def records(found: FeatureFormat, path: Path, dtype: str = "float16") -> list[RegionRecord]:
    """The records of a file that has nothing else."""
    every = outcomes(found, path, dtype)
    assert all(isinstance(outcome, RegionRecord) for outcome in every), every
    return [outcome for outcome in every if isinstance(outcome, RegionRecord)]


def letters(found: FeatureFormat, path: Path) -> dict[str, DeadLetter]:
    """The dead letters of a file by image id."""
    return {outcome.image_id: outcome for outcome in outcomes(found, path) if isinstance(outcome, DeadLetter)}


@cache
def _used(data: bytes) -> list[int]:
    return [at for at in range(len(data)) if data[at]]


def mutate(data: bytes, seed: int) -> bytes:
    """A few bytes changed, runs overwritten by small, large and negative numbers, or the end cut off or prolonged."""
    choose = random.Random(seed)
    changed = bytearray(data)
    used = _used(data)
    for _ in range(choose.choice([1, 1, 2, 4, 16])):
        at = choose.choice(used) if choose.random() < 0.7 else choose.randrange(len(data))
        at = min(at, len(changed) - 1)
        kind = choose.randrange(5)
        if kind == 0:
            changed[at] = choose.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << choose.randrange(8)
        elif kind == 2:
            changed[at : at + 8] = choose.choice([b"\xff" * 8, b"\0" * 8, choose.randbytes(8)])
        elif kind == 3:
            changed[at : at + 4] = choose.randrange(len(data)).to_bytes(4, "little")
        else:
            other = choose.randrange(len(data))
            changed[at : at + 16] = data[other : other + 16]
    if choose.random() < 0.15:
        del changed[choose.randrange(len(changed)) :]
    if choose.random() < 0.05:
        changed += choose.randbytes(choose.randrange(5000))
    return bytes(changed)


def survives(found: FeatureFormat, path: Path, target: Path, seeds: range) -> int:
    """Reads `path` with the bytes of `target` (itself, or a file in it) mutated, once for each seed, in a fork.

    A reader may give records, dead letters, ValueError and OSError; it runs no code, opens no file elsewhere, takes at
    most twice the file's bytes more than for the whole file, and gives no image another one's features.

    Returns:
        how many of the mutated files still gave a record.
    """
    original = target.read_bytes()
    try:
        gave = in_a_child(lambda tell: _read_mutated(found, path, target, original, seeds, tell), seeds).count("+")
        print(f"{found.name}, {target.name}: {len(seeds)} mutations, {gave} gave a record")
        return gave
    finally:
        target.write_bytes(original)


def _read_mutated(
    found: FeatureFormat, path: Path, target: Path, original: bytes, seeds: range, tell: Callable[[str], object]
) -> None:
    seen = watch(path.parent)
    whole = {one.image_id: one for one in _read(found, path)}
    unhurt = traced_peak(lambda: _read(found, path))
    size = sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
    limit_memory(2 * size)
    for seed in seeds:
        data = mutate(original, seed)
        target.write_bytes(data)
        good = watched(lambda: _read(found, path), seed, unhurt + 2 * (size + len(data)) + _SLACK, seen)
        if all(data.count(name.encode()) == original.count(name.encode()) for name in whole):
            _check_owners(good, whole)
        tell("+" if good else "-")


def _read(found: FeatureFormat, path: Path) -> list[RegionRecord]:
    """The records of a file that may be hurt."""
    try:
        found.looks_like(path)
        with found.open(path) as file:
            return [outcome for outcome in file.outcomes() if isinstance(outcome, RegionRecord)]
    except (ValueError, OSError) as error:
        assert "\n" not in str(error), error
        return []


def _check_owners(records: list[RegionRecord], whole: dict[str, RegionRecord]) -> None:
    """Where all ids stand as they stood, the features of one image do not come under the id of another."""
    for record in records:
        for name, other in whole.items():
            if record.image_id in whole and name != record.image_id and record.features.shape == other.features.shape:
                assert record.features.tobytes() != other.features.tobytes(), f"{record.image_id!r} is given {name!r}"
