"""Many archives planned at once: the same plan, notes and errors as by one thread, from few bytes of each."""

import io
import random
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_s3 import FaultyS3, faulty_s3
from folder_filesystem import PREFIX, FolderFileSystem

from roibeam.features.folders.local_folder import LocalFolder
from roibeam.pipelines.common import locations as ranged_file
from roibeam.pipelines.common import remote_files
from roibeam.pipelines.common.locations import RangedFile, read_location
from roibeam.pipelines.data import source_images
from roibeam.pipelines.data.shard_plan import extend_plan
from roibeam.pipelines.data.source_images import archive_images, map_ordered
from roibeam.pipelines.data.source_kinds import open_source

# Threads ahead, results in order


def slow_letters(task: int) -> Iterator[str]:
    draw = random.Random(task)
    for letter in "abcdefghij"[: task % 7 + 1]:
        time.sleep(draw.random() / 500)
        yield f"{task}{letter}"
    if task in (13, 15):
        raise ValueError(f"task {task}")


def taken(tasks: range, threads: int, most_waiting: int) -> tuple[list[str], str]:
    """All that is given before the first error, and that."""
    found: list[str] = []
    try:
        for task, results in map_ordered(tasks, slow_letters, threads=threads, weight=len, most_waiting=most_waiting):
            found.append(f"{task}:")
            found += results  # one by one, so that what comes before an error stays
    except ValueError as error:
        return found, str(error)
    return found, ""


@pytest.mark.parametrize("most_waiting", [0, 5, 10**6])
def test_threads_give_what_one_gives_up_to_the_first_error(most_waiting: int) -> None:
    assert taken(range(12), 4, most_waiting) == taken(range(12), 1, 0)
    assert taken(range(5, 20), 4, most_waiting) == taken(range(5, 20), 1, 0)
    assert taken(range(20), 4, most_waiting)[1] == "task 13"


def test_what_waits_is_bounded_and_nobody_works_on_once_it_is_given_up() -> None:
    """Results that are not taken hold up the threads; an error or a stop of the taker ends them."""
    given, lock = [0], threading.Lock()

    def endless(task: int) -> Iterator[int]:
        while True:
            with lock:
                given[0] += 1
            yield task

    listed = map_ordered(range(100), endless, threads=5, weight=lambda each: 10, most_waiting=6400)
    _, results = next(listed)
    for _ in range(500):
        next(results)
    time.sleep(0.05)
    # 640 wait, and each thread holds some that found no room: a 64th of that weight, and one.
    assert given[0] <= 500 + 640 + 5 * 12
    listed.close()
    workers = [each for each in threading.enumerate() if each.name == "works ahead"]
    for worker in workers:
        worker.join(5)
    assert not any(worker.is_alive() for worker in workers)


# A file of which headers are read


