"""One shard of a run, the store's manifest after all of them, without Beam, and Ctrl-C while shards are at work."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.manifest import ShardManifest, ShardSummary
from roibeam.features.shard.writer import publish_shard
from roibeam.pipelines.common.console.command_files import check_output_is_no_file
from roibeam.pipelines.common.image_ids import with_usable_name
from roibeam.pipelines.data.shard_plan import PlannedShard, extend_plan
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.shard import shard_job
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob
from roibeam.pipelines.extract.shard.process_setup import running_shard, shards_must_stop, stop_shards_on_interrupt
from roibeam.pipelines.extract.shard.shard_job import ShardMeter, ShardResult, extract_shard, shared_fingerprint
from roibeam.pipelines.extract.shard.store_folder import StoreText, check_output_folder, publish_run

TINY = replace(CONFIGS["small"], short_edge=48, long_edge=80, proposals_after_nms=16, base_channels=4)
SOURCE = {"kind": "folder", "location": "/x", "image_root": "/x", "id_rule": "no-extension"}
SPACE = "f" * 64


@pytest.fixture
def planned(tmp_path: Path) -> tuple[ExtractJob, PlannedShard]:
    """A shard of one photo and one file that is none."""
    photos, store = tmp_path / "photos", tmp_path / "store"
    photos.mkdir()
    store.mkdir()
    cv2.imwrite(str(photos / "a.png"), np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8))
    (photos / "b.png").write_bytes(b"no image")
    images = [ImageRef(name, str(photos / f"{name}.png")) for name in "ab"]
    plan = extend_plan(LocalFolder(store), None, source=SOURCE, settings={}, images=images, shard_size=2)
    spec, options = DetectorSpec(TINY, SELECTIONS["butd-10-100"], "random:1"), ExtractOptions()
    space = shared_fingerprint(spec, options, None, False).feature_space
    return ExtractJob(str(store), str(photos), spec, options, space, None, False), plan.shards[0]


def test_a_finished_shard_is_not_done_again(planned: tuple[ExtractJob, PlannedShard]) -> None:
    job, shard = planned
    first = extract_shard(job, shard)
    assert (first.num_records, first.num_failures) == (1, 1) and first.seconds is not None
    before = {path: path.stat().st_mtime_ns for path in Path(job.store).iterdir()}
    meter = ShardMeter()
    assert extract_shard(job, shard, meter) == replace(first, seconds=None)
    assert not meter.failures and not meter.num_bytes  # nothing was looked at, not even the image that failed
    assert {path: path.stat().st_mtime_ns for path in Path(job.store).iterdir()} == before


def test_images_without_a_usable_name_are_dead_letters(planned: tuple[ExtractJob, PlannedShard]) -> None:
    job, _ = planned
    names = [(os.fsdecode(b"\xff"), os.fsdecode(b"/x/\xff.jpg")), ("y" * 512, "/x/y.jpg")]
    images = [with_usable_name(ImageRef(*name)) for name in names]
    plan = extend_plan(LocalFolder(Path(job.store)), None, source=SOURCE, settings={}, images=images, shard_size=2)
    extract_shard(job, plan.shards[0])
    dead = ShardManifest.read(Path(job.store) / "part-00000.json").dead_letters
    assert [(one.stage, one.reason) for one in dead] == [("read", "name not UTF-8"), ("read", "id too long")]
    assert [one.location for one in dead] == ["name-not-utf8:/x/\\xff.jpg", "id-too-long:/x/y.jpg"]


def test_a_shard_of_other_images_is_done_again(planned: tuple[ExtractJob, PlannedShard]) -> None:
    job, shard = planned
    extract_shard(job, shard)
    path = Path(job.store) / "part-00000.json"
    path.write_text(path.read_text().replace(shard.members_digest, "0" * 64))
    assert extract_shard(job, shard).seconds is not None
    assert ShardManifest.read(path).members_digest == shard.members_digest


def test_an_attempt_that_comes_second_gives_way_and_leaves_nothing(
    planned: tuple[ExtractJob, PlannedShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first attempt is at work, a second one does the whole shard."""
    job, shard = planned
    write_data = shard_job._write_data
    twins: list[ShardResult] = []

    def do_it_all(*arguments: Any) -> Any:
        monkeypatch.setattr(shard_job, "_write_data", write_data)
        twins.append(extract_shard(job, shard))
        return write_data(*arguments)

    monkeypatch.setattr(shard_job, "_write_data", do_it_all)
    late = extract_shard(job, shard)
    assert twins[0].seconds is not None and late == replace(twins[0], seconds=None)
    manifest = ShardManifest.read(Path(job.store) / "part-00000.json")
    assert [path.name for path in Path(job.store).glob("part-*.lmdb")] == [manifest.data_file]


