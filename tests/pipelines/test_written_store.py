"""Stores that `StoreWriter` wrote, used as any other: shown, copied, compared, exported, trained on; and writers killed
at their file operations."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import KILLED, in_a_fork
from soak_share import share_of
from tiny_commands import Cli, ok, tiny_run

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.features.writing import store_writer
from roibeam.features.writing.store_writer import StoreWriter
from roibeam.pipelines.data.captions.captioned_store import check_stores_agree
from roibeam.pipelines.data.vocabulary import known_classes

COLOURS = ("red", "blue", "green", "white")


def images(count: int, *, first: int = 0, labels: bool = True) -> list[dict[str, Any]]:
    """Rows for `write_store`: 4 regions of 16 values, two captions."""
    rows: list[dict[str, Any]] = []
    for number in range(first, first + count):
        draw = np.random.default_rng(number)
        corners = draw.random((4, 2)) * 100
        ids = draw.integers(0, 7, 4)
        said = f"a {COLOURS[ids[0] % 4]} thing beside a {COLOURS[ids[1] % 4]} one"
        row = {"image_id": f"i{number:02}", "height": 240, "width": 320, "captions": [said, "two things"]}
        row |= {"boxes": np.concatenate([corners, corners + 50], axis=1)}
        row |= {"features": draw.random((4, 16)).astype(np.float16)}
        rows.append(row | ({"class_ids": ids, "class_scores": draw.random(4)} if labels else {}))
    return rows


def write(store: Path, rows: list[dict[str, Any]], space: str = "my-detector", **settings: Any) -> StoreManifest:
    return store_writer.write_store(store, rows, feature_space=space, **settings)


def facts(roibeam: Cli, store: Path) -> dict[str, str]:
    """What `store info` shows."""
    done = ok(roibeam("store", "info", store))
    assert not re.search(r"\bNone\b|\?", done.out), done.out
    return {line[2:17].strip(): line[18:] for line in done.out.splitlines()[1:]}


def test_info_shows_what_was_given_and_leaves_out_the_rest(roibeam: Cli, tmp_path: Path) -> None:
    names = ["cat", "dog", "cow", "mat", "hat", "car", "bus"]
    write(tmp_path / "named", images(3), classes=names, shard_bytes=1)
    shown = facts(roibeam, tmp_path / "named")
    assert list(shown) == [
        "records", "regions", "dead letters", "shards", "captions", "features", "classes", "attributes", "written",
        "feature kind", "boxes, dtype", "feature space", "content digest",
    ]  # fmt: skip
    assert shown["classes"] == "7: cat, dog, cow, mat, ..." and shown["attributes"] == "none"
    assert shown["captions"] == "6 captions of 3 images, in annotations.parquet"
    assert (shown["written"], shown["feature space"]) == ("from Python, by StoreWriter", "imported:my-detector")
    write(tmp_path / "counted", images(3), num_classes=7)
    assert facts(roibeam, tmp_path / "counted")["classes"] == "7, ids only"
    write(tmp_path / "ids", images(3))
    assert facts(roibeam, tmp_path / "ids")["classes"] == "ids only"
    write(tmp_path / "bare", images(3, labels=False))
    assert facts(roibeam, tmp_path / "bare")["classes"] == "none: class ids and scores are 0 and mean nothing"
    write(tmp_path / "empty", [])
    assert "features" not in facts(roibeam, tmp_path / "empty")


def test_info_of_stores_whose_makers_told_little(roibeam: Cli, tmp_path: Path) -> None:
    for name, space in (("imported", "imported:x"), ("extracted", "0" * 64)):
        store = tmp_path / name
        store.mkdir()
        publish_store(store, [], fingerprint=Fingerprint(space), config={})
        shown = facts(roibeam, store)
        assert not {"source", "conventions", "selection", "numerics", "imported from", "features"} & set(shown)
        assert shown["classes"].startswith("ids only")


def test_a_written_store_is_shown_compared_exported_and_copied(roibeam: Cli, tmp_path: Path) -> None:
    write(tmp_path / "a", images(4), num_classes=7)
    write(tmp_path / "b", images(3, first=4), num_classes=7)
    wanted = write(tmp_path / "all", images(7), num_classes=7)
    shown = roibeam("store", "show", tmp_path / "a", "i02").out
    assert "caption two things" in shown and "#" in shown
    assert roibeam("store", "copy", tmp_path / "a", tmp_path / "b", tmp_path / "ab").code == 0
    merged = StoreManifest.read(tmp_path / "ab" / "manifest.json")
    assert merged.content_digest == wanted.content_digest and merged.config["num_classes"] == 7
    assert merged.annotations is not None and merged.annotations.captions == 14
    assert verify_store(tmp_path / "ab", deep=True) == []
    assert "copied from" in facts(roibeam, tmp_path / "ab")
    assert roibeam("store", "diff", tmp_path / "ab", tmp_path / "all").code == 0
    tsv = tmp_path / "all.tsv"
    assert roibeam("store", "export", tmp_path / "all", tsv, "--format", "butd-tsv").code == 0
    assert roibeam("store", "import", tsv, tmp_path / "back").code == 0
    assert roibeam("store", "diff", tmp_path / "back", tmp_path / "all").code == 0
    with pytest.raises(ValueError, match="holds shards of another run"):
        write(tmp_path / "ab", images(7), num_classes=7)
    assert roibeam("store", "repair", tmp_path / "all").code == 0


def test_a_broken_written_store_says_how_it_is_mended(roibeam: Cli, tmp_path: Path) -> None:
    manifest = write(tmp_path / "store", images(3))
    data = tmp_path / "store" / str(manifest.shards[0].data_file)
    data.write_bytes(data.read_bytes()[:-4096])
    done = roibeam("store", "repair", tmp_path / "store", "--photos", tmp_path)
    assert done.code == 1 and "was written by StoreWriter: delete part-*.json of a broken shard" in done.err


def test_stores_of_one_name_and_width_train_together_and_others_do_not(tmp_path: Path) -> None:
    write(tmp_path / "a", images(2), num_classes=7)
    write(tmp_path / "b", images(2, first=2))
    write(tmp_path / "other", images(2), "another")
    wide = [{**row, "features": np.ones((4, 17))} for row in images(2)]
    write(tmp_path / "wide", wide)
    a, b, other, wide_store = (FeatureStore(tmp_path / name) for name in ("a", "b", "other", "wide"))
    check_stores_agree([a, b])
    assert (known_classes(a, a["i00"]), known_classes(b, b["i02"])) == (7, None)
    with pytest.raises(ValueError, match="different feature spaces: imported:my-detector / imported:another"):
        check_stores_agree([a, other])
    with pytest.raises(ValueError, match="features have width 16 / 17"):
        check_stores_agree([a, wide_store])


@pytest.mark.parametrize("system", ["vlbert", pytest.param("visualbert", marks=pytest.mark.slow)])
def test_training_finds_captions_and_number_of_classes(roibeam: Cli, tmp_path: Path, system: str) -> None:
    write(tmp_path / "store", images(12, labels=system == "vlbert"), num_classes=7 if system == "vlbert" else None)
    words = ("--system", system, "--store", tmp_path / "store", *tiny_run(steps=2))
    done = ok(roibeam("pretrain", tmp_path / "run", *words))
    assert "24 of 24 captions joined" in done.out + done.err


# Killed

ROWS = images(9)


def write_all(folder: Path) -> None:
    """Nine images in three shards, as a user's loop writes them."""
    with StoreWriter(folder, feature_space="my-detector", shard_bytes=600) as writer:
        for row in ROWS:
            if row["image_id"] not in writer:
                writer.write(row["image_id"], **{name: value for name, value in row.items() if name != "image_id"})


