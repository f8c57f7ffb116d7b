"""Stores written at URLs: equal to local ones, and whole after broken uploads, kills and two runs at once; and one in a
bucket of a real S3 server (moto, on this machine), written by several processes."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from disturbed_runs import BucketCommand, Command, Ended, Run
from faulty_s3 import KEYS, FaultyS3, faulty_s3
from object_store import URL, ObjectStore, kill_at
from tiny_commands import Cli, digest, one_line
from tiny_commands import extract as extract_store

from roibeam.features.folders.local_folder import output_folder
from roibeam.features.reading.staging import StagedStore
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.data.shard_plan import read_plan
from roibeam.pipelines.extract.shard import shard_job
from roibeam.pipelines.extract.shard.store_folder import tidy_store
from roibeam.pipelines.extract.store_progress import StatusView
from roibeam.pipelines.toyworld.rendering import draw_samples

SHARDS = 3
OPTIONS = ("--threads", 1, "--shard-size", 2, "--max-failures", 1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five photos and a broken one; shared: read only."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_samples(folder, count=5)
    (folder / "images" / "bad.jpg").write_bytes(b"")
    return folder / "images"


@pytest.fixture
def photos(drawn: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    return Path(shutil.copytree(drawn, tmp_path / "samples" / "images"))


@pytest.fixture
def extract(roibeam: Cli, photos: Path, tiny_network: tuple[str, ...]) -> Cli:
    """extract(store, *options): shards of two photos, one of the six is broken."""
    return lambda store, *options: roibeam("extract", photos, store, *tiny_network, *OPTIONS, *options)


@pytest.fixture(scope="module")
def wanted(drawn: Path, tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]) -> str:
    """The content digest of the undisturbed local run."""
    store = tmp_path_factory.mktemp("local") / "store"
    extract_store(drawn, store, *tiny_network, *OPTIONS)
    return digest(store)


def check_whole(store: Path, wanted: str, staged: Path) -> None:
    """What a finished store at `objects://` must be: its files and no others, equal records, readable from its URL."""
    manifests = [json.loads(path.read_bytes()) for path in sorted(store.glob("part-*.json"))]
    named = {manifest["data_file"] for manifest in manifests} - {None}
    files = {path.name for path in store.iterdir()}
    assert {name for name in files if name.endswith(".lmdb")} == named
    assert not [name for name in files if name.startswith(".")], files
    assert not list(store.parent.glob("arriving-*"))
    assert verify_store(store, deep=True) == []
    reader = StagedStore(f"{URL}{store}", staged)
    assert reader.manifest.content_digest == wanted == digest(store)
    assert len(list(reader)) == 5


def test_a_store_in_memory_is_alike(extract: Cli, roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    assert extract(tmp_path / "local").code == 0
    wanted = digest(tmp_path / "local")
    url = f"memory://{tmp_path.name}/store"
    done = extract(url, "--json", "--scratch", tmp_path)
    assert done.code == 0, done.err
    last = json.loads(done.out.splitlines()[-1])
    assert last["content_digest"] == wanted and last["report"] == f"{url}/report.html"
    assert not list(tmp_path.glob("roibeam-scratch-*"))
    files = fsspec.filesystem("memory")
    names = Counter(path.rpartition(".")[2] for path in files.find(f"/{tmp_path.name}/store"))
    assert names == {"lmdb": SHARDS, "json": SHARDS + 4, "jsonl": SHARDS, "parquet": 1, "html": 1}
    assert b"sample_00000" in files.cat_file(f"/{tmp_path.name}/store/report.html")

    staged = StagedStore(url, tmp_path / "staged")
    with FeatureStore(tmp_path / "local") as local:
        assert [record.image_id for record in staged] == [record.image_id for record in local]
        for record in local:
            assert (staged[record.image_id].features == record.features).all()

    again = extract(url)
    assert again.code == 0 and "nothing to do" in again.out
    info = roibeam("store", "info", url)
    assert info.code == 0 and wanted in info.out
    assert "manifest.json: is not there" in one_line(roibeam("store", "info", f"{url}/none"))
    status = json.loads(roibeam("progress", url, "--json").out)
    assert status["complete"] and status["shards"]["finished"] == SHARDS and status["failures"] == {"empty file": 1}
    other = [option if option != "random:1" else "random:2" for option in tiny_network]
    assert "was made with other settings" in one_line(roibeam("extract", tmp_path / "samples/images", url, *other))


def test_folders_that_cannot_be_a_store(extract: Cli, bucket: Path, tmp_path: Path) -> None:
    (bucket / "notes.txt").write_text("x")
    assert "is not empty and holds no store ('notes.txt' is in it)" in one_line(extract(f"{URL}{bucket}"))
    assert "--scratch is for stores at a URL" in one_line(extract(tmp_path / "out", "--scratch", tmp_path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["fails", pytest.param("is short", marks=pytest.mark.slow)])
def test_a_broken_upload_is_mended(extract: Cli, bucket: Path, tmp_path: Path, wanted: str, fault: str) -> None:
    store, tries = bucket / "store", Counter[str]()

    def refuse(name: str) -> None:
        tries[name[:10]] += name.endswith(".lmdb")
        if name.startswith("part-00001.") and name.endswith(".lmdb") and fault == "fails":
            raise ConnectionResetError("the line broke")

    ObjectStore.before_put = refuse
    ObjectStore.kept_share = 1.0 if fault == "fails" else 0.5
    line = one_line(done := extract(f"{URL}{store}"))
    assert done.code == 1 and "cannot be written, tried 4 times" in line and ".lmdb" in line
    told = "the line broke" if fault == "fails" else "bytes were written, the store has"
    assert told in line and line.endswith("run the same command again")
    broken = "part-00001" if fault == "fails" else "part-00000"
    assert tries[broken] == 4 and not (store / f"{broken}.json").exists() and not (store / "manifest.json").exists()
    summary = json.loads((store / "run_summary.json").read_bytes())
    assert summary["status"] == "failed" and "tried 4 times" in summary["error"]
    assert summary["this_run"]["shards"] == (1 if fault == "fails" else 0)

    ObjectStore.mend()
    assert extract(f"{URL}{store}").code == 0
    check_whole(store, wanted, tmp_path / "staged")
    summary = json.loads((store / "run_summary.json").read_bytes())
    assert summary["status"] == "finished" and summary["content_digest"] == wanted
    assert summary["in_all"]["images"] == 6 and summary["in_all"]["dead_letters"]["total"] == 1


PLACES = ("*00001.jsonl", "plan.json", ".heartbeat-*", "part-00002.*.lmdb", "dead_*", "manifest.json")


@pytest.mark.parametrize(
    "at, when",
    [
        ("part-00001.json", "before"),  # between data and manifest
        pytest.param("part-00001.json", "after", marks=pytest.mark.slow),
        *(pytest.param(name, "before", marks=pytest.mark.slow) for name in PLACES),
        # What is there is what is there before the next of them.
        *(pytest.param(name, "after", marks=[pytest.mark.slow, pytest.mark.soak(cases=True)]) for name in PLACES),
        pytest.param("report.html", "after", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_is_finished(extract: Cli, bucket: Path, tmp_path: Path, wanted: str, at: str, when: str) -> None:
    store = bucket / "store"
    kill_at(at, when, lambda: extract(f"{URL}{store}"), store)
    if (at, when) == ("part-00001.json", "before"):
        assert list(store.glob("part-00001.*.lmdb")) and not (store / "part-00001.json").exists()
    done = extract(f"{URL}{store}")
    assert done.code == 0, done.err
    check_whole(store, wanted, tmp_path / "staged")


def test_of_two_attempts_at_once_one_counts_and_nothing_of_the_other_stays(
    extract: Cli, bucket: Path, tmp_path: Path, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first attempt is between its data and its manifest, a second one does the whole shard."""
    store = bucket / "store"
    jobs: list[tuple[Any, Any, Any]] = []
    once = shard_job._extract_shard

    def noted(job: Any, shard: Any, meter: Any) -> Any:
        jobs.append((job, shard, shard_job.ShardMeter()))
        return once(job, shard, meter)

    monkeypatch.setattr(shard_job, "_extract_shard", noted)
    results: list[Any] = []

    def twin(name: str) -> None:
        if name == "part-00001.json" and not results:
            results.append(None)
            results[0] = once(*jobs[-1])
            results.append((store / name).read_bytes())

    ObjectStore.before_put = staticmethod(twin)
    assert extract(f"{URL}{store}").code == 0
    # The second one did the work, and the first gave way.
    assert results[0].seconds is not None and (store / "part-00001.json").read_bytes() == results[1]
    check_whole(store, wanted, tmp_path / "staged")


