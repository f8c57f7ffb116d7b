"""`roibeam store export` and back: every format, what is left out, and exports that are killed."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from exchange_examples import measured
from forks import KILLED, in_a_fork
from store_examples import FINGERPRINT, make_record, write_shard
from tiny_commands import Cli, damage_record, ok

from roibeam.features.exchange.butd_tsv import FORMAT as TSV
from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.shard.layout import checksum
from roibeam.features.shard.manifest import ShardManifest, StoreManifest
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.extract.stores.store_export import export_store
from roibeam.pipelines.extract.stores.store_import import import_features

LOSE_NOTHING = ("parquet", "webdataset")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five images in two shards."""
    folder = tmp_path / "store"
    folder.mkdir()
    records = [measured(f"image{i}", 1 + i, seed=10 * i) for i in range(5)]
    write_shard(folder, 0, records[:3])
    write_shard(folder, 1, records[3:])
    publish_store(folder, [0, 1], fingerprint=FINGERPRINT, config={})
    return folder


def target(folder: Path, name: str) -> Path:
    suffixes = format_named(name).suffixes
    return folder / f"file{suffixes[0] if suffixes else ''}"


@pytest.mark.parametrize("name", FORMATS)
def test_export_and_import(roibeam: Cli, store: Path, tmp_path: Path, name: str) -> None:
    out = target(tmp_path, name)
    exported = json.loads(ok(roibeam("store", "export", store, out, "--format", name, "--json")).out)
    assert exported["records"] == exported["read_back"]["records"] == 5 and exported["read_back"]["problems"] == []
    assert exported["read_back"]["box_error_px"] <= (0.5 if name == "uniter-lmdb" else 0)
    assert exported["read_back"]["feature_error"] == 0 and exported["report"]["records"] == 5
    imported = json.loads(ok(roibeam("store", "import", out, tmp_path / "back", "--json")).out)
    assert imported["format"] == name and imported["records"] == 5 and imported["dead_letters"] == {}
    assert verify_store(tmp_path / "back", deep=True) == []
    with FeatureStore(store) as kept, FeatureStore(tmp_path / "back") as back:
        same = back.fingerprint == kept.fingerprint and back.manifest.content_digest == kept.manifest.content_digest
        assert same if name in LOSE_NOTHING else back.fingerprint.feature_space == f"imported:{name}"
        for record in kept:
            np.testing.assert_array_equal(back[record.image_id].features, record.features)
            same_classes = np.array_equal(back[record.image_id].class_ids, record.class_ids)
            assert same_classes or "classes" in exported["left_out"]
    if name != "uniter-lmdb":  # which has no image sizes
        found = json.loads(roibeam("store", "diff", store, out, "--json").out)
        assert found["num_same_box"] == 15 and found["feature_error"] == 0


@pytest.mark.parametrize("name", ["captioning-h5", "captioning-folders", "array-h5"])
def test_photos_of_coco_are_read_back_by_their_numbers(roibeam: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "store").mkdir()
    write_shard(tmp_path / "store", 0, [measured(f"COCO_val2014_{i:012}", 2, seed=i) for i in (9, 42)])
    publish_store(tmp_path / "store", [0], fingerprint=FINGERPRINT, config={})
    out = target(tmp_path, name)
    done = json.loads(ok(roibeam("store", "export", tmp_path / "store", out, "--format", name, "--json")).out)
    assert done["left_out"]["image id"] == 2 and done["read_back"]["records"] == 2
    assert done["read_back"]["box_error_px"] == done["read_back"]["feature_error"] == 0
    assert ("no image sizes" in str(done["report"]["doubts"])) == (name == "captioning-folders")
    with format_named(name).open(out) as file:
        assert list(file.ids()) == ["42", "9"]


