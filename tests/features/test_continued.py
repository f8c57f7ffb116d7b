"""Writers that go on with what a stopped one left: it stays as far as it is right, whatever it is."""

from pathlib import Path

import pytest

from roibeam.features.exchange.export_output import ContinuedFile, ContinuedFolder, atomic_path
from roibeam.features.exchange.lmdb_files import LmdbOutput

PIECES = [b"first line\n", b"second line\n", b"third line\n"]
WHOLE = b"".join(PIECES)


@pytest.mark.parametrize(
    "left", [b"", WHOLE[:4], WHOLE[:11], WHOLE[:20], WHOLE, WHOLE + b"more", b"FIRST LINE\nsecond line\n", b"\0" * 100]
)
def test_a_file_has_the_bytes_of_an_undisturbed_one(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(left)
    with ContinuedFile(path) as file:
        for piece in PIECES:
            file.write(piece)
    assert path.read_bytes() == WHOLE


def test_a_folder_keeps_right_files_and_loses_all_others(tmp_path: Path) -> None:
    for name, data in {"a": b"right", "b": b"torn", "old/c": b"of another store"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    before = (tmp_path / "a").stat().st_ino
    right = {"a": b"right", "b": b"torn no more", "d": b"new"}
    with ContinuedFolder(tmp_path) as output:
        for name, data in right.items():
            assert not output.is_taken(tmp_path / name)
            output.write(tmp_path / name, data)
            assert output.is_taken(tmp_path / name)
        with pytest.raises(FileExistsError):
            output.write(tmp_path / "a", b"again")
    assert (tmp_path / "a").stat().st_ino == before
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == right


def test_an_lmdb_that_was_killed_before_it_was_made_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"half a page")
    (tmp_path / "stray").mkdir()
    for _ in range(2):  # the second time all is there
        with LmdbOutput(tmp_path) as output:
            output.put(b"a", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]
    with pytest.raises(ValueError, match="is of another store or layout"), LmdbOutput(tmp_path) as output:
        output.put(b"a", b"2")
    with pytest.raises(ValueError, match="is of another store or layout"), LmdbOutput(tmp_path):
        pass  # fewer entries than there are


def test_ctrl_c_leaves_what_a_writer_can_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for goes_on, left in ((False, 0), (True, 1)):
        with pytest.raises(KeyboardInterrupt), atomic_path(path, goes_on=goes_on) as aside:
            aside.write_text("half")
            raise KeyboardInterrupt
        assert len(list(tmp_path.iterdir())) == left
    with atomic_path(path, goes_on=True) as aside:
        assert aside.read_text() == "half"
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "other", folder=True, goes_on=True):
        raise KeyboardInterrupt
    with atomic_path(tmp_path / "other", goes_on=True) as aside:  # a file now: the folder is of no use
        assert aside.is_file()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "other"]