def test_a_worker_with_other_weights_stops(planned: tuple[ExtractJob, PlannedShard]) -> None:
    job, shard = planned
    with pytest.raises(ValueError, match="differs from the planned one: do all workers see the same weights"):
        extract_shard(replace(job, feature_space=SPACE), shard)
    assert sorted(path.name for path in Path(job.store).iterdir()) == ["plan", "plan.json"]


def test_a_store_with_an_open_shard_is_not_published(tmp_path: Path) -> None:
    images = [ImageRef(name, f"/x/{name}.jpg") for name in "ab"]
    plan = extend_plan(LocalFolder(tmp_path), None, source=SOURCE, settings={}, images=images, shard_size=1)
    fingerprint = Fingerprint(SPACE, {}, {})
    manifest = ShardManifest.from_summary(
        ShardSummary(), shard=0, attempt="a", fingerprint=fingerprint, members_digest=plan.shards[0].members_digest,
        dead_letters=(), stats={},
    )  # fmt: skip
    publish_shard(tmp_path, manifest)
    with pytest.raises(ValueError, match="1 shard unfinished; run the same command again"):
        publish_run(LocalFolder(tmp_path), plan, StoreText({}, Vocabulary(None, None), fingerprint))
    assert not (tmp_path / "manifest.json").exists()


def test_a_summary_alone_in_a_folder_does_not_keep_a_store_out(tmp_path: Path) -> None:
    """The output folder went away in mid-run, and the run wrote its summary into the one that stood in its place."""
    (tmp_path / "run_summary.json").write_text('{"format": "roibeam-run-summary"}')
    check_output_folder(LocalFolder(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        ValueError, match=r"is not empty and holds no store \('notes.txt' is in it\); choose a new folder$"
    ):
        check_output_folder(LocalFolder(tmp_path))
    (tmp_path / "dog.JPG").touch()
    with pytest.raises(ValueError, match="choose a new folder, or swap the two: the photos come first"):
        check_output_folder(LocalFolder(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run_summary.json", '{"mean": 3}'),
        ("run_summary.json", "["),
        ("plan/my_plan.txt", "monday"),
        ("plan/part-00000.jsonl", '{"text": "a book"}'),
        ("plan/part-00000.jsonl/x", ""),
        ("plan", "monday"),
        (".lock", "12345"),
        (".important.tmp", ""),
    ],
)
def test_a_folder_of_somebody_else_is_refused_whatever_its_names_are(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with pytest.raises(ValueError, match="is not empty and holds no store"):
        check_output_folder(LocalFolder(tmp_path))


def test_what_a_first_run_leaves_that_was_killed_while_it_planned_is_gone_on_with(tmp_path: Path) -> None:
    images = [ImageRef(name, f"/x/{name}.jpg") for name in ("a", "é", '"')]
    extend_plan(LocalFolder(tmp_path), None, source=SOURCE, settings={}, images=images, shard_size=1)
    (tmp_path / "plan.json").rename(tmp_path / ".plan.json.12.0123abcd.tmp")
    (tmp_path / "plan" / "part-00003.jsonl").write_text('{"imag')  # cut
    (tmp_path / ".lock").touch()
    check_output_folder(LocalFolder(tmp_path))


def test_a_link_that_leads_nowhere_is_no_output_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/nowhere/else")
    for out in (tmp_path / "link", tmp_path / "link" / "store"):
        with pytest.raises(ValueError, match="link is a link to /nowhere/else, which is not there; make that folder"):
            check_output_is_no_file(out)


def interrupt_at_work(work: Callable[[], object], seconds: float) -> threading.Thread:
    """Ctrl-C in the main thread while another does `work` on a shard; so long is waited for it."""
    at_work = threading.Event()

    def run() -> None:
        with running_shard():
            at_work.set()
            work()

    thread = threading.Thread(target=run)
    with pytest.raises(KeyboardInterrupt), stop_shards_on_interrupt(seconds):
        thread.start()
        at_work.wait()
        raise KeyboardInterrupt
    return thread


def test_shards_in_work_are_told_and_waited_for() -> None:
    ended: list[str] = []

    def work() -> None:
        while not shards_must_stop():
            time.sleep(0.01)
        time.sleep(0.1)
        ended.append("dropped")

    thread = interrupt_at_work(work, 30)
    assert ended == ["dropped"]
    thread.join()
    assert not shards_must_stop()  # the next work of this process may begin


def test_a_shard_that_does_not_end_is_not_waited_for_for_ever() -> None:
    released = threading.Event()
    thread = interrupt_at_work(released.wait, 0.2)
    assert shards_must_stop()  # it is to end whenever it comes back
    released.set()
    thread.join()
    with stop_shards_on_interrupt(1):
        assert not shards_must_stop()


def test_other_errors_stop_nothing() -> None:
    with pytest.raises(OSError), stop_shards_on_interrupt(1):
        raise OSError
    assert not shards_must_stop()
