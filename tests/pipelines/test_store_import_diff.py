"""`roibeam store import` and `store diff`: from a published file to a store, and how two of them compare."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from butd_tsv_examples import CAFFE, CLS_PROB, LXMERT, fields, line
from forks import KILLED, in_a_fork
from html_page import HtmlPage
from tiny_commands import Cli, Pictures, ok

from roibeam.features.exchange.butd_tsv import read_butd_tsv
from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.shard.manifest import StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.extract.stores.store_import import import_features


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    """25 images in no order, one bad line, one equal repeat, one blank line."""
    path = tmp_path / "features.tsv"
    order = np.random.default_rng(0).permutation(25)
    lines = [line(LXMERT, fields(f"image{i:02}", num_regions=1 + i % 4, seed=i), end=b"\r\n") for i in order]
    bad = line(LXMERT, fields("bad") | {"features": b"AA=="})
    path.write_bytes(b"".join([*lines[:20], bad, lines[0], b"\n", *lines[20:]]))
    return path


def test_import_writes_a_store(roibeam: Cli, tsv: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    done = ok(roibeam("store", "import", tsv, out, "--dtype", "float32", "--shard-size", 10))
    assert f"{out}: 25 records with 61 regions, 1 dead letter; 1 equal repeat left out" in done.out
    assert verify_store(out, deep=True) == []
    want = {record.image_id: record for record in read_good(tsv)}
    with FeatureStore(out) as store:
        manifest = store.manifest
        assert manifest.num_dead_letters == 1
        assert {record.image_id for record in store} == set(want)
        assert all(store[image_id].equals(record) for image_id, record in want.items())
        ranges = [(shard.first_id, shard.last_id) for shard in manifest.shards if shard.num_records]
    assert len(ranges) == 3 and all(a[1] < b[0] for a, b in pairwise(ranges)), "disjoint shards"
    (letter,) = pq.read_table(out / "dead_letters.parquet").to_pylist()
    assert letter["location"] == f"{tsv}:21" and letter["reason"] == "wrong byte count"
    assert manifest.fingerprint.feature_space == "imported:butd-tsv"
    assert manifest.config["source"]["location"] == str(tsv)


def read_good(path: Path) -> list:
    """The records of a file with its bad line taken out, through the strict reader."""
    kept = [each for each in path.read_bytes().splitlines(keepends=True) if not each.startswith(b"bad")]
    good = path.with_name("good.tsv")
    good.write_bytes(b"".join(kept))
    return list(read_butd_tsv(good))


def test_content_does_not_depend_on_line_order_or_shard_size(roibeam: Cli, tsv: Path, tmp_path: Path) -> None:
    other = tmp_path / "sorted.tsv"
    other.write_bytes(b"".join(sorted(tsv.read_bytes().splitlines(keepends=True))))
    digests = set()
    for name, source, size in (("a", tsv, 4), ("b", other, 4000)):
        result = json.loads(roibeam("store", "import", source, tmp_path / name, "--shard-size", size, "--json").out)
        assert result["dead_letters"] == {"wrong byte count": 1}
        assert (result["records"], result["equal_repeats"]) == (25, 1)
        digests.add(result["content_digest"])
    assert len(digests) == 1


def test_bad_entries_over_the_limit_fail_the_command_but_not_the_store(roibeam: Cli, tsv: Path, tmp_path: Path) -> None:
    done = roibeam("store", "import", tsv, tmp_path / "store", "--max-failures", 0.01)
    assert done.code == 1 and "3.8 % of the entries cannot be used" in done.err
    assert verify_store(tmp_path / "store", deep=True) == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (CAFFE, ["none: class ids and scores are 0 and mean nothing", "layout caffe"]),
        (CLS_PROB, ["ids only, from cls_prob", "attributes      none\n"]),
        (LXMERT, ["ids only, from objects_id", "ids only, from attrs_id"]),
    ],
)
def test_info_tells_what_the_source_had(roibeam: Cli, tmp_path: Path, columns: tuple, words: list[str]) -> None:
    (tmp_path / "a.tsv").write_bytes(line(columns, fields("a")))
    assert roibeam("store", "import", tmp_path / "a.tsv", tmp_path / "store").code == 0
    text = roibeam("store", "info", tmp_path / "store").out
    assert all(word in text for word in [*words, "imported:butd-tsv", "not known: extracted by another code base"])
    assert not re.search(r"\b(None|numerics|conventions|selection)\b|\?", text), "unknown to readers"
    assert re.search(r"shards +1, 0\.\d{3} MB\n", text)
    details = json.loads(roibeam("store", "info", tmp_path / "store", "--json").out)["fingerprint"]["details"]
    assert details["classes"] == ("absent" if columns is CAFFE else words[0].rpartition(" ")[2])
    shown = json.loads(roibeam("store", "show", tmp_path / "store", "--json").out)["regions"][0]
    assert (shown["class"] is None) == (shown["score"] is None) == (columns is CAFFE)
    assert ("    -      " in roibeam("store", "show", tmp_path / "store").out) == (columns is CAFFE)


def test_folders_that_an_import_does_not_touch(roibeam: Cli, tsv: Path, tmp_path: Path) -> None:
    def refused(out: Path, words: str, *options: object, source: Path = tsv) -> None:
        done = roibeam("store", "import", source, out, *options)
        assert done.code == 1 and words in done.err and done.err.count("\n") == 1, done.err

    store = tmp_path / "store"
    assert roibeam("store", "import", tsv, store).code == 0
    before = sorted((path.name, path.stat().st_mtime_ns) for path in store.iterdir())
    refused(store, "is another store already", "--shard-size", 7)
    refused(store, "is another store already", "--dtype", "float32")
    assert sorted((path.name, path.stat().st_mtime_ns) for path in store.iterdir()) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("keep me")
    refused(tmp_path / "full", "'notes.txt' is in it")
    refused(tsv, "is a file; name a folder")
    refused(tmp_path / "new", "no such file", source=tmp_path / "none.tsv")
    refused(tmp_path / "new", "choose one of float16, float32", "--dtype", "int8")
    (tmp_path / "text.tsv").write_text("a\tb\n")
    refused(tmp_path / "new", "has 2 columns", source=tmp_path / "text.tsv")
    assert not (tmp_path / "new").exists()
    busy = tmp_path / "busy"
    busy.mkdir()
    with store_lock(busy):
        refused(busy, "another run is writing this store")


@pytest.mark.slow
def test_an_import_killed_at_any_step_is_no_store_and_is_redone(tmp_path: Path) -> None:
    source = tmp_path / "features.tsv"
    source.write_bytes(b"".join(line(LXMERT, fields(name)) for name in "abc") + b"torn")

    def import_to(out: Path, kill_at: int | None = None) -> tuple[int, list[str]]:
        return in_a_fork(lambda: import_features(source, out, shard_size=2), out, kill_at)

    code, steps = import_to(tmp_path / "undisturbed")
    assert code == 0 and len(steps) > 10
    want = StoreManifest.read(tmp_path / "undisturbed" / "manifest.json").content_digest
    finished = 0
    for step in range(1, len(steps) + 1):
        out = tmp_path / f"killed{step}"
        assert import_to(out, step)[0] == KILLED
        if (out / "manifest.json").exists():
            finished += 1  # killed after its last step that counts
        else:
            with pytest.raises(FileNotFoundError):
                FeatureStore(out)
            assert import_to(out)[0] == 0
            assert [path.name for path in out.glob(".*")] == []
        assert verify_store(out, deep=True) == []
        assert StoreManifest.read(out / "manifest.json").content_digest == want
    assert finished <= 1  # only removing the lock comes after the manifest


def test_a_killed_import_goes_on_where_it_was(roibeam: Cli, tmp_path: Path) -> None:
    source = tmp_path / "features.tsv"
    source.write_bytes(b"".join(line(LXMERT, fields(name)) for name in "abcbde") + b"torn")
    command = ("store", "import", source, tmp_path / "out", "--shard-size", 2, "--max-failures", 1, "--json")
    want = json.loads(roibeam(*command[:3], tmp_path / "undisturbed", *command[4:]).out)
    steps = in_a_fork(lambda: import_features(source, tmp_path / "all", shard_size=2), tmp_path / "all")[1]
    published = [number for number, step in enumerate(steps, 1) if re.search(r"rename /\.part-0000\d\.json\.", step)]
    assert len(published) == 4
    # Killed when the third shard was to get its name: two are finished.
    code, _ = in_a_fork(lambda: import_features(source, tmp_path / "out", shard_size=2), tmp_path / "out", published[2])
    assert code == KILLED
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-0000[01].*")}
    assert len(kept) == 4 and (tmp_path / "out" / "part-00000.json").exists()
    done = roibeam(*command)
    assert done.code == 0 and "2 shards finished by an earlier run" in done.err
    got = json.loads(done.out)
    same = [key for key in want if key not in ("store", "seconds")]
    assert {key: got[key] for key in same} == {key: want[key] for key in same}
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}.items()
    assert verify_store(tmp_path / "out", deep=True) == []
    before = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    assert roibeam(*command).code == 0  # finished: again changes nothing
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == before


def test_a_killed_import_of_a_file_that_changed_is_refused(roibeam: Cli, tmp_path: Path) -> None:
    source, out = tmp_path / "features.tsv", tmp_path / "out"
    source.write_bytes(b"".join(line(LXMERT, fields(name)) for name in "abc"))
    assert roibeam("store", "import", source, out, "--shard-size", 1).code == 0
    (out / "manifest.json").unlink()  # as a kill before the end leaves it
    os.utime(source, (1, 1))
    done = roibeam("store", "import", source, out, "--shard-size", 1)
    assert done.code == 1 and "of other sources or options" in done.err and done.err.count("\n") == 1


def test_shards_of_an_extraction_are_not_taken_for_a_killed_import(roibeam: Cli, tsv: Path, tmp_path: Path) -> None:
    from store_examples import make_record, write_shard

    (tmp_path / "s").mkdir()
    write_shard(tmp_path / "s", 0, [make_record()])
    done = roibeam("store", "import", tsv, tmp_path / "s")
    assert done.code == 1 and "not of a killed import" in done.err
    assert len(list((tmp_path / "s").glob("part-*"))) == 2


@pytest.fixture
def two_stores(roibeam: Cli, tmp_path: Path) -> tuple[Path, Path]:
    """Three images; in the second store one has moved boxes, one fewer of them, and other features."""
    left = [fields(f"photo{i}", num_regions=5, seed=20 * i) for i in range(3)]
    right = [dict(each) for each in left]
    right[1]["boxes"] = right[1]["boxes"] + 0.5
    right[2] |= {name: right[2][name][:3] for name, value in right[2].items() if isinstance(value, np.ndarray)}
    right[2] |= {"num_boxes": 3, "features": right[2]["features"] * 1.05}
    for name, images in (("left", left), ("right", right)):
        (tmp_path / f"{name}.tsv").write_bytes(b"".join(line(LXMERT, each) for each in images))
        assert roibeam("store", "import", tmp_path / f"{name}.tsv", tmp_path / name).code == 0
    return tmp_path / "left", tmp_path / "right"


def test_diff_exit_codes_and_text(roibeam: Cli, two_stores: tuple[Path, Path], tmp_path: Path) -> None:
    left, right = two_stores
    same = roibeam("store", "diff", left, tmp_path / "left.tsv")  # float16 against float32
    assert same.code == 0 and same.out.splitlines()[-1].startswith("equal: boxes within 0.1 px")
    assert roibeam("store", "diff", left, tmp_path / "left.tsv", "--max-error", "1e-5").code == 1
    other = roibeam("store", "diff", left, right)
    assert other.code == 1
    assert re.search(r"matched, IoU >= 0.5 +13 \(86.7 % of left, 100.0 % of right\)", other.out)
    assert re.search(r"within 0.1 px +8 \(61.5 % of matched\)", other.out)
    assert "different: 2 regions of the left and 0 of the right have no partner of IoU >= 0.5" in other.out
    assert re.search(r"^ +5 +3 +3 +3 .* photo2$", other.out, re.MULTILINE)
    found = json.loads(roibeam("store", "diff", left, right, "--json", "--worst", 1).out)
    assert found["equal"] is False and found["num_matched"] == 13
    assert [image["image_id"] for image in found["worst"]] == ["photo2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["left", "none"], "no such file or folder: RIGHT 'none'"),
        (["left", "."], "no feature store here"),
        (["left", "right", "--match-ids", "fuzzy"], "choose one of exact, number"),
        (["left", "right", "--photos", "."], "give --html FILE too"),
        (["left", "right", "--photos", "none", "--html", "page.html"], "no such file or folder: --photos 'none'"),
        (["left", "right", "--html", "none/page.html"], "--html none/page.html: there is no folder none"),
        (["left", "right", "--html", "left"], "--html left: is a folder"),
        (["left", "right", "--max-error", "7"], "a number from 0 to 1"),
        (["left"], "RIGHT"),
    ],
)
def test_diff_says_in_one_line_why_it_cannot_compare(
    roibeam: Cli, two_stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, arguments: list, words: str
) -> None:
    monkeypatch.chdir(two_stores[0].parent)
    done = roibeam("store", "diff", *arguments)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done
    assert not Path("page.html").exists()


def test_an_unexpected_error_is_no_difference_and_a_failing_page_costs_no_figures(
    roibeam: Cli, two_stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_name = tmp_path / f"{'a' * 250}.html"  # the file written aside has a longer one than file systems take
    done = roibeam("store", "diff", *two_stores, "--html", long_name)
    assert done.code == 2 and "different: 2 regions" in done.out
    assert f"roibeam: {long_name}: the page cannot be written: File name too long" in done.err

    def torn(*arguments: object, **options: object) -> None:
        raise KeyError("torn")

    monkeypatch.setattr("roibeam.features.store_comparison.compare", torn)
    done = roibeam("store", "diff", *two_stores)
    assert done.code == 2 and "roibeam: unexpected error: KeyError: 'torn' (in " in done.err


def test_page(roibeam: Cli, two_stores: tuple[Path, Path], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i, height in enumerate((480, 480, 470)):  # the last one is another photo by now
        assert cv2.imwrite(str(photos / f"photo{i}.jpg"), np.full((height, 640, 3), 99, np.uint8))
    html = tmp_path / "page.html"
    done = roibeam("store", "diff", *two_stores, "--html", html, "--photos", photos, "--worst", 3)
    assert done.code == 1 and f"page: {html}" in done.out
    page = HtmlPage(html.read_text("utf-8"))
    canvases = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert [canvas["viewbox"] for canvas in canvases] == ["0 0 640 480"] * 4  # the equal image is not shown
    assert sum(tag == "image" for tag, _ in page.elements) == 2  # one photo on both sides
    assert f"left {two_stores[0]}, 5 regions" in page.text and f"right {two_stores[1]}, 3 regions" in page.text
    assert "470 pixels now and was 640 x 480" in page.text
    strokes = [attributes["stroke"] for _, attributes in page.elements if attributes.get("class") == "box"]
    assert len(strokes) == 10 + 8 and len(set(strokes)) == 2
    assert min(strokes.count(colour) for colour in set(strokes)) == 2  # the two without a partner
    assert "They differ." in page.text and "86.7 % of left" in page.text
    assert not [tag for tag, _ in page.elements if tag in ("script", "link", "iframe")]
    addresses = re.findall(r'(?:href|src)="([^"]{0,20})', html.read_text())
    assert all(address.startswith("data:image/jpeg;base64,"[:20]) for address in addresses)
    assert roibeam("store", "diff", *two_stores, "--html", html).code == 1  # a page of ours gives way
    notes = tmp_path / "notes.txt"
    notes.write_text("keep")
    refused = roibeam("store", "diff", *two_stores, "--html", notes)
    assert refused.code == 2 and "is there already, and roibeam did not write it" in refused.err
    assert notes.read_text() == "keep"
    empty = HtmlPage(html.read_text("utf-8"))
    assert sum(tag == "image" for tag, _ in empty.elements) == 0
    assert sum(attributes.get("class") == "empty" for _, attributes in empty.elements) == 4
    assert "name the folder of the photos with --photos" in empty.text


def test_a_page_of_equal_stores_has_no_worst_image(roibeam: Cli, two_stores: tuple[Path, Path], tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    assert roibeam("store", "diff", two_stores[0], tmp_path / "left.tsv", "--html", html).code == 0
    page = HtmlPage(html.read_text("utf-8"))
    assert page.text.index("Equal") < page.text.index("images on both sides")  # the verdict first
    assert "Worst images" not in page.text and not [tag for tag, _ in page.elements if tag == "svg"]
    assert "No picture is shown: the 3 images of both sides are equal within the tolerances" in page.text


def test_regions_have_class_and_score_and_long_hashes_are_cut(roibeam: Cli, pictures: Pictures, tmp_path: Path) -> None:
    """By name in the picture and in the table; 64 digits run out of a telephone's screen."""
    photo = min(pictures.photos.iterdir())
    made = roibeam("extract", photo, tmp_path / "other", "--detector", "toy", "--device", "cpu")
    assert "\nwarning: The toy detector knows the drawn world only." in made.out
    assert "  warning         The toy detector knows" in roibeam("store", "info", tmp_path / "other").out
    html = tmp_path / "page.html"
    assert roibeam("store", "diff", pictures.store, tmp_path / "other", "--html", html).code == 1
    page = HtmlPage(html.read_text("utf-8"))
    named = re.findall(r"(?:class \d+|ball|box|boat|hat|kite|tree|window) [01][.]\d\d", page.text)
    assert len(named) > 20 and not re.search("[0-9a-f]{40}", page.text)
    assert "Left: Random weights." in page.text and "Right: The toy detector knows the drawn world only." in page.text