def test_what_the_command_says(roibeam: Cli, store: Path, tmp_path: Path) -> None:
    done = roibeam("store", "export", store, tmp_path / "f.h5", "--format", "lxmert-h5")
    assert done.code == 0
    assert f"{tmp_path}/f.h5: 5 records as lxmert-h5, layout group-per-image" in done.out
    assert "lxmert-h5 has no place for class_distribution" in done.err  # before it writes
    assert "left out      class_distribution of 5 records" in done.out
    assert "read back     5 records; boxes within 0 px, features within 0 of the largest value" in done.out
    assert "regions       15, 1 to 5 per image, 0 images without" in done.out
    imported = roibeam("store", "import", tmp_path / "f.h5", tmp_path / "back")
    assert f"{tmp_path}/f.h5 (lxmert-h5):" in imported.out and "classes       obj_id: ids to" in imported.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["store", "f", "--format", "hdf5"], "no feature file format is called 'hdf5'"),
        (["store", "f", "--format", "lxmert-h5", "--layout", "x"], "lxmert-h5 has group-per-image"),
        (["store", "taken", "--format", "lxmert-h5"], "exists already"),
        (["store", "none/f", "--format", "lxmert-h5"], "there is no folder none"),
        (["store", "taken", "--format", "parquet"], "exists already"),
        (["store", "f.tar", "--format", "parquet"], "its name is that of another format's file"),
        (["store", "none/f", "--format", "webdataset"], "there is no folder none"),
        (["empty", "f", "--format", "lxmert-h5"], "holds no record"),
        (["empty", "f", "--format", "parquet"], "holds no record"),
        (["taken", "f", "--format", "lxmert-h5"], "taken"),
    ],
)
def test_refusals(roibeam: Cli, store: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(store.parent)
    Path("taken").write_text("keep me")
    Path("empty").mkdir()
    publish_store(Path("empty"), [], fingerprint=FINGERPRINT, config={})
    done = roibeam("store", "export", *arguments)
    assert done.code == 1 and words in done.err and done.err.count("\n") == 1, done
    assert Path("taken").read_text() == "keep me" and not Path("f").exists()


def test_other_features_and_distributions(roibeam: Cli, tmp_path: Path) -> None:
    """bfloat16, top-k distributions, a feature of the whole image; a name that imports as another format is forced."""
    folder = tmp_path / "store"
    folder.mkdir()
    kept = make_record(dtype="bfloat16", distribution="top-k", image_feature=True)
    write_shard(folder, 0, [kept])
    publish_store(folder, [0], fingerprint=FINGERPRINT, config={})
    out = tmp_path / "f.any"
    exported = json.loads(roibeam("store", "export", folder, out, "--format", "butd-tsv", "--json").out)
    assert exported["left_out"] == {"class_distribution": 1, "image_feature": 1}
    done = ok(roibeam("store", "import", out, tmp_path / "back", "--dtype", "float32", "--format", "butd-tsv"))
    with FeatureStore(tmp_path / "back") as back:
        np.testing.assert_array_equal(back["image"].features, kept.features.astype(np.float32))
    done = roibeam("store", "import", out, tmp_path / "other", "--format", "lxmert-h5")
    assert done.code == 1 and "is no whole HDF5 file" in done.err and not (tmp_path / "other").exists()


def test_a_store_without_classes_is_said_to_have_none(roibeam: Cli, tmp_path: Path) -> None:
    TSV.write([measured("a")], tmp_path / "f.tsv", layout="caffe")
    assert roibeam("store", "import", tmp_path / "f.tsv", tmp_path / "store").code == 0
    done = roibeam("store", "export", tmp_path / "store", tmp_path / "f.h5", "--format", "lxmert-h5")
    assert "the store has no classes: class ids and scores in the file mean nothing" in done.out
    assert roibeam("store", "export", tmp_path / "store", tmp_path / "f.parquet", "--format", "parquet").code == 0
    assert not {"class_ids", "class_scores", "classes"} & set(pq.read_schema(tmp_path / "f.parquet").names)
    assert roibeam("store", "import", tmp_path / "f.parquet", tmp_path / "back").code == 0
    digests = [StoreManifest.read(tmp_path / name / "manifest.json").content_digest for name in ("store", "back")]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in FORMATS for layout in format_named(name).layouts],
)
def test_an_imported_store_is_exported_in_the_layout_of_its_file(tmp_path: Path, name: str, layout: str) -> None:
    first, again = target(tmp_path, name), target(tmp_path / "again", name)
    again.parent.mkdir()
    format_named(name).write([measured("COCO_val2014_000000000042")], first, layout=layout)
    import_features(first, tmp_path / "store", format_name=name)
    assert export_store(tmp_path / "store", again, format_name=name).layout == layout


@pytest.mark.parametrize("name", ["lxmert-h5", "milvlg-npz", "mmf-npy", "butd-tsv"])
def test_an_export_killed_at_any_step_leaves_no_file_or_a_whole_one(store: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "undisturbed").mkdir()

    def export(out: Path, kill_at: int | None = None) -> tuple[int, list[str]]:
        return in_a_fork(lambda: export_store(store, out, format_name=name), out.parent, kill_at, reads=True)

    code, steps = export(tmp_path / "undisturbed" / "f")
    assert code == 0 and len(steps) >= 4
    found = format_named(name)
    for step in range(1, len(steps) + 1, max(len(steps) // 3, 1)):  # more of them: test_export_faults
        folder = tmp_path / f"killed{step}"
        folder.mkdir()
        assert export(folder / "f", step)[0] == KILLED
        if not (folder / "f").exists():
            assert export(folder / "f")[0] == 0
        assert [path.name for path in folder.iterdir()] == ["f"], "the next export removes what was left"
        with found.open(folder / "f") as file:
            assert file.num_entries == 5
    assert StoreManifest.read(store / "manifest.json").num_records == 5


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_record_is_not_exported(roibeam: Cli, store: Path, tmp_path: Path, name: str) -> None:
    """One bit of a feature, which only its checksum knows of."""
    damage_record(store, "image3")
    out = target(tmp_path, name)
    done = roibeam("store", "export", store, out, "--format", name)
    assert done.code == 1 and "'image3'" in done.err and "checksum" in done.err and not out.exists()


def test_a_record_that_no_lookup_finds_is_not_exported(roibeam: Cli, store: Path, tmp_path: Path) -> None:
    """A manifest that ends before it; an index whose hashes lead to other rows, with the right checksum."""
    path = store / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][1]["last_id"] = "image3"
    path.write_text(json.dumps(manifest))
    done = roibeam("store", "export", store, target(tmp_path, TSV.name), "--format", TSV.name)
    assert done.code == 1 and "does not lead to it" in done.err
    manifest["shards"][1]["last_id"] = "image4"
    path.write_text(json.dumps(manifest))
    shard = ShardManifest.read(store / "part-00001.json")
    data = bytearray((store / str(shard.data_file)).read_bytes())
    index = data[shard.index_offset : shard.index_offset + shard.index_bytes]
    index[48 + 64 : 48 + 72] = index[48 + 64 : 48 + 72][::-1]  # rows by hash
    index[40:48] = checksum([index[:40], index[48:]]).to_bytes(8, "little")
    data[shard.index_offset : shard.index_offset + shard.index_bytes] = index
    (store / str(shard.data_file)).write_bytes(data)
    done = roibeam("store", "export", store, target(tmp_path, TSV.name), "--format", TSV.name)
    assert done.code == 1 and "offset index" in done.err and "fault of roibeam" not in done.err