def killed_at(tmp_path: Path, place: int, wanted: StoreManifest, *, grown: bool) -> None:
    """Kills a writer at a file operation and writes again: no lie in between, the same store after."""
    folder = tmp_path / f"killed{place}"
    if grown:
        write(folder, ROWS[:2])
    before = StoreManifest.read(folder / "manifest.json") if grown else None
    code, _ = in_a_fork(lambda: write_all(folder), folder, place)
    assert code == KILLED
    problems = [problem for problem in verify_store(folder, deep=True) if not problem.leftover]
    after = StoreManifest.read(folder / "manifest.json") if (folder / "manifest.json").exists() else None
    assert after in (None, before) or after.num_records == 9, place
    # A store that is there is whole, but for the moment between its table of captions and its manifest.
    assert [problem.file for problem in problems] in ([[], ["annotations.parquet"]] if after else [["manifest.json"]])
    write_all(folder)
    again = StoreManifest.read(folder / "manifest.json")
    assert (again.num_records, again.content_digest) == (9, wanted.content_digest), place
    assert again.annotations is not None and again.annotations.captions == 18, place
    assert verify_store(folder, deep=True) == [] and not list(folder.glob(".*")), place


def steps_of(tmp_path: Path, *, grown: bool) -> tuple[StoreManifest, list[str]]:
    folder = tmp_path / "undisturbed"
    if grown:
        write(folder, ROWS[:2])
    code, steps = in_a_fork(lambda: write_all(folder), folder)
    assert code == 0
    return StoreManifest.read(folder / "manifest.json"), steps


def test_killed_between_data_and_manifest_of_a_shard(tmp_path: Path) -> None:
    """The cheapest of the places below."""
    wanted, steps = steps_of(tmp_path, grown=False)
    at = r"os\.rename .*/\.part-00001\.json"
    place = next(number for number, step in enumerate(steps, 1) if re.match(at, step))
    killed_at(tmp_path, place, wanted, grown=False)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("grown", [False, True])
def test_killed_at_every_file_operation(tmp_path: Path, grown: bool) -> None:
    wanted, steps = steps_of(tmp_path, grown=grown)
    for place in share_of(range(1, len(steps) + 1), f"written {grown}"):
        killed_at(tmp_path, place, wanted, grown=grown)
