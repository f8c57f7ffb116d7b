"""`roibeam store copy` and `store plan`: merged, cut anew, changed and killed, the records stay what they were."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from forks import KILLED, in_a_fork
from store_examples import FINGERPRINT, make_record, write_shard, write_store
from tiny_commands import Cli, damage_record

from roibeam.features.annotations import Annotation, write_annotations
from roibeam.features.batch import RegionFilter
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import DeadLetter, StoreManifest, data_file_name, shard_manifest_name
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore
from roibeam.features.store_copy import RecordChange
from roibeam.features.verify import verify_store
from roibeam.pipelines.data.id_lists import IdSelection, read_id_list, read_split
from roibeam.pipelines.extract.stores.store_copy import CopyOptions, copy_store


def records(numbers: Iterable[int], **options: Any) -> list[RegionRecord]:
    return [make_record(f"image{i:02}", num_regions=i % 5, seed=i, **options) for i in numbers]


def read(store: Path) -> dict[str, RegionRecord]:
    with FeatureStore(store) as opened:
        return {record.image_id: record for record in opened}


def same(left: dict[str, RegionRecord], right: dict[str, RegionRecord]) -> bool:
    return left.keys() == right.keys() and all(record.equals(right[key]) for key, record in left.items())


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """24 images in three shards, whose ranges overlap: every third one each."""
    store = tmp_path / "whole"
    write_store(store, [records(range(start, 24, 3), attributes=True, distribution="full") for start in range(3)])
    return store


def letter(image_id: str, reason: str = "truncated") -> DeadLetter:
    return DeadLetter(image_id, f"/photos/{image_id}.jpg", "decode", reason, "ends early")


def store_with(folder: Path, kept: Sequence[RegionRecord], letters: Sequence[DeadLetter] = ()) -> Path:
    folder.mkdir()
    write_shard(folder, 0, kept, dead_letters=letters)
    publish_store(folder, [0], fingerprint=FINGERPRINT, config={"source": str(folder)}, classes=["cat", "dog"])
    return folder


def test_a_copy_adds_names_to_a_store_of_bare_ids(roibeam: Cli, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    bare = [replace(each, class_ids=each.class_ids % 6) for each in records(range(8), distribution="full")]
    write_shard(tmp_path / "bare", 0, bare)
    publish_store(tmp_path / "bare", [0], fingerprint=FINGERPRINT, config={})
    for count, name in ((6, "six"), (5, "five")):
        (tmp_path / name).write_text("".join(f"thing {number}\n" for number in range(count)))
    command = ["store", "copy", tmp_path / "bare", tmp_path / "named", "--vocab"]
    done = roibeam(*command, tmp_path / "five")
    assert done.code == 1 and "5 classes, but the detector has 6; give the list" in done.err
    assert not (tmp_path / "named").exists()
    assert roibeam(*command, tmp_path / "six").code == 0
    before, after = (StoreManifest.read(tmp_path / name / "manifest.json") for name in ("bare", "named"))
    assert after.classes == tuple(f"thing {number}" for number in range(6)) and before.classes is None
    assert (after.content_digest, after.fingerprint) == (before.content_digest, before.fingerprint)
    (tmp_path / "other").write_text("".join(f"other {number}\n" for number in range(6)))
    again = roibeam("store", "copy", tmp_path / "named", tmp_path / "renamed", "--vocab", tmp_path / "other")
    assert again.code == 1 and "has other names of classes, the first 'thing 0'; leave it out" in again.err


@pytest.mark.parametrize("options", [{"shard_size": 24}, {"shard_size": 5}, {"shard_bytes": 700}])
def test_a_copy_cut_anew_has_the_same_content(whole: Path, tmp_path: Path, options: dict[str, int]) -> None:
    out = tmp_path / "out"
    summary = copy_store([whole], out, CopyOptions(**options))
    before, after = StoreManifest.read(whole / "manifest.json"), summary.manifest
    assert after.content_digest == before.content_digest and after.fingerprint == before.fingerprint
    assert (after.classes, after.config["example"]) == (before.classes, True)
    (origin,) = after.config["copy"]["sources"]
    assert origin["location"] == str(whole) and origin["content_digest"] == before.content_digest
    assert verify_store(out, deep=True) == [] and same(read(out), read(whole))
    ranges = [(shard.first_id or "", shard.last_id or "") for shard in after.shards]
    assert [each for pair in ranges for each in pair] == sorted(each for pair in ranges for each in pair)
    wanted = {"shard_size": -(-24 // options.get("shard_size", 24)), "shard_bytes": None}[next(iter(options))]
    assert len(after.shards) == wanted if wanted else len(after.shards) > 3


def test_merge_equals_one_store_and_equal_images_count_once(whole: Path, tmp_path: Path) -> None:
    some = [record for record in read(whole).values() if int(record.image_id[-2:]) < 14]
    rest = [record for record in read(whole).values() if int(record.image_id[-2:]) >= 10]
    left, right = store_with(tmp_path / "left", some), store_with(tmp_path / "right", rest)
    summary = copy_store([left, right], tmp_path / "out", CopyOptions(shard_size=7))
    assert summary.manifest.content_digest == StoreManifest.read(whole / "manifest.json").content_digest
    assert summary.num_repeats == 4 and summary.failures == {}
    assert "source" not in summary.manifest.config  # the two say different things there
    assert [each["config"] for each in summary.manifest.config["copy"]["sources"]] == [
        {"source": str(left)}, {"source": str(right)},
    ]  # fmt: skip
    assert verify_store(tmp_path / "out", deep=True) == []


def test_unequal_content_under_one_id_is_an_error_that_names_it(tmp_path: Path) -> None:
    first = store_with(tmp_path / "a", records(range(3)))
    second = store_with(tmp_path / "b", [make_record("image02", seed=99)])
    with pytest.raises(ValueError, match=r"image id 'image02' has different content in .*/a and .*/b"):
        copy_store([first, second], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dead_letters_travel_unless_another_store_has_the_image(tmp_path: Path) -> None:
    said = letter("bad")
    first = store_with(tmp_path / "a", records(range(3)), [said, letter("image07"), letter("image01", "repeat")])
    second = store_with(tmp_path / "b", records(range(5, 9)), [said, letter("bad", "read"), letter("worse")])
    summary = copy_store([first, second], tmp_path / "out", CopyOptions(shard_size=2))
    letters = pq.read_table(tmp_path / "out" / "dead_letters.parquet").to_pylist()
    assert [(each["image_id"], each["reason"]) for each in letters] == [
        ("bad", "truncated"), ("bad", "read"), ("image01", "repeat"), ("worse", "truncated"),
    ]  # fmt: skip
    assert summary.manifest.num_dead_letters == 4 and summary.failures == {} and summary.failed_share == 0


def test_a_merge_of_parts_names_those_that_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Guards that an array of jobs of which one never began does not join as if it were whole."""
    for part in (1, 2, 3):
        folder = tmp_path / str(part)
        folder.mkdir()
        write_shard(folder, 0, records([part]))
        config = {"source": {"location": "/tars", "part": f"{part}/3 of 9 archives"}}
        publish_store(folder, [0], fingerprint=FINGERPRINT, config=config)
    copy_store([tmp_path / "1", tmp_path / "3"], tmp_path / "two")
    assert "/tars: of its 3 parts the stores lack 2; their images are missing" in caplog.text
    caplog.clear()
    copy_store([tmp_path / "1", tmp_path / "2", tmp_path / "3"], tmp_path / "all")
    assert "parts" not in caplog.text


