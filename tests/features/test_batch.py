"""Batches: the numbers of their records, in memory that is used again, without touching what is not asked for."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from store_examples import make_record, write_store

from roibeam.features.batch import LARGE_FIELDS, BatchBuffers, RegionBatch, RegionFilter, assemble
from roibeam.features.reading.torch_datasets import RegionDataset
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store as write_records

COUNTS = (3, 0, 5, 1)
OF_REGIONS = (
    "boxes", "class_ids", "class_scores", "features", "attribute_ids", "attribute_scores", "class_distribution"
)  # fmt: skip


def some_records(**options: object) -> list[RegionRecord]:
    made = {"attributes": True, "distribution": "full", "image_feature": True} | options
    return [make_record(f"i{n}", n, seed=n, **made) for n in COUNTS]  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    records = some_records()
    write_store(tmp_path / "s", [records[:2], records[2:]])
    return FeatureStore(tmp_path / "s")


def ids_of(records: list[RegionRecord]) -> list[str]:
    return [record.image_id for record in records]


def arrays_of(batch: RegionBatch) -> dict[str, np.ndarray]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), np.ndarray)}


@pytest.mark.parametrize("ragged", [False, True])
def test_a_batch_holds_its_records(store: FeatureStore, ragged: bool) -> None:
    records = some_records()
    batch = store.get_batch(ids_of(records), fields=LARGE_FIELDS, ragged=ragged)
    assert len(batch) == 4 and batch.num_regions.tolist() == list(COUNTS)
    assert batch.image_ids == tuple(ids_of(records)) and batch.image_hw.tolist() == [[480, 640]] * 4
    for row, record in enumerate(records):
        for name in OF_REGIONS:
            found = getattr(batch, name)
            if ragged:
                assert batch.offsets is not None
                own = found[batch.offsets[row] : batch.offsets[row + 1]]
            else:
                own = found[row, : record.num_regions]
                assert not found[row, record.num_regions :].any()
            np.testing.assert_array_equal(own, getattr(record, name))
            assert found.dtype == getattr(record, name).dtype and found.flags.c_contiguous
        assert batch.image_feature is not None
        np.testing.assert_array_equal(batch.image_feature[row], record.image_feature)
    if not ragged:
        assert batch.region_mask is not None and batch.region_mask.sum(axis=1).tolist() == list(COUNTS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_top_k_distributions_and_other_dtypes(dtype: str) -> None:
    records = some_records(distribution="top-k", dtype=dtype)
    batch = assemble(ids_of(records), records, fields=("features", "class_distribution"), ragged=True)
    tops = [record.class_distribution for record in records]
    assert batch.class_distribution is None and batch.features is not None and batch.features.dtype.name == dtype
    for name, own in (("top_k_ids", "class_ids"), ("top_k_probabilities", "probabilities"), ("top_k_rest", "rest")):
        want = np.concatenate([getattr(top, own) for top in tops if isinstance(top, TopKDistribution)])
        np.testing.assert_array_equal(getattr(batch, name), want)


@pytest.mark.parametrize("ragged", [False, True])
def test_memory_is_used_again_and_nothing_stays_in_it(ragged: bool) -> None:
    records, memory = some_records(), BatchBuffers()
    first = assemble(ids_of(records), records, fields=LARGE_FIELDS, ragged=ragged, out=memory)
    places = {name: array.__array_interface__["data"][0] for name, array in arrays_of(first).items()}
    chosen = [records[3], records[0]]
    second = assemble(ids_of(chosen), chosen, fields=LARGE_FIELDS, ragged=ragged, out=memory)
    fresh = assemble(ids_of(chosen), chosen, fields=LARGE_FIELDS, ragged=ragged)
    for name, array in arrays_of(second).items():
        np.testing.assert_array_equal(array, getattr(fresh, name))
        assert array.__array_interface__["data"][0] == places[name]


def test_memory_of_ones_own() -> None:
    asked: list[int] = []

    def allocate(count: int) -> np.ndarray:
        asked.append(count)
        return np.zeros(count, np.uint8)

    records, memory = some_records(), BatchBuffers(allocate)
    assemble(ids_of(records), records, out=memory)
    count = len(asked)
    assemble(ids_of(records), records, out=memory)
    assert asked and len(asked) == count
    with pytest.raises(ValueError, match="must give a writable"):
        assemble(ids_of(records), records, out=BatchBuffers(lambda n: np.empty(n // 2, np.uint8)))


def test_boxes_alone_touch_no_large_value(store: FeatureStore, tmp_path: Path) -> None:
    """With the large values destroyed, what does not need them still reads."""
    ids = [f"i{n}" for n in COUNTS]
    want = store.get_batch(ids)
    for entry in store.manifest.shards:
        (path,) = (tmp_path / "s").glob(f"part-{entry.shard:05d}.*.lmdb")
        content = bytearray(path.read_bytes())
        at = -1
        while (at := content.find(b"RBRR", at + 1)) >= 0:
            content[at : at + 4] = b"XXXX"
        path.write_bytes(content)
    found = FeatureStore(tmp_path / "s")
    batch = found.get_batch(ids, fields=())
    np.testing.assert_array_equal(batch.boxes, want.boxes)
    assert batch.features is None and found.num_regions_of(ids).tolist() == list(COUNTS)
    refused("region value starts with", found.get_batch, ids)


def test_what_cannot_be_a_batch(store: FeatureStore) -> None:
    store.prefetch(["i0", "i5"])  # the next batch may be named before it is read
    refused("'i9' is not in the store", store.prefetch, ["i9"], error=KeyError)
    refused("at least one record", store.get_batch, [])
    words = r"fields \['feature'\] are unknown; there are features, attributes"
    refused(words, store.get_batch, ["i3"], fields=("feature",))
    bare = [make_record("a", 2), make_record("b", 2)]
    refused("record 'a' has no attribute ids", assemble, ["a", "b"], bare, fields=("attributes",))
    words = r"record 'b' has features \(4,\) float16, record 'a' \(8,\) float16"
    refused(words, assemble, ["a", "b"], [bare[0], make_record("b", 2, 4)])
    store.close()
    refused("this store is closed", store.get_batch, ["i3"])


# ---- filters


@pytest.mark.parametrize(
    "limits", [(0.0, 0, None), (0.5, 0, None), (0.5, 3, None), (0.9, 2, 4), (0.0, 0, 3), (1.0, 0, 1)]
)
def test_filters_keep_what_they_say(limits: tuple[float, int, int | None]) -> None:
    least, fewest, most = limits
    generator = np.random.default_rng(3)
    for count in (0, 1, 2, 5, 9):
        scores = generator.integers(0, 6, count).astype(np.float32) / 5  # with ties
        rows = RegionFilter(least, fewest, most).rows(scores)
        found = list(range(count)) if rows is None else rows.tolist()
        ranked = sorted(range(count), key=lambda row: (-scores[row], row))
        wanted = [row for place, row in enumerate(ranked) if scores[row] >= least or place < fewest]
        assert found == sorted(wanted[:most])


def test_a_filtered_batch_is_the_batch_of_filtered_records(store: FeatureStore) -> None:
    limits = RegionFilter(min_score=0.3, min_regions=1, max_regions=2)
    records = some_records()
    batch = store.get_batch(ids_of(records), fields=LARGE_FIELDS, regions=limits)
    for row, record in enumerate(records):
        kept = limits.rows(record.class_scores)
        kept = np.arange(record.num_regions) if kept is None else kept
        assert batch.num_regions[row] == len(kept)
        for name in OF_REGIONS:
            np.testing.assert_array_equal(getattr(batch, name)[row, : len(kept)], getattr(record, name)[kept])
    assert batch.boxes.shape[1] == 2


def test_limits_that_cannot_be_met() -> None:
    for limits in ({"min_score": 1.5}, {"min_regions": -1}, {"max_regions": 0}, {"min_regions": 3, "max_regions": 2}):
        refused(r"must be in|expected 0 <= min_regions", RegionFilter, **limits)


def test_a_store_without_class_scores_has_none_to_choose_by(tmp_path: Path) -> None:
    """Their zeros would drop every region, or choose the first."""
    arrays = {"height": 9, "width": 9, "boxes": np.array([[0, 0, 5, 5]]), "features": np.ones((1, 4), np.float32)}
    write_records(tmp_path / "s", [{"image_id": "a", **arrays}], feature_space="own")
    with FeatureStore(tmp_path / "s") as opened:
        for regions in (RegionFilter(min_score=0.2), RegionFilter(max_regions=1)):
            refused("no class scores, so RegionFilter", opened.get_batch, ["a"], regions=regions)
            refused("no class scores, so RegionFilter", RegionDataset, opened, regions=regions)
