"""What is written survives a power cut: bytes are on the disk before they have their name, the name before the end."""

from pathlib import Path

import pytest
from disk_steps import noted_disk_steps
from store_examples import make_record

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.reading.staging import StagingFolder
from roibeam.features.shard.writer import ShardWriter


def test_the_files_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(b"x")
    steps = noted_disk_steps(monkeypatch)
    folder = LocalFolder(tmp_path)

    def put_table() -> None:
        with folder.atomic_path("table") as aside:
            aside.write_bytes(b"x")

    for put, wanted in (
        (lambda: write_bytes_atomically(tmp_path / "a.json", b"x"), "file replace folder"),
        (lambda: write_bytes_atomically(tmp_path / "b.json", b"x", first=True), "file link folder"),
        (lambda: folder.put_file(tmp_path / "data", "part.lmdb"), "replace folder"),  # which its writer made durable
        (lambda: folder.put_many([("plan/0", b"x"), ("plan/1", b"y")]), "file file folder"),
        (put_table, "file replace"),
        (lambda: StagingFolder(tmp_path / "staged", None).write("a.json", b"x"), "file replace folder"),
    ):
        steps.clear()
        put()
        assert steps == wanted.split()


def test_the_data_file_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = noted_disk_steps(monkeypatch)
    with ShardWriter(tmp_path / "a.lmdb", planned_bytes=10_000) as writer:
        writer.put(make_record("a"))
        writer.finish()
    assert steps == ["file", "folder"]