def test_stores_that_do_not_belong_together(tmp_path: Path) -> None:
    left = store_with(tmp_path / "left", records(range(3)))
    for name, change, match in (
        ("features", lambda count: np.ones((count, 9), np.float16), "different widths"),
        ("class_distribution", lambda count: np.ones((count, 7), np.float16), "class distributions"),
    ):
        changed = [replace(each, **{name: change(each.num_regions)}) for each in records(range(3, 5))]
        with pytest.raises(ValueError, match=match):
            copy_store([left, store_with(tmp_path / name, changed)], tmp_path / "out")
    right = store_with(tmp_path / "right", records([3]))
    manifest, details = StoreManifest.read(right / "manifest.json"), {**FINGERPRINT.details, "conventions": "other"}
    for change, match in (
        ({"fingerprint": Fingerprint(feature_space_of(details), {}, details)}, "feature spaces.*ons example / other"),
        ({"classes": ("dog", "cat")}, "name their classes differently"),
    ):
        (right / "manifest.json").write_text(json.dumps(replace(manifest, **change).to_json()))
        with pytest.raises(ValueError, match=match):
            copy_store([left, right], tmp_path / "out")
    for sources, out, match in (([left, left], tmp_path / "out", "named twice"), ([left], left, "is a source too")):
        with pytest.raises(ValueError, match=match):
            copy_store(sources, out)
    assert not (tmp_path / "out").exists()


