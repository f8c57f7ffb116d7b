"""The folder a store is written to: equal behaviour on a disk and at a URL; what a store of objects may do wrong."""

import base64
import errno
import fcntl
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from refusals import refused

from roibeam.features.folders import object_folder
from roibeam.features.folders.durable_files import PREFIX, scratch_folder, with_place, write_bytes_atomically
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import LocalFolder, note_links, output_folder
from roibeam.features.folders.object_folder import ObjectFolder


class FaultyObjects(MemoryFileSystem):
    """Objects in memory; `fault` may raise for a put, or give other bytes to keep."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: Callable[[str, bytes], bytes] | None = None
    md5: bytes | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("faulty://", "memory://", 1))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value if self.fault is None else type(self).fault(path, value), mode=mode)

    def put_file(self, lpath: str, rpath: str, *arguments: Any, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        facts = super().info(path, **options)
        return facts if self.md5 is None else {**facts, "md5Hash": base64.b64encode(self.md5).decode()}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectFolder]:
    fsspec.register_implementation("faulty", FaultyObjects, clobber=True)
    monkeypatch.setattr(object_folder, "WAIT_SECONDS", (0.0, 0.0, 0.0))
    yield ObjectFolder("faulty://bucket/store")
    FaultyObjects.store.clear()
    FaultyObjects.fault = FaultyObjects.md5 = None


@pytest.fixture(params=["local", "memory", "file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> OutputFolder:
    (tmp_path / "store").mkdir()
    urls = {"memory": f"memory://{tmp_path.name}/store", "file": f"file://{tmp_path}/store"}
    return output_folder(urls.get(request.param, tmp_path / "store"))


def test_files_come_and_go(folder: OutputFolder, tmp_path: Path) -> None:
    assert folder.listing() == {} and folder.num_bytes("a.json") is None
    folder.put_bytes("a.json", b"one")
    folder.put_bytes("a.json", b"three")
    folder.put_many((f"plan/{i}.jsonl", b"%d" % i) for i in range(40))
    source = tmp_path / "data"
    source.write_bytes(bytes(range(100)))
    folder.put_file(source, "part.lmdb")
    with folder.atomic_path("table.parquet") as aside:
        aside.write_bytes(b"table")
        assert "table.parquet" not in folder.listing()
    with pytest.raises(ZeroDivisionError), folder.atomic_path("half.parquet") as aside:
        aside.write_bytes(b"half")
        1 / 0  # noqa: B018

    sizes = {name: facts.num_bytes for name, facts in folder.listing().items()}
    assert sizes == {"a.json": 5, "part.lmdb": 100, "table.parquet": 5}  # not the folder plan/
    assert all(facts.written_at > 1e9 for facts in folder.listing().values())
    assert folder.listing("part") == {"part.lmdb": folder.listing()["part.lmdb"]}
    assert folder.read_bytes("a.json") == b"three" and folder.num_bytes("part.lmdb") == 100
    assert folder.read_range("part.lmdb", 3, 5) == bytes([3, 4]) and len(folder.read_range("part.lmdb", 90, 200)) == 10
    names = [f"plan/{i}.jsonl" for i in (39, 7)]
    assert list(folder.read_many([*names, "none"])) == [(names[0], b"39"), (names[1], b"7"), ("none", None)]

    folder.delete("a.json")
    folder.delete("a.json")
    assert folder.num_bytes("a.json") is None
    for read in (folder.read_bytes, lambda name: folder.read_range(name, 0, 1)):
        refused(r"a\.json", read, "a.json", error=FileNotFoundError)

    # Of two attempts the first one counts.
    assert folder.put_first("part.json", b"mine")
    assert not folder.put_first("part.json", b"others") and folder.read_bytes("part.json") == b"mine"
    if folder.local_path is None:
        assert folder.put_first("part.json", b"mine")  # a try whose answer was lost


def test_a_folder_travels_to_workers_and_its_scratch_is_gone_afterwards(folder: OutputFolder, tmp_path: Path) -> None:
    folder.put_bytes("x", b"y")
    again = pickle.loads(pickle.dumps(folder))
    assert again == folder and again.read_bytes("x") == b"y" and output_folder(again) is again
    assert folder.where("x") == f"{folder}/x"
    with folder.scratch("ab12", None if folder.local_path is not None else str(tmp_path)) as scratch:
        assert scratch.is_dir() and scratch.is_relative_to(tmp_path)
        (scratch / "data.lmdb").write_bytes(b"x")
    assert not scratch.exists()


def test_scratch_of_a_killed_process_goes_and_of_a_living_one_stays(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        with scratch_folder(tmp_path) as folder:
            (folder / "data.lmdb").touch()
            os._exit(9)
    os.waitpid(child, 0)
    (abandoned,) = tmp_path.iterdir()
    assert (abandoned / "data.lmdb").exists()
    living = tmp_path / f"{PREFIX}living"
    living.mkdir()
    with open(living / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with scratch_folder(tmp_path) as folder:
            assert set(tmp_path.iterdir()) == {living, folder}
    with scratch_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    with pytest.raises(OSError, match="none"), scratch_folder(tmp_path / "none"):
        pass


def test_a_store_that_fails_now_and_then_is_tried_again(faulty: ObjectFolder, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"12345678")
    tries: list[str] = []

    def fails_twice(path: str, data: bytes) -> bytes:
        tries.append(path)
        if len(tries) == 1:
            raise ConnectionResetError("the line broke")
        return data[: len(data) // 2] if len(tries) == 2 else data

    FaultyObjects.fault = fails_twice
    for put, *given in (
        (faulty.put_file, tmp_path / "data", "x"),
        (faulty.put_bytes, "x", b"12345678"),
        (faulty.put_first, "x", b"12345678"),
    ):
        faulty.delete("x")
        tries.clear()
        put(*given)
        assert faulty.read_bytes("x") == b"12345678" and len(tries) == 3


def test_a_store_that_fails_always_is_one_error_that_names_the_file(faulty: ObjectFolder, tmp_path: Path) -> None:
    tries = []

    def refuse(error: Exception) -> Callable[[str, bytes], bytes]:
        def fault(path: str, data: bytes) -> bytes:
            tries.append(path)
            raise error

        return fault

    for error, words, num_tries in (
        (ConnectionResetError("the line\nbroke"), r", tried 4 times .*the line broke\)", 4),
        # another try would not be allowed either
        (PermissionError("Access Denied"), r" \(PermissionError: Access Denied\)", 1),
    ):
        tries.clear()
        FaultyObjects.fault = refuse(error)
        refused(rf"^faulty://bucket/store/x: cannot be written{words}", faulty.put_bytes, "x", b"1", error=OSError)
        assert len(tries) == num_tries


def test_a_short_upload_is_noticed_and_other_bytes_where_the_store_tells_an_md5(
    faulty: ObjectFolder, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(b"12345678")
    puts = ((faulty.put_file, tmp_path / "data", "x"), (faulty.put_bytes, "x", b"12345678"))
    for kept in (b"1234", b""):
        FaultyObjects.fault = lambda path, data, kept=kept: kept
        refused(f"8 bytes were written, the store has {len(kept)}", *puts[0], error=OSError)
    FaultyObjects.fault = None
    FaultyObjects.md5 = bytes.fromhex("25d55ad283aa400af464c76d713c07ad")  # of b"12345678"
    for put, *given in puts:
        put(*given)
    FaultyObjects.md5 = bytes(16)
    for each in puts:
        refused("its MD5 is AAAAAAAAAAAAAAAAAAAAAA== there", *each, error=OSError)


def test_a_missing_driver_names_its_package() -> None:
    if find_spec("ossfs") is not None:
        pytest.skip("the package ossfs is installed")
    refused("pip install ossfs", ObjectFolder("oss://bucket/store").listing)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part.json")
    refused("not a regular file", LocalFolder(tmp_path).read_bytes, "part.json")


def test_a_file_that_the_disk_refuses_is_named(tmp_path: Path) -> None:
    """Python's write names none."""
    folder, limits = LocalFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)

    def aside() -> None:
        with folder.atomic_path("c.bin") as path:
            path.write_bytes(bytes(5000))

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        for name, put, *given in (
            ("a.bin", folder.put_bytes, "a.bin", bytes(5000)),
            ("plan/b.bin", folder.put_many, [("plan/b.bin", bytes(5000))]),
            ("c.bin", aside),
        ):
            assert refused("File too large", put, *given, error=OSError).endswith(f"'{tmp_path / name}'")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_links_out_of_a_store_are_noted_once_and_a_plan_is_written_through_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s/plan").mkdir(parents=True)
    (tmp_path / "own.txt").write_text("mine")
    (tmp_path / "s/inside.json").symlink_to(tmp_path / "s/plan")
    note_links(str(tmp_path / "s"))
    assert not caplog.text
    note_links.cache_clear()
    (tmp_path / "s/part-00000.json").symlink_to(tmp_path / "own.txt")
    for _ in range(2):
        note_links(str(tmp_path / "s"))
    assert caplog.text.count("links lead out of this store, 1 of its files, such as part-00000.json") == 1
    (tmp_path / "s/plan/a.jsonl").symlink_to(tmp_path / "own.txt")
    os.mkfifo(tmp_path / "s/plan/b.jsonl")
    for name in ("plan/a.jsonl", "plan/b.jsonl"):
        refused(name, LocalFolder(tmp_path / "s").put_many, [(name, b"x")], error=OSError)
    assert (tmp_path / "own.txt").read_text() == "mine"


def test_an_error_that_is_the_context_of_its_own_cause_is_looked_at_once(tmp_path: Path) -> None:
    """A driver's error that is raised again is such a circle, and a command that failed by it never ended."""
    error, cause = OSError("not there"), ValueError("packed")
    error.__cause__, cause.__context__ = cause, error
    assert with_place(error, [tmp_path]) is None


@pytest.mark.parametrize("hard_links", [True, False])
def test_the_first_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, os.strerror(errno.EPERM))))
    path = tmp_path / "part-00000.json"
    assert write_bytes_atomically(path, b"first", first=True)
    assert not write_bytes_atomically(path, b"second", first=True)
    assert path.read_bytes() == b"first"
    assert write_bytes_atomically(path, b"third")
    assert path.read_bytes() == b"third" and list(tmp_path.iterdir()) == [path]
    gone = tmp_path / "gone" / "a.json"
    for first in (True, False):
        refused("No such file", write_bytes_atomically, gone, b"x", first=first, error=FileNotFoundError)
