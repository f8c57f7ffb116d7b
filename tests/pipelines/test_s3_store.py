"""A store in a bucket of a real S3 server (moto, on this machine), written by several processes and read back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from disturbed_runs import BucketCommand, Command, Ended, Run
from faulty_s3 import KEYS, FaultyS3, faulty_s3
from in_process import run_roibeam

from roibeam.features.reading.staging import StagedStore
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.toyworld.rendering import draw_samples

pytestmark = pytest.mark.slow


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    """A server whose answers are all good."""
    with faulty_s3() as made:
        yield made


def test_a_store_in_a_bucket(s3: FaultyS3, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    draw_samples(tmp_path / "samples", count=9)
    photos = tmp_path / "samples" / "images"
    (photos / "bad.jpg").write_bytes(b"")
    url, local = "s3://bucket/some/store", tmp_path / "local"
    options = (*tiny_network, "--threads", 1, "--shard-size", 2, "--max-failures", 1)
    assert run_roibeam("extract", photos, local, *options) == 0

    def roibeam(*arguments: object) -> Ended:
        work = BucketCommand(Command(tuple(map(str, arguments))), s3.settings)
        return Run(work, tmp_path).wait()

    two_processes = ("--", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    words = map(str, ("extract", photos, url, *options, "--json", *two_processes))  # from nothing, as a user starts it
    command = [sys.executable, "-c", "from roibeam.pipelines.cli.main import main; main()", *words]
    environment = {**os.environ, **s3.settings}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    with FeatureStore(local) as opened:
        wanted = opened.manifest.content_digest
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