def test_subset_by_ids_and_by_split(roibeam: Cli, whole: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("image03\r\nimage20\n\nimage04\nnobody\n")
    done = roibeam("store", "copy", whole, tmp_path / "few", "--ids", ids)
    assert done.code == 1 and "25.0 % of what was to be copied is missing" in done.err
    assert "3 records" in done.out and "in no source  1 id: nobody" in done.out
    shown = roibeam("store", "info", tmp_path / "few").out
    assert f"copied from     {whole}" in shown and f"changed         images of {ids}" in shown
    assert read(tmp_path / "few").keys() == {"image03", "image04", "image20"}
    nobodies = tmp_path / "nobodies.txt"
    nobodies.write_text("image03.jpg\nnobody\n")
    done = roibeam("store", "copy", whole, tmp_path / "none", "--ids", nobodies)
    assert done.code == 1 and "none of its 2 ids is in a store to copy; an id there is 'image00'" in done.err
    assert not (tmp_path / "none").exists()
    done = roibeam("store", "copy", whole, tmp_path / "lenient", "--ids", ids, "--max-failures", 0.3, "--json")
    assert done.code == 0 and json.loads(done.out)["first_missing"] == ["nobody"]

    row = {"sentences": [{"raw": "a cat", "tokens": ["a", "cat"], "sentid": 1}]}
    splits = ("train", "restval", "val", "test")
    images = [row | {"filename": f"image{i:02}.jpg", "imgid": i, "split": splits[i % 4]} for i in range(24)]
    split = tmp_path / "dataset.json"
    split.write_text(json.dumps({"images": images}))
    done = roibeam("store", "copy", whole, tmp_path / "val", "--split-file", split, "--split", "restval,val", "--json")
    assert done.code == 0 and json.loads(done.out)["records"] == 12
    assert read(tmp_path / "val").keys() == {f"image{i:02}" for i in range(24) if i % 4 in (1, 2)}
    for options, words in (
        (("--split-file", split, "--split", "best"), "best"),
        (("--split-file", "a", "--split", "val", "--ids", "b"), "give one of them"),
        (("--split", "val"), "go together"),
        (("--split-file", split), "go together"),
    ):
        refused = roibeam("store", "copy", whole, tmp_path / "x", *options)
        assert refused.code != 0 and words in refused.err
    with pytest.raises(ValueError, match="no image of the split"):
        split.write_text(json.dumps({"images": images[:1]}))
        read_split(str(split), "val")
    ids.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="line 1: not UTF-8"):
        read_id_list(ids)


