"""`roibeam store copy | verify | repair | import | export | diff` at URLs, whose lines break and which are killed.

The default tests have a store of objects on this disk; the slow one a real S3 server behind a proxy that answers
badly.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import BucketCommand, Command, Ended, Run
from faulty_s3 import FaultyS3, faulty_s3
from object_store import URL, ObjectStore, kill_at
from store_examples import make_record, write_store
from tiny_commands import Cli, damage_record, digest, ok, one_line

from roibeam.features.reading.temporary_copy import local_store, needed_room
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.toyworld.rendering import draw_samples


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """12 records of three shards, whose ranges of ids overlap."""
    shards = [[make_record(f"i{n:02}", 1 + n % 4, seed=n) for n in range(start, 12, 3)] for start in range(3)]
    write_store(tmp_path / "local", shards)
    return tmp_path / "local"


def names(store: Path) -> list[str]:
    return sorted(path.name.split(".")[0] + path.suffix for path in store.iterdir())


def test_every_command_at_urls(roibeam: Cli, local: Path, bucket: Path, tmp_path: Path) -> None:
    """There and back again: each command gives what it gives for folders, and leaves nothing on this machine."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    here = ("--scratch", scratch)

    def ok(*words: object, code: int = 0) -> Any:
        result = roibeam("store", *words)
        assert result.code == code, (result.err, result.out)
        assert not list(scratch.iterdir())
        return result

    first, second = bucket / "first", bucket / "second"
    ok("copy", local, f"{URL}{first}", "--shard-size", 5, *here)
    assert digest(first) == digest(local) and verify_store(first, deep=True) == []
    shards = [f"part-0000{number}.{kind}" for number in range(3) for kind in ("json", "lmdb")]
    assert names(first) == ["dead_letters.parquet", "manifest.json", *shards]
    again = ok("copy", local, f"{URL}{first}", "--shard-size", 5)
    assert "nothing to do" in again.out
    ok("copy", f"{URL}{first}", f"{URL}{second}", "--dtype", "float32", *here)
    origin = json.loads((second / "manifest.json").read_bytes())["config"]["copy"]["sources"][0]["location"]
    assert origin == f"{URL}{first}"
    ok("copy", f"{URL}{second}", tmp_path / "back", "--dtype", "float16")
    with FeatureStore(local) as wanted, FeatureStore(tmp_path / "back") as got:
        assert all(got[record.image_id].equals(record) for record in wanted) and len(got) == 12

    assert "clean (manifests, sizes and indexes" in ok("verify", f"{URL}{first}").out
    assert "clean (every record read)" in ok("verify", f"{URL}{first}", "--deep", *here).out
    assert ok("ids", f"{URL}{first}").out.split() == sorted(f"i{n:02}" for n in range(12))
    assert "the fullest rank has" in ok("plan", f"{URL}{first}", "--ranks", 2).out

    ok("export", f"{URL}{first}", f"{URL}{bucket}/x.tsv", "--format", "butd-tsv", *here)
    assert "exists already" in one_line(ok("export", local, f"{URL}{bucket}/x.tsv", "--format", "butd-tsv", code=1))
    ok("export", local, tmp_path / "npz", "--format", "milvlg-npz")
    os.rename(tmp_path / "npz", bucket / "npz")
    for source in ("x.tsv", "npz"):
        url = f"{URL}{bucket}/{source}"
        ok("import", url, f"{URL}{bucket}/of-{source}", "--num-classes", 1600, *here)
        config = json.loads((bucket / f"of-{source}" / "manifest.json").read_bytes())["config"]
        assert config["source"]["location"] == url and verify_store(bucket / f"of-{source}", deep=True) == []
        again = ok("import", url, f"{URL}{bucket}/of-{source}", "--num-classes", 1600)
        assert "1 shard finished by an earlier run" in again.err
        ok("diff", f"{URL}{first}", f"{URL}{bucket}/of-{source}", *here)
    assert "images on both sides   12" in ok("diff", f"{URL}{bucket}/x.tsv", local, *here).out


