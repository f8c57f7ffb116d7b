"""`StoreWriter` and `write_store`: arrays and records in, a store like any other out, whatever stops the writing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from store_examples import make_record, write_store

from roibeam.features.record.imported import has_classes
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.features.writing import store_writer
from roibeam.features.writing.store_writer import StoreWriter

SPACE: dict[str, Any] = {"feature_space": "my-detector"}


def arrays(seed: int = 0, num_regions: int = 3, width: int = 8) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    corners = draw.random((num_regions, 2)) * 100
    return {
        "height": 480,
        "width": 640,
        "boxes": np.concatenate([corners, corners + 50], axis=1),
        "features": draw.random((num_regions, width), np.float32),
    }


def labels(ids: list[int]) -> dict[str, Any]:
    return {"class_ids": ids, "class_scores": np.full(len(ids), 0.5)}


def written(folder: Path, images: dict[str, dict[str, Any]], **settings: Any) -> StoreManifest:
    with StoreWriter(folder, **SPACE | settings) as writer:
        for image_id, given in images.items():
            writer.write(image_id, **given)
    assert writer.manifest is not None
    return writer.manifest


def error_of(folder: Path, *images: dict[str, Any] | RegionRecord, **settings: Any) -> str:
    """What is said, in one line, of the last of these images."""
    with StoreWriter(folder, **SPACE | settings) as writer:
        *good, bad = images
        for number, given in enumerate(images):
            if given is bad:
                break
            _write(writer, number, given)
        with pytest.raises(ValueError) as said:
            _write(writer, len(good), bad)
        assert len(writer) == len(good)
    text = str(said.value)
    assert "\n" not in text
    return text


def _write(writer: StoreWriter, number: int, given: dict[str, Any] | RegionRecord) -> None:
    if isinstance(given, RegionRecord):
        writer.write(given)
    else:
        writer.write(f"i{number}", **given)


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


@pytest.mark.parametrize(
    ("features", "dtype", "stored"),
    [
        (np.float64, None, "float32"),
        (np.float16, None, "float16"),
        (">f4", None, "float32"),
        (ml_dtypes.bfloat16, None, "bfloat16"),
        (np.float64, "float16", "float16"),
    ],
)
def test_dtypes(tmp_path: Path, features: Any, dtype: str | None, stored: str) -> None:
    given = arrays()
    given["features"] = given["features"].astype(features)
    assert written(tmp_path / "store", {"a": given}, dtype=dtype).feature_dtype == stored


def test_lists_and_tensors_are_taken_and_torch_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from roibeam import StoreWriter, write_store\n"
        "with StoreWriter('store', feature_space='x') as writer:\n"
        "    writer.write('a', height=9, width=9, boxes=[[0, 0, 5, 5]], features=[[1.0, 2.0]])\n"
        "print(len(writer.manifest.shards), {'torch', 'pyarrow', 'apache_beam'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1 set()\n", done.stderr
    import torch

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
    assert (
        said == "record 'i1': the records before it have class_ids, this one none; give them for all images or for none"
    )
    with StoreWriter(tmp_path / "c", **SPACE) as writer, pytest.raises(ValueError, match="the records before it have"):
        writer.write("z", **arrays())


@pytest.mark.parametrize("shard_bytes", [10**9, 1_000])
def test_records_of_a_store_give_its_content_digest_in_any_order(tmp_path: Path, shard_bytes: int) -> None:
    records = [
        make_record(f"i{n:02}", n % 4, attributes=True, distribution="top-k", image_feature=True, seed=n)
        for n in range(12)
    ]
    whole = write_store(tmp_path / "whole", [records[:7], records[7:]])
    order = [records[n] for n in (3, 11, 0, 5, 1, 10, 2, 9, 4, 8, 6, 7)]
    manifest = store_writer.write_store(tmp_path / "mine", order, **SPACE, shard_bytes=shard_bytes)
    assert manifest.content_digest == whole.content_digest
    assert (len(manifest.shards) == 1) == (shard_bytes == 10**9) and verify_store(tmp_path / "mine", deep=True) == []
    with FeatureStore(tmp_path / "mine") as store:
        assert all(store[record.image_id].equals(record) for record in records)


def test_records_are_cast_too(tmp_path: Path) -> None:
    record = make_record("a", dtype="float32")
    assert store_writer.write_store(tmp_path / "s", [record], **SPACE, dtype="float16").feature_dtype == "float16"
    large = replace(record, features=record.features * 1e5)
    assert "is beyond float16" in error_of(tmp_path / "t", large, dtype="float16")


# Going on


class Stop(Exception):
    pass


def stopped(folder: Path, images: dict[str, dict[str, Any]], **settings: Any) -> None:
    with pytest.raises(Stop), StoreWriter(folder, **SPACE | settings) as writer:
        for image_id, given in images.items():
            writer.write(image_id, **given)
        raise Stop


def test_what_was_written_before_an_exception_is_kept_and_there_is_no_store_yet(tmp_path: Path) -> None:
    images = {f"i{n}": arrays(n) | {"captions": [f"caption {n}"]} for n in range(5)}
    wanted = written(tmp_path / "undisturbed", images)
    folder = tmp_path / "store"
    stopped(folder, dict(list(images.items())[:3]), shard_bytes=300)
    assert not (folder / "manifest.json").exists() and not list(folder.glob(".*"))
    (problem,) = verify_store(folder, deep=True)
    assert problem.file == "manifest.json" and "2 shards of it can be used" in problem.what
    with pytest.raises(FileNotFoundError, match="has shards but no manifest"):
        FeatureStore(folder)
    with StoreWriter(folder, **SPACE) as writer:
        assert list(writer.ids()) == ["i0", "i1", "i2"] and len(writer) == 3 and "i3" not in writer
        with pytest.raises(ValueError, match="has image 'i1' already; ids are unique in a store"):
            writer.write("i1", **arrays(1))
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
        with pytest.raises(ValueError, match=f"has image 'i1' with other {what} already"):
            store_writer.write_store(folder, [changed], **SPACE, captions=captions)
    with pytest.raises(ValueError, match="has image 'i9' already"):
        store_writer.write_store(folder, [make_record("i9"), make_record("i9")], **SPACE)


def test_a_mapping_is_a_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"image_id": "a", **arrays(), "captions": ["of the row"]}]
    said = {"a": "of the mapping", "b": "of nobody"}
    manifest = store_writer.write_store(tmp_path / "store", rows, **SPACE, captions=said)
    assert manifest.annotations is not None and manifest.annotations.captions == 2
    assert "captions of 1 image, the first 'b', have no record" in caplog.text
    with pytest.raises(ValueError, match="image id 7 must be a text, such as '7'"):
        store_writer.write_store(tmp_path / "numbers", [{"image_id": 7, **arrays()}], **SPACE)
    with pytest.raises(ValueError, match="must be a RegionRecord, or a mapping with an image_id, got list"):
        store_writer.write_store(tmp_path / "other", [[1, 2]], **SPACE)  # type: ignore[list-item]


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
    with pytest.raises(ValueError) as said, StoreWriter(tmp_path / "store", **asked):
        pass
    assert words in str(said.value) and "same settings, or choose a new folder" in str(said.value)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "extracted", [[make_record("a")]])
    with pytest.raises(ValueError, match="is another store already"), StoreWriter(tmp_path / "extracted", **SPACE):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"'notes\.txt' is in it"), StoreWriter(tmp_path / "full", **SPACE):
        pass
    with pytest.raises(ValueError, match="is a file"), StoreWriter(tmp_path / "full" / "notes.txt", **SPACE):
        pass
    with pytest.raises(ValueError, match="written to a folder on a disk"):
        StoreWriter("s3://bucket/store", **SPACE)
    with StoreWriter(tmp_path / "mine", **SPACE) as writer:
        with pytest.raises(ValueError, match="another run is writing"), StoreWriter(tmp_path / "mine", **SPACE):
            pass
        with pytest.raises(ValueError, match="is open already"), writer:
            pass
    with pytest.raises(ValueError, match="use it in a with block"):
        writer.write("a", **arrays())


def test_a_damaged_shard_is_named_and_written_again(tmp_path: Path) -> None:
    folder, images = tmp_path / "store", {name: arrays(n) for n, name in enumerate("abc")}
    first = written(folder, images, shard_bytes=1)
    data = folder / str(first.shards[1].data_file)
    data.write_bytes(data.read_bytes()[:-4096])
    with pytest.raises(ValueError, match=r"or delete part-00001\.json and write its images again"):
        written(folder, {})
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
    from roibeam.features.shard.growing_lmdb import GrowingLmdb

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
    from roibeam.features.shard.growing_lmdb import GrowingLmdb

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


# Errors

BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no boxes": (lambda given: given.pop("boxes"), "record 'i0': boxes missing; give height, width, boxes, features"),
    "typo": (lambda given: given.update(class_id=[1]), "no array is called 'class_id'; did you mean class_ids?"),
    "rows": (lambda given: given.update(boxes=given["boxes"][:2]), "boxes must be (3, 4) float32, got (2, 4)"),
    "flat": (lambda given: given.update(features=np.ones(8)), "features must be (K, D)"),
    "integers": (lambda given: given.update(features=np.ones((3, 8), int)), "features must be floats, got int64"),
    "nan": (lambda given: given.update(features=np.full((3, 8), np.nan)), "features holds NaN or infinity"),
    "ragged": (lambda given: given.update(boxes=[[1, 2, 3, 4], [1]]), "boxes is no array"),
    "shares": (lambda given: given.update(boxes=given["boxes"] / 640), "all boxes lie in 0..1"),
    "x y w h": (lambda given: given.update(boxes=[[100, 100, 50, 50]] * 3), "boxes are x1 y1 x2 y2"),
    "outside": (lambda given: given.update(boxes=[[0, 0, 700, 50]] * 3), "pixels of the original photo?"),
    "swapped": (lambda given: given.update(height=140, boxes=[[0, 0, 50, 150]] * 3), "height and width are swapped"),
    "half": (lambda given: given.update(class_ids=[1, 2, 3]), "class_ids and class_scores come together"),
    "float ids": (lambda given: given.update(labels([0, 1, 2]) | {"class_ids": [0.0, 1, 2]}), "must be 3 integers"),
    "negative": (lambda given: given.update(labels([0, -1, 2])), "class_ids has ids from -1 to 2"),
    "logits": (lambda given: given.update(labels([0, 1, 2]) | {"class_scores": [3.0, 9, 1]}), "not 0 to 1"),
    "sums": (lambda given: given.update(class_distribution=np.full((3, 7), 0.1)), "sums up to 1 +- 0.3"),
    "caption": (lambda given: given.update(captions=["a", ""]), "a caption must be a text that is not empty, got ''"),
    "height": (lambda given: given.update(height=480.5), "height must be an integer"),
}


def test_a_bad_array_is_one_line_that_names_it_and_the_writer_goes_on(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", **SPACE) as writer:
        for name, (change, words) in BAD.items():
            given = arrays()
            change(given)
            with pytest.raises(ValueError) as said:
                writer.write("i0", **given)
            assert words in str(said.value) and "'i0'" in str(said.value) and "\n" not in str(said.value), name
            assert "i0" not in writer, name
        writer.write("i0", **arrays())
    assert writer.manifest is not None and writer.manifest.num_records == 1
    assert verify_store(tmp_path / "store", deep=True) == []


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"num_classes": 2}, labels([0, 1, 2]), "class_ids has 2, this writer was told of 2, 0 to 1"),
        ({"classes": ["cat", "dog"]}, {}, "class_ids and class_scores missing; this writer was told of 2 classes"),
        ({"attributes": ["red"]}, {}, "attribute_ids and attribute_scores missing"),
        ({"num_classes": 3}, labels([0, 1, 2]) | {"class_distribution": np.full((3, 7), 1 / 7)}, "is of 6 classes"),
    ],
)
def test_ids_are_those_of_the_settings(
    tmp_path: Path, settings: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    assert words in error_of(tmp_path / "store", arrays() | change, **settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": np.ones((3, 9), np.float32)}, "feature_dim 9, not 8"),
        ({"features": np.ones((3, 8), np.float16)}, "feature_dtype 'float16', not 'float32'"),
        ({"attribute_ids": [0] * 3, "attribute_scores": [1] * 3}, "attributes True, not False"),
        ({"image_feature": np.ones(8)}, "image_feature 8, not 0"),
    ],
)
def test_all_records_are_of_one_kind_in_every_shard_and_session(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    assert words in error_of(tmp_path / "store", arrays(), arrays(1) | change, shard_bytes=1)
    with StoreWriter(tmp_path / "store", **SPACE) as writer, pytest.raises(ValueError, match=words):
        writer.write("later", **arrays(2) | change)


def test_distributions_are_of_one_kind(tmp_path: Path) -> None:
    top = make_record("b", distribution="top-k")
    assert isinstance(top.class_distribution, TopKDistribution)
    said = error_of(tmp_path / "store", make_record("a", distribution="full"), top)
    assert "class_distribution 'top-3 of 6 classes', not 'full of 6 classes'" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_space": "My Detector"}, "feature_space 'My Detector': give a name of lower-case letters"),
        ({"feature_space": "butd-tsv"}, "is the name of features imported from such files"),
        ({"classes": "cat"}, "classes is one text, 'cat'; give a list"),
        ({"classes": []}, "classes has 0 names"),
        ({"classes": ["__background__", "cat"]}, "the first is background"),
        ({"classes": ["cat", 3]}, "name 1 is 3, not a text"),
        ({"classes": ["cat"], "num_classes": 2}, "num_classes is 2, but classes has 1 names"),
        ({"num_classes": 0}, "num_classes 0 must be an integer from 1 to 65535"),
        ({"dtype": "int8"}, "dtype 'int8': choose float16 or float32, or None"),
        ({"shard_bytes": 0}, "shard_bytes 0 must be a positive number"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as said:
        StoreWriter(tmp_path / "store", **SPACE | settings)
    assert words in str(said.value) and "\n" not in str(said.value)
    assert not (tmp_path / "store").exists()


def test_captions_need_pyarrow_and_the_rest_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roibeam.features.writing import store_in_work

    monkeypatch.setattr(store_in_work.importlib.util, "find_spec", lambda name: None)
    written(tmp_path / "bare", {"a": arrays()})
    assert "pip install pyarrow" in error_of(tmp_path / "store", arrays() | {"captions": "a dog"})


def test_a_damaged_file_of_captions_is_one_line(tmp_path: Path) -> None:
    stopped(tmp_path / "store", {"a": arrays() | {"captions": "a dog"}})
    (path,) = (tmp_path / "store").glob("*.captions.jsonl")
    assert json.loads(path.read_text()) == {"image_id": "a", "captions": ["a dog"]}
    orphan = path.with_name("part-00001.01234567.captions.jsonl")
    orphan.write_text("")
    assert [problem.file for problem in verify_store(tmp_path / "store") if problem.leftover] == [orphan.name]
    path.write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read .* or delete part-00000\.json and write the images"):
        written(tmp_path / "store", {"b": arrays(1)})
