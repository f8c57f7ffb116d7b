"""`StoreWriter` and `write_store`: arrays and records in, a store like any other out, whatever stops the writing."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from refusals import refused
from store_examples import make_record, write_store
from writer_examples import SPACE, Stop, arrays, error_of, labels, stopped, written

from roibeam.features.record.fingerprint import has_classes
from roibeam.features.shard.lmdb_file import GrowingLmdb
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.features.writing import store_writer
from roibeam.features.writing.store_writer import StoreWriter

# What is stored


def test_arrays_are_stored_as_they_are(tmp_path: Path) -> None:
    given = arrays() | labels([1, 0, 5]) | {"attribute_ids": [2, 2, 2], "attribute_scores": [0, 0.5, 1]}
    given |= {"image_feature": np.ones(4), "class_distribution": np.full((3, 7), 1 / 7)}
    manifest = written(tmp_path / "store", {"a": given}, num_classes=6, attributes=["red", "wet", "old"])
    with FeatureStore(tmp_path / "store") as store:
        record = store["a"]
    assert (record.height, record.width, record.features.dtype) == (480, 640, np.float32)
    assert np.array_equal(record.features, given["features"])
    assert np.array_equal(record.boxes, given["boxes"].astype(np.float32))
    assert record.class_ids.tolist() == [1, 0, 5] and record.class_scores.tolist() == [0.5] * 3
    assert record.attribute_ids is not None and record.attribute_ids.tolist() == [2, 2, 2]
    assert record.image_feature is not None and record.image_feature.dtype == np.float32
    assert record.class_distribution.shape == (3, 7)  # type: ignore[union-attr]
    assert manifest.attributes == ("red", "wet", "old") and manifest.classes is None
    assert manifest.config["num_classes"] == 6 and manifest.fingerprint.feature_space == "imported:my-detector"
    assert has_classes(manifest.fingerprint)


def test_dtypes_of_arrays_and_of_records(tmp_path: Path) -> None:
    for number, (features, dtype, stored) in enumerate([
        (np.float64, None, "float32"), (np.float16, None, "float16"), (">f4", None, "float32"),
        (ml_dtypes.bfloat16, None, "bfloat16"), (np.float64, "float16", "float16"),
    ]):  # fmt: skip
        given = arrays() | {"features": arrays()["features"].astype(features)}
        assert written(tmp_path / str(number), {"a": given}, dtype=dtype).feature_dtype == stored
    record = make_record("a", dtype="float32")
    assert store_writer.write_store(tmp_path / "s", [record], **SPACE, dtype="float16").feature_dtype == "float16"
    large = replace(record, features=record.features * 1e5)
    assert "is beyond float16" in error_of(tmp_path / "t", large, dtype="float16")


def test_tensors_are_taken(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(value) for name, value in arrays().items() if isinstance(value, np.ndarray)}
    written(tmp_path / "tensors", {"a": arrays() | tensors})
    with_gradient = arrays() | {"features": torch.ones(3, 8, requires_grad=True)}
    assert "give tensor.detach().cpu()" in error_of(tmp_path / "gradient", with_gradient)


def test_without_class_ids_the_store_says_that_they_mean_nothing(tmp_path: Path) -> None:
    manifest = written(tmp_path / "store", {"a": arrays(), "b": arrays(1, 0)})
    assert not has_classes(manifest.fingerprint) and manifest.fingerprint.details["attributes"] == "absent"
    with FeatureStore(tmp_path / "store") as store:
        assert not store["a"].class_ids.any() and not store["a"].class_scores.any() and store["b"].num_regions == 0
    # An image without regions tells nothing; the next one does, also in another session.
    assert has_classes(written(tmp_path / "b", {"b": arrays(1, 0), "a": arrays() | labels([0, 0, 0])}).fingerprint)
    said = error_of(tmp_path / "c", arrays() | labels([1, 0, 0]), arrays())
    assert said == "record 'i1': has no class_ids, those before it have; give them for all images or for none"
    said = error_of(tmp_path / "d", arrays(), arrays() | labels([1, 0, 0]))
    assert "has class_ids, those before it have none" in said
    with StoreWriter(tmp_path / "c", **SPACE) as writer:
        refused("has no class_ids, those", writer.write, "z", **arrays())


@pytest.mark.parametrize("shard_bytes", [10**9, 1_000])
def test_records_of_a_store_give_its_content_digest_in_any_order(tmp_path: Path, shard_bytes: int) -> None:
    every = {"attributes": True, "distribution": "top-k", "image_feature": True}
    records = [make_record(f"i{n:02}", n % 4, seed=n, **every) for n in range(12)]
    whole = write_store(tmp_path / "whole", [records[:7], records[7:]])
    order = [records[n] for n in (3, 11, 0, 5, 1, 10, 2, 9, 4, 8, 6, 7)]
    manifest = store_writer.write_store(tmp_path / "mine", order, **SPACE, shard_bytes=shard_bytes)
    assert manifest.content_digest == whole.content_digest
    assert (len(manifest.shards) == 1) == (shard_bytes == 10**9) and verify_store(tmp_path / "mine", deep=True) == []
    with FeatureStore(tmp_path / "mine") as store:
        assert all(store[record.image_id].equals(record) for record in records)


# Going on


def test_what_was_written_before_an_exception_is_kept_and_there_is_no_store_yet(tmp_path: Path) -> None:
    images = {f"i{n}": arrays(n) | {"captions": [f"caption {n}"]} for n in range(5)}
    wanted = written(tmp_path / "undisturbed", images)
    folder = tmp_path / "store"
    stopped(folder, dict(list(images.items())[:3]), shard_bytes=300)
    assert not (folder / "manifest.json").exists() and not list(folder.glob(".*"))
    (problem,) = verify_store(folder, deep=True)
    assert problem.file == "manifest.json" and "2 shards of it can be used" in problem.what
    refused("has shards but no manifest", FeatureStore, folder, error=FileNotFoundError)
    with StoreWriter(folder, **SPACE) as writer:
        assert list(writer.ids()) == ["i0", "i1", "i2"] and len(writer) == 3 and "i3" not in writer
        refused("has image 'i1' already; ids are unique in a store", writer.write, "i1", **arrays(1))
        for image_id, given in images.items():
            if image_id not in writer:
                writer.write(image_id, **given)
        assert "i4" in writer and len(writer) == 5
    assert writer.manifest is not None and writer.manifest.content_digest == wanted.content_digest
    assert writer.manifest.annotations is not None and writer.manifest.annotations.captions == 5
    assert verify_store(folder, deep=True) == []


def test_a_finished_store_grows(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first = written(folder, {"b": arrays(1) | {"captions": "one"}})
    stopped(folder, {"a": arrays(2)})
    assert StoreManifest.read(folder / "manifest.json") == first, "stopped, it is what it was"
    grown = written(folder, {"c": arrays(3) | {"captions": ["two", "three"]}})
    assert (grown.num_records, len(grown.shards)) == (3, 3)
    assert grown.annotations is not None and (grown.annotations.rows, grown.annotations.captions) == (2, 3)
    assert verify_store(folder, deep=True) == []


def test_the_same_call_of_write_store_goes_on(tmp_path: Path) -> None:
    folder, records = tmp_path / "store", [make_record(f"i{n}", seed=n) for n in range(4)]
    said = {"i1": "a dog", "i3": ["a cat", "a mat"]}

    def broken() -> Any:
        yield from records[:2]
        raise Stop

    with pytest.raises(Stop):
        store_writer.write_store(folder, broken(), **SPACE, captions=said)
    manifest = store_writer.write_store(folder, records, **SPACE, captions=said)
    assert manifest.num_records == 4 and len(manifest.shards) == 2
    assert store_writer.write_store(folder, records, **SPACE, captions=said) == manifest, "nothing is left to do"
    other = replace(records[1], height=481)
    for changed, captions, what in ((other, said, "arrays"), (records[1], {"i1": "a hog"}, "captions")):
        words = f"has image 'i1' with other {what} already"
        refused(words, store_writer.write_store, folder, [changed], **SPACE, captions=captions)
    refused("has image 'i9' already", store_writer.write_store, folder, [make_record("i9")] * 2, **SPACE)


def test_a_mapping_is_a_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"image_id": "a", **arrays(), "captions": ["of the row"]}]
    said = {"a": "of the mapping", "b": "of nobody"}
    manifest = store_writer.write_store(tmp_path / "store", rows, **SPACE, captions=said)
    assert manifest.annotations is not None and manifest.annotations.captions == 2
    assert "captions of 1 image, the first 'b', have no record" in caplog.text
    for number, (row, words) in enumerate((
        ({"image_id": 7, **arrays()}, "image id 7 must be a text, such as '7'"),
        ([1, 2], "must be a RegionRecord, or a mapping with an image_id, got list"),
    )):  # fmt: skip
        refused(words, store_writer.write_store, tmp_path / str(number), [row], **SPACE)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_space": "another"}, "feature_space 'my-detector', now 'another'"),
        ({"classes": ["cat", "dog", "cow"]}, "no classes, now some"),
        ({"num_classes": 4}, "num_classes 3, now 4"),
        ({"attributes": ["red"]}, "no attributes, now some"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, settings: dict[str, Any], words: str, finished: bool) -> None:
    (written if finished else stopped)(tmp_path / "store", {"a": arrays() | labels([0, 1, 2])}, num_classes=3)
    before = sorted(path.name for path in (tmp_path / "store").iterdir())
    asked = SPACE | {"num_classes": 3} | settings
    said = refused(words, StoreWriter(tmp_path / "store", **asked).__enter__)
    assert "same settings, or choose a new folder" in said
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "extracted", [[make_record("a")]])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for name, words in (
        ("extracted", "is another store already"), ("full", r"'notes\.txt' is in it"), ("full/notes.txt", "is a file")
    ):  # fmt: skip
        refused(words, StoreWriter(tmp_path / name, **SPACE).__enter__)
    refused("written to a folder on a disk", StoreWriter, "s3://bucket/store", **SPACE)
    with StoreWriter(tmp_path / "mine", **SPACE) as writer:
        refused("another run is writing", StoreWriter(tmp_path / "mine", **SPACE).__enter__)
        refused("is open already", writer.__enter__)
    refused("use it in a with block", writer.write, "a", **arrays())


def test_a_damaged_shard_is_named_and_written_again(tmp_path: Path) -> None:
    folder, images = tmp_path / "store", {name: arrays(n) for n, name in enumerate("abc")}
    first = written(folder, images, shard_bytes=1)
    data = folder / str(first.shards[1].data_file)
    data.write_bytes(data.read_bytes()[:-4096])
    refused(r"or delete part-00001\.json and write its images again", written, folder, {})
    assert len(list(folder.glob("part-*.json"))) == 3, "nothing was removed"
    (folder / "part-00001.json").unlink()
    with StoreWriter(folder, **SPACE) as writer:
        assert not (folder / "manifest.json").exists(), "it would name the shard that is gone"
        assert list(writer.ids()) == ["a", "c"]
        writer.write("b", **images["b"])
    assert writer.manifest is not None and writer.manifest.content_digest == first.content_digest
    assert verify_store(folder, deep=True) == []


def test_a_disk_that_breaks_in_a_record_leaves_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match="full"), StoreWriter(tmp_path / "store", **SPACE) as writer:
        writer.write("a", **arrays())
        real, calls = GrowingLmdb.put, iter([True, False])

        def full(self: GrowingLmdb, *given: Any, **options: Any) -> bool:
            if next(calls):
                return real(self, *given, **options)
            raise OSError("the disk is full")

        monkeypatch.setattr(GrowingLmdb, "put", full)
        writer.write("b", **arrays(1))  # its boxes are in, its features are not
    assert list((tmp_path / "store").iterdir()) == []
    assert "the last shard is lost, with 2 images: writing one of them failed" in caplog.text


def test_an_interrupt_waits_until_the_image_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "store", **SPACE) as writer:
        writer.write("a", **arrays())
        real = GrowingLmdb.put

        def interrupted(self: GrowingLmdb, *given: Any, **options: Any) -> bool:
            os.kill(os.getpid(), signal.SIGINT)
            return real(self, *given, **options)

        monkeypatch.setattr(GrowingLmdb, "put", interrupted)
        try:
            writer.write("b", **arrays(1))
        finally:
            monkeypatch.undo()
    with StoreWriter(tmp_path / "store", **SPACE) as writer:
        assert list(writer.ids()) == ["a", "b"]
