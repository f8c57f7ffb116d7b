"""parquet and WebDataset: nothing is lost, other people's tools read the same, files of strangers end nothing."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exchange_examples import PAIR, measured, mutate, outcomes, place, records
from fuzz_child import soak_seeds
from refusals import refused
from store_examples import make_record

from roibeam.features.annotations import Annotation
from roibeam.features.exchange.exact_records import ExactFormat
from roibeam.features.exchange.formats import format_named, format_of
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store

BOTH = ("parquet", "webdataset")


def exact(name: str) -> ExactFormat:
    found = format_named(name)
    assert isinstance(found, ExactFormat)
    return found


def rich(image_id: str, **fields: Any) -> RegionRecord:
    return replace(make_record(attributes=True, **fields), image_id=image_id)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("distribution", ["full", "top-k", None])
def test_every_field_comes_back_bit_for_bit(tmp_path: Path, name: str, dtype: str, distribution: str | None) -> None:
    path = place(tmp_path, name)
    kept = [rich(each, dtype=dtype, distribution=distribution, image_feature=True) for each in ("a.b%2E", "c/d", "é")]
    kept[1] = replace(kept[1], attribute_ids=None, attribute_scores=None, image_feature=None)
    format_named(name).write(kept, path)
    found = records(format_named(name), path, dtype)
    assert [each.image_id for each in found] == ["a.b%2E", "c/d", "é"]
    assert all(one.equals(other) for one, other in zip(found, kept, strict=True))
    with format_named(name).open(path) as file:
        assert file.dtype == dtype


@pytest.mark.parametrize("name", BOTH)
def test_float32_holds_the_values_of_a_store_in_bfloat16_and_names_and_captions_go_along(
    tmp_path: Path, name: str
) -> None:
    path, kept = place(tmp_path, name), rich("a", dtype="bfloat16")
    words = [f"thing {number}" for number in range(2000)]
    facts = {"classes": words, "attributes": words[:500], "feature_dtype": "bfloat16"}
    texts = {"a": Annotation("a", ("a dog", "ein Hünd"), ("dog",))}
    exact(name).of_store(facts, texts.__getitem__, "float32").write([kept], path)
    (found,) = records(format_named(name), path, "bfloat16")
    assert found.equals(kept)
    with format_named(name).open(path) as file:
        assert list(file.annotations()) == [texts["a"]] and file.names == (tuple(words), tuple(words[:500]))
        refused("has names of its own", file.use_names, ["x"], None)
    if name == "parquet":
        row = pq.read_table(path).to_pylist()[0]
        assert row["classes"] == [words[each] for each in kept.class_ids] and row["captions"] == ["a dog", "ein Hünd"]
        assert pq.read_schema(path).field("features").type == pa.list_(pa.list_(pa.float32(), kept.features.shape[1]))


def test_tools_read_the_same_parquet(tmp_path: Path) -> None:
    """Hugging Face's datasets, polars, DuckDB and pandas; and what they write again is read here."""
    datasets, polars = pytest.importorskip("datasets"), pytest.importorskip("polars")
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    path, kept = tmp_path / "f.parquet", [measured("a", 3), measured("b", 5, seed=7)]
    format_named("parquet").write(kept, path)
    table = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    frames = {
        "datasets": [row["features"] for row in table],
        "polars": polars.read_parquet(path)["features"].to_list(),
        "duckdb": [row[0] for row in duckdb.sql(f"select features from '{path}' order by image_id").fetchall()],
        "pandas": [np.stack(row) for row in pandas.read_parquet(path)["features"]],
    }
    for tool, found in frames.items():
        for one, other in zip(found, kept, strict=True):
            np.testing.assert_array_equal(np.array(one, np.float16), other.features, err_msg=tool)
    table.to_parquet(tmp_path / "datasets.parquet")
    polars.read_parquet(path).write_parquet(tmp_path / "polars.parquet")
    duckdb.sql(f"copy (from '{path}') to '{tmp_path}/duckdb.parquet'")
    for tool in ("datasets", "polars", "duckdb"):
        again = records(format_named("parquet"), tmp_path / f"{tool}.parquet")
        for one, other in zip(again, kept, strict=True):
            np.testing.assert_array_equal(one.features, other.features, err_msg=tool)
            np.testing.assert_array_equal(one.class_ids, other.class_ids, err_msg=tool)
            np.testing.assert_array_equal(one.attribute_scores, other.attribute_scores, err_msg=tool)


