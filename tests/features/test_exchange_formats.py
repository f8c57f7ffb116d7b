"""All formats at once: names, recognition, what a written file says of itself, the report, and writing aside."""

import fcntl
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import PAIR, measured, place, records, survives
from fuzz_child import soak_seeds
from refusals import refused

from roibeam.features.exchange.butd_tsv import FORMAT as TSV
from roibeam.features.exchange.check_report import CheckReport
from roibeam.features.exchange.entry_record import far_edges
from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.exchange.formats import FORMATS, format_named, format_of, recognise
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.record_pairing import RecordSource
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat

LOSE_NOTHING = ("webdataset", "parquet")
NEED_REGIONS = ("mmf-lmdb", "vilbert-lmdb", "uniter-lmdb", "vlbert-zip", "captioning-folders", "array-h5")


@pytest.mark.parametrize("name", FORMATS)
def test_a_written_file_is_recognised_and_says_what_it_is(tmp_path: Path, name: str) -> None:
    found = format_named(name)
    assert found.name == name and found.title and found.layouts
    for layout in found.layouts:
        (tmp_path / layout).mkdir()
        path = place(tmp_path / layout, name)
        found.write([measured("a", 2), measured("b", 5, seed=7)], path, layout=layout)
        claims = [other for other in FORMATS if format_named(other).looks_like(path)]
        assert claims == [name], layout
        with found.open(path) as file:
            details = {"classes", "attributes", "feature_dim", "boxes"}
            assert details <= file.details.keys() and json.dumps(file.details)
            assert (file.layout, file.num_entries, file.letters) == (layout, 2, [])
            assert list(file.ids()) == ["a", "b"] and "a" in file and "c" not in file
        assert sorted(path.name for path in path.parent.iterdir()) == [path.name], "nothing is left beside it"


FIRST = {"background": "first", "num_classes": 6}
NEITHER = {"classes": "absent", "attributes": "absent"}
NO_ROWS = {"classes": "absent", "background": "absent"}
OF_H5 = {"classes": "obj_id", "attributes": "attr_id"}
OF_OSCAR = {"classes": "class"}
EXACT = {"classes": "class_ids", "attributes": "attribute_ids"}
# Format, layout, with rows of probabilities; what each record loses, and what the file says of itself. UNITER's shares
# of the image in float16 are compared in its own test.
HELD = [
    ("vilbert-lmdb", "multi-task", True, "attributes", FIRST),
    ("vilbert-lmdb", "beta", True, "attributes", FIRST),
    ("vilbert-lmdb", "beta", False, "attributes, classes", {}),
    ("vilbert-lmdb", "volta", True, "", FIRST),
    ("vilbert-lmdb", "volta", False, "", {}),
    ("mmf-lmdb", "background", True, "attributes", FIRST),
    ("mmf-lmdb", "background", False, "attributes", {}),
    ("mmf-lmdb", "foreground", True, "attributes, rounding of the background probability", {}),
    ("mmf-lmdb", "foreground", False, "attributes", {}),
    ("vlbert-zip", "frcnn", True, "attributes", FIRST | {"classes": "classes", "attributes": "absent"}),
    (
        "vlbert-zip",
        "frcnn",
        False,
        "attributes, classes",
        {"classes": "absent", "background": "absent", "num_classes": None},
    ),
    ("mmf-npy", "background", True, "attributes", {"background": "first", "classes": "cls_prob"}),
    ("mmf-npy", "background", False, "attributes", {"background": "absent", "classes": "objects"}),
    ("mmf-npy", "foreground", True, "attributes", {"background": "absent", "classes": "cls_prob"}),
    ("mmf-npy", "foreground", False, "attributes", {"background": "absent", "classes": "objects"}),
    ("mmf-npy", "vilbert-mt", True, "attributes", {"background": "first", "classes": "cls_prob"}),
    ("mmf-npy", "vilbert-mt", False, "attributes, classes", NO_ROWS),
    ("milvlg-npz", "milvlg", True, "class_distribution", {"classes": "info.objects_id"}),
    ("milvlg-npz", "openvqa", True, "attributes, classes, class_distribution", {"classes": "absent"}),
    ("milvlg-npz", "gqa", True, "attributes, classes, class_distribution", {"classes": "absent"}),
    ("lxmert-h5", "group-per-image", True, "class_distribution", OF_H5),
    (
        "captioning-h5",
        "datasets-per-image",
        True,
        "attributes",
        FIRST | {"classes": "cls_prob", "attributes": "absent"},
    ),
    ("captioning-h5", "datasets-per-image", False, "attributes, classes", NO_ROWS | NEITHER),
    ("captioning-folders", "att-fc-box", True, "attributes, classes, class_distribution, image size", NEITHER),
    ("array-h5", "adaptive", True, "attributes, classes, class_distribution", NEITHER),
    ("oscar-tsv", "oscar", True, "class_distribution", OF_OSCAR | {"attributes": "attributes"}),
    ("oscar-tsv", "captioning", True, "attributes, class_distribution", OF_OSCAR | {"attributes": "absent"}),
    ("oscar-tsv", "vqa", True, "attributes, class_distribution", OF_OSCAR),
    ("oscar-tsv", "predictions", True, "class_distribution", OF_OSCAR | {"attributes": "attributes"}),
    ("butd-tsv", "lxmert", True, "class_distribution", {"classes": "objects_id", "attributes": "attrs_id"}),
    ("butd-tsv", "caffe", True, "attributes, classes, class_distribution", NEITHER),
    ("butd-tsv", "caffe-cls-prob", True, "attributes", NEITHER | {"classes": "cls_prob"}),
    ("webdataset", "regions", True, "", EXACT | {"background": "last", "num_classes": 6}),
    ("webdataset", "regions", False, "", EXACT),
    ("parquet", "regions", True, "", EXACT | {"background": "last", "num_classes": 6}),
    ("parquet", "regions", False, "", EXACT),
]


