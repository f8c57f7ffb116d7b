"""Sources that change, vanish or hang between plan and work, and outputs that cannot be written."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed_runs import BAD, Extraction, Letter, assert_mended, assert_one_line, dead_letters
from fail_points import DECODE, DETECT, MOVE, READ, FailPoint, delete, hang, kill, unmount

pytestmark = [pytest.mark.faults, pytest.mark.slow]
Mount = Callable[..., Path]


@pytest.fixture
def photos(faulty_photos: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(faulty_photos, tmp_path / "photos")


def planned(extraction: Extraction) -> None:
    """Leaves a plan, and no shard."""
    assert extraction.run(points=[FailPoint(READ, 1, kill)]).code == -9
    assert (extraction.store / "plan.json").exists()


def fresh(extraction: Extraction, source: Path) -> Path:
    """The store of an undisturbed run over what the source is now."""
    other = Extraction(source, extraction.folder / "fresh", extraction.folder, extraction.options)
    ended = other.run()
    assert ended.code == 0, ended.said
    return other.store


def test_photos_that_change_between_plan_and_work(photos: Path, tmp_path: Path) -> None:
    extraction = Extraction(photos, tmp_path / "store", tmp_path)
    planned(extraction)
    shutil.copy(photos / "sample_00001.jpg", photos / "sample_00000.jpg")  # another photo under its name
    cut = photos / "sample_00004.jpg"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    (photos / "sample_00005.jpg").rename(tmp_path / "away.jpg")
    dead: list[Letter] = [*BAD, ("sample_00004", "decode", "truncated"), ("sample_00005", "read", "not found")]
    rerun = assert_mended(extraction, fresh(extraction, photos), dead=dead)
    assert "1 image of earlier runs is not in the source now" in rerun.said
    # They come back: what was said of them is not for ever.
    cut.write_bytes(whole)
    (tmp_path / "away.jpg").rename(photos / "sample_00005.jpg")
    shutil.rmtree(tmp_path / "fresh")
    assert_mended(extraction, fresh(extraction, photos), dead=BAD, options=["--retry-dead-letters"])


def test_a_photo_that_is_deleted_while_the_run_is_on_its_way(photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    extraction = Extraction(photos, tmp_path / "store", tmp_path)
    victim = photos / "sample_00005.jpg"
    shutil.copy(victim, tmp_path / "copy.jpg")
    ended = extraction.run(points=[FailPoint(READ, 1, functools.partial(delete, victim))])
    assert ended.code == 0, ended.said
    assert dead_letters(extraction.store) == sorted([*BAD, ("sample_00005", "read", "not found")])
    shutil.copy(tmp_path / "copy.jpg", victim)
    assert_mended(extraction, undisturbed, dead=BAD, options=["--retry-dead-letters"])


def test_a_photo_folder_that_is_unmounted_in_the_middle(
    faulty_photos: Path, undisturbed: Path, tmp_path: Path, mount: Mount
) -> None:
    folder = mount("--bind", str(faulty_photos), "mounted")
    extraction = Extraction(folder, tmp_path / "store", tmp_path)
    ended = extraction.run(points=[FailPoint(READ, 4, functools.partial(unmount, folder))])
    assert_one_line(ended, f"the image folder {folder} has gone; mount it and run the same command")
    assert (extraction.store / "part-00000.json").exists()
    assert_one_line(extraction.run(), "no image")  # it is still away
    mount("--bind", str(faulty_photos), "mounted")
    assert_mended(extraction, undisturbed, dead=BAD)


@pytest.mark.parametrize("stage", [READ, DECODE])
def test_an_image_that_hangs(stage: str, faulty_photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    extraction = Extraction(faulty_photos, tmp_path / "store", tmp_path)
    ended = extraction.run("--load-timeout", "1", points=[FailPoint(stage, 2, hang)])
    assert ended.code == 0, ended.said
    (stuck,) = {line.split(": ")[-1] for line in ended.said.splitlines() if line.startswith("fail point: ")}
    assert dead_letters(extraction.store) == sorted([*BAD, (stuck, stage, "timeout")])
    assert_mended(extraction, undisturbed, dead=BAD, options=["--retry-dead-letters"])


def test_a_detector_that_hangs(faulty_photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    extraction = Extraction(faulty_photos, tmp_path / "store", tmp_path)
    ended = extraction.run("--detect-timeout", "2", points=[FailPoint(DETECT, 4, hang)])
    assert_one_line(ended, "the detector has not come back from image ")
    assert "terminate" not in ended.said and not list(extraction.store.glob(".tmp-*"))
    assert_mended(extraction, undisturbed, dead=BAD)


def test_a_list_that_changes_between_plan_and_work(faulty_photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in faulty_photos.iterdir())
    rows = [f"a drawing\t{name}\n" for name in names]
    captions = tmp_path / "list.tsv"
    captions.write_text("".join(rows[:-1]))
    options = ("--shard-size", "2", "--photos", str(faulty_photos))
    extraction = Extraction(captions, tmp_path / "store", tmp_path, options)
    planned(extraction)
    captions.write_text("")
    assert_one_line(extraction.run(), "list.tsv")
    captions.write_text("".join(rows[1:]))  # the first is gone but planned, the last is new
    rerun = assert_mended(extraction, undisturbed, dead=BAD)
    assert "1 image of earlier runs is not in the source now" in rerun.said


def test_an_output_that_is_read_only(faulty_photos: Path, undisturbed: Path, tmp_path: Path, mount: Mount) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=20m", "tmpfs", "disk")
    extraction = Extraction(faulty_photos, disk / "store", tmp_path)

    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)

    remount("ro")
    assert_one_line(extraction.run(), "Read-only file system")
    remount("rw")
    assert extraction.run(points=[FailPoint(MOVE, 3, kill)]).code == -9
    remount("ro")
    assert_one_line(extraction.run(), "Read-only file system")
    remount("rw")
    assert_mended(extraction, undisturbed, dead=BAD)
    remount("ro")
    assert_one_line(extraction.run(), "Read-only file system")
    remount("rw")
    assert_mended(extraction, undisturbed, dead=BAD)
