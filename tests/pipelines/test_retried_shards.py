"""`extract --retry-dead-letters`: only failed images are computed, the other records are kept, through kills too."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from forks import KILLED, in_a_fork
from object_store import URL
from tiny_commands import Cli, damage_record, digest, ok

from roibeam.features.verify import verify_store
from roibeam.pipelines.toyworld.rendering import draw_samples

BROKEN = ("sample_00001", "sample_00004")  # of two of the three shards


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw_samples(tmp_path / "samples", count=9)
    folder = tmp_path / "samples" / "images"
    for name in BROKEN:
        (folder / f"{name}.jpg").rename(tmp_path / f"{name}.jpg")
        (folder / f"{name}.jpg").write_bytes(b"")
    return folder


@pytest.fixture
def extract(roibeam: Cli, photos: Path, tiny_network: tuple[str, ...]) -> Cli:
    given = (*tiny_network, "--threads", 1, "--shard-size", 3, "--max-failures", 1)
    return lambda store, *options: roibeam("extract", photos, store, *given, *options)


@pytest.fixture(params=["disk", pytest.param("URL", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, bucket: Path) -> tuple[str, Path]:
    """How the command names the store, and the folder that it is in."""
    store = bucket / "store"
    return (f"{URL}{store}" if request.param == "URL" else str(store)), store


def mend(photos: Path, *names: str) -> None:
    for name in names:
        shutil.copy(photos.parents[1] / f"{name}.jpg", photos / f"{name}.jpg")


def this_run(store: Path) -> tuple[int, int, int]:
    """Images that the last run extracted, records that it copied, and shards that it wrote."""
    told = json.loads((store / "run_summary.json").read_bytes())["this_run"]
    return told["images"], told["copied"], told["shards"]


def check_whole(store: Path, wanted: str) -> None:
    assert verify_store(store, deep=True) == [] and digest(store) == wanted
    assert len(list(store.glob("*.lmdb"))) == 3 and not list(store.glob("retried-*"))


def test_only_failed_images_are_computed(
    extract: Cli, photos: Path, place: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = place
    assert extract(url).code == 0
    whole_shard = next(store.glob("part-00002.*.lmdb"))
    mend(photos, BROKEN[0])
    done = extract(url, "--retry-dead-letters")
    assert done.code == 0 and "2 images extracted" in done.out and this_run(store) == (2, 4, 2)
    again = extract(url)
    assert "nothing to do" in again.out and this_run(store) == (0, 0, 0)

    # A record that is damaged meanwhile is none to copy.
    mend(photos, BROKEN[1])
    damage_record(store, "sample_00003")
    done = extract(url, "--retry-dead-letters")
    assert done.code == 0 and this_run(store) == (2, 1, 1) and "'sample_00003': " in done.err
    assert whole_shard.exists()
    assert extract(tmp_path / "fresh").code == 0
    check_whole(store, digest(tmp_path / "fresh"))
    for name in ("part-00000.json", "part-00001.json"):  # as one process computed them all
        own, fresh = (json.loads((folder / name).read_bytes()) for folder in (store, tmp_path / "fresh"))
        assert own["fingerprint"] == fresh["fingerprint"] and own["content_digest"] == fresh["content_digest"]


def test_kills_keep_records(roibeam: Cli, extract: Cli, photos: Path, place: tuple[str, Path], tmp_path: Path) -> None:
    """Between the moment a shard counts as unfinished and its new manifest; the rerun needs no option. The store can be
    read meanwhile, as it was."""
    url, store = place
    assert extract(url).code == 0
    before = digest(store)
    mend(photos, *BROKEN)

    def dies_at(name: str, *options: str) -> None:
        from roibeam.pipelines.extract import beam_extraction

        setattr(beam_extraction, name, lambda *_, **__: os._exit(KILLED))
        extract(url, *options)

    assert in_a_fork(lambda: dies_at("run_extraction", "--retry-dead-letters"), tmp_path)[0] == KILLED
    assert len(list(store.glob("retried-*.json"))) == 2 and len(list(store.glob("part-*.json"))) == 1
    problems = verify_store(store)
    assert {each.file for each in problems if not each.leftover} == {"part-00000.json", "part-00001.json"}
    assert not any(each.file.endswith(".lmdb") for each in problems)
    assert len(roibeam("store", "ids", url).out.splitlines()) == 7
    assert roibeam("store", "copy", url, tmp_path / "copy").code == 0 and digest(tmp_path / "copy") == before
    # Also when a rerun has finished its shards, and the next one has tidied.
    assert in_a_fork(lambda: dies_at("publish_run"), tmp_path)[0] == KILLED
    assert in_a_fork(lambda: dies_at("run_extraction"), tmp_path)[0] == KILLED
    assert len(list(store.glob("retried-*.json"))) == 2 and len(list(store.glob("part-*.json"))) == 3
    stats = [json.loads(path.read_bytes())["stats"] for path in sorted(store.glob("part-*.json"))]
    assert [each.get("copied") for each in stats] == [2, 2, None]
    assert roibeam("store", "copy", url, tmp_path / "again").code == 0 and digest(tmp_path / "again") == before
    assert extract(url).code == 0 and this_run(store) == (0, 0, 0)
    assert extract(tmp_path / "fresh").code == 0
    check_whole(store, digest(tmp_path / "fresh"))


def test_a_corrected_list_counts_for_what_was_not_extracted(
    roibeam: Cli, photos: Path, place: tuple[str, Path], tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    url, store = place
    samples = [0, 2, 3, 5, 6, 7]  # the whole ones

    def extract(rows: dict[str, tuple[str, str]], *options: str, to: object = url) -> Any:
        lines = [f"{image_id},{name}.jpg,{caption}" for image_id, (name, caption) in rows.items()]
        (tmp_path / "list.csv").write_text("\n".join(["image_id,image_path,caption", *lines, ""]))
        names = ("--photos", photos, "--threads", 1, "--shard-size", 3, "--max-failures", 1)
        done = ok(roibeam("extract", tmp_path / "list.csv", to, *names, *tiny_network, *options))
        return [line.removeprefix("note: ") for line in done.out.splitlines() if line.startswith("note: ")]

    def captions() -> dict[str, list[str]]:
        table = pq.read_table(store / "annotations.parquet").to_pydict()
        return dict(zip(table["image_id"], table["captions"], strict=True))

    rows = {letter: (f"sample_{number:05d}", f"a {letter}") for letter, number in zip("abcdef", samples, strict=True)}
    assert extract(rows | {"b": ("smaple_00002", "a typo"), "d": ("smaple_00005", "a typo")}) == []
    changed = " of earlier runs {} another location, captions or labels in the source now "
    stays = "; records, captions and labels stay as they were: extract into a new store to have those of now"
    now = rows | {"a": ("sample_00007", "another photo"), "c": (rows["c"][0], "another caption")}
    kept = f"2 images{changed.format('have')}(a, c){stays}"
    failed = "; they failed before: --retry-dead-letters tries them again as they are now"
    assert extract(now) == [f"2 images{changed.format('have')}(b, d){failed}", kept]
    assert this_run(store) == (0, 0, 0)
    taken = f"2 images{changed.format('have')}(b, d); this run takes these"
    assert extract(now, "--retry-dead-letters") == [taken, kept] and this_run(store) == (2, 4, 2)
    assert extract(now) == [kept] and verify_store(store, deep=True) == []
    assert captions() == {letter: [caption] for letter, (_, caption) in rows.items()}

    # As a run leaves it that did not come to the second shard.
    (store / "part-00001.json").unlink()
    now |= {"e": ("sample_00007", "an e"), "a": rows["a"], "c": rows["c"]}
    assert extract(now) == [f"1 image{changed.format('has')}(e); this run takes these"]
    assert this_run(store) == (3, 0, 1) and captions()["e"] == ["an e"] and verify_store(store, deep=True) == []
    extract(now, to=tmp_path / "fresh")
    assert digest(store) == digest(tmp_path / "fresh")


@pytest.mark.slow
@pytest.mark.soak(cases=True)
@pytest.mark.parametrize("share", range(8))
def test_killed_at_any_file_operation(extract: Cli, photos: Path, tmp_path: Path, share: int) -> None:
    store, before = tmp_path / "store", tmp_path / "before"
    assert extract(before).code == 0
    mend(photos, *BROKEN)
    assert extract(tmp_path / "fresh").code == 0
    wanted = digest(tmp_path / "fresh")

    def retry() -> None:
        assert extract(store, "--retry-dead-letters").code == 0

    shutil.copytree(before, store)
    _, steps = in_a_fork(retry, store)
    for kill_at in range(1 + share, len(steps) + 1, 8):
        shutil.rmtree(store)
        shutil.copytree(before, store)
        assert in_a_fork(retry, store, kill_at)[0] == KILLED, steps[kill_at - 1]
        rerun = extract(store, "--retry-dead-letters")
        assert rerun.code == 0, (steps[kill_at - 1], rerun.err)
        assert this_run(store)[0] <= 2, steps[kill_at - 1]
        check_whole(store, wanted)