@pytest.mark.parametrize(("name", "layout", "rows", "lost", "details"), HELD)
def test_export_and_import_give_what_the_layout_holds(
    tmp_path: Path, name: str, layout: str, rows: bool, lost: str, details: dict[str, Any]
) -> None:
    found, path = format_named(name), place(tmp_path, name)
    kept = [measured(each, n, seed=n, rows=rows) for each, n in (("b", 8), ("a", 1), ("train/c", 5), ("é", 3))]
    if name == "vlbert-zip":  # the one that has a place for it
        kept[0] = replace(kept[0], image_feature=np.arange(8, dtype=np.float16))
    losses = found.write(kept, path, layout=layout)
    assert losses.keys() == set(filter(None, lost.split(", ")))
    assert all(count == 4 for what, count in losses.items() if "rounding" not in what)
    by_id = {record.image_id: without(record, lost) for record in kept}
    for record in records(found, path):
        want = by_id.pop(record.image_id)
        if layout == "foreground" and rows:  # background is what is missing to 1
            np.testing.assert_allclose(record.class_distribution[:, -1], want.class_distribution[:, -1], atol=2e-3)
            np.testing.assert_array_equal(record.class_distribution[:, :-1], want.class_distribution[:, :-1])
            want = replace(want, class_distribution=record.class_distribution)
        assert record.equals(want), record
    assert not by_id
    assert [other for other in FORMATS if format_named(other).looks_like(path)] == [name]
    with found.open(path) as file:
        assert details.items() <= file.details.items()
        assert (file.details["feature_dim"], file.details["boxes"], file.letters) == (8, "pixels", [])
        assert "train/c" in file and "c" not in file and [*file.outcomes_of("c")] == []


