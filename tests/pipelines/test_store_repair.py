"""`roibeam store repair`: what it lists for each kind of damage, and that it extracts that and nothing else."""

import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from disturbed_runs import NETWORK
from forks import KILLED, in_a_fork
from in_process import run_roibeam
from soak_share import SHARE, share_of
from typer.testing import CliRunner, Result

from roibeam.features.shard.manifest import ShardManifest, StoreManifest
from roibeam.features.shard.reader import ShardReader
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.cli.store import repair_command
from roibeam.pipelines.extract.stores.store_check import find_damage
from roibeam.pipelines.extract.stores.store_import import import_features
from roibeam.pipelines.extract.stores.store_repair import RepairSource, repair_store, repair_text
from roibeam.pipelines.toyworld.rendering import draw_samples

# Shard 0: bad (a dead letter), sample 0, sample 1. Shard 1: samples 2, 3, 4. Shard 2: sample 5.
SHARDS = (("sample_00000", "sample_00001"), ("sample_00002", "sample_00003", "sample_00004"), ("sample_00005",))


def draw_photos(folder: Path) -> Path:
    draw_samples(folder / "samples", count=6)
    photos = folder / "samples" / "images"
    (photos / "bad.jpg").write_bytes(b"")
    return photos


def extract(photos: Path, store: Path) -> None:
    assert run_roibeam("extract", photos, store, *NETWORK, "--shard-size", "3", "--max-failures", "1") == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `samples/images` and the undamaged `store` made of them."""
    folder = tmp_path_factory.mktemp("repair")
    extract(draw_photos(folder), folder / "store")
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "store", tmp_path / "store"))


def repair(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(repair_command)
    return CliRunner().invoke(app, list(map(str, arguments)))


def as_json(*arguments: object) -> dict[str, Any]:
    result = repair(*arguments, "--json")
    assert isinstance(result.exception, SystemExit | None), result.exception
    return json.loads(result.stdout)


def manifest_of(store: Path, shard: int) -> ShardManifest:
    return ShardManifest.read(store / f"part-{shard:05d}.json")


def data_of(store: Path, shard: int) -> Path:
    return store / str(manifest_of(store, shard).data_file)


def overwrite(shard: int, image_id: str, part: str, data: bytes = b"XXXX") -> Callable[[Path], None]:
    """What writes `data` where a part of a record begins: its header, or its features."""
    field, behind = {"features": ("region_offset", 64)}.get(part, (part, 0))

    def write(store: Path) -> None:
        with ShardReader(data_of(store, shard), manifest_of(store, shard)) as reader:
            row = next(row for row in reader.index_rows() if row.key == image_id.encode())
        overwrite_file(data_of(store, shard), getattr(row, field) + behind, data)

    return write


def overwrite_file(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


flip_feature_bytes = overwrite(1, "sample_00003", "features", b"\xff\x3c\xff\x3c")
damage_a_region_header = overwrite(0, "sample_00001", "region_offset")
damage_a_meta_header = overwrite(0, "sample_00000", "meta_offset")


def damage_the_tree(store: Path) -> None:
    with ShardReader(data_of(store, 1), manifest_of(store, 1)) as reader:
        row = next(row for row in reader.index_rows() if row.key == b"sample_00002")
    overwrite_file(data_of(store, 1), row.meta_offset // 4096 * 4096, b"\xee" * 8)


def cut_data(store: Path) -> None:
    os.truncate(data_of(store, 1), 8192)


def remove_data(store: Path) -> None:
    data_of(store, 0).unlink()


def remove_shard_manifest(store: Path) -> None:
    (store / "part-00000.json").unlink()


def cut_shard_manifest(store: Path) -> None:
    os.truncate(store / "part-00001.json", 100)


def change_shard_manifest(store: Path) -> None:
    path = store / "part-00000.json"
    path.write_text(path.read_text().replace('"dead_letters": [', '"dead_letters":  ['))


def lose_a_whole_shard(store: Path) -> None:
    remove_data(store)
    remove_shard_manifest(store)


def damage_several(store: Path) -> None:
    flip_feature_bytes(store)
    data_of(store, 2).unlink()


@pytest.mark.parametrize(
    ("damage", "shards", "broken"),
    [
        (flip_feature_bytes, [1], ["sample_00003"]),
        (damage_a_region_header, [0], ["sample_00001"]),
        (damage_a_meta_header, [0], ["sample_00000"]),
        (cut_data, [1], SHARDS[1]),
        (remove_data, [0], SHARDS[0]),
        (lose_a_whole_shard, [0], SHARDS[0]),
        (damage_several, [1, 2], ["sample_00003", "sample_00005"]),
        # The records are whole and say themselves where they are: they are copied.
        (damage_the_tree, [1], []),
        (remove_shard_manifest, [0], []),
        (cut_shard_manifest, [1], []),
        (change_shard_manifest, [0], []),
    ],
)
def test_only_what_is_broken_is_extracted_again(
    whole: Path, store: Path, tmp_path: Path, damage: Callable[[Path], None], shards: list[int], broken: list[str]
) -> None:
    damage(store)
    found = as_json(store)
    assert repair(store).exit_code == 1
    assert [shard["shard"] for shard in found["shards"]] == shards
    assert [one["image_id"] for shard in found["shards"] for one in shard["broken"]] == list(broken)
    assert (found["broken"], found["missing"], found["dead_letters"]) == (len(broken), 0, 1)

    # The photos have moved, and only those that are needed are there: nothing else can have been read.
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "other.txt").touch()
    for image_id in broken:
        shutil.copy(whole / "samples" / "images" / f"{image_id}.jpg", moved)
    done = as_json(store, "--photos", moved)
    copied = sum(len(SHARDS[shard]) for shard in shards) - len(broken)
    assert (done["extracted"], done["copied"], done["lost"]) == (len(broken), copied, [])
    assert done["as_before"] and done["shards"] == len(shards)
    assert_equal_stores(store, whole / "store")
    for number in {0, 1, 2} - set(shards):
        name = f"part-{number:05d}.json"
        assert (store / name).read_bytes() == (whole / "store" / name).read_bytes()
    assert repair(store).exit_code == 0


def assert_equal_stores(store: Path, other: Path) -> None:
    assert verify_store(store, deep=True) == []
    assert not list(store.glob(".*"))
    manifests = [StoreManifest.read(folder / "manifest.json") for folder in (store, other)]
    assert manifests[0].content_digest == manifests[1].content_digest
    assert manifests[0].config == manifests[1].config and manifests[0].fingerprint == manifests[1].fingerprint
    for number in range(len(manifests[1].shards)):
        assert manifest_of(store, number).dead_letters == manifest_of(other, number).dead_letters


def test_a_whole_store_is_listed_as_such_and_nothing_is_written(whole: Path, store: Path) -> None:
    result = repair(store)
    assert result.exit_code == 0 and result.stdout == f"{store}: whole; 6 records, 1 dead letter\n"
    before = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    done = as_json(store, "--photos", whole / "samples" / "images")
    assert done["extracted"] == done["copied"] == 0 and done["as_before"]
    assert {path.name: path.stat().st_mtime_ns for path in store.iterdir()} == before


def test_the_list_for_people_names_each_image_and_says_what_to_do(whole: Path, store: Path) -> None:
    damage_several(store)
    lines = repair(store).stdout.splitlines()
    assert lines[0].startswith(f"part-00002.{manifest_of(store, 2).attempt}.lmdb: the data file of shard 2 is missing")
    assert lines[1].startswith("broken   sample_00003: region value has checksum ")
    assert lines[2].startswith("broken   sample_00005: part-00002.")
    assert lines[3] == (
        f"{store}: 2 broken images, 0 missing images, 1 dead letter; "
        f"`roibeam store repair {store} --photos {whole / 'samples' / 'images'}` extracts the images again"
    )


def test_features_of_another_network_are_refused_before_anything_is_written(whole: Path, store: Path) -> None:
    damage_several(store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    photos = whole / "samples" / "images"
    with pytest.raises(ValueError, match=r"holds other features .*weights.*nothing was written: give the weights"):
        repair_store(store, RepairSource(photos, weights="random:2"))
    with pytest.raises(ValueError, match=r"none of the photos is there .*--photos is the folder that was"):
        repair_store(store, RepairSource(whole / "samples"))
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def other_photos(whole: Path, folder: Path) -> Path:
    """Each sample's photo is that of the next one, in the old one's size."""
    folder.mkdir()
    photos = sorted((whole / "samples" / "images").glob("sample*.jpg"))
    for photo, following in zip(photos, [*photos[1:], photos[0]], strict=True):
        height, width = cv2.imread(str(photo)).shape[:2]
        cv2.imwrite(str(folder / photo.name), cv2.resize(cv2.imread(str(following)), (width, height)))
    return folder


def test_other_photos_under_the_names_of_broken_ones_are_not_taken(whole: Path, store: Path, tmp_path: Path) -> None:
    flip_feature_bytes(store)
    damage_a_region_header(store)
    before = {path.name: path.read_bytes() for path in store.glob("*.json")}
    wrong = other_photos(whole, tmp_path / "wrong")
    said = str(repair(store, "--photos", wrong).exception)
    assert f"{store}: 2 photos are not what the broken records were made of, the first 'sample_00001': " in said
    assert "regions have the place and class that they had in the record; nothing was published" in said
    assert {path.name: path.read_bytes() for path in store.glob("*.json")} == before
    small = cv2.imread(str(wrong / "sample_00000.jpg"))[:40, :50]
    cv2.imwrite(str(wrong / "sample_00003.jpg"), small)
    shutil.copy(whole / "samples" / "images" / "sample_00001.jpg", wrong)  # its shard is done, and waits
    with pytest.raises(ValueError, match=r"1 photo is not .* 'sample_00003': the photo has 50 x 40 pixels, that of"):
        repair_store(store, RepairSource(wrong))
    result = repair(store, "--photos", whole / "samples" / "images")
    assert result.exit_code == 0 and "\n1 record extracted with the digest that it had before\n" in result.stdout
    assert_equal_stores(store, whole / "store")


@pytest.mark.parametrize(("damage", "doubtful"), [(damage_a_meta_header, SHARDS[0][:1]), (remove_data, SHARDS[0])])
def test_what_cannot_be_compared_and_is_not_what_it_was_is_named(
    whole: Path, store: Path, tmp_path: Path, damage: Callable[[Path], None], doubtful: tuple[str, ...]
) -> None:
    damage(store)
    result = repair(store, "--photos", other_photos(whole, tmp_path / "wrong"))
    assert result.exit_code == 1
    assert re.findall(
        r"^doubtful (\w+): .*though it was computed in the same way; is the photo", result.stdout, re.M
    ) == [*doubtful]
    assert list(manifest_of(store, 0).stats["doubtful"]) == [*doubtful]


def test_a_shard_is_repaired_as_it_was_made_and_not_as_the_last_run_was(whole: Path, store: Path) -> None:
    """As after a second run for more photos, in a faster mode and with smaller photos only."""
    content = json.loads((store / "manifest.json").read_text())
    content["config"]["detector"] |= {"mode": "bf16", "threads": None}
    content["config"]["options"]["max_pixels"] = 100
    (store / "manifest.json").write_text(json.dumps(content))
    flip_feature_bytes(store)
    remove_data(store)
    done = as_json(store, "--photos", whole / "samples" / "images")
    assert (done["same_digest"], done["close"], done["not_compared"], done["lost"]) == (3, 0, 0, [])
    assert done["as_before"] and manifest_of(store, 1).fingerprint == manifest_of(whole / "store", 1).fingerprint


def test_another_mode_gives_the_same_regions_in_other_digits(whole: Path, store: Path) -> None:
    flip_feature_bytes(store)
    path = store / "part-00001.json"
    content = json.loads(path.read_text())
    content["fingerprint"]["numerics"]["torch"] = "0.1"
    path.write_text(json.dumps(content))
    listed = json.loads((store / "manifest.json").read_text())
    listed["shards"][1]["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (store / "manifest.json").write_text(json.dumps(listed))
    source = RepairSource(whole / "samples" / "images")
    with pytest.MonkeyPatch.context() as patch:  # another version of torch
        patch.setattr("roibeam.pipelines.extract.stores.repaired_shards.record_digest", lambda record: b"")
        summary = repair_store(store, source)
    assert (summary.compared.same, summary.compared.close, summary.compared.doubtful) == (0, 1, {})
    assert "1 record with the same regions as before, in other digits" in repair_text(store, summary)


def test_a_photo_that_is_gone_becomes_a_dead_letter_and_is_told(whole: Path, store: Path, tmp_path: Path) -> None:
    remove_data(store)
    photos = Path(shutil.copytree(whole / "samples" / "images", tmp_path / "photos"))
    (photos / "sample_00001.jpg").unlink()
    result = repair(store, "--photos", photos)
    assert result.exit_code == 1
    assert "lost     sample_00001: not found (no such file)\n" in result.stdout
    assert "5 records, 2 dead letters; its content digest is another one now" in result.stdout
    assert verify_store(store, deep=True) == []
    # The photo is back: the dead letters of its shard are read, and the other one fails again.
    done = as_json(store, "--photos", whole / "samples" / "images", "--retry-dead-letters")
    assert (done["extracted"], done["retried"], done["records"], done["dead_letters"]) == (2, 1, 6, 1)
    assert_equal_stores(store, whole / "store")


def test_dead_letters_are_tried_one_by_one_and_may_fail_again(whole: Path, store: Path, tmp_path: Path) -> None:
    photos = Path(shutil.copytree(whole / "samples" / "images", tmp_path / "photos"))
    before = {path.name: path.read_bytes() for path in store.glob("*.json")}
    plan = json.loads((store / "plan.json").read_text())
    done = as_json(store, "--photos", plan["source"]["image_root"], "--retry-dead-letters")
    assert (done["extracted"], done["shards"], done["retried"]) == (1, 0, 0)
    assert {path.name: path.read_bytes() for path in store.glob("*.json")} == before and not list(store.glob(".*"))

    shutil.copy(photos / "sample_00000.jpg", photos / "bad.jpg")
    done = as_json(store, "--photos", photos, "--retry-dead-letters")
    assert (done["extracted"], done["copied"], done["retried"], done["dead_letters"]) == (1, 2, 1, 0)
    assert not done["as_before"] and verify_store(store, deep=True) == []
    with FeatureStore(store) as opened:
        np.testing.assert_array_equal(opened["bad"].features, opened["sample_00000"].features)


def test_an_interrupted_repair_leaves_the_store_as_it_was_and_the_next_one_goes_on(whole: Path, store: Path) -> None:
    damage_several(store)
    before = {path.name: path.read_bytes() for path in store.glob("*.json")}
    problems = verify_store(store, deep=True)

    def interrupt(message: str, *_: object) -> None:
        """Ctrl-C, when the first shard is reported as done; not where the device is told."""
        if message.startswith("shard"):
            raise KeyboardInterrupt

    logger = logging.getLogger("roibeam.pipelines.extract.stores.repaired_shards")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(logger, "info", interrupt)
        repair_store(store, RepairSource(whole / "samples" / "images"))
    assert {path.name: path.read_bytes() for path in store.glob("*.json")} == before
    assert [problem for problem in verify_store(store, deep=True) if not problem.leftover] == problems

    done = as_json(store, "--photos", whole / "samples" / "images")
    assert (done["extracted"], done["copied"], done["shards"]) == (1, 0, 2)  # sample 5; shard 1 was waiting
    assert_equal_stores(store, whole / "store")


def test_a_newer_attempt_that_the_store_manifest_does_not_list_counts(whole: Path, store: Path) -> None:
    """As a repair or run leaves it that was killed between a shard's manifest and the store's."""
    old = (store / "manifest.json").read_bytes()
    cut_data(store)
    repair_store(store, RepairSource(whole / "samples" / "images"))
    (store / "manifest.json").write_bytes(old)
    damage = find_damage(store)
    assert damage.is_stale and not damage.damaged
    result = repair(store)
    assert result.exit_code == 1 and "manifest.json does not list the shards as they are" in result.stdout
    done = as_json(store, "--photos", whole / "samples" / "images")
    assert (done["extracted"], done["copied"]) == (0, 0)
    assert_equal_stores(store, whole / "store")


def test_planned_images_without_record_or_dead_letter_are_missing(whole: Path, store: Path) -> None:
    """As a run leaves a grown plan that was killed before its new shard was done."""
    path = store / "manifest.json"
    content = json.loads(path.read_text())
    last = content["shards"].pop()
    content["num_records"] -= last["num_records"]
    content["num_regions"] -= last["num_regions"]
    path.write_text(json.dumps(content))
    data_of(store, 2).unlink()
    (store / "part-00002.json").unlink()
    found = as_json(store)
    assert (found["broken"], found["missing"]) == (0, 1)
    assert found["shards"][0]["missing"] == ["sample_00005"]
    done = as_json(store, "--photos", whole / "samples" / "images")
    assert (done["extracted"], done["copied"], done["records"]) == (1, 0, 6)
    assert_equal_stores(store, whole / "store")


def test_imported_stores_are_listed_and_sent_to_their_source(tmp_path: Path) -> None:
    store = tmp_path / "imported"
    from butd_tsv_examples import LXMERT, fields, line

    source = tmp_path / "x.tsv"
    source.write_bytes(b"".join(line(LXMERT, fields(name, num_regions=1)) for name in "abc"))
    import_features(source, store, shard_size=2)
    assert repair(store).exit_code == 0
    overwrite(0, "b", "features", b"\xff\x3c")(store)
    data_of(store, 1).unlink()
    found = as_json(store)
    assert [one["image_id"] for one in found["shards"][0]["broken"]] == ["b"]
    assert (found["broken"], found["shards"][1]["unnamed"]) == (2, 1)
    assert "1 lost record whose ids only the source knows" in repair(store).stdout
    with pytest.raises(ValueError, match=r"was imported: import it again .*`roibeam store import .*x.tsv NEW`"):
        repair_store(store, RepairSource(tmp_path))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda store: (store / "manifest.json").unlink(), r"holds no manifest\.json"),
        (lambda store: (store / "plan.json").unlink(), r"plan\.json is missing, so the images"),
        (lambda store: os.truncate(store / "plan" / "part-00001.jsonl", 40), r"part-00001\.jsonl: .*makes it anew"),
    ],
)
def test_without_plan_or_manifest_one_line_says_so(store: Path, damage: Callable[[Path], None], match: str) -> None:
    (store / "plan" / "plan.json").unlink()
    damage(store)
    with pytest.raises(ValueError, match=match):
        find_damage(store)


def test_options_of_a_repair_need_the_photos(store: Path) -> None:
    assert "--retry-dead-letters is for a repair: give --photos" in str(repair(store, "--retry-dead-letters").exception)
    assert "--device is for a repair" in str(repair(store, "--device", "cpu").exception)


@pytest.mark.soak
def test_a_kill_at_every_file_operation_is_mended(whole: Path, tmp_path: Path, one_thread: None) -> None:
    """Of which a share of the soak may be enough."""
    store, source = tmp_path / "store", RepairSource(whole / "samples" / "images")

    def run(kill_at: int | None = None) -> tuple[int, list[str]]:
        return in_a_fork(lambda: sys.exit(bool(repair_store(store, source).lost)), store, kill_at)

    def damage() -> None:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(whole / "store", store)
        damage_several(store)

    damage()
    code, steps = run()
    assert code == 0
    chosen = share_of(range(1, len(steps) + 1), "repair")
    assert len(chosen) >= round(20 * SHARE) >= 1
    for step in chosen:
        damage()
        assert (run(step)[0], run()[0]) == (KILLED, 0), steps[step - 1]
        assert_equal_stores(store, whole / "store")
