"""What `StoreWriter` refuses: each in one line that names image and array, or setting."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from store_examples import make_record
from writer_examples import SPACE, arrays, error_of, labels, stopped, written

from roibeam.features.verify import verify_store
from roibeam.features.writing.store_writer import StoreWriter
from roibeam.features.writing.writer_input import RegionArrays

BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no boxes": (lambda given: given.pop("boxes"), "record 'i0': boxes missing; give height, width, boxes, features"),
    "typo": (lambda given: given.update(class_id=[1]), "no array is called 'class_id'; did you mean class_ids?"),
    "rows": (lambda given: given.update(boxes=given["boxes"][:2]), "features has 3 rows and boxes has 2"),
    "labelled rows": (lambda given: given.update(features=np.ones((4, 8)), **labels([0, 1, 2])), "features has 4 rows"),
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
    "captions": (lambda given: given.update(captions={"a": 1}), "captions are a text or several, got dict"),
    "caption": (lambda given: given.update(captions=["a", ""]), "a caption must be a text that is not empty, got ''"),
    "height": (lambda given: given.update(height=480.5), "height must be an integer"),
}


def test_a_bad_array_is_one_line_that_names_it_and_the_writer_goes_on(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", **SPACE) as writer:
        for name, (change, words) in BAD.items():
            given = arrays()
            change(given)
            said = refused(re.escape(words), writer.write, "i0", **given)
            assert "'i0'" in said and "\n" not in said and "i0" not in writer, name
        writer.write("i0", **arrays())
    assert writer.manifest is not None and writer.manifest.num_records == 1
    assert verify_store(tmp_path / "store", deep=True) == []


def test_records_are_looked_at_as_arrays_are(tmp_path: Path) -> None:
    """A mistake in boxes or scores looks right in a store, from any maker of the record."""
    good = make_record()
    for name, (change, words) in {
        "outside": ({"boxes": good.boxes + 600}, "pixels of the original photo?"),
        "shares": ({"boxes": good.boxes / 640}, "all boxes lie in 0..1"),
        "scores": ({"class_scores": good.class_scores + 1}, "class_scores has values from"),
    }.items():
        assert words in error_of(tmp_path / name, dataclasses.replace(good, **change))
    nameless = {"class_ids": np.zeros(3, np.uint16), "class_scores": np.zeros(3, np.float32)}
    words = error_of(tmp_path / "classes", dataclasses.replace(good, **nameless), num_classes=1600)
    assert "class_ids and class_scores missing; this writer has 1600 classes" in words


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"num_classes": 2}, labels([0, 1, 2]), "class_ids has 2, this writer has 2, 0 to 1"),
        ({"classes": ["cat", "dog"]}, {}, "class_ids and class_scores missing; this writer has 2 classes"),
        ({"attributes": ["red"]}, {}, "attribute_ids and attribute_scores missing"),
        ({"num_classes": 3}, labels([0, 1, 2]) | {"class_distribution": np.full((3, 7), 1 / 7)}, "is of 6 classes"),
    ],
)
def test_ids_are_those_of_the_settings(
    tmp_path: Path, settings: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    assert words in error_of(tmp_path / "store", arrays() | change, **settings)


def test_all_records_are_of_one_kind_in_every_shard_and_session(tmp_path: Path) -> None:
    written(tmp_path / "store", {"i0": arrays()})
    for change, words in (
        ({"features": np.ones((3, 9), np.float32)}, "feature_dim 9, not 8"),
        ({"features": np.ones((3, 8), np.float16)}, "feature_dtype 'float16', not 'float32'"),
        ({"attribute_ids": [0] * 3, "attribute_scores": [1] * 3}, "attributes True, not False"),
        ({"image_feature": np.ones(8)}, "image_feature 8, not 0"),
    ):
        assert words in error_of(tmp_path / words, arrays(), arrays(1) | change, shard_bytes=1)
        with StoreWriter(tmp_path / "store", **SPACE) as writer:
            refused(words, writer.write, "later", **arrays(2) | change)
    full, top = (make_record(kind, distribution=kind) for kind in ("full", "top-k"))
    said = error_of(tmp_path / "distributions", full, top)
    assert "class_distribution 'top-3 of 6 classes', not 'full of 6 classes'" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_space": "My Detector"}, "feature_space 'My Detector': give a name of lower-case letters"),
        ({"feature_space": "butd-tsv"}, "is the name of features imported from such files"),
        ({"classes": "cat"}, "classes is a list, got one alone, 'cat'"),
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
    assert "\n" not in refused(re.escape(words), StoreWriter, tmp_path / "store", **SPACE | settings)
    assert not (tmp_path / "store").exists()


def test_captions_need_pyarrow_and_the_rest_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roibeam.features.writing import partial_store

    monkeypatch.setattr(partial_store.importlib.util, "find_spec", lambda name: None)
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
    words = r"cannot be read .* or delete part-00000\.json and write the images"
    refused(words, written, tmp_path / "store", {"b": arrays(1)})


def test_the_table_of_the_python_page_names_every_array() -> None:
    """tests/test_documentation.py runs its snippets."""
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    table = text.partition("| name | shape |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall("`(.*?)`", line.split("|")[1])}
    assert named == set(RegionArrays.__annotations__) | {"captions"}