def without(record: RegionRecord, lost: str) -> RegionRecord:
    if "attributes" in lost:
        record = replace(record, attribute_ids=None, attribute_scores=None)
    if "image size" in lost:
        height, width = far_edges(record.boxes)
        record = replace(record, height=height, width=width)
    if "classes" in lost:
        record = replace(record, class_ids=record.class_ids * 0, class_scores=record.class_scores * 0)
    return replace(record, class_distribution=None) if "class_distribution" in lost else record


def test_every_layout_is_held_against_what_it_holds() -> None:
    every = {(name, layout) for name in FORMATS for layout in format_named(name).layouts if name != "uniter-lmdb"}
    assert {(name, layout) for name, layout, *_ in HELD} == every


@pytest.mark.parametrize("name", FORMATS)
def test_records_without_regions_or_attributes_come_back_or_are_counted(tmp_path: Path, name: str) -> None:
    found, path = format_named(name), place(tmp_path, name)
    losses = found.write([measured("a"), measured("bare", attributes=False), measured("empty", 0)], path)
    assert ("records without regions" in losses) == (name in NEED_REGIONS)
    by_id = {record.image_id: record for record in records(found, path)}
    assert list(by_id) == ["a", "bare", *(["empty"] if name not in NEED_REGIONS else [])]
    bare = ["bare"] if name in LOSE_NOTHING else list(by_id)[1:]
    assert all(by_id[each].attribute_ids is None for each in bare)


def test_a_store_may_be_compared_with_every_format(tmp_path: Path) -> None:
    found = format_named("milvlg-npz")
    found.write([measured("a")], tmp_path / "f")
    with RecordSource(tmp_path / "f") as source:
        assert source.fingerprint.feature_space == "imported:milvlg-npz" and source.has_classes
        assert source.feature_dim == 8 and source.num_classes is None
        record = source.get("a")
        assert record is not None and record.num_regions == 3 and list(source.ids()) == ["a"]


def test_names_and_files_that_are_no_format(tmp_path: Path) -> None:
    refused("no feature file format is called 'x'; choose one of oscar-tsv, butd-tsv", format_named, "x")
    words = r"called 'lxmert'; give butd-tsv with layout lxmert: .*; or lxmert-h5: HDF5 with a group per image"
    refused(words, format_named, "lxmert")
    refused("no such file or folder", recognise, tmp_path / "none", error=FileNotFoundError)
    refused("no such file or folder", format_of, tmp_path / "none", "lxmert-h5", error=FileNotFoundError)
    (tmp_path / "text").write_text("words")
    assert recognise(tmp_path / "text") is None and recognise(tmp_path) is None
    refused(r"is no feature file that roibeam knows \(oscar-tsv", format_of, tmp_path / "text")
    assert format_of(tmp_path / "text", "lxmert-h5").name == "lxmert-h5"
    os.mkfifo(tmp_path / "pipe")
    assert recognise(tmp_path / "pipe") is None


REFUSED_IDS = {
    "array-h5": ("another one becomes 42 already", ["COCO_val2014_000000000042", "42"]),
    "captioning-folders": ("path of a file|file name has", ["../up", "a//b", "a/..", "a\0b", "x" * 300]),
    "captioning-h5": ("'.' or NUL|group already", ["a/./b", "/a", "a\0b", "good_features/x"]),
    "butd-tsv": ("which a TSV cannot", ["a\tb", "a\nb", " a"]),
    "lxmert-h5": ("'.' or NUL|group already", ["a/./b", "/a", "a\0b", "good/features"]),
    "milvlg-npz": ("path of a file|file name has", ["../up", "/etc/x", "a//b", "a/..", "a\0b", "x" * 300]),
    "mmf-lmdb": ("MMF cuts names at '.npy'", ["a.npy"]),
    "mmf-npy": (r"'\.npy'|path of a file", ["a_info", "x.npy", "../up", "b/../c"]),
    "oscar-tsv": ("which a TSV cannot", ["a\tb", "a\nb", "a "]),
    "parquet": ("", []),
    "uniter-lmdb": ("keys of LMDB have 1 to 511", ["x" * 508]),
    "vilbert-lmdb": ("where this format keeps its list of ids", ["keys"]),
    "webdataset": ("cannot be a key", ["__a__", "/a", "a/", "a\0b"]),
    "vlbert-zip": ("cannot be a name in a zip", ["../up", "/root", "a/../../b", "a\\b", "./a", "/"]),
}


