"""Extractions disturbed in each stage of the local run: killed, or by a disk that breaks or is full."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed_runs import BAD, Extraction, assert_mended, assert_one_line
from fail_points import (
    COMMIT,
    DEAD_LETTERS,
    MOVE,
    PLAN,
    READ,
    RECORD,
    REPORT,
    SHARD_MANIFEST,
    STAGES,
    STORE_MANIFEST,
    SUMMARY,
    SYNC,
    WRITE,
    FailPoint,
    broken_disk,
    fill_disk,
    kill,
)
from soak_share import some

from roibeam.features.verify import verify_store

pytestmark = [pytest.mark.faults, pytest.mark.slow]
ONCE = (PLAN, DEAD_LETTERS, STORE_MANIFEST, REPORT, SUMMARY)  # stages that a run passes once
# A fault at another stage leaves what a fault at one of these leaves: no data, data without a name, no manifest, all.
AFTER_A_SHARD = (SHARD_MANIFEST, STORE_MANIFEST)
TOLD_APART = (PLAN, WRITE, COMMIT, MOVE, DEAD_LETTERS, REPORT, *AFTER_A_SHARD)


@pytest.mark.parametrize("stage", some(STAGES, TOLD_APART))
def test_killed(stage: str, faulty_photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    extraction = Extraction(faulty_photos, tmp_path / "store", tmp_path)
    count = 1 if stage in ONCE else 3
    ended = extraction.run(points=[FailPoint(stage, count, kill)])
    assert ended.code == -9 and ended.last_line.startswith(f"fail point: {stage}, number {count}: "), ended
    # No shard or a whole one; what else is there is named as left over.
    problems = [problem for problem in verify_store(extraction.store, deep=True) if not problem.leftover]
    assert [problem.file for problem in problems] == ([] if stage in (REPORT, SUMMARY) else ["manifest.json"])
    assert_mended(extraction, undisturbed, dead=BAD)


@pytest.mark.parametrize(
    "stage",
    some((PLAN, SYNC, MOVE, SHARD_MANIFEST, DEAD_LETTERS, STORE_MANIFEST, REPORT, SUMMARY), (SYNC, *AFTER_A_SHARD)),
)
def test_a_disk_that_breaks(stage: str, faulty_photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    extraction = Extraction(faulty_photos, tmp_path / "store", tmp_path)
    ended = extraction.run(points=[FailPoint(stage, 1 if stage in ONCE else 3, broken_disk)])
    assert_one_line(ended, "Input/output error")
    assert_mended(extraction, undisturbed, dead=BAD)


FULL_AT = {
    PLAN: 1, READ: 3, RECORD: 1, WRITE: 3, SYNC: 2, MOVE: 2, SHARD_MANIFEST: 4, DEAD_LETTERS: 1, STORE_MANIFEST: 1,
}  # fmt: skip


@pytest.mark.parametrize("stage", some(FULL_AT, (PLAN, WRITE, SYNC, *AFTER_A_SHARD)))
def test_a_full_disk(
    stage: str, faulty_photos: Path, undisturbed: Path, tmp_path: Path, mount: Callable[..., Path]
) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", "disk")
    extraction = Extraction(faulty_photos, disk / "store", tmp_path)
    ended = extraction.run(points=[FailPoint(stage, FULL_AT[stage], functools.partial(fill_disk, disk))])
    assert_one_line(ended, f"No space left on device: {disk}/store/")  # a file, or a shard's folder
    assert_one_line(ended, "the disk is full")
    (disk / "ballast").unlink()
    assert_mended(extraction, undisturbed, dead=BAD)