def test_wrong_urls_are_told_in_a_line(roibeam: Cli, local: Path, bucket: Path, tmp_path: Path) -> None:
    def told(*words: object, code: int = 1) -> str:
        result = roibeam("store", *words)
        assert result.code == code and not (tmp_path / "out").exists()
        return one_line(result)

    nothing, out = f"{URL}{bucket}/nothing", tmp_path / "out"
    for words in (("copy", nothing, out), ("repair", nothing), ("export", nothing, out, "--format", "butd-tsv")):
        assert "nothing" in told(*words)
    assert "no such file or folder; is the URL right?" in told("import", nothing, out)
    assert "no such file or folder; is the URL right?" in told("diff", nothing, local, code=2)
    assert "no feature store here" in roibeam("store", "verify", nothing).out
    for words in (("verify",), ("repair",), ("ids",), ("plan", "--ranks", 2)):
        assert "Protocol not known: foo; stores are in folders, or at s3://" in told(words[0], "foo://b/s", *words[1:])
    assert "is a source too" in told("copy", f"{URL}{bucket}/a", f"{URL}{bucket}/a/")
    assert "is in the source" in told("copy", f"{URL}{bucket}/a", f"{URL}{bucket}/a/b")
    url = f"{URL}{bucket}/x"
    (bucket / "x").mkdir()
    (bucket / "x" / "a.txt").write_text("x")
    assert "exists already" in told("export", local, url, "--format", "milvlg-npz")
    assert "is not of this export" in told("export", local, url, "--format", "parquet")
    assert "--scratch is for files on their way" in told("copy", local, out, "--scratch", tmp_path)
    assert "no such file or folder: --scratch" in told("copy", local, f"{URL}{bucket}/a", "--scratch", tmp_path / "no")
    (bucket / "notes").mkdir()
    (bucket / "notes" / "a.txt").write_text("x")
    assert "is not empty and not of a killed copy ('a.txt'" in told("copy", local, f"{URL}{bucket}/notes")


@pytest.mark.parametrize(
    "at, when", [("part-00001.*.lmdb", "after"), ("part-00002.json", "after"), ("manifest.json", "before")]
)
def test_a_killed_copy_is_not_whole_till_finished(roibeam: Cli, local: Path, bucket: Path, at: str, when: str) -> None:
    """Kept are the shards that have their manifests; what was between data and manifest is gone at the end."""
    out = bucket / "out"
    words = ("store", "copy", local, f"{URL}{out}", "--shard-size", 4)
    kill_at(at, when, lambda: roibeam(*words), bucket)
    assert not (out / "manifest.json").exists()
    kept = len(list(out.glob("part-*.json")))
    assert "is missing: the run that writes it has not finished" in roibeam("store", "verify", f"{URL}{out}").out
    done = roibeam(*words, "--json")
    assert done.code == 0 and json.loads(done.out)["kept_shards"] == kept
    assert verify_store(out, deep=True) == [] and digest(out) == digest(local)
    assert len(list(out.glob("*.lmdb"))) == 3


def test_of_two_copies_at_once_one_counts(roibeam: Cli, local: Path, bucket: Path) -> None:
    """While one is between data and manifest, another does it all: the first takes over what is there."""
    out = bucket / "out"
    words = ("store", "copy", local, f"{URL}{out}", "--shard-size", 4)
    twins: list[Any] = []

    def twin(name: str) -> None:
        if name == "part-00001.json" and not twins:
            twins.append(None)
            twins[0] = roibeam(*words)

    ObjectStore.before_put = staticmethod(twin)
    assert roibeam(*words).code == 0 and twins[0].code == 0
    assert verify_store(out, deep=True) == [] and digest(out) == digest(local)
    assert len(list(out.glob("*.lmdb"))) == 3