def broken() -> Iterator[RegionRecord]:
    yield measured("good")
    raise OSError("the source is gone")


@pytest.mark.parametrize("name", FORMATS)
def test_ids_that_a_file_cannot_hold_leave_none(tmp_path: Path, name: str) -> None:
    """Among them those that would lead out of a folder or an archive."""
    words, image_ids = REFUSED_IDS[name]
    write, path = format_named(name).write, place(tmp_path, name)
    for image_id in image_ids:
        refused(words, write, [measured("good"), measured("photos/042"), measured(image_id)], path)
    if name != "butd-tsv":  # whose lines may come twice
        refused("comes twice|already", write, [measured("good"), measured("good")], path)
    refused("the source is gone", write, broken(), path, error=OSError)
    if name in ("mmf-lmdb", "vlbert-zip"):
        refused(rf"ends in \{path.suffix}", write, [measured("good")], path.with_suffix(""))
    assert list(tmp_path.iterdir()) == []


def test_records_that_a_tsv_cannot_hold(tmp_path: Path) -> None:
    words = "has no class distribution, which the layout"
    refused(words, TSV.write, [measured(rows=False)], tmp_path / "f.tsv", layout="caffe-cls-prob")
    assert list(tmp_path.iterdir()) == []


def deflated(path: Path) -> None:
    """Packs a zip again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


# Format, layout, the file of it that is hurt, in how many ways, and how many of them must leave a record.
HURT = [
    *(("butd-tsv", layout, "", 100, 30) for layout in TSV.layouts),
    ("oscar-tsv", "oscar", "features.tsv", 100, 30),
    ("oscar-tsv", "oscar", "predictions.tsv", 150, 20),
    ("oscar-tsv", "captioning", "feature.tsv", 100, 20),
    ("oscar-tsv", "captioning", "label.tsv", 100, 10),
    ("oscar-tsv", "captioning", "hw.tsv", 100, 10),
    ("oscar-tsv", "predictions", "predictions.tsv", 200, 20),
    ("mmf-npy", None, "first-image.npy", 100, 100),  # the other image is always there
    ("mmf-npy", None, "first-image_info.npy", 100, 100),
    ("milvlg-npz", None, "first-image.npz", 150, 150),
    ("lxmert-h5", None, "", 60, 6),
    ("captioning-h5", None, "", 60, 6),
    ("captioning-folders", None, "cocobu_att/first-image.npz", 100, 100),
    ("captioning-folders", None, "cocobu_box/first-image.npy", 100, 100),
    ("array-h5", None, "train.hdf5", 60, 6),
    ("array-h5", None, "train_imgid2idx.pkl", 100, 10),
    ("vilbert-lmdb", "multi-task", "data.mdb", 100, 10),
    ("vilbert-lmdb", "volta", "data.mdb", 100, 10),
    ("mmf-lmdb", None, "data.mdb", 100, 10),
    ("uniter-lmdb", "compressed", "feat_th0.2_max100_min10_compressed/data.mdb", 100, 10),
    ("uniter-lmdb", "msgpack", "feat_th0.2_max100_min10/data.mdb", 100, 10),
    ("uniter-lmdb", None, "nbb_th0.2_max100_min10.json", 30, 1),
    ("vlbert-zip", None, "", 120, 10),
    ("vlbert-zip", "deflated", "", 120, 10),
    ("webdataset", None, "", 150, 10),
]


@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("name", "layout", "file", "ways", "least"), HURT)
def test_damage_is_an_error_or_a_dead_letter(
    tmp_path: Path, name: str, layout: str | None, file: str, ways: int, least: int, times: int
) -> None:
    found, path = format_named(name), place(tmp_path, name)
    found.write(PAIR, path, layout=None if layout == "deflated" else layout)
    if layout == "deflated":
        deflated(path)
    seeds = range(ways) if times == 1 else soak_seeds(times * ways)
    gave = survives(found, path, path / file if file else path, seeds)
    assert gave >= (len(seeds) if least == ways else least if times == 1 else 1)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_there_stays_and_other_layouts_are_refused(tmp_path: Path, name: str) -> None:
    found, path = format_named(name), place(tmp_path, name)
    refused(f"layout 'other' of {name}.*{found.layouts[-1]}", found.write, PAIR, path, layout="other")
    path.mkdir()
    refused("exists already", found.write, PAIR, path)
    path.rmdir()
    path.write_bytes(b"something")
    refused("exists already", found.write, PAIR, path)
    assert path.read_bytes() == b"something" and list(tmp_path.iterdir()) == [path]


def test_report() -> None:
    report = CheckReport(
        "some", {"classes": "obj_id", "attributes": "absent", "boxes": "pixels", "background": "first"}
    )
    letter = DeadLetter("x\x1b", "file:3", "read", "bad number", "height\x1b is odd")
    passed = [measured("a9", 0), measured("b", 5), letter, Repeat("a9", "file:4"), measured("c1", 2, attributes=False)]
    assert list(report.watch(passed)) == passed
    facts = report.to_json()
    assert (facts["records"], facts["equal_repeats"], facts["unusable"]) == (3, 1, {"bad number": 1})
    assert facts["regions"] == {"all": 7, "fewest": 0, "most": 5, "records_without": 1}
    assert facts["ids"] == {"first": "a9", "last": "c1", "longest_bytes": 2, "ending_in_a_number": 2}
    assert facts["features"] == {"8 x float16": 3} and facts["classes"]["distribution"] == {"7 wide": 3}
    assert facts["attributes"] == {"from": "absent", "records_with": 2} and facts["doubts"] == []
    boxes = np.concatenate([measured("b", 5).boxes, measured("c1", 2).boxes])
    assert facts["boxes"]["farthest_px"] == boxes.max() and facts["boxes"]["without_area"] == 0
    text = "\n".join(report.lines())
    assert "\x1b" not in text and "1 bad number" in text and "7 wide (3), background first in the file" in text
    json.dumps(facts)


def test_report_of_boxes_in_shares_and_of_nothing() -> None:
    report = CheckReport("some", {})
    record = measured("a")
    list(report.watch([replace(record, boxes=record.boxes / 640)]))
    assert "every box lies in 0..1" in "\n".join(report.lines())
    assert CheckReport("some", {}).lines()[-1].endswith("none")


def test_what_is_written_aside_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(KeyError), atomic_path(path) as aside:
        aside.write_text("half")
        raise KeyError
    with pytest.raises(KeyError), atomic_path(path, folder=True) as aside:
        (aside / "inner").mkdir()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    dead, alive = tmp_path / ".file.00000000.tmp", tmp_path / ".file.00000001.tmp"
    dead.mkdir()
    (dead / "rest").write_text("of a killed writer")
    alive.write_text("of another writer")
    with open(alive) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with atomic_path(path) as aside:
            aside.write_text("whole")
    assert sorted(each.name for each in tmp_path.iterdir()) == [alive.name, "file"] and path.read_text() == "whole"
    with pytest.raises(ValueError, match="exists already"), atomic_path(tmp_path / "late") as aside:
        (tmp_path / "late").write_text("somebody was faster")
    assert (tmp_path / "late").read_text() == "somebody was faster"
    refused = ((path, "exists already"), (tmp_path / "no" / "x", "no folder"), (tmp_path / ("x" * 250), "over 241"))
    for target, words in refused:
        with pytest.raises(ValueError, match=words), atomic_path(target):
            raise AssertionError("not reached")