def test_ranges_give_the_bytes_of_the_file() -> None:
    draw = random.Random(1)
    data = draw.randbytes(3 * 2**20)
    fetched = []

    def fetch(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        fetched.append(stop - start)
        return data[start:stop]

    with RangedFile(fetch, len(data), lambda: None) as file:
        for _ in range(300):
            place, size = draw.randrange(len(data) + 9), draw.choice((0, 1, 512, 20_000, 300_000))
            if draw.random() < 0.5:
                place = file.tell() + draw.randrange(-600, 200_000)
            assert file.seek(place) == max(0, place)
            place = file.tell()
            assert file.read(size) == data[place : place + size]
        file.seek(-10, 2)
        assert file.read() == data[-10:] and file.read() == b""
        # Read on and on, the pieces grow; far away they are small again.
        fetched.clear()
        file.seek(0)
        while file.read(512):
            pass
        assert fetched[0] == ranged_file.FIRST_BYTES and len(fetched) <= 9
        file.seek(2**20)
        file.read(1)
        assert fetched[-1] == ranged_file.FIRST_BYTES


# Archives


def add(tar: tarfile.TarFile, name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(data)
    tar.addfile(member, io.BytesIO(data))


def write_tars(folder: Path, count: int, photo_bytes: int = 2000, photos: int = 6) -> Path:
    """Shards of WebDataset, in which all is that may be left out."""
    folder.mkdir()
    for number in range(count):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as tar:
            for photo in range(photos + number % 3):
                key = f"{number:05d}{photo:04d}"
                add(tar, f"{key}.jpg", bytes([number]) * photo_bytes)
                add(tar, f"{key}.json", b'{"caption": "of the json"}' if photo % 2 else b"{")
                add(tar, f"{key}.txt", f"photo {photo} of tar {number}".encode())
            if number % 2:
                add(tar, f"link{number}.jpg", b"", tarfile.SYMTYPE)
                add(tar, f"lone{number}.txt", b"nobody's")
            add(tar, f"notes{number}.md", b"x")
    return folder


def plan_of(where: str, store: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Names and bytes of the files of a plan, and the notes."""
    monkeypatch.setitem(archive_images.__kwdefaults__, "threads", threads)
    source = open_source(where)
    store.mkdir()
    extend_plan(LocalFolder(store), None, source={}, settings={}, images=source.images, shard_size=10)
    files = {path.name: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    return files | {"notes": "\n".join(source.notes).encode()}


def test_eight_threads_make_the_plan_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tars = str(write_tars(tmp_path / "tars", 25))
    wanted = plan_of(tars, tmp_path / "one", 1, monkeypatch)
    assert len(wanted) > 10 and wanted["notes"].count(b"\n") == 3
    assert plan_of(tars, tmp_path / "eight", 8, monkeypatch) == wanted
    monkeypatch.setattr(source_images, "_MOST_LISTED_BYTES", 0)
    assert plan_of(tars, tmp_path / "tight", 8, monkeypatch) == wanted


def test_all_damaged_archives_are_told_at_once_or_left_out(tmp_path: Path) -> None:
    tars = write_tars(tmp_path / "tars", 12)
    whole = {image.image_id for image in open_source(str(tars)).images}
    bad = [7, 8, 10]
    (tars / "00008.tar").write_bytes(b"")
    for number in (7, 10):
        path = tars / f"{number:05d}.tar"
        path.write_bytes(path.read_bytes()[:-11000])
    archives = [str(tars / f"{number:05d}.tar") for number in range(12)]
    names = ", ".join(repr(archives[number]) for number in bad)
    for threads in (1, 8):
        with pytest.raises(ValueError) as told:
            list(archive_images(archives, "no-extension", [], threads=threads))
        assert str(told.value).startswith(f"3 of 12 archives are damaged or cut short: {names}; fetch them again, or")
        assert f"of the first: {archives[7]!r}: not a tar archive, damaged or cut short after 1" in str(told.value)
        notes: list[str] = []
        images = list(archive_images(archives, "no-extension", notes, skip_bad=True, threads=threads))
        assert {image.image_id for image in images} == {each for each in whole if int(each[:5]) not in bad}
        assert notes[0] == f"3 of 12 archives left out, damaged or cut short: {names}"
    with pytest.raises(ValueError, match=r"00007\.tar': not a .*; fetch it again, or leave it out with --skip-bad-"):
        list(archive_images(archives[:8], "no-extension", []))
    with pytest.raises(ValueError, match=r"fetch it again$"):
        list(archive_images(archives[7:8], "no-extension", []))


# At URLs


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request for a range."""
    sizes: list[int] = []
    made = RangedFile.__init__

    def counting(file: RangedFile, fetch: Callable[[int, int], bytes], *others: Any) -> None:
        def counted(start: int, stop: int) -> bytes:
            sizes.append(stop - start)
            return fetch(start, stop)

        made(file, counted, *others)

    monkeypatch.setattr(RangedFile, "__init__", counting)
    return sizes


def test_headers_of_tars_at_a_url_are_read(fetched: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderFileSystem, "folder", tmp_path, raising=False)
    write_tars(tmp_path / "tars", 6, photo_bytes=300_000, photos=2)
    wanted = plan_of(f"{PREFIX}tars", tmp_path / "one", 1, monkeypatch)
    photos = sum(2 + number % 3 for number in range(6))
    assert len(fetched) <= photos + 6 and sum(fetched) <= len(fetched) * ranged_file.FIRST_BYTES
    assert plan_of(f"{PREFIX}tars", tmp_path / "eight", 8, monkeypatch) == wanted


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """What Beam's own options lead to."""
    from apache_beam.io.filesystems import FileSystems

    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    monkeypatch.setattr(remote_files, "_WAITS_SECONDS", (0.0, 0.0, 0.0, 0.0))
    with faulty_s3(seed=3) as made:
        keys = ["--s3_access_key_id=k", "--s3_secret_access_key=s"]
        remote_files.use_beam_options([f"--s3_endpoint_url={made.url}", *keys])
        yield made
    remote_files._s3_client.cache_clear()


@pytest.mark.slow
def test_tars_at_a_bad_s3(s3: FaultyS3, fetched: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam's own client of S3, which no other test has: how often it is asked, and what it does with bad answers."""
    tars = write_tars(tmp_path / "tars", 6, photo_bytes=300_000, photos=2)
    s3.files().put(str(tars), "bucket/", recursive=True)
    s3.requests.clear()
    wanted = plan_of("s3://bucket/tars/*.tar", tmp_path / "one", 1, monkeypatch)
    assert s3.requests["HEAD"] == 6 and s3.requests["GET"] <= len(fetched) + 2  # and the listing
    image = next(iter(open_source("s3://bucket/tars/*.tar").images))
    assert read_location(image.location) == bytes([0]) * 300_000
    s3.share = 0.15
    assert plan_of("s3://bucket/tars/*.tar", tmp_path / "eight", 8, monkeypatch) == wanted
    assert sum(s3.faults.values()) > 3
