"""Records that every exchange format can be asked to hold, and what the tests of all of them do alike."""

from __future__ import annotations

import os
import random
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from store_examples import numbers

from features.exchange.feature_file import FeatureFormat
from features.manifest import DeadLetter
from features.record import RegionRecord
from features.shard_sequence import Repeat

_SECONDS_PER_MUTATION = 20


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


def mutate(data: bytes, seed: int) -> bytes:
    """A few bytes changed, runs overwritten by small, large and negative numbers, or the end cut off or prolonged."""
    choose = random.Random(seed)
    changed = bytearray(data)
    used = [at for at in range(len(data)) if data[at]]
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

    The fork may take half a gigabyte more than this process, and 20 seconds for a file. What a reader may say is
    records, dead letters, ValueError and OSError.

    Returns:
        how many of the mutated files still gave a record.
    """
    original = target.read_bytes()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            _limit_memory()
            _read_mutated(found, path, target, original, seeds, lambda mark: os.write(writing, mark))
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        marks = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    target.write_bytes(original)
    assert code == 0 and len(marks) == len(seeds), f"exit code {code} at seed {seeds[len(marks)]}: {marks[-200:]!r}"
    return marks.count(b"+")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 512 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read_mutated(
    found: FeatureFormat, path: Path, target: Path, original: bytes, seeds: range, tell: Callable[[bytes], int]
) -> None:
    for seed in seeds:
        target.write_bytes(mutate(original, seed))
        signal.alarm(_SECONDS_PER_MUTATION)
        good = 0
        try:
            found.looks_like(path)
            with found.open(path) as file:
                good = sum(isinstance(outcome, RegionRecord) for outcome in file.outcomes())
        except (ValueError, OSError) as error:
            assert "\n" not in str(error), error
        signal.alarm(0)
        tell(b"+" if good else b"-")
