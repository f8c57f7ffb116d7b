"""One shard worked on by two processes at once, or by one that is no longer waited for: runners repeat shards, and do
not always know that the first attempt still lives."""

import functools
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import BAD, Extraction, Run, assert_mended, plan_only
from fail_points import DEAD_LETTERS, MOVE, READ, REPORT, SHARD_MANIFEST, STORE_MANIFEST, WRITE, FailPoint, hold
from soak_share import some

from roibeam.features.shard.manifest import ShardManifest
from roibeam.features.verify import verify_store

ONE_SHARD = ("--shard-size", "100")
pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture(scope="module")
def planned(faulty_photos: Path) -> tuple[Path, Any, Any]:
    """A planned store of one shard; job and shard as its workers get them."""
    folder = faulty_photos.parent
    extraction = Extraction(faulty_photos, folder / "planned", folder / "runs", ONE_SHARD)
    ended = Run(functools.partial(plan_only, extraction.command(), folder / "job"), folder).wait()
    assert ended.code == 0, ended.said
    job, (shard,) = pickle.loads((folder / "job").read_bytes())
    return extraction.store, job, shard


class Twins:
    """A store of one shard, and attempts at it in processes of their own, as a runner's workers make them."""

    def __init__(self, photos: Path, planned: tuple[Path, Any, Any], folder: Path) -> None:
        self.folder = folder
        self.extraction = Extraction(photos, folder / "store", folder, ONE_SHARD)
        store, job, self.shard = planned
        shutil.copytree(store, self.extraction.store)
        self.job = replace(job, store=str(self.extraction.store))

    def attempt(self, name: str, *held_at: tuple[str, int]) -> Run:
        """Starts one; it waits at each of these stages until it is let on."""
        from roibeam.pipelines.extract.shard.shard_job import extract_shard

        points = [
            FailPoint(stage, count, functools.partial(hold, self.folder, f"{name} {stage}")) for stage, count in held_at
        ]
        return Run(functools.partial(extract_shard, self.job, self.shard), self.folder, points)

    def here(self, name: str, stage: str) -> Path:
        return self.folder / f"{name} {stage}.here"

    def let_on(self, name: str, stage: str) -> None:
        (self.folder / f"{name} {stage}.go").touch()

    def data_files(self) -> set[str]:
        return {path.name for path in self.extraction.store.glob("part-*.lmdb")}

    def counting(self) -> ShardManifest:
        return ShardManifest.read(self.extraction.store / "part-00000.json")


# The other three are these with the names of the two exchanged.
@pytest.mark.parametrize("order", some(["aabb", "abab", "abba", "baab", "baba", "bbaa"], {"aabb", "abab", "abba"}))
def test_a_shard_executed_twice_at_once(
    order: str, faulty_photos: Path, undisturbed: Path, planned: Any, tmp_path: Path
) -> None:
    """`order`: whose data file, then whose manifest gets its name; both have the shard in work before any does."""
    twins = Twins(faulty_photos, planned, tmp_path)
    runs = {name: twins.attempt(name, (MOVE, 1), (SHARD_MANIFEST, 1)) for name in "ab"}
    for name, run in runs.items():
        run.wait_for(twins.here(name, MOVE))
    assert len(list(twins.extraction.store.glob(".tmp-*/data.lmdb"))) == 2
    for turn, name in enumerate(order):
        if name not in order[:turn]:
            twins.let_on(name, MOVE)
            runs[name].wait_for(twins.here(name, SHARD_MANIFEST))
        else:
            twins.let_on(name, SHARD_MANIFEST)
            ended = runs[name].wait()
            assert ended.code == 0, ended.said
    counting = twins.counting()
    assert counting.data_file in twins.data_files()
    rerun = assert_mended(twins.extraction, undisturbed, dead=BAD)
    assert "nothing to do" in rerun.said and twins.counting() == counting
    assert twins.data_files() == {counting.data_file}


def test_a_shard_executed_twice_unhindered(
    faulty_photos: Path, undisturbed: Path, planned: Any, tmp_path: Path
) -> None:
    twins = Twins(faulty_photos, planned, tmp_path)
    runs = [twins.attempt(name, (READ, 1)) for name in "ab"]
    for name, run in zip("ab", runs, strict=True):
        run.wait_for(twins.here(name, READ))
    for name in "ab":
        twins.let_on(name, READ)
    assert [run.wait().code for run in runs] == [0, 0]
    assert "nothing to do" in assert_mended(twins.extraction, undisturbed, dead=BAD).said


@pytest.mark.parametrize(("stage", "count"), [(READ, 3), (WRITE, 3), (MOVE, 1), (SHARD_MANIFEST, 1)])
def test_an_attempt_of_a_run_that_is_over_changes_nothing(
    stage: str, count: int, faulty_photos: Path, undisturbed: Path, planned: Any, tmp_path: Path
) -> None:
    """Its driver was killed, another run finished the store, and the worker goes on where it was."""
    twins = Twins(faulty_photos, planned, tmp_path)
    lost = twins.attempt("lost", (stage, count))
    lost.wait_for(twins.here("lost", stage))
    assert twins.extraction.run().code == 0
    before = (twins.extraction.store / "manifest.json").read_bytes()
    twins.let_on("lost", stage)
    lost.wait()
    assert [problem for problem in verify_store(twins.extraction.store, deep=True) if not problem.leftover] == []
    rerun = assert_mended(twins.extraction, undisturbed, dead=BAD)
    assert "nothing to do" in rerun.said
    assert (twins.extraction.store / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("stage", [SHARD_MANIFEST, DEAD_LETTERS, STORE_MANIFEST, REPORT])
@pytest.mark.parametrize("twin_stage", [MOVE, SHARD_MANIFEST])
def test_a_twin_that_ends_while_the_store_is_published(
    stage: str, twin_stage: str, faulty_photos: Path, undisturbed: Path, planned: Any, tmp_path: Path
) -> None:
    """It was about to write what is named when the run had the shard from another attempt and came to `stage`."""
    twins = Twins(faulty_photos, planned, tmp_path)
    at = [FailPoint(name, 1, functools.partial(hold, tmp_path, f"run {name}")) for name in (READ, stage)]
    run = twins.extraction.start(points=at)
    run.wait_for(twins.here("run", READ))
    twin = twins.attempt("twin", (twin_stage, 1))
    twin.wait_for(twins.here("twin", twin_stage))
    twins.let_on("run", READ)
    run.wait_for(twins.here("run", stage))
    twins.let_on("twin", twin_stage)
    twin.wait()
    twins.let_on("run", stage)
    ended = run.wait()
    assert ended.code == 0, ended.said
    assert verify_store(twins.extraction.store, deep=True) == []
    assert "nothing to do" in assert_mended(twins.extraction, undisturbed, dead=BAD).said
