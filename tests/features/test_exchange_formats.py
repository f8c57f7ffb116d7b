"""All formats at once: names, recognition, what a written file says of itself, the report, and writing aside."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from exchange_examples import PAIR, measured, records, survives
from fuzz_child import soak_seeds

from roibeam.features.exchange.butd_tsv import FORMAT as TSV
from roibeam.features.exchange.check_report import CheckReport
from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.exchange.formats import FORMATS, format_named, format_of, recognise
from roibeam.features.record_pairing import RecordSource
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat

SUFFIX = {"mmf-lmdb": ".lmdb", "vilbert-lmdb": ".lmdb"}


def place(tmp_path: Path, name: str) -> Path:
    """A new path that the format takes."""
    suffixes = format_named(name).suffixes
    return tmp_path / f"features{suffixes[0] if suffixes else ''}"


@pytest.mark.parametrize("name", FORMATS)
def test_a_written_file_is_recognised_and_says_what_it_is(tmp_path: Path, name: str) -> None:
    found = format_named(name)
    assert found.name == name and found.title and found.layouts
    for layout in found.layouts:
        (tmp_path / layout).mkdir()
        path = place(tmp_path / layout, name)
        kept = [measured("a", 2), measured("b", 5, seed=7)]
        found.write(kept, path, layout=layout)
        claims = [other for other in FORMATS if format_named(other).looks_like(path)]
        assert claims == [name], layout
        with found.open(path) as file:
            details = {"classes", "attributes", "feature_dim", "boxes"}
            assert details <= file.details.keys() and json.dumps(file.details)
            assert (file.layout, file.num_entries, file.letters) == (layout, 2, [])
            assert list(file.ids()) == ["a", "b"] and "a" in file and "c" not in file
        for record, want in zip(records(found, path), kept, strict=True):
            assert record.image_id == want.image_id
            if name == "uniter-lmdb":  # shares of the image in float16, and no image sizes
                shares = want.boxes / np.array([640, 480, 640, 480], np.float32)
                np.testing.assert_allclose(record.boxes, shares, atol=1e-3)
            else:
                assert (record.height, record.width) == (480, 640)
                np.testing.assert_array_equal(record.boxes, want.boxes)
            np.testing.assert_array_equal(record.features, want.features)
        assert sorted(path.name for path in path.parent.iterdir()) == [path.name], "nothing is left beside it"


def test_a_store_may_be_compared_with_every_format(tmp_path: Path) -> None:
    found = format_named("milvlg-npz")
    found.write([measured("a")], tmp_path / "f")
    with RecordSource(tmp_path / "f") as source:
        assert source.fingerprint.feature_space == "imported:milvlg-npz" and source.has_classes
        assert source.feature_dim == 8 and source.num_classes is None
        record = source.get("a")
        assert record is not None and record.num_regions == 3 and list(source.ids()) == ["a"]


def test_names_and_files_that_are_no_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no feature file format is called 'x'; choose one of butd-tsv, milvlg-npz"):
        format_named("x")
    words = r"called 'lxmert'; give butd-tsv with layout lxmert: .*; or lxmert-h5: HDF5 with a group per image"
    with pytest.raises(ValueError, match=words):
        format_named("lxmert")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        recognise(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        format_of(tmp_path / "none", "lxmert-h5")
    (tmp_path / "text").write_text("words")
    assert recognise(tmp_path / "text") is None and recognise(tmp_path) is None
    with pytest.raises(ValueError, match=r"is no feature file that roibeam knows \(butd-tsv"):
        format_of(tmp_path / "text")
    assert format_of(tmp_path / "text", "lxmert-h5").name == "lxmert-h5"
    os.mkfifo(tmp_path / "pipe")
    assert recognise(tmp_path / "pipe") is None


def test_a_format_is_imported_when_it_is_asked_for(tmp_path: Path) -> None:
    TSV.write([measured()], tmp_path / "f.tsv")
    code = (
        "import sys; from roibeam.features.exchange.formats import recognise; found = recognise(sys.argv[1]);"
        "assert found.name == 'butd-tsv'; assert not {'h5py', 'torch'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "f.tsv"], check=True)


@pytest.mark.parametrize("layout", TSV.layouts)
def test_the_tsv_gives_the_fields_that_a_layout_holds(tmp_path: Path, layout: str) -> None:
    kept = measured("one", 4)
    losses = TSV.write([kept], tmp_path / "f.tsv", layout=layout)
    (found,) = records(TSV, tmp_path / "f.tsv")
    assert (
        set(losses)
        == {
            "lxmert": {"class_distribution"},
            "caffe": {"classes", "attributes", "class_distribution"},
            "caffe-cls-prob": {"attributes"},
        }[layout]
    )
    np.testing.assert_array_equal(found.boxes, kept.boxes)
    assert (found.attribute_ids is not None) == (layout == "lxmert")
    if layout != "caffe":
        np.testing.assert_array_equal(found.class_ids, kept.class_ids)
        np.testing.assert_array_equal(found.class_scores, kept.class_scores)
    if layout == "caffe-cls-prob":
        np.testing.assert_array_equal(found.class_distribution, kept.class_distribution)


def test_records_that_a_tsv_cannot_hold(tmp_path: Path) -> None:
    for image_id in ("a\tb", "a\nb", " a"):
        with pytest.raises(ValueError, match="which a TSV cannot"):
            TSV.write([measured(image_id)], tmp_path / "f.tsv")
    with pytest.raises(ValueError, match="has no class distribution, which the layout"):
        TSV.write([measured(rows=False)], tmp_path / "f.tsv", layout="caffe-cls-prob")
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
    ("mmf-npy", None, "first-image.npy", 100, 100),  # the other image is always there
    ("mmf-npy", None, "first-image_info.npy", 100, 100),
    ("milvlg-npz", None, "first-image.npz", 150, 150),
    ("lxmert-h5", None, "", 60, 6),
    ("vilbert-lmdb", "multi-task", "data.mdb", 100, 10),
    ("vilbert-lmdb", "volta", "data.mdb", 100, 10),
    ("mmf-lmdb", None, "data.mdb", 100, 10),
    ("uniter-lmdb", "compressed", "feat_th0.2_max100_min10_compressed/data.mdb", 100, 10),
    ("uniter-lmdb", "msgpack", "feat_th0.2_max100_min10/data.mdb", 100, 10),
    ("uniter-lmdb", None, "nbb_th0.2_max100_min10.json", 30, 1),
    ("vlbert-zip", None, "", 120, 10),
    ("vlbert-zip", "deflated", "", 120, 10),
]


def survivors(tmp_path: Path, name: str, layout: str | None, file: str, seeds: range) -> int:
    found, path = format_named(name), place(tmp_path, name)
    found.write(PAIR, path, layout=None if layout == "deflated" else layout)
    if layout == "deflated":
        deflated(path)
    return survives(found, path, path / file if file else path, seeds)


@pytest.mark.parametrize(("name", "layout", "file", "ways", "least"), HURT)
def test_damage_is_an_error_or_a_dead_letter(
    tmp_path: Path, name: str, layout: str | None, file: str, ways: int, least: int
) -> None:
    assert survivors(tmp_path, name, layout, file, range(ways)) >= least


@pytest.mark.soak
@pytest.mark.parametrize(("name", "layout", "file", "ways", "least"), HURT)
def test_damage_for_long(tmp_path: Path, name: str, layout: str | None, file: str, ways: int, least: int) -> None:
    seeds = soak_seeds(100 * ways)
    assert survivors(tmp_path, name, layout, file, seeds) >= (len(seeds) if least == ways else 1)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_there_stays_and_other_layouts_are_refused(tmp_path: Path, name: str) -> None:
    found, path = format_named(name), place(tmp_path, name)
    with pytest.raises(ValueError, match=f"layout 'other' of {name}.*{found.layouts[-1]}"):
        found.write(PAIR, path, layout="other")
    path.mkdir()
    with pytest.raises(ValueError, match="exists already"):
        found.write(PAIR, path)
    path.rmdir()
    path.write_bytes(b"something")
    with pytest.raises(ValueError, match="exists already"):
        found.write(PAIR, path)
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
    from dataclasses import replace

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
