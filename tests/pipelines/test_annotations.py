"""Captions and labels of a store: written with it, checked, shown, carried by copies, trained on."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_commands import Cli, ok, one_line, tiny_run
from toy_training import log_of

from roibeam.features.annotations import Annotation, write_annotations
from roibeam.features.folders.durable_files import write_json_atomically
from roibeam.features.shard.manifest import ANNOTATIONS_NAME, StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.data.captions.caption_files import annotation_of, read_annotations
from roibeam.pipelines.toyworld.rendering import draw_samples

TINY_MODEL = tiny_run(steps=3)
Words = tuple[object, ...]
Samples, Store = tuple[Path, Path], tuple[Path, Words]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Six pictures, the third of which cannot be read, and captions of the first five."""
    folder = tmp_path_factory.mktemp("samples")
    captions = draw_samples(folder, count=6)
    content = json.loads(captions.read_text())
    last = content["images"][-1]["id"]
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] != last]
    content["annotations"] += [{**content["annotations"][0], "id": 1000, "caption": "another of the first\x1b[1m"}]
    captions.write_text(json.dumps(content))
    (folder / "images" / content["images"][2]["file_name"]).write_bytes(b"no picture")
    return folder / "images", captions


@pytest.fixture
def store(roibeam: Cli, samples: Samples, tmp_path: Path, tiny_network: Words) -> Store:
    """A copy of the store of these pictures, two in a shard, and the command that goes on with it."""
    made = samples[0].parent / "store"
    options = ("--captions", samples[1], "--shard-size", 2, "--max-failures", 1, *tiny_network)
    if not made.exists():
        done = ok(roibeam("extract", samples[0], made, *options))
        assert "note: 6 of 6 captions joined (6 by id); 5 of 5 captioned images found" in done.out
        assert "note: 1 image without caption: sample_00005" in done.out
    shutil.copytree(made, tmp_path / "store")
    return tmp_path / "store", ("extract", samples[0], tmp_path / "store", *options)


def rows_of(path: Path) -> list[Annotation]:
    with FeatureStore(path) as store:
        return list(read_annotations(store))


def test_a_store_keeps_captions_of_images_with_a_record(roibeam: Cli, store: Store, samples: Samples) -> None:
    path, command = store
    said = json.loads(samples[1].read_text())
    texts = {each["image_id"]: each["caption"] for each in reversed(said["annotations"])}
    ids = {image["id"]: Path(image["file_name"]).stem for image in said["images"]}
    expected = [Annotation(ids[number], (text,), ()) for number, text in texts.items()]
    expected = sorted(row for row in expected if row.image_id != "sample_00002")  # which gave no record
    expected[0] = expected[0]._replace(captions=(*expected[0].captions, "another of the first\x1b[1m"))
    assert rows_of(path) == expected
    manifest = StoreManifest.read(path / "manifest.json")
    assert manifest.annotations is not None and manifest.config["captions"]["joined"] == 6
    counts = manifest.annotations.rows, manifest.annotations.captions, manifest.annotations.labels
    assert counts == (4, 5, 0) and manifest.annotations.bytes == (path / ANNOTATIONS_NAME).stat().st_size
    assert pq.ParquetFile(path / ANNOTATIONS_NAME).metadata.num_row_groups == 3  # a shard in memory at a time
    assert "captions        5 captions of 4 images, in annotations.parquet" in roibeam("store", "info", path).out
    shown = roibeam("store", "show", path, "sample_00000")
    assert f"caption {expected[0].captions[0]}" in shown.out and r"another of the first\x1b[1m" in shown.out
    told = json.loads(roibeam("store", "show", path, "sample_00000", "--json").out)
    assert told["captions"] == list(expected[0].captions) and told["labels"] == []
    assert "caption" not in roibeam("store", "show", path, "sample_00005").out
    for options in ([], ["--deep"]):
        assert roibeam("store", "verify", path, *options).code == 0
    before = (path / "manifest.json").read_bytes()
    assert roibeam(*command).code == 0
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_the_digest_of_a_store_is_that_of_its_records(
    roibeam: Cli, store: Store, tmp_path: Path, samples: Samples, tiny_network: Words
) -> None:
    plain = roibeam("extract", samples[0], tmp_path / "plain", "--max-failures", 1, *tiny_network)
    assert plain.code == 0 and not (tmp_path / "plain" / ANNOTATIONS_NAME).exists()
    one, other = (StoreManifest.read(path / "manifest.json") for path in (store[0], tmp_path / "plain"))
    assert one.content_digest == other.content_digest and other.annotations is None
    assert "annotations" not in json.loads((tmp_path / "plain" / "manifest.json").read_text())
    assert "captions        none" in roibeam("store", "info", tmp_path / "plain").out


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda table: table.unlink(),
    "cut": lambda table: table.write_bytes(table.read_bytes()[:-9]),
    "stale": lambda table: write_annotations(table.parent, [[Annotation("sample_00000", ("of another run",), ())]]),
}


