"""What goes wrong in long runs: kills, damaged files, full disks, sources that vanish. A rerun mends all of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import run_script
from in_process import run_roibeam
from soak_share import SHARE
from tiny_commands import digest

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.locations import SourceGoneError, read_image
from roibeam.pipelines.data.shard_plan import members_path, plan_path
from roibeam.pipelines.toyworld.rendering import draw_samples

pytestmark = pytest.mark.faults
Cli = Callable[..., Any]
ROIBEAM = str(Path(sys.executable).parent / "roibeam")
HANGING_SCRIPT = Path(__file__).with_name("hanging_detector_run.py")
KILL_SCRIPT = Path(__file__).with_name("kill_at_every_step.py")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pictures; shared: read only."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_samples(folder, count=6)
    return folder / "images"


@pytest.fixture
def photos(drawn: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    return Path(shutil.copytree(drawn, tmp_path / "samples" / "images"))


@pytest.fixture(scope="module")
def finished(drawn: Path, tiny_network: tuple[str, ...]) -> Path:
    """The store of the drawn pictures; shared: tests take a copy."""
    assert run_roibeam("extract", drawn, drawn.parent / "finished", *tiny_network) == 0
    return drawn.parent / "finished"


def warnings_and_errors(result: Any) -> list[str]:
    assert "Traceback" not in result.err, result.err
    lines = [line for line in result.err.splitlines() if line.startswith("roibeam: ")]
    return [line for line in lines if not line.startswith("roibeam: extracting: ")]  # how far it is, on a slow machine


@pytest.mark.soak
@pytest.mark.parametrize("options", [[], ["--boxes"]])
def test_a_kill_at_every_file_operation_is_mended_by_a_rerun(tmp_path: Path, options: list[str]) -> None:
    done = run_script(KILL_SCRIPT, tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok\n") >= round(30 * SHARE) >= 1


def wait_for(found: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be disturbed"
        time.sleep(0.01)


def assert_told_what_goes_on(errors: str, shards: str, command: list[str], what: str = "interrupted") -> None:
    """One line, once, and it ends in what was typed."""
    kept = f"roibeam: {what}; {shards} finished and kept, what is in work is dropped; to go on: "
    (last,) = [line for line in errors.splitlines() if line.startswith(f"roibeam: {what}")]
    assert last == errors.splitlines()[-1] and last.startswith(kept)
    assert shlex.split(last.removeprefix(kept))[1:] == command[1:]


@pytest.mark.slow
@pytest.mark.parametrize("disturb", [signal.SIGKILL, signal.SIGINT])
def test_a_run_stopped_in_its_second_shard_goes_on_there(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...], disturb: signal.Signals
) -> None:
    many = tmp_path / "many"
    for copy in range(11):
        shutil.copytree(photos, many / f"{copy:02d}")
    options = (*tiny_network, "--shard-size", "22")
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    assert roibeam("extract", many, undisturbed, *options).code == 0

    command = [ROIBEAM, "extract", str(many), str(stopped), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def in_second_shard() -> bool:
        return (stopped / "part-00000.json").exists() and bool(list(stopped.glob(".tmp-*/data.lmdb")))

    wait_for(in_second_shard, process)
    process.send_signal(disturb)
    _, errors = process.communicate()
    if disturb == signal.SIGINT:
        assert process.returncode == 130
        assert_told_what_goes_on(errors, "1 of 3 shards", command)
        assert "Traceback" not in errors
    with pytest.raises(FileNotFoundError, match="has not finished"):
        FeatureStore(stopped)
    first = (stopped / "part-00000.json").read_bytes()

    assert roibeam("extract", many, stopped, *options).code == 0
    assert (stopped / "part-00000.json").read_bytes() == first
    assert not list(stopped.glob(".*"))
    assert roibeam("store", "verify", stopped, "--deep").code == 0
    assert digest(stopped) == digest(undisturbed)


@pytest.mark.slow
def test_a_run_whose_detector_does_not_come_back_ends(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "store"
    arguments = (*tiny_network, "--shard-size", "2")
    assert roibeam("extract", photos, undisturbed, *arguments).code == 0

    def start(*options: str) -> subprocess.Popen[str]:
        after = "3"  # the fourth photo is the second of the second shard
        command = [sys.executable, str(HANGING_SCRIPT), after, "extract", str(photos), str(out), *arguments, *options]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    # Ctrl-C while it computes.
    process = start()
    wait_for(lambda: (out / "part-00000.json").exists() and bool(list(out.glob(".tmp-*/data.lmdb"))), process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)  # the call itself would take 60
    assert process.returncode == 130 and "Traceback" not in errors and "terminate" not in errors
    assert_told_what_goes_on(errors, "1 of 3 shards", [str(HANGING_SCRIPT), *process.args[3:]])
    assert not list(out.glob(".tmp-*"))
    first = (out / "part-00000.json").read_bytes()

    # The watchdog.
    process = start("--detect-timeout", "2")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors and "terminate" not in errors
    assert "the detector has not come back from image " in errors.splitlines()[-1]
    assert not list(out.glob(".tmp-*"))

    assert roibeam("extract", photos, out, *arguments).code == 0
    assert (out / "part-00000.json").read_bytes() == first
    assert digest(out) == digest(undisturbed)


def test_damaged_and_missing_files_are_extracted_again(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    run = ("extract", photos, out, *tiny_network, "--shard-size", 2)
    assert roibeam(*run).code == 0
    before = digest(out)

    def truncate_manifest() -> None:
        (out / "part-00000.json").write_bytes((out / "part-00000.json").read_bytes()[:100])

    def remove_data() -> None:
        next(out.glob("part-00001.*.lmdb")).unlink()

    def cut_data() -> None:
        os.truncate(next(out.glob("part-00001.*.lmdb")), 4096)

    def damage_index() -> None:
        manifest = json.loads((out / "part-00002.json").read_text())
        with (out / manifest["data_file"]).open("r+b") as file:
            file.seek(manifest["index_offset"] + 64)
            file.write(b"\xff" * 8)

    for damage, shard in ((truncate_manifest, 0), (remove_data, 1), (cut_data, 1), (damage_index, 2)):
        damage()
        done = roibeam(*run)
        assert done.code == 0 and "2 images extracted" in done.out, damage
        line, *others = warnings_and_errors(done)
        assert [other for other in others if "removed what a stopped run left" not in other] == []
        assert line.endswith("extracting its shard again") and f"part-{shard:05d}" in line
        assert digest(out) == before
        assert roibeam("store", "verify", out, "--deep").code == 0
    (out / "manifest.json").write_text("{")
    assert roibeam(*run).code == 0 and digest(out) == before


def test_a_shard_done_again_counts_anew(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    run = ("extract", photos, out, *tiny_network)
    assert roibeam(*run).code == 0
    next(out.glob("part-*.lmdb")).unlink()
    for path in sorted(photos.iterdir())[:5]:
        path.write_bytes(b"")
    done = roibeam(*run)
    assert done.code == 1 and "83.3 % of the images failed" in done.err
    assert "1 record " in done.out and "6 images extracted" in done.out


def test_dead_letters_stay_until_they_are_retried(
    roibeam: Cli, photos: Path, finished: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    victim = photos / "sample_00004.jpg"
    good = victim.read_bytes()
    victim.write_bytes(good[:500])
    run = ("extract", photos, out, *tiny_network, "--shard-size", 2)
    assert roibeam(*run).code == 1
    victim.write_bytes(good)
    still = roibeam(*run)
    assert still.code == 1 and "--retry-dead-letters tries them again" in still.err
    retried = roibeam(*run, "--retry-dead-letters")
    assert retried.code == 0 and "1 image extracted" in retried.out  # not the other of its shard
    assert digest(out) == digest(finished)


def test_left_over_temporary_files_stop_nothing_and_files_of_others_stay(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    out.mkdir()
    (out / ".plan.json.1.ab.tmp").write_text("{")  # killed while the very first file was written
    assert roibeam("extract", photos, out, *tiny_network).code == 0
    for name in (".part-00000.json.1.ab.tmp", ".tmp-file", "part-00000.dead.lmdb", "notes.tmp"):
        (out / name).write_text("x")
    (out / ".tmp-link").symlink_to(photos)
    (out / ".tmp-0123abcd").mkdir()
    assert roibeam("extract", photos, out, *tiny_network).code == 0
    assert not list(out.glob(".*")) and not (out / "part-00000.dead.lmdb").exists()
    assert (out / "notes.tmp").exists() and len(list(photos.iterdir())) == 6


def test_a_rerun_with_nothing_to_do_restates_nothing(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    assert roibeam("extract", photos, out, *tiny_network, "--threads", 2).code == 0
    before = (out / "manifest.json").read_bytes()
    assert roibeam("extract", photos, out, *tiny_network, "--threads", 1).code == 0
    assert (out / "manifest.json").read_bytes() == before


def test_shards_computed_differently_are_warned_about(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    assert roibeam("extract", photos, out, *tiny_network, "--threads", 2).code == 0
    shutil.copy(photos / "sample_00000.jpg", photos / "late.jpg")
    done = roibeam("extract", photos, out, *tiny_network, "--threads", 1)
    (line,) = warnings_and_errors(done)
    assert "shards were computed differently (threads [2, 1])" in line
    with FeatureStore(out) as store:
        assert store.fingerprint.numerics["threads"] == [2, 1]


def test_pipes_are_dead_letters_not_a_wait(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    os.mkfifo(photos / "pipe.jpg")
    (tmp_path / "list.tsv").write_text("a\tsample_00000.jpg\nb\tpipe.jpg\n")
    options = ("--photos", photos, "--max-failures", "0.5", *tiny_network)
    done = roibeam("extract", tmp_path / "list.tsv", tmp_path / "store", *options)
    assert done.code == 0 and "1 unreadable" in done.out


def test_a_source_that_vanishes_stops_the_run_instead_of_every_image(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "other").write_text("x")
    with pytest.raises(FileNotFoundError):
        read_image(str(tmp_path / "root"), str(tmp_path / "root" / "gone.jpg"))
    (tmp_path / "root" / "other").unlink()  # an unmounted folder is an empty one
    with pytest.raises(SourceGoneError, match="has gone; mount it and run the same command"):
        read_image(str(tmp_path / "root"), str(tmp_path / "root" / "gone.jpg"))
    assert not issubclass(SourceGoneError, OSError)


@pytest.mark.parametrize(
    "damage",
    [
        lambda plan: plan.update(source=[]),
        lambda plan: plan["source"].update(location=3),
        lambda plan: plan["shards"][0].update(number="../x"),
        lambda plan: plan["shards"][0].update(num_images="3"),
        lambda plan: plan.update(shards=plan["shards"] * 2),
        lambda plan: plan.pop("settings"),
        lambda plan: plan.update(version=2),
    ],
)
def test_damaged_plans_are_one_line(
    roibeam: Cli,
    drawn: Path,
    finished: Path,
    tmp_path: Path,
    tiny_network: tuple[str, ...],
    damage: Callable[[Any], object],
) -> None:
    """Where the copy is damaged too, or of an earlier version, which made none."""
    out = shutil.copytree(finished, tmp_path / "store")
    (out / "plan" / "plan.json").unlink()
    plan = json.loads(plan_path(out).read_text())
    del plan["sha256"]
    damage(plan)
    plan_path(out).write_text(json.dumps(plan))
    done = roibeam("extract", drawn, out, *tiny_network)
    (line,) = warnings_and_errors(done)
    assert done.code == 1 and "plan.json: expected roibeam-plan version 1" in line


@pytest.fixture(scope="module")
def half_done(drawn: Path, finished: Path, tiny_network: tuple[str, ...]) -> Path:
    """The store in three shards, the second unfinished; shared: tests take a copy."""
    store = drawn.parent / "half"
    assert run_roibeam("extract", drawn, store, *tiny_network, "--shard-size", "2") == 0
    for path in (*store.glob("part-00001.*"), store / "manifest.json"):
        path.unlink()
    return store


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: None,
        lambda data: b"",
        lambda data: data[:-30],
        *(lambda data, part=part: flipped(data, int(len(data) * part)) for part in (0.01, 0.5, 0.999)),
    ],
)
@pytest.mark.parametrize("name", ["plan.json", "plan/plan.json", "plan/part-00000.jsonl", "plan/part-00001.jsonl"])
def test_a_damaged_file_of_the_plan_is_made_anew(
    roibeam: Cli, drawn: Path, finished: Path, half_done: Path, tmp_path: Path, tiny_network: tuple[str, ...],
    name: str, damage: Callable[[bytes], bytes | None],
) -> None:  # fmt: skip
    """Also where part of the shards is finished; nothing finished is extracted again."""
    out = shutil.copytree(half_done, tmp_path / "store")
    whole = (out / name).read_bytes()
    hurt = damage(whole)
    (out / name).unlink() if hurt is None else (out / name).write_bytes(hurt)
    first = (out / "part-00000.json").read_bytes()
    done = roibeam("extract", drawn, out, *tiny_network, "--shard-size", "2")
    lines = warnings_and_errors(done)
    assert done.code == 0 and (out / name).read_bytes() == whole, done.err
    assert len(lines) == (name != "plan/plan.json") and all(str(out / name) in line for line in lines), lines
    assert (out / "part-00000.json").read_bytes() == first and digest(out) == digest(finished)
    assert roibeam("store", "verify", out, "--deep").code == 0


def test_images_of_a_damaged_plan_that_are_gone_from_the_source(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    """Records are never dropped: a finished shard is refused. What was not extracted yet is planned as it is now."""
    first, *others = sorted(photos.iterdir())
    out = tmp_path / "store"
    options = (*tiny_network, "--shard-size", "2")
    assert roibeam("extract", photos, out, *options).code == 0
    before = digest(out)
    members_path(out, 0).write_bytes(b"")
    aside = first.rename(tmp_path / first.name)
    done = roibeam("extract", photos, out, *options)
    *_, line = warnings_and_errors(done)
    assert done.code == 1 and "images of shard 0, whose file is damaged, are not in" in line
    aside.rename(first)
    assert roibeam("extract", photos, out, *options).code == 0 and digest(out) == before

    (out / "manifest.json").unlink()
    for path in out.glob("part-00000.*"):
        path.unlink()
    members_path(out, 0).write_bytes(b"")
    first.unlink()
    done = roibeam("extract", photos, out, *options)
    assert done.code == 0 and "shard 0: its 2 images are planned anew" in done.err
    assert roibeam("store", "verify", out, "--deep").code == 0
    with FeatureStore(out) as store:
        assert sorted(store.ids()) == [path.stem for path in others]


def test_a_second_run_at_once_is_refused(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    out = tmp_path / "store"
    out.mkdir()
    with store_lock(out):
        done = roibeam("extract", photos, out, *tiny_network)
    assert done.code == 1 and "another run is writing this store" in done.err
    assert roibeam("extract", photos, out, *tiny_network).code == 0
