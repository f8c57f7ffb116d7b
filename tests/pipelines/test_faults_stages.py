"""Extractions and imports disturbed at each of their stages: killed, or by a disk that breaks or is full."""

import base64
import functools
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from disturbed_runs import BAD, Ended, Extraction, Run, assert_mended, assert_one_line
from fail_points import (
    COMMIT,
    DEAD_LETTERS,
    DETECT,
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
    interrupt,
    kill,
)
from soak_share import share_of, some

from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.extract.stores.store_import import import_features

pytestmark = [pytest.mark.faults, pytest.mark.slow]
ONCE = (PLAN, DEAD_LETTERS, STORE_MANIFEST, REPORT, SUMMARY)  # stages that a run passes once
# A fault at another stage leaves what a fault at one of these leaves: no data, data without a name, no manifest, all.
AFTER_A_SHARD = (SHARD_MANIFEST, STORE_MANIFEST)
TOLD_APART = (PLAN, WRITE, COMMIT, MOVE, DEAD_LETTERS, REPORT, *AFTER_A_SHARD)
BROKEN_AT = (PLAN, SYNC, MOVE, SHARD_MANIFEST, DEAD_LETTERS, STORE_MANIFEST, REPORT, SUMMARY)
FULL_AT = {
    PLAN: 1, READ: 3, RECORD: 1, WRITE: 3, SYNC: 2, MOVE: 2, SHARD_MANIFEST: 4, DEAD_LETTERS: 1, STORE_MANIFEST: 1,
}  # fmt: skip


FAULTS = {  # fault -> stages where it strikes, and those of them that every run meets
    "killed": (STAGES, TOLD_APART),
    "broken": (BROKEN_AT, (SYNC, *AFTER_A_SHARD)),
    "full": (tuple(FULL_AT), (PLAN, WRITE, SYNC, *AFTER_A_SHARD)),
}