def test_text_of_files_never_becomes_markup_and_ids_never_leave_the_photo_folder(roibeam: Cli, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>&amp;\"'"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "other.txt").touch()
    assert cv2.imwrite(str(tmp_path / "secret.jpg"), np.zeros((480, 640, 3), np.uint8))
    for name, seed in (("a.tsv", 0), ("b.tsv", 5)):
        ids = (hostile, "../secret", os.fspath(tmp_path / "secret"), "good")
        bad = line(LXMERT, fields(hostile + "2") | {"num_boxes": b"<b>bold</b>"})
        lines = [line(LXMERT, fields(image_id, seed=seed)) for image_id in ids]
        (tmp_path / name).write_bytes(b"".join([*lines, bad, line(LXMERT, fields("\x1b[31mred", seed=seed))]))
    html = tmp_path / "page.html"
    sides = (tmp_path / "a.tsv", tmp_path / "b.tsv")
    done = roibeam("store", "diff", *sides, "--html", html, "--photos", tmp_path / "photos")
    assert done.code == 1 and "\x1b" not in done.out
    page = HtmlPage(html.read_text("utf-8"))
    assert not [tag for tag, _ in page.elements if tag in ("script", "image", "b>")]
    assert hostile in page.text and "<b>bold</b>" in page.text
    captions = re.findall(r'<p class="quiet"><bdi>no photo of this name', html.read_text())
    assert len(captions) == 2 * 5


