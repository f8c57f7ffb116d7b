"""Archives read in place: what they give, and what damaged, hostile and changed ones do."""

import io
import os
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from small_files import write_tar

from roibeam.extraction.photos.image_ref import PhotoReadError
from roibeam.pipelines.common import locations
from roibeam.pipelines.common.locations import (
    list_members,
    location_exists,
    moved_location,
    parse_location,
    read_location,
)
from roibeam.pipelines.data.source_kinds import open_source

FILES = {
    "a.jpg": b"first" * 300, "sub/é 🐱.jpg": b"second" * 400, "sub/" + "long-" * 40 + ".png": b"third",
    "tail.jpg": b"",
}  # fmt: skip


def write_zip(path: Path, files: Mapping[Any, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def members(path: Path) -> dict[str, str]:
    return {member.path: member.location for member in list_members(str(path), Counter())}


WRITERS: dict[str, Callable[[Path], Path]] = {
    "pax": lambda folder: write_tar(folder / "x.tar", FILES),
    "gnu": lambda folder: write_tar(folder / "x.tar", FILES, tarfile.GNU_FORMAT),
    "stored": lambda folder: write_zip(folder / "x.zip", FILES, zipfile.ZIP_STORED),
    "deflated": lambda folder: write_zip(folder / "x.zip", FILES),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_members_are_read_by_their_locations_alone(tmp_path: Path, writer: str) -> None:
    found = members(WRITERS[writer](tmp_path))
    assert {path: read_location(location) for path, location in found.items()} == FILES
    assert all(location_exists(location) for location in found.values())


def test_threads_read_one_zip_and_more_zips_than_stay_open(tmp_path: Path) -> None:
    zips = [write_zip(tmp_path / f"{i}.zip", {f"{j}.jpg": bytes([i, j]) * 5000 for j in range(9)}) for i in range(7)]
    wanted = {location: path for path in zips for location in members(path).values()}
    wrong: list[str] = []

    def read(seed: int) -> None:
        for location in random.Random(seed).choices(list(wanted), k=60):
            name = Path(location.partition("::")[0]).stem
            data = read_location(location)
            if data != bytes([int(wanted[location].stem), int(name)]) * 5000:
                wrong.append(location)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(read, range(6)))
    assert not wrong and len(locations._archives._open) <= locations.OPEN_ARCHIVES


def test_what_is_no_file_of_the_archive_is_left_out_and_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, kind in [
            ("link.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE), ("device.jpg", tarfile.CHRTYPE),
            ("pipe.jpg", tarfile.FIFOTYPE), ("folder.jpg", tarfile.DIRTYPE),
        ]:  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        for name in ("/root.jpg", "../up.jpg", "a/../../up.jpg", "bad\udcff.jpg", ".hidden.jpg", "./ok.jpg", "note.md"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    source = open_source(str(tmp_path / "x.tar"))
    assert [image.image_id for image in source.images] == ["ok"]
    assert source.notes == [
        "1 file without an image extension left out",
        "8 members of archives left out: 2 link, 4 path that leaves the archive, or not in UTF-8, 2 special file",
    ]
    link = zipfile.ZipInfo("link.jpg")
    link.external_attr, link.create_system = 0o120777 << 16, 3
    files = {link: b"/etc/passwd", "../up.jpg": b"x", "a/": b"", "a/ok.jpg": b"x"}
    source = open_source(str(write_zip(tmp_path / "x.zip", files)))
    assert [image.image_id for image in source.images] == ["a/ok"]
    assert "1 link, 1 path that leaves the archive" in source.notes[0]


@pytest.mark.parametrize("kept", [100, 700, 2000, 3072, 5000, 9000, -10240])
def test_a_cut_tar_is_refused_with_what_to_do(tmp_path: Path, kept: int) -> None:
    path = write_tar(tmp_path / "x.tar", FILES)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"x\.tar': not a tar archive, damaged or cut short.*fetch it again"):
        open_source(str(path))


def test_two_joined_tars_and_a_damaged_header_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.jpg": b"a", "b.jpg": b"b"})
    data = path.read_bytes()
    path.write_bytes(data + data)
    with pytest.raises(ValueError, match="more follows its end mark at byte 2048; were two archives joined"):
        open_source(str(path))
    path.write_bytes(data[:1024] + b"garbage" + data[1031:])
    with pytest.raises(ValueError, match="no header at byte 1024"):
        open_source(str(path))


def test_headers_that_lie_about_sizes_take_no_memory(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("a.jpg")
    huge.size = 2**40
    (tmp_path / "data.tar").write_bytes(huge.tobuf() + bytes(10240))
    names = tarfile.TarInfo("x")
    names.type, names.size = tarfile.GNUTYPE_LONGNAME, 2**33
    (tmp_path / "name.tar").write_bytes(names.tobuf() + bytes(10240))
    with (tmp_path / "name.tar").open("r+b") as file:
        file.truncate(2**34)  # a sparse file: the bytes are there to be read
    directory = bytearray(write_zip(tmp_path / "dir.zip", FILES).read_bytes())
    end = directory.rindex(b"PK\x05\x06")
    directory[end + 12 : end + 20] = struct.pack("<2I", 2**31 - 1, 0)
    (tmp_path / "dir.zip").write_bytes(directory)
    tracemalloc.start()
    for name in ("data.tar", "name.tar", "dir.zip"):
        with pytest.raises(ValueError, match=r"cut short|of a length that none has|its directory has more than"):
            open_source(str(tmp_path / name))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_a_bomb_in_a_zip_gives_no_more_than_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roibeam.pipelines.common.locations.MAX_FILE_BYTES", 2**20)
    path = write_zip(tmp_path / "x.zip", {"bomb.jpg": bytes(2**22)})
    (location,) = members(path).values()
    with pytest.raises(OSError, match="larger than 1048576 bytes"):
        read_location(location)
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(mark) + place
        data[at : at + 4] = struct.pack("<I", 1000)  # what it says of itself
    path.write_bytes(data)
    with pytest.raises(OSError, match="damaged or unusual member of a zip: Bad CRC-32"):
        read_location(location)


def test_a_wrong_sum_a_password_and_an_unknown_packing_are_failures_of_one_image(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {"a.jpg": b"photo" * 99, "b.jpg": b"fine"}, zipfile.ZIP_STORED)
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for place, value in ((whole.index(b"photo"), b"P"), (directory + 8, b"\x01"), (directory + 10, b"\x63")):
        path.write_bytes(whole[:place] + value + whole[place + 1 :])
        with pytest.raises(OSError, match="damaged or unusual member of a zip"):
            read_location(f"zip://a.jpg::{path}")
        assert read_location(f"zip://b.jpg::{path}") == b"fine"


def test_members_of_one_name_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("a.jpg", b"old"), ("a.jpg", b"newer")])
    with pytest.raises(ValueError, match=r"two images have the id 'a': 'tar://a\.jpg::"):
        open_source(str(tmp_path / "x.tar"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a.jpg", b"old")
        archive.writestr("a.jpg", b"newer")
    with pytest.raises(ValueError, match=r"two members are called 'a\.jpg'"):
        open_source(str(tmp_path / "x.zip"))


def test_a_tar_that_changed_after_planning_gives_a_reason_and_never_other_bytes(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.jpg": b"one" * 99, "b.jpg": b"two" * 99, "c.jpg": b"3"})
    planned = members(path)
    others: list[dict[str, bytes]] = [
        {"b.jpg": b"two" * 99, "a.jpg": b"one" * 99, "c.jpg": b"3"},  # another order, the same sizes
        {"a.jpg": b"one" * 98, "b.jpg": b"two" * 98},
        {"a.jpg": b"one" * 999},
    ]
    for files in others:
        write_tar(path, files)
        for name, location in planned.items():
            try:
                assert read_location(location) == files[name]
            except PhotoReadError as error:
                assert error.reason == "changed since planning" and "byte" in str(error)
    write_tar(path, others[0])
    for name in ("a.jpg", "b.jpg"):
        with pytest.raises(PhotoReadError, match="another member is there now"):
            read_location(planned[name])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_location(planned["a.jpg"])


def test_a_zip_that_was_written_anew_is_opened_anew(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {"a.jpg": b"old", "b.jpg": b"b"})
    assert read_location(f"zip://a.jpg::{path}") == b"old"
    write_zip(tmp_path / "y.zip", {"a.jpg": b"newer"})
    os.replace(tmp_path / "y.zip", path)
    assert read_location(f"zip://a.jpg::{path}") == b"newer"
    with pytest.raises(FileNotFoundError):
        read_location(f"zip://b.jpg::{path}")


@pytest.mark.parametrize("writer", ["pax", "gnu", "stored", "deflated"])
@pytest.mark.parametrize("seed", range(25))
def test_mutated_archives_are_a_clear_error_or_give_what_they_hold(tmp_path: Path, writer: str, seed: int) -> None:
    path = WRITERS[writer](tmp_path)
    data = bytearray(path.read_bytes())
    draw = random.Random(f"{writer} {seed}")
    for _ in range(draw.choice((1, 3, 20))):
        at = draw.randrange(len(data) + 1)
        if at == len(data) or draw.random() < 0.3:
            del data[at : at + draw.randrange(1, 600)]
        else:
            data[at] = draw.randrange(256)
    path.write_bytes(data)
    try:
        found = [image.location for image in open_source(str(path)).images]
    except ValueError as error:
        assert str(error).isprintable()
        return
    for location in found:
        try:
            assert len(read_location(location)) <= len(data) * 1200
        except OSError as error:
            assert str(error)


def test_locations_are_taken_apart_and_moved(tmp_path: Path) -> None:
    tar, plain = "tar://a b::c/d.jpg::/data/x.tar#512+1024", "/data/x.jpg"
    place = parse_location(tar)
    assert place is not None and (place.archive, place.member) == ("/data/x.tar", "a b::c/d.jpg")
    assert moved_location(tar, "/data", "/new") == "tar://a b::c/d.jpg::/new/x.tar#512+1024"
    assert moved_location("zip://a::/data/z.zip", "/data/", "gs://b/c/") == "zip://a::gs://b/c/z.zip"
    assert (moved_location(plain, "/data", "/new"), moved_location("/else/x", "/data", "/n")) == ("/new/x.jpg", None)
    for bad in ("tar://a::/x.tar", "zip://a.zip"):
        with pytest.raises(ValueError, match=r"expected (tar|zip)://MEMBER::ARCHIVE"):
            parse_location(bad)
    (tmp_path / "a#b").mkdir()
    with pytest.raises(ValueError, match="part an archive from its members; rename"):
        open_source(str(write_tar(tmp_path / "a#b" / "x.tar", FILES)))


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.zst"])
def test_compressed_tars_are_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / name).write_bytes(b"x")
    for location in (tmp_path / "f" / name, tmp_path / "f"):
        with pytest.raises(ValueError, match=r"cannot be read in place; unpack it to a folder, or .* x\.tar "):
            open_source(str(location))