@pytest.mark.parametrize(
    "fault_at",
    some(
        [f"{fault} at {stage}" for fault, (stages, _) in FAULTS.items() for stage in stages],
        [f"{fault} at {stage}" for fault, (_, kept) in FAULTS.items() for stage in kept],
    ),
)
def test_the_same_command_mends_what_a_fault_left(
    fault_at: str, faulty_photos: Path, undisturbed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fault, _, stage = fault_at.partition(" at ")
    disk, count, action = tmp_path, 1 if stage in ONCE else 3, {"killed": kill, "broken": broken_disk}.get(fault)
    if action is None:
        mount: Callable[..., Path] = request.getfixturevalue("mount")
        disk, count = mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", "disk"), FULL_AT[stage]
        action = functools.partial(fill_disk, disk)
    extraction = Extraction(faulty_photos, disk / "store", tmp_path)
    ended = extraction.run(points=[FailPoint(stage, count, action)])
    if fault == "killed":
        assert_killed(ended, stage, count)
        # No shard or a whole one; what else is there is named as left over.
        problems = [problem for problem in verify_store(extraction.store, deep=True) if not problem.leftover]
        assert [problem.file for problem in problems] == ([] if stage in (REPORT, SUMMARY) else ["manifest.json"])
    elif fault == "broken":
        assert_one_line(ended, "Input/output error")
    else:
        assert_one_line(ended, f"No space left on device: {disk}/store/")  # a file, or a shard's folder
        assert_one_line(ended, "the disk is full")
        (disk / "ballast").unlink()
    assert_mended(extraction, undisturbed, dead=BAD)


def assert_killed(ended: Ended, stage: str, count: int) -> None:
    assert ended.code == -9 and ended.last_line.startswith(f"fail point: {stage}, number {count}: "), ended


@pytest.mark.parametrize(("stage", "seconds"), [(WRITE, 1), (DETECT, 3600)])
def test_ctrl_c_keeps_what_is_finished_and_ends_a_detector_that_computes(
    stage: str, seconds: float, faulty_photos: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """In the second shard; the last line, once, tells what goes on, and ends in what was typed."""
    extraction = Extraction(faulty_photos, tmp_path / "store", tmp_path)
    ended = extraction.start(points=[FailPoint(stage, 4, functools.partial(interrupt, seconds))]).wait(60)
    assert ended.code == 130 and "Traceback" not in ended.said, ended
    kept = "roibeam: interrupted; 1 of 4 shards finished and kept, what is in work is dropped; to go on: "
    assert ended.last_line.startswith(kept) and ended.said.count("roibeam: interrupted") == 1
    assert tuple(shlex.split(ended.last_line.removeprefix(kept))[1:]) == extraction.command().arguments
    assert not list(extraction.store.glob(".tmp-*"))
    with pytest.raises(FileNotFoundError, match="has not finished"):
        FeatureStore(extraction.store)
    first = (extraction.store / "part-00000.json").read_bytes()
    assert_mended(extraction, undisturbed, dead=BAD)
    assert (extraction.store / "part-00000.json").read_bytes() == first


COMPUTES = """
import time, torch
from roibeam.extraction.detector import Detector
from roibeam.pipelines.cli.main import main
calls, forward = [], Detector.forward
def slow(self, *arguments, **options):
    calls.append(1)
    deadline = time.monotonic() + (60 if len(calls) > 3 else 0)
    while time.monotonic() < deadline:
        torch.randn(500, 500) @ torch.randn(500, 500)
    return forward(self, *arguments, **options)
Detector.forward = slow
torch.set_num_threads(1)
main()
"""


def test_a_process_ends_in_order_while_a_detector_computes_in_cpp(faulty_photos: Path, tmp_path: Path) -> None:
    """A fork ends by os._exit: only a process of its own is taken down by the interpreter."""
    words = Extraction(faulty_photos, tmp_path / "store", tmp_path).command("--detect-timeout", "2").arguments
    done = subprocess.run([sys.executable, "-c", COMPUTES, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "terminate" not in done.stderr, done.stderr
    assert "the detector has not come back from image " in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images in the six columns of bottom-up attention."""
    path = tmp_path_factory.mktemp("source") / "features.tsv"
    draw = np.random.default_rng(1)
    with path.open("wb") as file:
        for number in range(20):
            corners = draw.random((6, 2), np.float32) * 100
            boxes = np.concatenate([corners, corners + 50], axis=1)
            arrays = [base64.b64encode(array.tobytes()) for array in (boxes, draw.random((6, 16), np.float32))]
            file.write(b"\t".join([f"{number:03}".encode(), b"640", b"480", b"6", *arrays]) + b"\n")
    return path


@pytest.fixture(scope="module")
def imported(tsv: Path) -> Path:
    import_features(tsv, tsv.parent / "wanted", shard_size=4)
    return tsv.parent / "wanted"


@pytest.mark.parametrize(
    ("stage", "counts"),
    [
        (WRITE, [1, 6, 11, 16, 19]),  # in each of the five shards, after its first, second, ... record
        (COMMIT, [1, 2, 3, 4, 5]),
        (SYNC, [1, 2, 3, 4, 5]),
        (SHARD_MANIFEST, [1, 2, 3, 4, 5]),
        (STORE_MANIFEST, [1]),
    ],
)
def test_killed_imports(tsv: Path, imported: Path, tmp_path: Path, stage: str, counts: list[int]) -> None:
    for count in share_of(counts, stage):
        out = tmp_path / str(count)
        work = functools.partial(import_features, tsv, out, shard_size=4)
        ended = Run(work, tmp_path, [FailPoint(stage, count, kill)]).wait()
        assert_killed(ended, stage, count)
        # No shard or a whole one: whatever has a manifest is sound to its last byte, the rest is named as left over.
        left = verify_store(out, deep=True)
        assert [problem.file for problem in left if not problem.leftover] == ["manifest.json"] and len(left) > 1
        again = Run(work, tmp_path).wait()
        assert again.code == 0, again.said
        assert verify_store(out, deep=True) == []
        with FeatureStore(imported) as want, FeatureStore(out) as got:
            assert got.manifest.content_digest == want.manifest.content_digest
            assert sorted(got.ids()) == sorted(want.ids())