def test_round_trip_of_the_true_output_is_exact_in_float32(roibeam: Cli, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "formats" / "butd_tsv" / "train2014_obj36.tsv"
    for dtype, max_error in (("float32", 0), ("float16", 5e-4)):
        assert roibeam("store", "import", source, tmp_path / dtype, "--dtype", dtype).code == 0
        assert verify_store(tmp_path / dtype, deep=True) == []
        done = roibeam("store", "diff", tmp_path / dtype, source, "--max-error", max_error, "--json")
        found = json.loads(done.out)
        assert done.code == 0 and found["equal"] and found["num_same_box"] == 360
        assert (found["num_same_class"], found["num_same_attribute"], found["score_error"]) == (360, 360, 0)
        assert found["feature_error"] <= max_error


@pytest.mark.parametrize(
    ("other", "common", "regions"), [("six_columns.tsv", 3, 66), ("seven_columns_cls_prob.tsv", 2, 22)]
)
def test_layouts_agree(roibeam: Cli, shared_data: Path, tmp_path: Path, other: str, common: int, regions: int) -> None:
    """The smaller files hold the first regions of some images under their bare COCO numbers."""
    html, tsv_folder = tmp_path / "page.html", shared_data / "formats" / "butd_tsv"
    done = roibeam(
        "store", "diff", tsv_folder / other, tsv_folder / "train2014_obj36.tsv", "--match-ids", "number",
        "--max-error", 0, "--json", "--html", html, "--photos", shared_data / "images",
    )  # fmt: skip
    found = json.loads(done.out)
    assert done.code == 1 and found["num_common"] == common
    assert found["num_left_regions"] == found["num_matched"] == found["num_same_box"] == regions
    assert found["feature_error"] == 0 and found["cosine_min"] == 1
    assert found["num_same_class"] == found["num_class_pairs"] == (regions if "cls_prob" in other else 0)
    others = [difference for difference in found["differences"] if "of the left" not in difference]
    assert others == [f"{10 - common:,} images are only on the right"]
    different = [image for image in found["worst"] if image["num_left"] != image["num_right"]]
    assert 0 < len(different) <= common and html.read_text().count("data:image/jpeg;base64,") == 2 * len(different)
