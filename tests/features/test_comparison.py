"""What the comparison of two sources counts, against figures worked out by hand; and when it calls them equal."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from butd_tsv_examples import CAFFE, LXMERT, fields, line
from fuzz_child import traced_peak
from refusals import refused
from store_examples import FINGERPRINT, make_record, write_shard, write_store

from roibeam.features import record_pairing, store_comparison
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.record_pairing import RecordSource, match_regions
from roibeam.features.shard.writer import publish_shard, publish_store
from roibeam.features.store_comparison import Cosines, StoreComparison, compare, distribution_error


@pytest.fixture
def stores(tmp_path: Path) -> Callable[..., StoreComparison]:
    """Writes two stores of these records and compares them."""

    def run(left: list[RegionRecord], right: list[RegionRecord], **options: Any) -> StoreComparison:
        folders = [Path(mkdtemp(dir=tmp_path)) for _ in range(2)]
        for folder, each in zip(folders, (left, right), strict=True):
            write_store(folder, [each])
        with RecordSource(folders[0]) as first, RecordSource(folders[1]) as second:
            return compare(first, second, **options)

    return run


def records(count: int, dtype: str = "float32", **rest: Any) -> list[RegionRecord]:
    return [make_record(f"i{i}", i + 1, dtype=dtype, seed=50 * i, attributes=True, **rest) for i in range(count)]


# --- Which regions are the same


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ([], [], []),
        ([], [[0, 0, 9, 9]], []),
        ([[0, 0, 10, 10], [20, 0, 30, 10]], [[20, 0, 30, 10], [0, 0, 10, 10]], [(0, 1), (1, 0)]),
        ([[0, 0, 10, 10]], [[0, 0, 10, 20]], [(0, 0)]),  # IoU exactly 0.5 counts
        ([[0, 0, 10, 10]], [[0, 0, 10, 20.1]], []),
        ([[0, 0, 10, 10], [0, 0, 10, 9]], [[0, 0, 10, 9]], [(1, 0)]),  # the best pair first, one partner each
        ([[0, 0, 9, 9], [0, 0, 9, 9]], [[0, 0, 9, 9], [0, 0, 9, 9]], [(0, 0), (1, 1)]),  # of equal ones the nearest row
        ([[5, 5, 5, 5]], [[5, 5, 5, 5]], [(0, 0)]),  # no area, but the same box
        ([[5, 5, 5, 9]], [[5, 5, 5, 8]], []),
        ([[0, 0, 10, 10], [0, 0, 10, 8]], [[0, 0, 10, 7.9]], [(1, 0)]),  # the best pair, not that of nearest rows
    ],
)
def test_match_regions(left: list, right: list, pairs: list) -> None:
    found = match_regions(np.array(left, np.float32).reshape(-1, 4), np.array(right, np.float32).reshape(-1, 4))
    assert sorted(map(tuple, found.tolist())) == pairs


def test_matching_does_not_depend_on_the_order_of_regions() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 300, (60, 2))
    left = np.concatenate([corners, corners + rng.uniform(20, 200, (60, 2))], axis=1).astype(np.float32)
    order = rng.permutation(60)
    found = match_regions(left, left[order])
    assert len(found) == 60
    np.testing.assert_array_equal(order[found[:, 1]], found[:, 0])


@pytest.mark.parametrize(("apart", "bytes_per_candidate"), [(0, 2), (1, 90)])
def test_memory_of_many_boxes_in_one_place(apart: float, bytes_per_candidate: int) -> None:
    """Each box fits each of the other side. Equal ones need no candidates; of others few lists are made at a time."""
    boxes = np.tile(np.array([[0, 0, 10, 10]], np.float32), (1000, 1))
    found: list[np.ndarray] = []
    peak = traced_peak(lambda: found.append(match_regions(boxes, boxes + np.float32(apart))))
    np.testing.assert_array_equal(found[0], np.arange(1000)[:, None].repeat(2, axis=1))
    assert peak < bytes_per_candidate * len(boxes) ** 2


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ("AAB", "BAA", [(1, 1), (0, 2), (2, 0)]),  # same row, then the nearest, upper row first
        ("A--A", "-A", [(0, 1)]),
        ("--A", "A---A", [(2, 0)]),
        ("AA", "--AA", [(1, 2), (0, 3)]),
    ],
)
def test_equal_boxes_pair_with_the_nearest_row(left: str, right: str, pairs: list) -> None:
    def boxes(letters: str, apart: float) -> np.ndarray:
        corners = [(500 + 50 * i + apart, 900) if c == "-" else (100 * ord(c), 0) for i, c in enumerate(letters)]
        return np.array([(x, y, x + 10, y + 10) for x, y in corners], np.float32)

    assert list(map(tuple, match_regions(boxes(left, 0), boxes(right, 25)).tolist())) == pairs


# --- What is counted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_store_equals_itself(stores: Callable[..., StoreComparison], dtype: str) -> None:
    found = stores(records(4, dtype), records(4, dtype), max_error=0)
    assert found.equal and found.differences == () and found.notes == ()
    assert (found.num_common, found.num_matched, found.num_same_box) == (4, 10, 10)
    assert (found.cosine_mean, found.cosine_p1, found.cosine_min, found.feature_error) == (1, 1, 1, 0)
    assert (found.num_same_class, found.num_same_attribute, found.score_error) == (10, 10, 0)
    json.dumps(found.to_json(), allow_nan=False)


def turned(record: RegionRecord, *optional: str) -> RegionRecord:
    """With its regions in the opposite order."""
    names = ("boxes", "features", "class_ids", "class_scores", *optional)
    return replace(record, **{name: getattr(record, name)[::-1].copy() for name in names})


def test_dtypes_and_order_of_regions_do_not_matter(stores: Callable[..., StoreComparison]) -> None:
    left = records(3, "float32")
    right = [turned(record, "attribute_ids", "attribute_scores") for record in left]
    found = stores(left, [replace(record, features=record.features.astype(np.float16)) for record in right])
    assert found.equal and found.feature_error is not None and 0 < found.feature_error < 5e-4


def test_figures_by_hand(stores: Callable[..., StoreComparison]) -> None:
    """Two regions of four match; features, classes and scores of one of them differ by known amounts."""
    left = make_record("a", 4, 3, "float32", attributes=True)
    boxes = np.array([[0, 0, 10, 10], [100, 0, 120, 20], [200, 200, 210, 210], [300, 300, 310, 310]], np.float32)
    left = replace(
        left,
        boxes=boxes,
        features=np.array([[3, 4, 0], [0, 0, 2], [1, 1, 1], [1, 1, 1]], np.float32),
        class_ids=np.array([5, 6, 7, 8], np.uint16),
        class_scores=np.array([0.5, 0.25, 0.5, 0.5], np.float32),
        attribute_ids=np.array([1, 2, 3, 4], np.uint16),
    )
    right = replace(
        left,
        height=481,
        boxes=boxes[:3] + np.array([[0, 0, 0, 0], [0, 0, 2, 0], [500, 0, 500, 0]], np.float32),
        features=np.array([[3, 4, 0], [0, 2, 0], [1, 1, 1]], np.float32),
        class_ids=np.array([5, 9, 7], np.uint16),
        class_scores=np.array([0.5, 0.5, 0.5], np.float32),
        attribute_ids=np.array([1, 9, 3], np.uint16),
        attribute_scores=left.attribute_scores[:3] if left.attribute_scores is not None else None,
    )
    found = stores([left, make_record("only left", 2, 3, "float32")], [right])
    assert (found.num_left_regions, found.num_right_regions, found.num_matched, found.num_same_box) == (4, 3, 2, 1)
    assert (found.num_only_left, found.examples_only_left, found.num_only_right) == (1, ("only left",), 0)
    assert found.num_other_size == 1
    assert (found.cosine_mean, found.cosine_min) == (0.5, 0.0)
    assert found.feature_error == 2 / 4 and found.feature_error_image == "a"
    assert (found.num_class_pairs, found.num_same_class) == (2, 1)
    assert (found.num_attribute_pairs, found.num_same_attribute) == (2, 1)
    assert (found.score_error_mean, found.score_error) == (0.125, 0.25)
    assert found.differences == (
        "1 image is only on the left",
        "1 image has another height or width",
        "2 regions of the left and 1 of the right have no partner of IoU >= 0.5",
        "1 matched box differs by more than 0.1 px",
        "features differ by up to 5.00e-01, more than 0.001",
        "class scores differ by up to 2.50e-01, more than 0.001",
        "1 of 2 classes differs",
        "1 of 2 attributes differs",
    )
    (image,) = found.worst
    assert (image.matched_share, image.num_left, image.num_right, image.cosine_min) == (0.5, 4, 3, 0.0)


@pytest.mark.parametrize(
    ("field", "value", "difference"),
    [
        ("attribute_scores", np.zeros(3, "f4"), "attribute scores differ by up to 5.00e-01, more than 0.001"),
        ("image_feature", np.array([4, 0, -3], "f4"), "image features differ by up to 7.50e-01, more than 0.001"),
        ("image_feature", np.zeros(5, "f4"), "1 image has an image feature of another width"),
        ("class_distribution", np.full((3, 7), 0.75, "f2"),
         "class distributions differ by up to 5.00e-01, more than 0.001"),
        ("class_distribution", np.full((3, 9), 0.25, "f2"),
         "1 image has class distributions of another number of classes"),
    ],
)  # fmt: skip
def test_each_optional_field_that_differs_is_a_difference(
    stores: Callable[..., StoreComparison], field: str, value: np.ndarray, difference: str
) -> None:
    left = replace(
        make_record("b", 3, 3, "float32", attributes=True),
        attribute_scores=np.full(3, 0.5, np.float32),
        image_feature=np.array([4, 0, 0], np.float32),
        class_distribution=np.full((3, 7), 0.25, np.float16),
    )
    same = replace(left, image_id="a")
    found = stores([same, left], [same, replace(left, **{field: value})])
    assert found.differences == (difference,) and found.notes == ()
    name = field.rstrip("s").replace("class_", "") + "_error"
    assert (getattr(found, name) == 0) == ("another" in difference)
    assert "another" in difference or found.worst[0].image_id == "b"


def test_distributions_follow_the_pairs(stores: Callable[..., StoreComparison]) -> None:
    left = replace(make_record("a", 2), class_distribution=np.eye(2, 7, dtype=np.float16))
    assert stores([left], [turned(left, "class_distribution")], max_error=0).equal


# --- Class distributions of which one or both list a few classes


def top_k(ids: list[int], probabilities: list[float], rest: float, num_classes: int = 6) -> TopKDistribution:
    return TopKDistribution(np.array([ids], "u2"), np.array([probabilities], "f2"), np.array([rest], "f2"), num_classes)


FULL = np.array([[0.5, 0.25, 0.125, 0.0625, 0.0625, 0, 0]], np.float16)


@pytest.mark.parametrize(
    ("left", "right", "error"),
    [
        (FULL, FULL, 0),
        (FULL, FULL[:, ::-1].copy(), 0.5),
        (top_k([0, 1], [0.5, 0.25], 0.25), FULL, 0),
        (top_k([1, 0], [0.5, 0.25], 0.25), FULL, 0.25),
        (top_k([0, 1], [0.5, 0.25], 0.0625), FULL, 0.0625),  # class 2 has twice what the rest can give it
        (top_k([0, 3], [0.5, 0.0625], 0.5), FULL, 0.1875),  # class 1 would be listed before 3
        (top_k([0, 1], [0.5, 0.25], 0.25), top_k([0, 1, 2], [0.5, 0.25, 0.125], 0.125), 0),
        (top_k([0, 1], [0.5, 0.25], 0.25), top_k([0, 2], [0.5, 0.25], 0.25), 0),  # a tie, cut either way
        (top_k([0, 1], [0.5, 0.375], 0.125), top_k([0, 2], [0.5, 0.25], 0.25), 0.125),
        (top_k([0, 1], [0.5, 0.25], 0.25), top_k([1, 0], [0.25, 0.5], 0.125), 0.125),  # the rest differs
        (top_k([0], [1], 0, 2**32 - 1), top_k([9], [1], 0, 2**32 - 1), 1),  # as many classes as a file may claim
    ],
)
def test_distribution_error(left: Any, right: Any, error: float) -> None:
    pairs = np.zeros((1, 2), np.int64)
    assert distribution_error(left, right, pairs) == distribution_error(right, left, pairs) == error


def test_distribution_error_of_parts_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    records_ = [make_record("a", 9, distribution=kind, seed=3) for kind in ("full", "top-k")]
    pairs = np.stack([np.arange(9), np.arange(9)[::-1]], axis=1)
    first, second = (record.class_distribution for record in records_)
    assert first is not None and second is not None
    want = distribution_error(first, second, pairs)
    monkeypatch.setattr(store_comparison, "_VALUES_AT_ONCE", 14)
    assert distribution_error(first, second, pairs) == want > 0


def test_worst_images_first(stores: Callable[..., StoreComparison]) -> None:
    left = [make_record(name, 4, dtype="float32", seed=i) for i, name in enumerate("abcde")]
    right = list(left)
    right[1] = replace(left[1], features=left[1].features * np.float32(1.01))
    right[2] = replace(left[2], width=641)
    right[3] = make_record("d", 2, dtype="float32", seed=3)
    right[4] = replace(left[4], features=left[4].features * np.float32(1.1))
    assert [image.image_id for image in stores(left, right, worst=3).worst] == ["c", "d", "e"]
    # Equally bad ones come in the order of the store.
    assert [image.image_id for image in stores(left, left, worst=3).worst] == ["a", "b", "c"]
    assert stores(left, right, worst=0).worst == ()


def test_images_without_regions(stores: Callable[..., StoreComparison]) -> None:
    left = make_record("a", 0, dtype="float32", image_feature=True)
    found = stores([left], [left])
    assert found.equal and found.cosine_mean is None and found.feature_error is None
    assert found.worst[0].matched_share == 1.0
    assert left.image_feature is not None
    found = stores([left], [replace(left, image_feature=-left.image_feature)])
    assert found.image_feature_error == 2 and not found.equal
    found = stores([make_record("a", 0)], [make_record("a", 2)])
    assert found.differences == ("0 regions of the left and 2 of the right have no partner of IoU >= 0.5",)


def test_percentile_of_cosines() -> None:
    rng = np.random.default_rng(1)
    values = 1 - np.geomspace(1e-7, 1.9, 5000) * rng.uniform(0.9, 1.0, 5000)
    cosines = Cosines()
    for part in np.split(values, 10):
        cosines.add(part)
    exact = np.sort(values)[50]
    assert cosines.first_percentile == pytest.approx(exact, abs=0.012 * (1 - exact))
    assert cosines.smallest == values.min() and cosines.mean == pytest.approx(values.mean())


# --- What cannot be compared is said


def test_without_classes_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "six.tsv").write_bytes(line(CAFFE, fields("a")))
    (tmp_path / "ten.tsv").write_bytes(line(LXMERT, fields("a")))
    found = compare(tmp_path / "six.tsv", tmp_path / "ten.tsv")
    assert found.equal and found.num_class_pairs == 0 and found.score_error is None
    assert found.notes == (
        "classes and scores not compared: the left side has none",
        "attributes not compared: no image has them on both sides",
    )


def test_fields_of_one_side_and_distributions_of_two_kinds_are_noted(stores: Callable[..., StoreComparison]) -> None:
    every = make_record("every", 1, dtype="float32", attributes=True, image_feature=True)
    every = replace(every, class_distribution=FULL)
    bare = make_record("bare", 1, dtype="float32")
    short = replace(every, image_id="short", class_distribution=top_k([0, 1], [0.5, 0.25], 0.25))
    shorter = replace(short, image_id="shorter", class_distribution=top_k([0], [0.5], 0.5))
    left = [replace(every, image_id=name) for name in ("every", "bare", "short")]
    found = stores([*left, replace(short, image_id="shorter")], [every, bare, short, shorter])
    assert found.equal and found.distribution_error == 0
    bounds = "classes that one does not list are compared with the bounds it sets"
    assert found.notes == (
        "attributes not compared in 1 image: the right side has none there",
        "class distributions not compared in 1 image: the right side has none there",
        "image features not compared in 1 image: the right side has none there",
        f"class distributions of 1 image are full on one side, top-k on the other: {bounds}",
        f"class distributions of 1 image are top-k of another k: {bounds}",
    )


def test_other_vocabularies_and_feature_spaces(tmp_path: Path) -> None:
    for name, classes in (("left", ["cat", "dog"]), ("right", ["dog", "cat"])):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name, 0, records(2))
        publish_store(tmp_path / name, [0], fingerprint=FINGERPRINT, config={}, classes=classes, attributes=classes)
    (tmp_path / "ten.tsv").write_bytes(line(LXMERT, fields("i0")))
    assert compare(tmp_path / "left", tmp_path / "right").notes == (
        "classes and scores not compared: the two vocabularies differ",
        "attributes not compared: the two vocabularies differ",
    )
    (note,) = (note for note in compare(tmp_path / "left", tmp_path / "ten.tsv").notes if "feature spaces" in note)
    assert note.endswith("right imported:butd-tsv")


def test_networks_of_other_classes_and_what_differs_in_the_feature_spaces(tmp_path: Path) -> None:
    for name, count, rule in (("left", 20, "exact"), ("right", 1600, "rounded")):
        detector = {"num_classes": count, "weights": name * 16, "conventions": {"anchor_sides": rule}}
        details = {"detector": detector, "regions": {"max_regions": count, "order": "score"}, "image_feature": "none"}
        fingerprint = Fingerprint(feature_space_of(details), {}, details)
        (tmp_path / name).mkdir()
        summary = write_shard(tmp_path / name, 0, records(2))
        publish_shard(tmp_path / name, replace(summary, fingerprint=fingerprint))
        config = {"conventions": "hf" if name == "left" else "caffe"}
        publish_store(tmp_path / name, [0], fingerprint=fingerprint, config=config)
    found = compare(tmp_path / "left", tmp_path / "right")
    assert (found.num_class_pairs, found.num_attribute_pairs) == (0, 0)
    counts = "20 classes on the left, 1,600 on the right"
    classes, attributes, spaces = found.notes
    assert (classes, attributes) == (f"classes and scores not compared: {counts}", f"attributes not compared: {counts}")
    what = "conventions hf / caffe, num classes 20 / 1600, selection (max_regions 20 / 1600), weights"
    assert spaces.startswith(f"the feature spaces differ in {what}: left ")


def test_features_of_another_width(stores: Callable[..., StoreComparison]) -> None:
    found = stores([make_record("a", 3, 8)], [make_record("a", 3, 16)])
    assert found.differences == ("features are 8 wide on the left, 16 on the right",)
    assert found.cosine_mean is None and found.num_same_box == 3


def test_lines_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "ten.tsv"
    bad = line(LXMERT, fields("b") | {"boxes": b"?"})
    path.write_bytes(line(LXMERT, fields("a")) + bad + b"no tabs\n")
    found = compare(path, path)
    assert (found.num_common, found.num_unreadable) == (1, 1)
    assert found.left.num_images == 2
    assert found.left.bad_entries == {"wrong columns": 1, "bad base64": 1}
    assert found.left.first_bad_entries[0].startswith(f"{path}:3: has no tab")
    assert f"2 entries of {path} cannot be used" in found.differences
    assert "1 image has no usable record on one side" in found.differences


def test_a_damaged_store_is_an_error(tmp_path: Path) -> None:
    record = make_record("a", 40, 64)
    write_store(tmp_path / "s", [[record]])
    (path,) = (tmp_path / "s").glob("*.lmdb")
    data = bytearray(path.read_bytes())
    data[data.index(record.features.tobytes()[:64])] ^= 1
    path.write_bytes(data)
    refused("region value has checksum", compare, tmp_path / "s", tmp_path / "s")


def test_neither_store_nor_file(tmp_path: Path) -> None:
    refused("no such store or file", RecordSource, tmp_path / "none", error=FileNotFoundError)
    refused("no feature store here", RecordSource, tmp_path, error=FileNotFoundError)


# --- Which images are the same


def test_ids_paired_by_number(stores: Callable[..., StoreComparison]) -> None:
    left = [make_record(name, 2) for name in ("COCO_train2014_000000000012", "x/b", "only7")]
    right = [make_record(name, 2) for name in ("12", "x/b", "000000000099")]
    found = stores(left, right, id_rule="number")
    assert (found.num_common, found.examples_only_left, found.examples_only_right) == (2, ("only7",), ("000000000099",))
    assert found.left.num_images == found.right.num_images == 3
    exact = {image.image_id: image.right_id for image in found.worst}
    assert exact == {"COCO_train2014_000000000012": "12", "x/b": "x/b"}


def test_no_image_on_both_sides(stores: Callable[..., StoreComparison]) -> None:
    found = stores([make_record("COCO_000012", 2)], [make_record("12", 2)])
    assert not found.equal
    assert found.differences[0] == (
        "no image is on both sides (ids such as 'COCO_000012', '12'); "
        "pairing ids by number may help (--match-ids number)"
    )


def test_what_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch, stores: Callable[..., StoreComparison]) -> None:
    monkeypatch.setattr(record_pairing, "MAX_MATCHED_REGIONS", 5)
    refused("image 'a': 6 regions in one image; at most 5", stores, [make_record("a", 6)], [make_record("a", 5)])
    one = [make_record("12", 2)]
    twice = [make_record("a12", 2), make_record("b12", 2)]
    refused("'a12' and 'b12' end with one number", stores, twice, one, id_rule="number")
    refused("id rule 'fuzzy': choose one of exact, number", stores, one, one, id_rule="fuzzy")
    refused("max_error 2 must be from 0 to 1", stores, one, one, max_error=2)