def test_a_run_that_ends_takes_nothing_from_one_that_still_uploads(
    extract: Cli, bucket: Path, tmp_path: Path, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tidying while an attempt is between its data and its manifest: of an open shard it keeps the data, of a finished
    one not, and then the attempt gives way."""
    store = bucket / "store"
    folder = output_folder(f"{URL}{store}")
    seen: list[str] = []

    def tidy() -> None:
        manifest = json.loads((store / "part-00000.json").read_bytes())
        tidy_store(folder, read_plan(folder), manifest["fingerprint"]["feature_space"])

    def tidy_once(name: str) -> None:
        if name == "part-00001.json" and not seen:
            tidy()
            seen.extend(path.name for path in store.glob("part-00001.*.lmdb"))

    ObjectStore.before_put = staticmethod(tidy_once)
    assert extract(f"{URL}{store}").code == 0
    assert len(seen) == 1 and (store / seen[0]).exists()
    check_whole(store, wanted, tmp_path / "staged")

    # A file that no manifest has named for a day is abandoned.
    (store / "part-00002.json").unlink()
    (store / "part-00002.dead.lmdb").write_bytes(b"x")
    os.utime(store / "part-00002.dead.lmdb", (1e9, 1e9))
    tidy()
    assert len(list(store.glob("part-00002.*.lmdb"))) == 1 and not (store / "part-00002.dead.lmdb").exists()


def test_damaged_objects_are_made_again(extract: Cli, photos: Path, bucket: Path, tmp_path: Path, wanted: str) -> None:
    store = bucket / "store"
    assert extract(f"{URL}{store}").code == 0
    (store / "part-00000.json").write_bytes(b"{")
    next(store.glob("part-00001.*.lmdb")).write_bytes(b"short")
    next(store.glob("part-00002.*.lmdb")).unlink()
    done = extract(f"{URL}{store}")
    assert done.code == 0 and done.err.count("extracting its shard again") == 3 and "6 images extracted" in done.out
    check_whole(store, wanted, tmp_path / "staged")

    (photos / "bad.jpg").write_bytes((photos / "sample_00000.jpg").read_bytes())
    retried = extract(f"{URL}{store}", "--retry-dead-letters")
    assert retried.code == 0 and "1 image extracted" in retried.out and "6 records" in retried.out
    assert len(list(store.glob("*.lmdb"))) == SHARDS and verify_store(store, deep=True) == []
    summary = json.loads((store / "run_summary.json").read_bytes())
    assert (summary["this_run"]["images"], summary["this_run"]["copied"]) == (1, 1)
    assert summary["in_all"]["dead_letters"]["total"] == 0


def test_progress_of_a_run_seen_from_elsewhere(extract: Cli, roibeam: Cli, bucket: Path, wanted: str) -> None:
    store = bucket / "store"
    assert "no run of `roibeam extract` has planned a store there yet" in one_line(roibeam("progress", f"{URL}{store}"))
    looks = []

    def look(name: str) -> None:
        if name == "part-00001.json":
            looks.append(StatusView(output_folder(f"{URL}{store}")).read())

    ObjectStore.before_put = staticmethod(look)
    assert extract(f"{URL}{store}").code == 0
    (status,) = looks
    assert (status.finished, status.is_complete, status.plan.num_images) == (1, False, 6)
    (beat,) = status.in_work
    assert (beat.shard, beat.images, beat.stage) == (1, 2, "uploading")
    assert status.standing.images == 4 and dict(status.standing.failures) == {"empty file": 1}
    assert status.images_per_second > 0 and status.eta_seconds is not None and status.silent_seconds(beat) < 60


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    """A server whose answers are all good."""
    with faulty_s3() as made:
        yield made


@pytest.mark.slow
def test_a_store_in_a_bucket(s3: FaultyS3, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    draw_samples(tmp_path / "samples", count=9)
    photos = tmp_path / "samples" / "images"
    (photos / "bad.jpg").write_bytes(b"")
    url, local = "s3://bucket/some/store", tmp_path / "local"
    options = (*tiny_network, "--threads", 1, "--shard-size", 2, "--max-failures", 1)
    extract_store(photos, local, *options)

    def roibeam(*arguments: object) -> Ended:
        work = BucketCommand(Command(tuple(map(str, arguments))), s3.settings)
        return Run(work, tmp_path).wait()

    two_processes = ("--", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    words = map(str, ("extract", photos, url, *options, "--json", *two_processes))  # from nothing, as a user starts it
    command = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()", *words]
    environment = {**os.environ, **s3.settings}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    wanted = digest(local)
    assert json.loads(done.stdout.splitlines()[-1])["content_digest"] == wanted

    bucket = s3.files()
    names = [path.removeprefix("bucket/some/store/") for path in bucket.find("bucket/some/store")]
    assert len([name for name in names if name.endswith(".lmdb")]) == 5 and not [n for n in names if n[0] == "."]
    staged = StagedStore(url, tmp_path / "staged", storage_options={"endpoint_url": s3.url, **KEYS})
    staged.stage()
    assert staged.manifest.content_digest == wanted and len(list(staged)) == 9
    assert verify_store(tmp_path / "staged", deep=True) == []

    # An attempt that was killed between data and manifest, and a lost data file.
    bucket.rm_file("bucket/some/store/part-00000.json")
    bucket.pipe_file("bucket/some/store/part-00000.dead.lmdb", b"half")
    lost = next(name for name in names if name.startswith("part-00001.") and name.endswith(".lmdb"))
    bucket.rm_file(f"bucket/some/store/{lost}")
    status = json.loads(roibeam("progress", url, "--json").last_line)
    assert status["shards"] == {"planned": 5, "finished": 4, "in_work": 0, "waiting": 1}
    again = roibeam("extract", photos, url, *options, "--json")
    last = json.loads(again.last_line)
    assert again.code == 0 and last["new_images"] == 4 and last["content_digest"] == wanted, again.said
    data = [path for path in bucket.find("bucket/some/store") if path.endswith(".lmdb")]
    assert len(data) == 5 and not [path for path in data if "dead" in path]
    assert json.loads(roibeam("progress", url, "--json").last_line)["complete"]

    nowhere = roibeam("extract", photos, "s3://none/store", *options)
    assert nowhere.code == 1 and "Traceback" not in nowhere.said
    assert nowhere.last_line.startswith("roibeam: s3://none/store/") and "bucket does not exist" in nowhere.last_line