@pytest.mark.parametrize(
    "how", [pytest.param("missing", marks=pytest.mark.slow), pytest.param("cut", marks=pytest.mark.slow), "stale"]
)
def test_a_damaged_table_is_one_line_and_written_again(roibeam: Cli, store: Store, tmp_path: Path, how: str) -> None:
    path, command = store
    before = rows_of(path)
    DAMAGE[how](path / ANNOTATIONS_NAME)
    words = "No such file" if how == "missing" else "is damaged or of another run"
    for line in (
        one_line(roibeam("store", "show", path)),
        one_line(roibeam("pretrain", tmp_path / "run", "--store", path, *TINY_MODEL)),
        one_line(roibeam("store", "copy", path, tmp_path / "copy")),
    ):
        assert ANNOTATIONS_NAME in line and words in line
    verified = roibeam("store", "verify", path)
    assert verified.code == 1 and f"{ANNOTATIONS_NAME}: {words}" in verified.out and "1 problem" in verified.out
    assert roibeam(*command).code == 0
    assert rows_of(path) == before and roibeam("store", "verify", path, "--deep").code == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([Annotation("sample_00002", ("of no record",), ())], "a row is of 'sample_00002', which has no record"),
        ([Annotation("sample_00000", (), ())], "the row of 'sample_00000' is empty"),
        ([Annotation("sample_00000", ("a",), ())] * 2, "it has 2 captions and 0 labels of 1 images"),
    ],
)
def test_deep_verification_reads_the_rows(roibeam: Cli, store: Store, rows: list[Annotation], words: str) -> None:
    restate(store[0], rows)
    assert roibeam("store", "verify", store[0]).code == 0
    verified = roibeam("store", "verify", store[0], "--deep")
    assert verified.code == 1 and words in verified.out


def restate(path: Path, rows: list[Annotation]) -> None:
    """Another table, and a manifest that names it."""
    manifest = StoreManifest.read(path / "manifest.json")
    entry = write_annotations(path, [rows])
    write_json_atomically(path / "manifest.json", replace(manifest, annotations=entry).to_json())