def test_webdataset_reads_the_same(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    kept = [measured("a.b", 3), measured("c/d", 5, seed=7)]
    format_named("webdataset").write(kept, tmp_path / "f.tar")
    found = list(wds.WebDataset(str(tmp_path / "f.tar"), shardshuffle=False).decode())
    assert [sample["json"]["image_id"] for sample in found] == ["a.b", "c/d"]
    for sample, record in zip(found, kept, strict=True):
        np.testing.assert_array_equal(sample["npz"]["features"], record.features)
        np.testing.assert_array_equal(sample["npz"]["boxes"], record.boxes)
    with wds.TarWriter(str(tmp_path / "again.tar")) as sink:
        for sample in wds.WebDataset(str(tmp_path / "f.tar"), shardshuffle=False):
            sink.write(sample)
    again = records(format_named("webdataset"), tmp_path / "again.tar")
    assert all(one.equals(other) for one, other in zip(again, kept, strict=True))


@pytest.mark.parametrize("name", BOTH)
def test_shards_of_two_exports_and_missing_ones_are_refused(tmp_path: Path, name: str) -> None:
    suffix = exact(name).suffixes[0]
    for number in range(3):
        each = exact(name).of_store({"shards": 3, "shard": number, "content_digest": "x"}, None, None)
        each.write([measured(f"image{number}")], tmp_path / f"data-{number}{suffix}")
    assert len(records(format_named(name), tmp_path)) == 3
    last = tmp_path / f"data-2{suffix}"
    last.rename(tmp_path / "elsewhere")
    refused("1 shard of 3 missing, the first is number 2", outcomes, format_named(name), tmp_path)
    format_named(name).write([measured("other")], last)
    refused("is of another store than .*data-0", outcomes, format_named(name), tmp_path)
    other = place(tmp_path / "other", name)
    (tmp_path / "other").mkdir()
    for number, words in enumerate((["cat"], ["dog"])):
        exact(name).with_names(words, None).write([measured(words[0])], other.with_stem(f"{number}"))
    refused("is of another store than", outcomes, format_named(name), tmp_path / "other")  # its ids have other names
    last.unlink()
    last.symlink_to(__file__)
    refused("link to a file outside the folder", outcomes, format_named(name), tmp_path)


def written(path: Path, **columns: Any) -> Path:
    """A parquet file of the columns of a record of three regions, but for those given."""
    record = measured("a")
    own = {
        "image_id": pa.array(["a"]), "width": [640], "height": [480], "boxes": [record.boxes.tolist()],
        "features": pa.array([record.features.tolist()], pa.list_(pa.list_(pa.float32()))),
        "class_ids": [record.class_ids.tolist()],
    }  # fmt: skip
    pq.write_table(pa.table({name: each for name, each in (own | columns).items() if each is not None}), path)
    return path


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"features": None}, "has no column 'features'"),
        ({"image_id": pa.array([None], pa.string())}, "has 0 bytes in UTF-8"),
        ({"image_id": pa.array([5.0])}, "image_id holds double, expected strings or integers"),
        ({"class_distribution": [0.5]}, "class_distribution is one number, an array is expected"),
        ({"class_distribution": [[[5.0, -3.0, 7.0]] * 3]}, "class_distribution has values from -3.0 to 7.0"),
        ({"features": [[[1.0, 2.0], [1.0], [3.0, 4.0]]]}, "features: rows of different lengths"),
        ({"features": [[[1.0, None], [1.0, 2.0], [3.0, 4.0]]]}, "features has nulls"),
        ({"features": [[["x"], ["y"], ["z"]]]}, "features holds (dictionary|string).*, expected numbers"),
        ({"features": pa.array([None], pa.list_(pa.list_(pa.float32())))}, "has no features"),
        ({"features": [[[1.0, 2.0]]]}, "features has shape"),
        ({"width": ["wide"]}, "width holds .*, expected numbers"),
        ({"width": [0]}, "width must be an integer from 1"),
        ({"boxes": [[[0.0, 0.0, 9000.0, 9.0]] * 3]}, "boxes reach from 0.0 to x 9000.0"),
        ({"class_ids": [[1, 2, 70000]]}, "class_ids has ids from 1 to 70000"),
    ],
)
def test_parquet_files_of_strangers_that_hold_no_record(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    refused(words, outcomes, format_named("parquet"), written(tmp_path / "f.parquet", **columns))


@pytest.mark.slow
def test_a_small_parquet_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    """The process that reads it has a limit of memory, and none of it comes here."""
    zeros = pa.array(np.zeros(2**26 + 64))
    rows = pa.ListArray.from_arrays(pa.array([0, 2**20 + 1], pa.int32()), pa.FixedSizeListArray.from_arrays(zeros, 64))
    path = written(tmp_path / "f.parquet", features=rows)
    assert path.stat().st_size < 2**23
    refused("needs over 1 GiB of memory to unpack", outcomes, format_named("parquet"), path)


def test_a_parquet_file_that_was_cut_or_whose_footer_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    """Not "no feature file that roibeam knows"."""
    path = tmp_path / "f.parquet"
    format_named("parquet").write(PAIR, path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:-400] + bytes(90) + data[-310:]):
        path.write_bytes(damaged)
        refused("f.parquet: is damaged: .*; copy it again", lambda: outcomes(format_of(path), path))


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_damaged_parquet_files_give_errors_or_dead_letters(tmp_path: Path, times: int) -> None:
    """pyarrow ends its process at some of them: not this one."""
    path = tmp_path / "f.parquet"
    format_named("parquet").write(PAIR, path)
    original, whole, gave = path.read_bytes(), {each.image_id: each for each in PAIR}, 0
    for seed in range(8) if times == 1 else soak_seeds(8 * times):
        path.write_bytes(mutate(original, seed))
        try:
            found = [each for each in outcomes(format_named("parquet"), path) if isinstance(each, RegionRecord)]
        except (ValueError, OSError) as error:
            assert "\n" not in str(error), seed
            continue
        gave += bool(found)
        for each in found:
            assert all(name == each.image_id or not np.array_equal(each.features, other.features)
                       for name, other in whole.items()), seed  # fmt: skip
    assert gave


