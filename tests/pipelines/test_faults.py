"""What goes wrong in long runs: kills, damaged files, full disks, sources that vanish. A rerun mends all of it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import KILLED, in_a_fork
from small_files import write_text
from soak_share import share_of
from tiny_commands import Cli, Pictures, digest, ok
from tiny_commands import extract as extract_store

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.common.locations import SourceGoneError, read_image
from roibeam.pipelines.data.shard_plan import PLAN_NAME, members_name

pytestmark = pytest.mark.faults


@pytest.fixture
def photos(pictures: Pictures, tmp_path: Path) -> Path:
    """A copy of the eight pictures, to be changed."""
    return Path(shutil.copytree(pictures.photos, tmp_path / "samples" / "images"))


def warnings_and_errors(result: Any) -> list[str]:
    assert "Traceback" not in result.err, result.err
    lines = [line for line in result.err.splitlines() if line.startswith("roibeam: ")]
    return [line for line in lines if not line.startswith("roibeam: extracting: ")]  # how far it is, on a slow machine


@pytest.mark.soak
@pytest.mark.parametrize("with_boxes", [False, True])
def test_a_kill_at_every_file_operation_is_mended_by_a_rerun(
    roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...], with_boxes: bool
) -> None:
    for path in sorted(photos.iterdir())[3:]:
        path.unlink()
    (photos / "bad.jpg").write_bytes(b"")
    options = [*tiny_network, "--threads", 1, "--shard-size", 2, "--max-failures", 1]
    if with_boxes:
        rows = [{"image_id": path.stem, "boxes": [[0, 0, 9, 9]] * i} for i, path in enumerate(sorted(photos.iterdir()))]
        (tmp_path / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options += ["--boxes", tmp_path / "boxes.jsonl"]

    def run(store: Path) -> None:
        ok(roibeam("extract", photos, store, *options))

    undisturbed, store = tmp_path / "undisturbed", tmp_path / "killed"
    code, steps = in_a_fork(lambda: run(undisturbed), undisturbed)
    assert code == 0 and len(steps) >= 30
    for step in share_of(range(1, len(steps) + 1), str(with_boxes)):
        shutil.rmtree(store, ignore_errors=True)
        assert in_a_fork(lambda: run(store), store, step)[0] == KILLED, steps[step - 1]
        run(store)
        whole = verify_store(store, deep=True) == [] and not list(store.glob(".*"))
        assert whole and digest(store) == digest(undisturbed), steps[step - 1]


def test_damaged_or_missing_files_are_extracted_again(roibeam: Cli, extract: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    run = (photos, out, "--shard-size", 2)
    assert extract(*run).code == 0
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
        done = extract(*run)
        assert done.code == 0 and "2 images extracted" in done.out, damage
        line, *others = warnings_and_errors(done)
        assert [other for other in others if "removed what a stopped run left" not in other] == []
        assert line.endswith("extracting its shard again") and f"part-{shard:05d}" in line
        assert digest(out) == before
        assert roibeam("store", "verify", out, "--deep").code == 0
    (out / "manifest.json").write_text("{")
    assert extract(*run).code == 0 and digest(out) == before


def test_a_shard_done_again_counts_anew(extract: Cli, photos: Path, tmp_path: Path) -> None:
    run = (photos, tmp_path / "store")
    ok(extract(*run))
    next((tmp_path / "store").glob("part-*.lmdb")).unlink()
    for path in sorted(photos.iterdir())[:7]:
        path.write_bytes(b"")
    done = extract(*run)
    assert done.code == 1 and "87.5 % of the images failed" in done.err
    assert "1 record " in done.out and "8 images extracted" in done.out


def test_left_over_temporary_files_stop_nothing_and_files_of_others_stay(
    extract: Cli, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    write_text(out / ".plan.json.1.ab.tmp", "{")  # killed while the very first file was written
    ok(extract(photos, out))
    for name in (".part-00000.json.1.ab.tmp", ".tmp-file", "part-00000.dead.lmdb", "notes.tmp"):
        (out / name).write_text("x")
    (out / ".tmp-link").symlink_to(photos)
    (out / ".tmp-0123abcd").mkdir()
    ok(extract(photos, out))
    assert not list(out.glob(".*")) and not (out / "part-00000.dead.lmdb").exists()
    assert (out / "notes.tmp").exists() and len(list(photos.iterdir())) == 8


def test_a_rerun_with_nothing_to_do_restates_nothing(extract: Cli, photos: Path, tmp_path: Path) -> None:
    """Where it adds a shard that was computed otherwise, it says so."""
    out = tmp_path / "store"
    ok(extract(photos, out, "--threads", 2))
    before = (out / "manifest.json").read_bytes()
    ok(extract(photos, out, "--threads", 1))
    assert (out / "manifest.json").read_bytes() == before
    shutil.copy(photos / "sample_00000.jpg", photos / "late.jpg")
    (line,) = warnings_and_errors(extract(photos, out, "--threads", 1))
    assert "shards were computed differently (threads [2, 1])" in line
    with FeatureStore(out) as store:
        assert store.fingerprint.numerics["threads"] == [2, 1]


def test_pipes_are_dead_letters_not_a_wait(extract: Cli, photos: Path, tmp_path: Path) -> None:
    os.mkfifo(photos / "pipe.jpg")
    (tmp_path / "list.tsv").write_text("a\tsample_00000.jpg\nb\tpipe.jpg\n")
    done = ok(extract(tmp_path / "list.tsv", tmp_path / "store", "--photos", photos, "--max-failures", "0.5"))
    assert "1 unreadable" in done.out


def test_a_source_that_vanishes_stops_the_run_instead_of_every_image(tmp_path: Path) -> None:
    write_text(tmp_path / "root" / "other", "x")
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
def test_damaged_plans_are_one_line(extract: Cli, pictures: Pictures, tmp_path: Path, damage: Any) -> None:
    """Where the copy is damaged too, or of an earlier version, which made none."""
    out = shutil.copytree(pictures.store, tmp_path / "store")
    (out / "plan" / "plan.json").unlink()
    plan = json.loads((out / PLAN_NAME).read_text())
    del plan["sha256"]
    damage(plan)
    (out / PLAN_NAME).write_text(json.dumps(plan))
    done = extract(pictures.photos, out)
    (line,) = warnings_and_errors(done)
    assert done.code == 1 and "plan.json: expected roibeam-plan version 1" in line


@pytest.fixture(scope="module")
def half_done(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]) -> Path:
    """Their store in three shards, the second unfinished; shared: tests take a copy."""
    store = tmp_path_factory.mktemp("half") / "store"
    extract_store(pictures.photos, store, *tiny_network, "--shard-size", "3")
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
    roibeam: Cli, extract: Cli, pictures: Pictures, half_done: Path, tmp_path: Path, name: str,
    damage: Callable[[bytes], bytes | None],
) -> None:  # fmt: skip
    """Also where part of the shards is finished; nothing finished is extracted again."""
    out = shutil.copytree(half_done, tmp_path / "store")
    whole = (out / name).read_bytes()
    hurt = damage(whole)
    (out / name).unlink() if hurt is None else (out / name).write_bytes(hurt)
    first = (out / "part-00000.json").read_bytes()
    done = extract(pictures.photos, out, "--shard-size", "3")
    lines = warnings_and_errors(done)
    assert done.code == 0 and (out / name).read_bytes() == whole, done.err
    assert len(lines) == (name != "plan/plan.json") and all(str(out / name) in line for line in lines), lines
    assert (out / "part-00000.json").read_bytes() == first and digest(out) == digest(pictures.store)
    assert roibeam("store", "verify", out, "--deep").code == 0


def test_images_of_a_damaged_plan_that_are_gone_from_the_source(
    roibeam: Cli, extract: Cli, photos: Path, tmp_path: Path
) -> None:
    """Records are never dropped: a finished shard is refused. What was not extracted yet is planned as it is now."""
    first, *others = sorted(photos.iterdir())
    out = tmp_path / "store"
    run = (photos, out, "--shard-size", "2")
    ok(extract(*run))
    before = digest(out)
    (out / members_name(0)).write_bytes(b"")
    aside = first.rename(tmp_path / first.name)
    done = extract(*run)
    *_, line = warnings_and_errors(done)
    assert done.code == 1 and "images of shard 0, whose file is damaged, are not in" in line
    aside.rename(first)
    ok(extract(*run))
    assert digest(out) == before

    (out / "manifest.json").unlink()
    for path in out.glob("part-00000.*"):
        path.unlink()
    (out / members_name(0)).write_bytes(b"")
    first.unlink()
    assert "shard 0: its 2 images are planned anew" in ok(extract(*run)).err
    ok(roibeam("store", "verify", out, "--deep"))
    with FeatureStore(out) as store:
        assert sorted(store.ids()) == [path.stem for path in others]


def test_a_second_run_at_once_is_refused(extract: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    out.mkdir()
    with store_lock(out):
        done = extract(photos, out)
    assert done.code == 1 and "another run is writing this store" in done.err
    assert extract(photos, out).code == 0