def test_a_table_of_other_columns_is_one_line(roibeam: Cli, store: Store, tmp_path: Path) -> None:
    path = store[0]
    pq.write_table(pa.table({"image_id": ["sample_00000"], "captions": ["no list"]}), path / ANNOTATIONS_NAME)
    data = (path / ANNOTATIONS_NAME).read_bytes()
    manifest = StoreManifest.read(path / "manifest.json")
    assert manifest.annotations is not None
    entry = replace(manifest.annotations, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    write_json_atomically(path / "manifest.json", replace(manifest, annotations=entry).to_json())
    line = one_line(roibeam("pretrain", tmp_path / "run", "--store", path, *TINY_MODEL))
    assert "its columns are image_id, captions, expected" in line
    assert ANNOTATIONS_NAME in one_line(roibeam("store", "show", path))


def test_manifest_entries_of_another_shape_are_refused(store: Store) -> None:
    content = json.loads((store[0] / "manifest.json").read_text())
    for change, words in (
        ({"file": "../x"}, "annotations: file must be a plain file name"),
        ({"rows": -1}, "annotations: rows must be an integer from 0"),
        ({"sha256": "x"}, "annotations: sha256"),
    ):
        with pytest.raises(ValueError, match=words):
            StoreManifest.from_json({**content, "annotations": content["annotations"] | change}, "m.json")
    assert StoreManifest.from_json({**content, "annotations": None}, "m.json").annotations is None


def test_copies_carry_what_is_said_of_their_images(
    roibeam: Cli, store: Store, samples: Samples, tmp_path: Path, tiny_network: Words
) -> None:
    whole = rows_of(store[0])
    assert roibeam("store", "copy", store[0], tmp_path / "copy", "--shard-size", 100).code == 0
    assert rows_of(tmp_path / "copy") == whole
    (tmp_path / "ids.txt").write_text("sample_00001\nsample_00005\n")
    assert roibeam("store", "copy", store[0], tmp_path / "part", "--ids", tmp_path / "ids.txt").code == 0
    assert rows_of(tmp_path / "part") == [row for row in whole if row.image_id == "sample_00001"]
    # Another store of the same pictures, with captions of two, one of them the same text.
    lines = (f"{whole[0].captions[0]}\tsample_00000.png", "new\tsample_00000.png", "five\tsample_00005\n")
    (tmp_path / "c.tsv").write_text("\n".join(lines))
    options = ("--captions", tmp_path / "c.tsv", "--max-failures", 1, *tiny_network)
    assert roibeam("extract", samples[0], tmp_path / "other", *options).code == 0
    merge = ("store", "copy", store[0], tmp_path / "other", tmp_path / "both", "--shard-size", 3)
    assert roibeam(*merge).code == 0
    both = {row.image_id: row.captions for row in rows_of(tmp_path / "both")}
    assert both["sample_00000"] == (*whole[0].captions, "new") and both["sample_00005"] == ("five",)
    assert list(both) == sorted(both) and len(both) == 5
    assert roibeam("store", "verify", tmp_path / "both", "--deep").code == 0
    assert roibeam(*merge).code == 0  # again: nothing to do, nothing in the way


def test_labels_travel_too(store: Store, roibeam: Cli, tmp_path: Path) -> None:
    rows = [Annotation("sample_00000", (), ("dog", "n01440764")), Annotation("sample_00001", ("a",), ("7",))]
    restate(store[0], rows)
    assert roibeam("store", "copy", store[0], tmp_path / "copy").code == 0
    assert rows_of(tmp_path / "copy") == rows
    assert "1 caption and 3 labels of 2 images" in roibeam("store", "info", tmp_path / "copy").out
    assert "labels dog, n01440764" in roibeam("store", "show", tmp_path / "copy", "sample_00000").out
    with FeatureStore(tmp_path / "copy") as opened:
        assert annotation_of(opened, "sample_00001") == rows[1] and annotation_of(opened, "sample_00003") is None


def test_pretraining_on_a_stores_own_captions_is_that_on_their_file(
    roibeam: Cli, store: Store, samples: Samples, tmp_path: Path
) -> None:
    content = json.loads(samples[1].read_text())  # in the order of a store, which is that of the images
    content["annotations"].sort(key=lambda each: each["image_id"])
    (tmp_path / "ordered.json").write_text(json.dumps(content))
    places: dict[str, list[object]] = {
        "own": [store[0]],
        "staged": [store[0].as_uri(), "--cache-dir", tmp_path / "disk"],
        "file": [store[0], "--captions", tmp_path / "ordered.json"],
    }
    losses = {}
    for name, place in places.items():
        done = ok(roibeam("pretrain", tmp_path / name, *TINY_MODEL, "--store", *place))
        losses[name] = [line["loss"] for line in log_of(tmp_path / name)]
        if name != "file":
            assert "5 of 5 captions joined (5 by id)" in done.err
            assert "1 image without caption: sample_00005" in done.err
    assert losses["own"] == losses["staged"] == losses["file"]
    assert (tmp_path / "disk" / ANNOTATIONS_NAME).read_bytes() == (store[0] / ANNOTATIONS_NAME).read_bytes()


def test_a_store_without_captions_asks_for_a_file(roibeam: Cli, store: Store, tmp_path: Path) -> None:
    restate(store[0], [Annotation("sample_00000", (), ("dog",))])
    line = one_line(roibeam("pretrain", tmp_path / "run", "--store", store[0], *TINY_MODEL))
    assert "has no captions of its own; name a caption file with --captions" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_staged_table_that_arrives_damaged_is_refused(roibeam: Cli, store: Store, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(store[0], there)
    command = ("pretrain", tmp_path / "run", "--store", there.as_uri(), "--cache-dir", tmp_path / "disk", *TINY_MODEL)
    data = (there / ANNOTATIONS_NAME).read_bytes()
    (there / ANNOTATIONS_NAME).write_bytes(data[:-1])
    assert "annotations.parquet: ends after" in one_line(roibeam(*command))
    (there / ANNOTATIONS_NAME).write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert "annotations.parquet: is damaged or of another run" in one_line(roibeam(*command))
    shutil.copyfile(store[0] / ANNOTATIONS_NAME, there / ANNOTATIONS_NAME)
    assert roibeam(*command).code == 0


def test_verify_knows_the_table_as_part_of_the_store(store: Store) -> None:
    assert verify_store(store[0]) == []
    (store[0] / ".annotations.parquet.1.tmp").touch()
    assert [problem.leftover for problem in verify_store(store[0])] == [True]


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_no_file_in_the_tables_place_hangs_no_command(roibeam: Cli, store: Store, tmp_path: Path, what: str) -> None:
    """A pipe without a writer was waited for, for ever."""
    path = store[0] / ANNOTATIONS_NAME
    path.unlink()
    os.mkfifo(path) if what == "pipe" else path.symlink_to("/dev/zero")

    def hung(number: int, frame: object) -> None:
        raise TimeoutError("this command hangs")

    before = signal.signal(signal.SIGALRM, hung)
    try:
        signal.alarm(60)
        for command in (("verify",), ("verify", "--deep"), ("copy", tmp_path / "copy"), ("repair",)):
            done = roibeam("store", command[0], store[0], *command[1:])
            assert done.code == 1 and f"{ANNOTATIONS_NAME}: " in done.out + done.err, (command, done)
        assert roibeam("store", "repair", store[0], "--photos", store[1][1]).code == 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert verify_store(store[0]) == [] and path.is_file() and not path.is_symlink()


def test_a_store_at_a_url_has_its_table_there(roibeam: Cli, store: Store) -> None:
    url = f"memory://{store[0].parent.name}/store"
    command = (*store[1][:2], url, *store[1][3:])
    files = fsspec.filesystem("memory")
    try:
        ok(roibeam(*command))
        data = files.cat_file(f"{url}/{ANNOTATIONS_NAME}")
        assert data == (store[0] / ANNOTATIONS_NAME).read_bytes()
        manifest = StoreManifest.from_json(json.loads(files.cat_file(f"{url}/manifest.json")), url)
        assert manifest.annotations == StoreManifest.read(store[0] / "manifest.json").annotations
        files.rm(f"{url}/{ANNOTATIONS_NAME}")
        assert roibeam(*command).code == 0
        assert files.cat_file(f"{url}/{ANNOTATIONS_NAME}") == data
    finally:
        files.rm(url, recursive=True)