def test_ids_go_from_store_ids_to_a_copy_whatever_is_in_them(roibeam: Cli, tmp_path: Path) -> None:
    ids = ["\x1b[31mred", "[1]", "a\u3000b", "new\nline", "plain"]
    store = store_with(tmp_path / "odd", [make_record(image_id, seed=i) for i, image_id in enumerate(ids)])
    listed = roibeam("store", "ids", store)
    assert listed.out == "\\x1b[31mred\n[1]\na\u3000b\nnew\\nline\nplain\n"
    assert "2 ids hold line breaks or other control characters and are spelled with escapes above" in listed.err
    told = json.loads(roibeam("store", "ids", store, "--json").out)
    assert told["ids"] == ids
    for name, content in (("whole", json.dumps(told)), ("part", json.dumps(ids[2:], indent=1))):
        (tmp_path / name).write_text(content)
        assert roibeam("store", "copy", store, tmp_path / f"of_{name}", "--ids", tmp_path / name).code == 0
    assert list(read(tmp_path / "of_whole")) == ids and list(read(tmp_path / "of_part")) == ids[2:]
    accented = store_with(tmp_path / "mac", [make_record(each, seed=i) for i, each in enumerate(("e\u0301", "\xe8"))])
    (tmp_path / "nfc").write_text("\xe9\n", encoding="utf-8")
    for name, kept in (("--ids", ["e\u0301"]), ("--without-ids", ["\xe8"])):
        assert roibeam("store", "copy", accented, tmp_path / f"nfc{name}", name, tmp_path / "nfc").code == 0
        assert list(read(tmp_path / f"nfc{name}")) == kept
    assert "e\u0301" in roibeam("store", "show", accented, "\xe9").out
    # Two images that differ in it alone are refused; a list names either exactly.
    other = store_with(tmp_path / "linux", [make_record("\xe9", seed=9)])
    refused = roibeam("store", "copy", accented, other, tmp_path / "both")
    assert refused.code == 1 and "only in its Unicode form; leave one of them out" in refused.err
    assert not (tmp_path / "both").exists()
    assert roibeam("store", "copy", accented, other, tmp_path / "both", "--without-ids", tmp_path / "nfc").code == 0
    assert list(read(tmp_path / "both")) == ["e\u0301", "\xe8"]
    # A list whose first id begins like JSON is one all the same.
    (tmp_path / "list").write_text("[1]\nplain\n")
    assert read_id_list(tmp_path / "list").ids == {"[1]", "plain"}
    assert roibeam("store", "ids", tmp_path / "of_part").err.startswith("roibeam: 1 id holds")


