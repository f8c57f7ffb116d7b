"""Which caption belongs to which image: the rules, the report, the least share, and the same join in extract."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tiny_commands import Cli, ok, refused

from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.captions.caption_files import Caption, CaptionFile, read_captions
from roibeam.pipelines.data.captions.caption_join import CaptionJoin, JoinReport, check_match, give_captions
from roibeam.pipelines.data.captions.corpus import CaptionTable, TextColumn
from roibeam.pipelines.data.image_table import Ambiguous, Found, ImageFinder
from roibeam.pipelines.data.source_kinds import open_source


def join(captions: Iterable[Caption], ids: list[str]) -> tuple[list[tuple[str, str]], JoinReport]:
    joined = CaptionJoin(ids)
    rows = [(ids[place], text) for place, text in joined.rows(captions)]
    return rows, joined.report()


def test_captions_join_by_id_then_by_path() -> None:
    names = ["a/x.jpg", "y", "zzz", "train/q.png", "y", "w", "val/y.jpg", "00.07@1", "s"]
    ids = ["a/x.jpg", "images/y.jpg", "one/q", "two/q", "unused", "v.1/w.tar.jpg", "00.09@0", "t/s", "u/s"]
    rows, report = join([Caption(f"caption {number}", name) for number, name in enumerate(names)], ids)
    assert rows == [("a/x.jpg", "caption 0"), ("images/y.jpg", "caption 1"), ("images/y.jpg", "caption 4")]
    assert report.by_rule == {"id": 1, "path": 2, "COCO number": 0, "Flickr number": 0, "Unicode form": 0, "row": 0}
    # zzz; q of no such folder; w is w.tar there; y of val; a frame at 07
    assert (report.captions, report.joined, report.without_image, report.ambiguous) == (9, 3, 5, 1)
    assert (report.captioned_images, report.found_images) == (8, 2)
    assert (report.images, report.images_without_caption) == (9, 7)
    assert report.examples["ambiguous"] == ("s (t/s or u/s)",)
    assert report.examples["without_image"] == ("zzz", "train/q.png", "w")
    assert report.examples["without_caption"] == ("one/q", "two/q", "unused")
    assert "\n".join(report.lines()) == (
        "3 of 9 captions joined (1 by id, 2 by path); 2 of 8 captioned images found\n"
        "5 captions without image: zzz, train/q.png, w, ...\n"
        "1 caption left out: several images may be meant: s (t/s or u/s)\n"
        "7 images without caption: one/q, two/q, unused, ..."
    )


@pytest.mark.parametrize(
    ("name", "image_id", "rule"),
    [
        ("42", "COCO_train2014_000000000042", "COCO number"),
        ("000000000042", "train2014/COCO_train2014_000000000042", "COCO number"),
        ("COCO_val2014_000000000042.jpg", "000000000042.jpg", "COCO number"),
        ("COCO_train2014_000000000042", "42", "COCO number"),
        ("train2017/000000000042.jpg", "COCO_train2014_000000000042", "COCO number"),
        ("4385058960", "4385058960_b0f291553e", "Flickr number"),
        ("images/4385058960_b0f291553e_z.jpg", "flickr/4385058960", "Flickr number"),
        ("COCO_train2014_000000000042", "VG_100K/42", None),  # Visual Genome's 42 is another photo
        ("COCO_train2014_000000012345", "images/00012/00012345", None),  # row 12,345 of some list
        ("42", "images/42_big", None),
        ("042", "42", None),
        ("4385058960_b0f291553e", "4385058960_b0f291553f0", None),
        ("٤٢", "COCO_train2014_000000000042", None),
        ("1" * 5000, "1", None),
        ("\ud800", "a", None),
    ],
)
def test_numbers_of_data_sets_name_one_image(name: str, image_id: str, rule: str | None) -> None:
    assert ImageFinder(["a/b", image_id, "c"]).look_up(name) == (None if rule is None else Found(image_id, 1, rule))


def test_a_number_of_two_images_is_ambiguous() -> None:
    found = ImageFinder(["train2014/COCO_train2014_000000000042", "train2017/000000000042"]).look_up("42")
    assert isinstance(found, Ambiguous) and len(found.image_ids) == 2


@pytest.mark.parametrize(
    ("image_id", "row"),
    [
        ("images/00012/00012345", 12345),  # roibeam download
        ("00012/000120345", 120345),  # img2dataset, 10,000 samples a shard
        ("00012345", 12345),  # img2dataset, 1,000 samples a shard
        ("images/00013/00012345", 12345),  # as img2dataset's: the folder is not ours
        ("000000012345", None),  # COCO's
        ("12345", None),
    ],
)
def test_rows_of_a_list_of_urls_find_their_download(image_id: str, row: int | None) -> None:
    rows, report = join([Caption("a dog", None, 12345), Caption("a cat", None, 120345)], ["a", image_id])
    assert [place for place, _ in rows] == ([] if row is None else [image_id])
    assert report.by_rule["row"] == len(rows) and report.captioned_images == 2


def test_a_list_of_urls_is_joined_to_its_download(tmp_path: Path) -> None:
    lines = ["one\thttp://a.com/x.jpg", "", "no tab", "four\thttps://a.com/y", "five\timages/00000/00000003"]
    (tmp_path / "list.tsv").write_text("\n".join(lines))
    file = CaptionFile(str(tmp_path / "list.tsv"))
    rows, report = join(file.captions(), ["images/00000/00000000", "images/00000/00000003"])
    # Blank and bad lines count, as they do in `roibeam download`.
    assert rows == [("images/00000/00000000", "one")] + [("images/00000/00000003", text) for text in ("four", "five")]
    assert (report.by_rule["row"], report.by_rule["id"]) == (2, 1)
    assert file.notes == ["1 row left out: 1 no tab (line 3)"]


def test_sbu_captions_join_by_name_or_by_row(made_data: Path) -> None:
    path = str(made_data / "formats" / "sbu" / "sbu-captions-all.json")
    rows, report = join(CaptionFile(path).captions(), ["4385058960_b0f291553e", "images/00000/00000001"])
    assert [image_id for image_id, _ in rows] == ["4385058960_b0f291553e", "images/00000/00000001"]
    assert (report.by_rule["id"], report.by_rule["row"], report.captions) == (1, 1, 21)


def test_flickr30ks_own_file_joins_its_photos(tmp_path: Path) -> None:
    (tmp_path / "results.token").write_text("36979.jpg#0\tTwo men.\n36979.jpg#1\tMen.\n205842.jpg#0\tA dog.\nx\n")
    file = CaptionFile(str(tmp_path / "results.token"))
    rows, report = join(file.captions(), ["flickr30k-images/36979", "205842"])
    assert rows == [("flickr30k-images/36979", text) for text in ("Two men.", "Men.")] + [("205842", "A dog.")]
    assert report.captioned_images == 2 and len(file.notes) == 1


def test_too_few_matches_stop_with_a_name_of_each_side() -> None:
    _, report = join([Caption("text", f"a/{number}.jpg") for number in range(10)], ["a/3", "b/2"])
    check_match(report, min_match=0.1, captions="c.json", images="photos")
    words = (
        r"^c.json: 1 of 10 captioned images \(10 %\) are among the 2 images of photos, less than the 25 % of "
        r"--min-match. 1 of these 2 images have a caption \(a caption names 'a/0.jpg', an image is 'b/2'\): is it the "
        r"right folder and file\? If so, allow it with --min-match 0.1$"
    )
    with pytest.raises(ValueError, match=words):
        check_match(report, min_match=0.25, captions="c.json", images="photos")


def test_few_photos_of_a_whole_caption_file_are_told_what_to_allow() -> None:
    _, report = join([Caption("text", f"a/{number}.jpg") for number in range(10)], ["a/3", "a/5"])
    words = (
        r"2 of 10 captioned images \(20 %\) are among the 2 images of photos, less than the 25 % of --min-match. All "
        r"of these images have a caption, so the file is of more photos than these. That is a normal case: allow it "
        r"with --min-match 0.2$"
    )
    with pytest.raises(ValueError, match=words):
        check_match(report, min_match=0.25, captions="c.json", images="photos")


def test_a_scratch_database_without_room_says_where() -> None:
    table = ScratchDatabase("PRAGMA max_page_count = 8", "CREATE TABLE captions (caption TEXT)")
    with pytest.raises(OSError, match=r"full; is there room in TMPDIR"):
        table.add("INSERT INTO captions VALUES (?)", (("x" * 1000,) for _ in range(100)))


@pytest.mark.parametrize(
    ("ids", "words"), [(["b/2"], "names 'a/1.jpg', an image is 'b/2'; give"), ([], "'a/1.jpg'; give")]
)
def test_a_join_without_a_match_always_stops(ids: list[str], words: str) -> None:
    _, report = join([Caption("text", "a/1.jpg")], ids)
    with pytest.raises(ValueError, match=rf"none of 1 captioned image .* {words}"):
        check_match(report, min_match=0, captions="c.json", images="photos")


def test_swapped_columns_of_a_hand_made_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "list.tsv").write_text("photos/b/2.jpg\ta dog\nphotos/b/3.jpg\ta cat.\n")
    _, report = join(CaptionFile(str(tmp_path / "list.tsv")).captions(), ["b/2", "b/3"])
    words = "^c.tsv: the columns seem swapped: .* names an image, and 'a dog' names none; expected caption TAB path on"
    with pytest.raises(ValueError, match=words):
        check_match(report, min_match=0, captions="c.tsv", images="photos")


def test_a_spreadsheet_of_captions_is_a_source_and_a_caption_file(tmp_path: Path) -> None:
    """The first file that most people have."""
    (tmp_path / "mine.csv").write_text('image,caption,label\na.jpg,"A dog, too.",dog\na.jpg,,dog\n/b.jpg,A cat.,cat\n')
    file = CaptionFile(str(tmp_path / "mine.csv"))
    assert list(file) == [Caption("A dog, too.", "a.jpg")]
    assert len(file.notes) == 1 and "1 path outside the image folder" in file.notes[0]
    (tmp_path / "mine.doc").write_text("A dog.")
    with pytest.raises(ValueError, match=r"mine.doc.*the caption, a tab, the photo; a table of photos and captions as"):
        CaptionFile(str(tmp_path / "mine.doc"))
    (tmp_path / "a.jpg").touch()
    assert [image.captions for image in open_source(str(tmp_path / "mine.csv")).images] == [("A dog, too.",)]


def test_a_table_of_captions_is_a_sequence_of_rows() -> None:
    ids = TextColumn(f"image-{number}" for number in range(3))
    table = CaptionTable(ids, [(2, "two"), (0, "zero"), (2, "zwei"), (1, "ünï 🐕")])
    assert list(table) == [("image-2", "two"), ("image-0", "zero"), ("image-2", "zwei"), ("image-1", "ünï 🐕")]
    assert (len(table), table[-1], table[1:3]) == (4, table[3], [table[1], table[2]])
    assert table.captioned_ids() == ["image-0", "image-1", "image-2"]
    assert list(table.without(["image-2"])) == [("image-0", "zero"), ("image-1", "ünï 🐕")]
    assert len(CaptionTable(TextColumn([]), [])) == 0
    with pytest.raises(IndexError):
        table[4]


@pytest.fixture
def photos(made_data: Path, tmp_path: Path) -> Path:
    for number in (790, 63217, 84002):
        name = f"COCO_train2014_{number:012}.jpg"
        (tmp_path / "photos").mkdir(exist_ok=True)
        shutil.copyfile(made_data / "images" / name, tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_a_folder_gets_the_captions_of_its_photos(photos: Path, made_data: Path) -> None:
    captions = made_data / "coco" / "captions_train2014.json"
    source, given = give_captions(open_source(str(photos)), str(captions), min_match=0.25)
    expected = json.loads(captions.read_text())["annotations"]
    for image, number in zip(source.images, (790, 63217, 84002), strict=True):
        assert image.image_id == f"COCO_train2014_{number:012}"
        assert image.captions == tuple(each["caption"].strip() for each in expected if each["image_id"] == number)
    assert [len(image.captions) for image in source.images] == [5, 5, 0]
    assert (given.report.joined, given.report.found_images, given.report.captioned_images) == (10, 2, 8)
    assert source.notes == given.report.lines()
    assert source.notes[2:] == ["1 image without caption: COCO_train2014_000000084002"]
    entry = {"imgid": 0, "sentences": [{"sentid": 0, "raw": "a dog", "tokens": ["a", "dog"]}]}
    splits = {"790": "train", "63217": "val", "84002": "test"}
    rows = [{**entry, "filename": f"COCO_train2014_{n:0>12}.jpg", "split": split} for n, split in splits.items()]
    (photos.parent / "karpathy.json").write_text(json.dumps({"images": rows}))
    source, _ = give_captions(open_source(str(photos)), str(photos.parent / "karpathy.json"), min_match=0.25)
    others = "COCO_train2014_000000063217, COCO_train2014_000000084002"
    assert source.notes[-1] == f"2 images in other splits of the caption file: {others}"
    with pytest.raises(ValueError, match="brings captions of its own; leave out --captions"):
        give_captions(source, str(captions), min_match=0)


def test_another_caption_file_is_another_run(extract: Cli, photos: Path, made_data: Path, tmp_path: Path) -> None:
    command = (photos, tmp_path / "store")
    captions = made_data / "coco" / "captions_train2014.json"
    summary = json.loads(ok(extract(*command, "--captions", captions, "--json")).out.splitlines()[-1])
    assert summary["join"]["joined"] == 10 and summary["join"]["by_rule"]["id"] == 10
    assert summary["notes"][0] == "10 of 40 captions joined (10 by id); 2 of 8 captioned images found"
    again = extract(*command, "--captions", captions)
    assert again.code == 0 and "nothing to do" in again.out
    assert f"captions was {captions}, is now None" in refused(extract(*command))


def test_a_plain_list_of_captions(tmp_path: Path) -> None:
    """What people write themselves: an image by path, id or number, with one caption or several."""
    path = tmp_path / "mine.json"
    rows: list[Any] = [
        {"image": "train/a.jpg", "caption": " A dog. "}, {"image_id": 42, "id": 7, "caption": ["One.", "Two."]},
        {"id": "b", "caption": "A cat."}, {"caption": "Of nothing."}, {"image": "../c.jpg", "caption": "Outside."}, 3,
    ]  # fmt: skip
    path.write_text(json.dumps(rows))
    captions, notes = read_captions(str(path))
    read = [("train/a.jpg", "A dog."), ("42", "One."), ("42", "Two."), ("b", "A cat.")]
    assert [(each.name, each.text) for each in captions] == read
    assert "none of image, image_id, id" in notes[0] and "(entries 4, 5, 6)" in notes[0]
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match="expected "):
        read_captions(str(path))