def test_a_broken_line_is_no_damage(roibeam: Cli, local: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a repair would extract records again that were only unreadable for a moment."""
    url = f"{URL}{bucket}/s"
    assert roibeam("store", "copy", local, url, "--shard-size", 4).code == 0
    reads, plain = list[str](), ObjectStore.cat_file

    def broken(self: Any, path: str, *arguments: Any, **options: Any) -> bytes:
        if path.endswith(".lmdb"):
            reads.append(path)
            raise ConnectionResetError("the line broke")
        return plain(self, path, *arguments, **options)

    monkeypatch.setattr(ObjectStore, "cat_file", broken)
    result = roibeam("store", "verify", url)
    assert result.code == 1 and "problem" not in result.out and len(reads) == 4
    assert "cannot be read, tried 4 times (ConnectionResetError: the line broke)" in one_line(result)

    def fails(name: str) -> None:
        raise ConnectionResetError("the line broke")

    monkeypatch.setattr(ObjectStore, "cat_file", plain)
    ObjectStore.before_put = staticmethod(fails)
    result = roibeam("store", "copy", local, f"{URL}{bucket}/other")
    assert result.code == 1 and "cannot be written, tried 4 times" in one_line(result)
    assert not (bucket / "other").exists()


def test_damage_at_a_url_is_mended(roibeam: Cli, bucket: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    draw_samples(tmp_path / "samples", count=6)
    photos, store = tmp_path / "samples" / "images", bucket / "s"
    url = f"{URL}{store}"
    assert roibeam("extract", photos, url, *tiny_network, "--threads", 1, "--shard-size", 2).code == 0
    wanted = digest(store)
    _, second, _ = sorted(store.glob("*.lmdb"))
    damage_record(store, "sample_00000")
    second.write_bytes(second.read_bytes()[:-4096])
    (store / "part-00002.json").unlink()
    shallow = roibeam("store", "verify", url)
    assert shallow.code == 1 and "2 problems" in shallow.out  # what is inside a record needs --deep
    assert roibeam("store", "verify", url, "--deep").out.count("part-0000") >= 3
    damage = json.loads(roibeam("store", "repair", url, "--json").out)
    broken = [row["image_id"] for shard in damage["shards"] for row in shard["broken"]]
    assert broken == ["sample_00000", "sample_00002", "sample_00003"]
    copied = roibeam("store", "copy", url, tmp_path / "copy")
    assert copied.code == 1 and not (tmp_path / "copy" / "manifest.json").exists()

    mend = ("store", "repair", url, "--photos", photos)
    kill_at("part-00001.json", "after", lambda: roibeam(*mend), bucket)  # waiting, none of them published
    summary = json.loads(ok(roibeam(*mend, "--json")).out)
    assert digest(store) == wanted, summary
    (store / ".tmp-repair").rmdir()  # empty; a real store of objects has no such folder
    assert verify_store(store, deep=True) == [] and len(list(store.glob("*.lmdb"))) == 3
    assert "whole" in roibeam("store", "repair", url).out


def test_a_damaged_record_is_dropped_when_asked(roibeam: Cli, local: Path, bucket: Path, tmp_path: Path) -> None:
    assert roibeam("store", "copy", local, f"{URL}{bucket}/s").code == 0
    (path,) = (bucket / "s").glob("*.lmdb")
    damage_record(bucket / "s", "i03")
    words = ("store", "copy", f"{URL}{bucket}/s", tmp_path / "copy")
    line = one_line(roibeam(*words))
    assert "arrived damaged twice" in line and "'i03'" in line and str(path) in line
    dropped = roibeam(*words, "--drop-damaged", "--max-failures", 0.5, "--json")
    assert dropped.code == 0 and json.loads(dropped.out)["failures"] == {"damaged record": 1}
    (letter,) = json.loads((tmp_path / "copy" / "part-00000.json").read_bytes())["dead_letters"]
    assert letter["location"] == f"{URL}{bucket}/s" and "roibeam-scratch" not in letter["detail"]


def test_room_for_shards_of_a_url(local: Path, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three shards that cover one id, all are needed at once; of ranges that follow one another, two."""
    with FeatureStore(local) as store:
        sizes = sorted(entry.data_bytes for entry in store.manifest.shards)
        assert needed_room(store.manifest.shards) == sum(sizes)
    shards = [[make_record(f"s{shard}i{n}", 3, seed=9 * shard + n) for n in range(3)] for shard in range(4)]
    write_store(bucket / "s", shards)
    monkeypatch.setattr("roibeam.features.reading.temporary_copy._FREE_SHARE", 0.0)
    with local_store(f"{URL}{bucket}/s", scratch=str(tmp_path)) as store:
        one = store.manifest.shards[0].data_bytes
        assert needed_room(store.manifest.shards) == 2 * one
        most = 0
        for record in store.scan(copy=False):
            assert record.num_regions == 3
            most = max(most, sum(path.stat().st_size for path in store.path.rglob("*.lmdb*")))
        assert most <= 2 * one
    assert not list(tmp_path.glob("roibeam-scratch-*"))


# A real S3 server


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with faulty_s3(seed=5) as made:
        yield made


@pytest.mark.slow
def test_an_s3_server_that_answers_badly(s3: FaultyS3, local: Path, tmp_path: Path) -> None:
    """A quarter of all requests fails, and a copy is killed in its middle: every store is whole in the end."""

    def run(*words: object, at: str | None = None) -> Ended:
        work = Run(BucketCommand(Command(("store", *map(str, words))), s3.settings), tmp_path)
        if at is not None:

            def kill(method: str, path: str) -> None:
                if method == "PUT" and path.startswith(at):
                    os.kill(work.process.pid or 0, signal.SIGKILL)

            s3.before = kill
        ended = work.wait(300)
        s3.before = lambda method, path: None
        return ended

    def ok(*words: object) -> Ended:
        ended = run(*words)
        assert ended.code == 0 and "Traceback" not in ended.said, ended.said
        return ended

    s3.share = 0.25
    copy = ("copy", local, "s3://bucket/a", "--shard-size", 2)
    assert run(*copy, at="/bucket/a/part-00003.json").code == -signal.SIGKILL
    files = s3.files()
    assert not files.exists("bucket/a/manifest.json") and files.exists("bucket/a/part-00002.json")
    ok(*copy)
    ok("copy", "s3://bucket/a", "s3://bucket/b", "--shard-size", 3)
    ok("export", "s3://bucket/b", "s3://bucket/x.tsv", "--format", "butd-tsv")
    ok("import", "s3://bucket/x.tsv", "s3://bucket/c", "--num-classes", 1600)
    ok("diff", "s3://bucket/a", "s3://bucket/c")
    ok("verify", "s3://bucket/b", "--deep")
    assert set(s3.faults) == {
        "503", "500 after it was done", "cut in its middle", "closed before", "closed after"
    }, s3.faults  # fmt: skip
    s3.share = 0.0
    for name in "abc":
        files.get(f"bucket/{name}", str(tmp_path / name), recursive=True)
        assert verify_store(tmp_path / name, deep=True) == []
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(local)

    for words, told in (
        (("verify", "s3://none/a"), "bucket does not exist"),
        (("copy", local, "s3://none/a"), "bucket does not exist"),
        (("import", "s3://none/x.tsv", "s3://bucket/d"), "bucket does not exist"),
        (("copy", "s3://b_!!/x", "s3://bucket/d"), "Invalid bucket name"),
    ):
        ended = run(*words)
        assert ended.code == 1 and told in ended.last_line and ended.last_line.startswith("roibeam: s3://"), ended.said
    s3.settings = {"FSSPEC_S3_ENDPOINT_URL": s3.url}
    ended = run("verify", "s3://bucket/a")
    assert ended.code == 1 and "give the driver credentials that may do this" in ended.last_line, ended.said