def test_dead_letters_are_listed_a_line_each(roibeam: Cli, tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", records(range(2)), [letter("new\nline"), letter("tab\there")])
    lines = roibeam("store", "dead-letters", store).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["new\\nline", "tab\\there"]
    assert {len(line.split("\t")) for line in lines} == {len(fields(DeadLetter))}
    told = json.loads(roibeam("store", "dead-letters", store, "--json").out)
    assert told["dead_letters"] == [asdict(letter("new\nline")), asdict(letter("tab\there"))]
    nothing = roibeam("store", "dead-letters", tmp_path)
    assert nothing.code == 1 and "no feature store" in nothing.err


def test_images_are_taken_out_and_leave_no_trace(roibeam: Cli, tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", records(range(6)), [letter("gone07"), letter("gone08")])
    said = [Annotation(f"image{i:02}", (f"caption {i}",), ()) for i in range(6)]
    entry = write_annotations(LocalFolder(store), iter([said]))
    manifest = StoreManifest.read(store / "manifest.json")
    config = {"captions": {"captions": 7, "examples": {"ambiguous": [["image02", "caption 2"]]}}}
    (store / "manifest.json").write_text(json.dumps(replace(manifest, annotations=entry, config=config).to_json()))
    taken = tmp_path / "taken.txt"
    taken.write_text("image02\ngone08\nnobody\n")
    done = roibeam("store", "copy", store, tmp_path / "rest", "--without-ids", taken)
    assert done.code == 0 and "5 records" in done.out and "1 dead letter;" in done.out
    assert "in no source  1 id: nobody" in done.out
    wanted = read(store)
    del wanted["image02"]
    assert same(read(tmp_path / "rest"), wanted) and verify_store(tmp_path / "rest", deep=True) == []
    for path in (tmp_path / "rest").iterdir():
        assert not re.search(rb"image02|gone08|caption 2", path.read_bytes()), path
    assert f"all images but those of {taken}" in roibeam("store", "info", tmp_path / "rest").out
    again = roibeam("store", "copy", store, tmp_path / "rest", "--ids", taken)  # the other way round: another copy
    assert again.code == 1 and "rest is another store already" in again.err
    taken.write_text("image02.jpg\n")  # ids of another form would take out nothing
    done = roibeam("store", "copy", store, tmp_path / "none", "--without-ids", taken)
    assert done.code == 1 and "none of its 1 id is in a store to copy; an id there is 'image00'" in done.err
    done = roibeam("store", "copy", store, tmp_path / "none", "--without-ids", taken, "--ids", taken)
    assert "--ids and --without-ids both choose images; give one of them" in done.err


def test_float32_to_float16_is_the_space_of_an_extraction_in_float16(tmp_path: Path) -> None:
    stored: dict[str, Path] = {}
    for dtype in ("float16", "float32"):
        details = {"conventions": "example", "feature_dtype": dtype}
        folder = tmp_path / dtype
        folder.mkdir()
        fingerprint = Fingerprint(feature_space_of(details), {}, details)
        kept = [make_record(name, dtype="float32", seed=ord(name), image_feature=name == "b") for name in "ab"]
        if dtype == "float16":
            kept = [RecordChange("float16").apply(record) for record in kept]
        manifest = write_shard(folder, 0, kept)
        text = json.dumps(replace(manifest, fingerprint=fingerprint).to_json())
        (folder / shard_manifest_name(0)).write_text(text)
        publish_store(folder, [0], fingerprint=fingerprint, config={"options": {"feature_dtype": dtype}})
        stored[dtype] = folder
    half = copy_store([stored["float32"]], tmp_path / "half", CopyOptions(RecordChange("float16"))).manifest
    wanted = StoreManifest.read(stored["float16"] / "manifest.json")
    assert (half.content_digest, half.fingerprint) == (wanted.content_digest, wanted.fingerprint)
    assert half.config["options"] == {"feature_dtype": "float16"}
    with pytest.raises(ValueError, match=r"feature dtype float16 / float32.*--dtype makes dtypes equal"):
        copy_store(list(stored.values()), tmp_path / "both")
    asked = CopyOptions(RecordChange("float16"), IdSelection("a list", frozenset(["a"])))
    one = copy_store([stored["float32"]], tmp_path / "one", asked).manifest
    assert one.fingerprint == wanted.fingerprint
    # Made equal, the two merge; the copy that was cut from one of them is in it.
    merged = copy_store([stored["float16"], tmp_path / "one"], tmp_path / "both")
    assert merged.manifest.content_digest == wanted.content_digest and merged.num_repeats == 1


def test_float16_to_float32_is_exact_and_a_space_of_its_own(whole: Path, tmp_path: Path) -> None:
    wide = copy_store([whole], tmp_path / "wide", CopyOptions(RecordChange("float32"))).manifest
    before = read(whole)
    for image_id, record in read(tmp_path / "wide").items():
        assert record.feature_dtype == "float32"
        assert np.array_equal(record.features, before[image_id].features.astype(np.float32))
    space = wide.fingerprint
    assert space.details["rounded_to"] == ["float16"] and space.feature_space != FINGERPRINT.feature_space
    back = copy_store([tmp_path / "wide"], tmp_path / "back", CopyOptions(RecordChange("float16"))).manifest
    assert back.content_digest == StoreManifest.read(whole / "manifest.json").content_digest
    assert "rounded_to" not in back.fingerprint.details


def test_a_value_beyond_float16_is_a_dead_letter(roibeam: Cli, tmp_path: Path) -> None:
    large = make_record("large", dtype="float32")
    large.features[1, 2] = 70000
    source = store_with(tmp_path / "source", [*records(range(3), dtype="float32"), large], [letter("bad")])
    done = roibeam("store", "copy", source, tmp_path / "out", "--dtype", "float16")
    assert done.code == 1 and "25.0 %" in done.err and "1 record: does not fit the dtype" in done.out
    found = pq.read_table(tmp_path / "out" / "dead_letters.parquet").to_pylist()
    assert [each["image_id"] for each in found] == ["bad", "large"]
    assert "a feature of 70000 is beyond float16" in found[1]["detail"] and found[1]["location"] == str(source)
    assert len(read(tmp_path / "out")) == 3 and verify_store(tmp_path / "out", deep=True) == []


def test_distributions_become_top_k_or_none(whole: Path, tmp_path: Path) -> None:
    def copied(name: str, source: Path, distribution: str) -> dict[str, RegionRecord]:
        manifest = copy_store([source], tmp_path / name, CopyOptions(RecordChange(None, distribution))).manifest
        assert manifest.fingerprint == FINGERPRINT  # classes and features mean what they did
        return read(tmp_path / name)

    before, best = read(whole), copied("two", whole, "top-2")
    for image_id, record in best.items():
        top, full = record.class_distribution, before[image_id].class_distribution
        assert isinstance(top, TopKDistribution) and isinstance(full, np.ndarray) and top.num_classes == 6
        for region, row in enumerate(full):
            first, second = sorted(range(7), key=lambda i, row=row: (-row[i], i))[:2]  # type: ignore[misc]
            assert top.class_ids[region].tolist() == [first, second]
            assert top.probabilities[region].tolist() == [row[first], row[second]]
            rest = max(0.0, 1 - float(row[first]) - float(row[second]))
            assert float(top.rest[region]) == pytest.approx(rest, abs=5e-4)
    assert same(copied("four", whole, "top-4") and copied("two of four", tmp_path / "four", "top-2"), best)
    assert all(record.class_distribution is None for record in copied("none", whole, "none").values())
    with pytest.raises(ValueError, match="top-5 needs more"):
        copied("five", tmp_path / "four", "top-5")
    with pytest.raises(ValueError, match="no class distribution to take the best 2 of"):
        copied("of none", tmp_path / "none", "top-2")
    with pytest.raises(ValueError, match="choose none or top-K"):
        RecordChange(None, "top-0")


def test_regions_are_those_that_the_filter_chooses(roibeam: Cli, whole: Path, tmp_path: Path) -> None:
    limits = ("--min-score", 0.5, "--min-regions", 1, "--max-regions", 2)
    assert roibeam("store", "copy", whole, tmp_path / "out", *limits).code == 0
    assert "give --min-score too" in roibeam("store", "copy", whole, tmp_path / "x", "--min-regions", 3).err
    regions = RegionFilter(0.5, 1, 2)
    before, after = read(whole), read(tmp_path / "out")
    assert before.keys() == after.keys()
    for image_id, record in before.items():
        rows = regions.rows(record.class_scores)
        rows = np.arange(record.num_regions) if rows is None else rows
        names = ("boxes", "features", "class_ids", "class_scores", "attribute_ids", "attribute_scores")
        for name in (*names, "class_distribution"):
            assert np.array_equal(getattr(after[image_id], name), getattr(record, name)[rows]), name
    manifest = StoreManifest.read(tmp_path / "out" / "manifest.json")
    assert manifest.fingerprint.feature_space != FINGERPRINT.feature_space
    assert manifest.fingerprint.details["region_filters"] == [{"min_score": 0.5, "min_regions": 1, "max_regions": 2}]


def test_an_import_without_classes_cannot_be_filtered(tmp_path: Path) -> None:
    source = store_with(tmp_path / "source", records(range(2)))
    details = {"classes": "absent", "attributes": "absent"}
    manifest = replace(StoreManifest.read(source / "manifest.json"), fingerprint=Fingerprint("imported:x", {}, details))
    (source / "manifest.json").write_text(json.dumps(manifest.to_json()))
    with pytest.raises(ValueError, match="has no class scores"):
        copy_store([source], tmp_path / "out", CopyOptions(RecordChange(regions=RegionFilter(max_regions=1))))


@pytest.mark.slow
def test_a_killed_copy_goes_on_and_gives_the_same(whole: Path, tmp_path: Path) -> None:
    more = records(range(24, 27), attributes=True, distribution="full")
    second = store_with(tmp_path / "second", more, [letter("z")])
    options = CopyOptions(shard_size=6)

    def killed(out: Path, place: int | None = None) -> tuple[int, list[str]]:
        return in_a_fork(lambda: copy_store([whole, second], out, options), tmp_path, place, reads=True)

    code, steps = killed(tmp_path / "undisturbed")
    assert code == 0
    wanted = StoreManifest.read(tmp_path / "undisturbed" / "manifest.json")
    assert (wanted.num_records, wanted.num_dead_letters, len(wanted.shards)) == (27, 1, 5)
    kinds = {
        "inside a shard": r"open /(whole|second)/part-.*lmdb",
        "before the data is synced": r"os.truncate ",
        "between data and manifest": r"os.rename .*/\.part-",
        "before the dead letters": r"os.rename .*dead_letters",
        "before the store's manifest": r"os.rename .*/\.manifest",
    }
    kept = set()
    for kind, pattern in kinds.items():
        places = [number for number, step in enumerate(steps, 1) if re.match(pattern, step)]
        assert places, kind
        for place in places[:: max(len(places) // 5, 1)][:5]:
            out = tmp_path / f"out{place}"
            code, done = killed(out, place)
            assert (code, len(done)) == (KILLED, place)
            summary = copy_store([whole, second], out, options)
            kept.add(summary.num_kept_shards)
            assert summary.manifest.content_digest == wanted.content_digest, (kind, place)
            assert (summary.manifest.num_records, summary.manifest.num_dead_letters) == (27, 1), (kind, place)
            assert verify_store(out) == [] and not list(out.glob(".*")), (kind, place)
    assert {0, 5} < kept, kept


def test_finished_shards_are_kept_and_a_damaged_one_is_copied_again(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = CopyOptions(shard_size=5)
    first = copy_store([whole], out, options).manifest
    again = copy_store([whole], out, options)
    assert again.num_kept_shards == 5 and again.manifest == first
    data = out / str(first.shards[2].data_file)
    data.write_bytes(data.read_bytes()[:-4096])
    mended = copy_store([whole], out, options)
    assert mended.num_kept_shards == 2 and mended.manifest.content_digest == first.content_digest
    assert verify_store(out, deep=True) == []


def test_other_folders_are_refused(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy_store([whole], out, CopyOptions(shard_size=5))
    with pytest.raises(ValueError, match="another store already"):
        copy_store([whole], out, CopyOptions(shard_size=6))
    (out / "manifest.json").unlink()
    with pytest.raises(ValueError, match="of other sources or options"):
        copy_store([whole], out, CopyOptions(RecordChange(None, "none"), shard_size=5))
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"'notes\.txt' is in it"):
        copy_store([whole], out, CopyOptions(shard_size=5))
    assert len(list(out.glob("part-*.json"))) == 5, "nothing was touched"
    with pytest.raises(ValueError, match="is a file"):
        copy_store([whole], out / "notes.txt")
    with pytest.raises(ValueError, match="no such file or folder: SOURCE "):
        copy_store([tmp_path / "nothing"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Damaged and hostile sources


def test_a_damaged_record_stops_the_copy_or_is_left_out(roibeam: Cli, whole: Path, tmp_path: Path) -> None:
    damage_record(whole, "image13")
    out = tmp_path / "out"
    done = roibeam("store", "copy", whole, out, "--shard-size", 5)
    assert done.code == 1 and "record 'image13': region value has checksum" in done.err and "--drop-damaged" in done.err
    assert len(list(out.glob("part-*.json"))) == 2 and not (out / "manifest.json").exists()
    done = roibeam("store", "copy", whole, out, "--shard-size", 5, "--drop-damaged", "--json")
    result = json.loads(done.out)
    assert done.code == 0 and result["failures"] == {"damaged record": 1} and result["kept_shards"] == 2
    assert read(out).keys() == {f"image{i:02}" for i in range(24)} - {"image13"}
    assert verify_store(out, deep=True) == []


def test_a_record_that_is_not_the_one_of_the_index_is_found(tmp_path: Path) -> None:
    """Values and checksums of another store of the same sizes under this one's index."""
    mine = store_with(tmp_path / "mine", [make_record("image", seed=1)])
    other = store_with(tmp_path / "other", [make_record("image", seed=2)])
    data = mine / data_file_name(0, "a")
    mixed = bytearray((other / data_file_name(0, "a")).read_bytes())
    entry = json.loads((mine / shard_manifest_name(0)).read_text())
    place = slice(entry["index_offset"], entry["index_offset"] + entry["index_bytes"])
    mixed[place] = data.read_bytes()[place]
    data.write_bytes(mixed)
    with pytest.raises(ValueError, match="'image' to 'image' has another content than the index"):
        copy_store([mine], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["manifest", "data", "index"])
def test_a_damaged_shard_stops_the_copy(whole: Path, tmp_path: Path, what: str) -> None:
    entry = StoreManifest.read(whole / "manifest.json").shards[2]
    manifest, data = whole / entry.manifest, whole / str(entry.data_file)
    content = bytearray(data.read_bytes())
    if what == "manifest":  # a shard that claims to be empty must not vanish silently
        named = {"data_file": None, "feature_dtype": None, "first_id": None, "last_id": None, "num_records": 0}
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | named))
    elif what == "data":
        data.write_bytes(content[:8192])
    else:
        content[json.loads(manifest.read_text())["index_offset"] + 60] ^= 0xFF
        data.write_bytes(content)
    match = {"manifest": "is not the manifest", "data": "has 8192 bytes", "index": "wrong checksum"}[what]
    for drop in (False, True):
        with pytest.raises(ValueError, match=match):
            copy_store([whole], tmp_path / "out", CopyOptions(drop_damaged=drop))


def test_one_image_in_two_shards_of_a_source_is_an_error(whole: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_store(source, [records([1, 3]), records([2, 4])])
    manifest = StoreManifest.read(source / "manifest.json")
    write_shard(source, 1, records([3, 4]), attempt="b")
    data = (source / shard_manifest_name(1)).read_bytes()
    same = {name: json.loads(data)[name] for name in ("content_digest", "num_regions", "data_bytes")}
    entry = replace(
        manifest.shards[1], first_id="image03", data_file=data_file_name(1, "b"),
        manifest_sha256=hashlib.sha256(data).hexdigest(), **same,
    )  # fmt: skip
    shards = (manifest.shards[0], entry)
    total = sum(shard.num_regions for shard in shards)
    (source / "manifest.json").write_text(json.dumps(replace(manifest, shards=shards, num_regions=total).to_json()))
    with pytest.raises(ValueError, match="'image03' is in two of its shards"):
        copy_store([source], tmp_path / "out")


def test_plan_shares_shards_out(roibeam: Cli, whole: Path, tmp_path: Path) -> None:
    copy_store([whole], tmp_path / "out", CopyOptions(shard_size=4))
    done = roibeam("store", "plan", tmp_path / "out", "--ranks", 4, "--json")
    plan = json.loads(done.out)
    assert done.code == 0 and sorted(shard for rank in plan["ranks"] for shard in rank["shards"]) == list(range(6))
    assert sum(rank["records"] for rank in plan["ranks"]) == 24
    loads = [rank["bytes"] for rank in plan["ranks"]]
    assert plan["imbalance"] == pytest.approx(max(loads) * 4 / sum(loads)) and plan["imbalance"] >= 1
    done = roibeam("store", "plan", tmp_path / "out", "--ranks", 7)
    assert done.code == 0 and len(done.out.splitlines()) == 8  # six with a shard
    assert "1 rank without a shard; `roibeam store copy " in done.err and "OUT --shard-size 3`" in done.err
