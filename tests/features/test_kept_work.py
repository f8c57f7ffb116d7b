"""Work on disk that a command goes on from: whole and as it was written, or made anew with a line."""

import json
import os
from pathlib import Path

import pytest
from hurt_files import Hurt, a_folder, a_pipe, flipped, written

from roibeam.features.folders.kept_work import (
    DamagedError,
    KeptFile,
    kept_work,
    read_summed_json,
    remove_unfinished,
    write_mark,
    write_summed_json,
)

MARK, ROWS = "part-00000.json", "part-00000.rows"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    with KeptFile(tmp_path / ROWS) as file:
        for _ in range(3):
            file.write(b"a row\n")
        file.finish()
    write_mark(tmp_path / MARK, "this", [file], counts={"rows": 3})
    return tmp_path / MARK


@pytest.mark.parametrize("name", [MARK, ROWS])
@pytest.mark.parametrize(
    "hurt",
    [
        flipped(0), flipped(0.6), flipped(0.9), a_pipe, a_folder,
        *map(written, (
            lambda data: b"", lambda data: data[:-1], lambda data: data + b" ", lambda data: bytes(len(data)),
            lambda data: b"{}", lambda data: b"[1]",
        )),
    ],
)  # fmt: skip
def test_damaged_work_is_made_anew_with_a_line(
    mark: Path, name: str, hurt: Hurt, caplog: pytest.LogCaptureFixture
) -> None:
    hurt(mark.with_name(name))
    assert kept_work(mark, "this") is None
    (record,) = caplog.records
    assert name in record.message and record.message.endswith("it is made anew") and not mark.exists()
    with KeptFile(mark.with_name(ROWS)) as file:  # whatever is in its place
        file.finish()
    write_mark(mark, "this", [file])
    assert kept_work(mark, "this") is not None and len(caplog.records) == 1


def test_whole_work_counts_for_its_question_alone(mark: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = kept_work(mark, "this", [ROWS])
    assert found is not None and found["counts"] == {"rows": 3}
    assert kept_work(mark, "other") is None and kept_work(mark, "this", ["more"]) is None
    assert not caplog.records and mark.exists()  # nothing is damaged
    mark.unlink()
    assert kept_work(mark, "this") is None and not caplog.records
    assert kept_work(mark, "this", [ROWS]) is None and f"{ROWS}: has no SHA-256" in caplog.text
    caplog.clear()
    mark.write_text(json.dumps({"asked": "this", "files": {}}))
    assert kept_work(mark, "this") is None and "has no SHA-256 in it; it is made anew" in caplog.text


def test_a_summed_object_is_json_of_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_summed_json(path, {"b": [1.5, "\u202e"]}, indent=2)
    assert read_summed_json(path) == ({"b": [1.5, "\u202e"]}, True)
    assert list(json.loads(path.read_text())) == ["sha256", "b"]
    path.write_text('{"b": 2}')  # an earlier version wrote no sum
    assert read_summed_json(path) == ({"b": 2}, False)
    path.write_text('{"sha256": "' + "0" * 64 + '",\n"b": 2}')
    with pytest.raises(DamagedError, match="its SHA-256 is not the one in it"):
        read_summed_json(path)


def test_what_is_not_finished_leaves_nothing_and_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    """Of the names that are given alone, and not of a process that lives."""
    with pytest.raises(KeyError), KeptFile(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyError
    assert not list(tmp_path.iterdir())
    names = [".a.json.99999999.tmp", ".a.json.99999999.0a1b2c3d.tmp", f".a.json.{os.getpid()}.0a1b2c3d.tmp"]
    kept = [f".a.json.{os.getppid()}.0a1b2c3d.tmp", ".b.json.99999999.tmp", "a.json", ".a.json.x.tmp"]
    for name in names + kept:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, r"a\.(json)")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