def tar_of(path: Path, *members: tuple[str | tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as file:
        for name, data in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def strangers(tmp_path: Path, name: str, told: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """A file without facts of a store: two photos, those of a record of eight regions but for what is given."""
    record = measured("391", 8)
    told = {"image_id": 391, "width": 640, "height": 480, **told}
    arrays = {"boxes": record.boxes, "features": record.features.astype(np.float32), **arrays}
    path = place(tmp_path, name)
    if name == "parquet":
        row = {each: [value] for each, value in told.items()}
        for each, array in arrays.items():
            kind = pa.list_(pa.from_numpy_dtype(array.dtype))
            row[each] = pa.array([array.tolist()], pa.list_(kind) if array.ndim == 2 else kind)
        pq.write_table(pa.table(row), path)
        return path
    data = io.BytesIO()
    np.savez(data, **arrays)
    return tar_of(path, ("391.json", json.dumps(told).encode()), ("391.npz", data.getvalue()))


@pytest.mark.parametrize("name", BOTH)
def test_what_a_file_does_not_have_is_absent_and_what_is_no_text_is_no_caption(tmp_path: Path, name: str) -> None:
    told = {"captions": ["a dog", None, "half \ud83d"[: 5 if name == "parquet" else 6]], "labels": [3, 4]}
    path = strangers(tmp_path, name, told, {})
    with format_named(name).open(path) as file:
        assert file.details["classes"] == file.details["attributes"] == "absent"
        (texts,) = file.annotations()
        assert texts == Annotation("391", ("a dog", "half " if name == "parquet" else "half ?"), ())
    path = strangers(tmp_path, name, {"captions": "a dog"}, {})
    with format_named(name).open(path) as file:
        assert list(file.annotations()) == [Annotation("391", ("a dog",), ())]


@pytest.mark.parametrize("name", BOTH)
def test_class_probabilities_of_strangers(tmp_path: Path, name: str) -> None:
    """Background is last, as in exports of this format; a doubt and an option mend files that have it elsewhere."""
    rows = np.full((8, 5), 0.02, np.float32)
    rows[:, 0] = 0.3  # the detector's doubt
    rows[np.arange(8), 1 + np.arange(8) % 4] = 0.64
    ids = {"class_ids": (np.arange(8) % 4).astype(np.uint16)}
    path, found = strangers(tmp_path, name, {}, {"class_distribution": rows, **ids}), format_named(name)
    with found.open(path) as file:
        assert "in the last column, but the first is" in file._reading.doubts[0]
    with found.open(path, Reading("first")) as file:
        (record,) = (each for each in file.outcomes() if isinstance(each, RegionRecord))
        assert file.details["background"] == "first" and file.details["num_classes"] == 4 and not file._reading.doubts
    assert isinstance(record.class_distribution, np.ndarray)
    np.testing.assert_array_equal(record.class_distribution[:, :4].argmax(1), record.class_ids)
    np.testing.assert_allclose(record.class_distribution[:, 4], 0.3, atol=1e-3)
    found.write([record], path.with_name("own" + path.suffix))
    refused(
        "background is last; leave --background out", found.open, path.with_name("own" + path.suffix), Reading("first")
    )
    path = strangers(tmp_path, name, {}, {"class_distribution": np.roll(rows, -1, 1)})
    with found.open(path) as file:
        (again,) = (each for each in file.outcomes() if isinstance(each, RegionRecord))
        assert not file._reading.doubts and file.details["classes"] == "class_distribution"
    np.testing.assert_array_equal(again.class_ids, ids["class_ids"])


@pytest.mark.parametrize("name", BOTH)
def test_names_that_are_no_text_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    words = [*map(str, range(1999)), "half \ud83d"]  # which no region has
    exact(name).with_names(words, None).write([measured("a")], place(tmp_path, name))
    refused("its facts of a store cannot be used", format_named(name).open, place(tmp_path, name))


@pytest.mark.parametrize("name", BOTH)
def test_kinds_of_stores_without_their_facts(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As other tools write them again: top-k probabilities need the number of classes; bits of bfloat16 an option."""
    top = {
        "top_k_class_ids": np.zeros((8, 2), np.uint16), "top_k_probabilities": np.full((8, 2), 0.25, np.float32),
        "top_k_rest": np.full(8, 0.5, np.float32),
    }  # fmt: skip
    (record,) = records(format_named(name), strangers(tmp_path, name, {}, top))
    assert record.class_distribution is None and "top-k probabilities are left out" in caplog.text
    bits = np.arange(16000, 16064).astype(np.uint16).reshape(8, 8)
    path = strangers(tmp_path, name, {}, {"features": bits, "image_feature": bits[0]})
    with format_named(name).open(path, Reading(feature_dtype="bfloat16")) as file:
        (record,) = (each for each in file.outcomes("bfloat16") if isinstance(each, RegionRecord))
    assert record.image_feature is not None and (record.features.view(np.uint16) == bits).all()
    np.testing.assert_array_equal(record.image_feature.view(np.uint16), bits[0])


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tars_of_strangers(tmp_path: Path, form: int) -> None:
    """What is no pair of members is a dead letter; nothing is extracted, links are passed over."""
    found = format_named("webdataset")
    found.write([measured("a")], tmp_path / "own.tar")
    with tarfile.open(tmp_path / "own.tar") as own:
        told, arrays = (own.extractfile(f"a.{kind}").read() for kind in ("json", "npz"))  # type: ignore[union-attr]
    link = tarfile.TarInfo("link.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    named, long = json.dumps(json.loads(told) | {"image_id": "b"}).encode(), "schön" * 60
    path = tar_of(
        tmp_path / "f.tar", ("a.jpg", b"pixels"), ("a.npz", arrays), ("a.json", told), (link, b""), ("b.json", told),
        ("b.npz", arrays), ("c.json", named), ("../up.json", named.replace(b'"b"', b'"../up"')), ("../up.npz", arrays),
        ("d.json", b"[" * 10_000), ("d.npz", arrays), ("f%20g.json", named.replace(b'"b"', b'"f%20g"')),
        ("f%20g.npz", arrays), ("a.npz", arrays), ("a.json", told.replace(b"480", b"481")), ("a.npz", arrays),
        ("e.json", named.replace(b'"b"', b'"e"')), ("e.npz", arrays[:500]),
        (long + ".json", named.replace(b'"b"', json.dumps(long).encode())), (long + ".npz", arrays), form=form,
    )  # fmt: skip
    every = outcomes(found, path)
    good = [each.image_id for each in every if isinstance(each, RegionRecord)]
    bad = {each.image_id: each.detail for each in every if not isinstance(each, RegionRecord)}
    assert good == ["../up", "a", "f%20g", long]  # an id is no path
    assert "is of 'a'" in bad["b"] and "not both" in bad["c"] and "is no object" in bad["d"] and "npz" in bad["e"]
    data = path.read_bytes()
    for damage, words in (
        (data[: len(data) // 2], "no whole tar"),
        (data[:1024] + b"\xff" * 512 + data[1536:], "at byte 1,024"),
    ):
        path.write_bytes(damage)
        refused(words, outcomes, found, path)
    tar_of(path, ("__roibeam__/facts.npz", b""), ("a.json", told), ("a.npz", arrays))
    refused("facts of a store are damaged", outcomes, found, path)


@pytest.mark.parametrize("name", BOTH)
def test_shards_may_have_other_arrays(tmp_path: Path, name: str) -> None:
    kept = [rich("a", image_feature=True), rich("b", distribution=None), rich("c", image_feature=True)]
    for record in kept:
        format_named(name).write([record], place(tmp_path, name, record.image_id))
    found = records(format_named(name), tmp_path)
    assert [each.image_feature is None for each in found] == [False, True, False]
    assert all(one.equals(other) for one, other in zip(found, kept, strict=True))


def test_a_row_group_is_bounded_in_all_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    format_named("parquet").write([measured("a")], tmp_path / "f.parquet")
    monkeypatch.setattr("roibeam.features.exchange.parquet_shards._MOST_HELD", 100)
    refused("its row group unpacks to over 1 GiB", outcomes, format_named("parquet"), tmp_path / "f.parquet")


@pytest.mark.parametrize("name", BOTH)
def test_names_that_are_missing(tmp_path: Path, name: str) -> None:
    """As `name_of` has them for classes and attributes."""
    (words,) = [exact(name).with_names([], ["red"])._words_of(replace(
        measured("a", 1), attribute_ids=np.array([7], np.uint16), attribute_scores=np.ones(1, np.float32)
    ))]  # fmt: skip
    assert words["attributes"] == ["attribute 7"] and words["classes"][0].startswith("class ")


def test_records_of_two_kinds_do_not_fit_one_file(tmp_path: Path) -> None:
    found, wide = format_named("parquet"), replace(measured("b"), features=np.zeros((3, 9), np.float16))
    refused("features: records differ in width", found.write, [measured("a"), wide], tmp_path / "f.parquet")
    late = replace(measured("b"), image_feature=np.zeros(8, np.float16))
    refused(
        "'b': has image_feature, which the first record lacks",
        found.write,
        [measured("a"), late],
        tmp_path / "f.parquet",
    )
    rows = [np.zeros((3, 8 + number // 1000), np.float16) for number in range(1001)]  # in two row groups
    many = [replace(measured(f"{number}"), features=each) for number, each in enumerate(rows)]
    refused("features: records differ in width", found.write, many, tmp_path / "f.parquet")
    assert list(tmp_path.iterdir()) == []


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    """A reader holds a whole one, whatever the export's length."""
    record = replace(measured("x", 100), features=np.zeros((100, 2048), np.float32))
    format_named("parquet").write(
        (replace(record, image_id=f"{number:03}") for number in range(60)), tmp_path / "f.parquet"
    )
    file = pq.ParquetFile(tmp_path / "f.parquet")
    sizes = [file.metadata.row_group(each).num_rows for each in range(file.num_row_groups)]
    assert max(sizes) * record.features.nbytes <= 2**25 + record.features.nbytes and sum(sizes) == 60


def test_a_store_is_a_data_set_and_a_table_of_regions_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    kept = [measured("b", 3), measured("a", 5, seed=7), measured("c", 0)]
    write_store(tmp_path / "store", kept, feature_space="drawn", classes=[f"thing {each}" for each in range(6)])
    with FeatureStore(tmp_path / "store") as store:
        for found in (store.to_dataset(), store.to_dataset()):  # made, and found in the cache
            assert found["image_id"] == ["a", "b", "c"] and found.features["features"].feature.length == 8
            for row, record in zip(found.with_format("numpy"), store, strict=True):
                np.testing.assert_array_equal(np.array(row["features"], np.float16).reshape(-1, 8), record.features)
        for table in (store.to_pandas(), store.to_polars()):
            assert list(table["image_id"]) == ["a"] * 5 + ["b"] * 3
            assert list(table["region"]) == [0, 1, 2, 3, 4, 0, 1, 2]
            np.testing.assert_array_equal(np.array(table["x2"]), np.concatenate([each.boxes[:, 2] for each in store]))
            assert list(table["class"])[5:] == [f"thing {each}" for each in kept[0].class_ids]
            np.testing.assert_array_equal(np.array(table["score"])[5:], kept[0].class_scores)
    plain = {"image_id": "a", "height": 9, "width": 9, "boxes": kept[0].boxes / 100, "features": kept[0].features}
    write_store(tmp_path / "plain", [plain], feature_space="drawn")
    with FeatureStore(tmp_path / "plain") as store:
        assert not [name for name in store.to_dataset().column_names if "class" in name]
