"""Sources: what is found, which ids it gets, what is refused."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_files import write_text

from roibeam.extraction.photos.image_ref import PhotoReadError
from roibeam.pipelines.common.image_ids import image_id_of, path_below
from roibeam.pipelines.common.locations import location_exists, read_location
from roibeam.pipelines.data.captions.caption_files import Caption, read_captions
from roibeam.pipelines.data.datasets.caption_lists import BadRow, CaptionRow, read_caption_tsv
from roibeam.pipelines.data.datasets.coco import read_coco
from roibeam.pipelines.data.source_kinds import check_images_are_there, open_source, open_sources


def touch(folder: Path, *names: str) -> None:
    for name in names:
        write_text(folder / name, "x")


def written(path: Path, content: str | bytes) -> Path:
    write_text(path, content)
    return path


def ids(*args: object, **options: object) -> list[str]:
    return [image.image_id for image in open_source(*map(str, args), **options).images]  # type: ignore[arg-type]


def test_folder_ids_are_paths_without_extension_sorted_by_bytes(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPG", "sub/a.png", "a b é.webp", ".hidden.jpg", ".git/x.jpg", "notes.txt", "c.HEIC", "sub/d.dng")
    source = open_source(str(tmp_path))
    assert [image.image_id for image in source.images] == ["a b é", "b", "sub/a"]
    assert source.notes == [
        "2 photos left out, whose format is not read (.dng, .heic): convert to .jpg",
        "1 file without an image extension left out",
    ]
    assert ids(tmp_path, id_rule="with-extension") == ["a b é.webp", "b.JPG", "sub/a.png"]


def test_pattern_ids_are_relative_to_the_part_without_wildcards(tmp_path: Path) -> None:
    touch(tmp_path, "one/a.jpg", "one/b.png", "two/a.jpg")
    assert ids(tmp_path / "*" / "*.jpg") == ["one/a", "two/a"]
    assert ids(tmp_path / "**" / "b.*") == ["one/b"]
    touch(tmp_path, "odd[1]/c.jpg")  # an existing folder with a wildcard in its name is a folder
    assert ids(tmp_path / "odd[1]") == ["c"]


def test_coco_files_of_the_pack(made_data: Path) -> None:
    captions = made_data / "coco" / "captions_train2014.json"
    source = open_source(str(captions), image_root=str(made_data / "images"))
    assert len(source.images) == 8
    assert source.images[0].image_id == "COCO_train2014_000000000790"
    assert all(Path(image.location).is_file() for image in source.images)
    rows, notes = read_captions(str(captions))
    assert len(rows) == 40 and not notes
    assert {row.name for row in rows} == {f"{image.image_id}.jpg" for image in source.images}
    instances = made_data / "coco" / "instances_train2014.json"
    assert ids(instances, image_root=str(made_data / "images")) == [image.image_id for image in source.images]
    with pytest.raises(ValueError, match="no captions in it"):
        read_captions(str(instances))


def test_vcr_files_of_the_pack(made_data: Path) -> None:
    vcr = made_data / "formats" / "vcr"
    source = open_source(str(vcr / "train.jsonl"))
    assert source.kind == "vcr" and source.image_root == str(vcr / "vcr1images")
    assert {image.image_id for image in source.images} <= set(ids(vcr / "vcr1images"))
    assert len(source.images) == 4 and all(Path(image.location).is_file() for image in source.images)
    assert ids(vcr / "train.jsonl", image_root=str(vcr / "vcr1images"), id_rule="with-extension")[0].endswith(".jpg")
    real = open_source(str(vcr / "rows_no_images.jsonl"))
    assert real.images[1].image_id.endswith("_00.01.57.935-00.24.00.783@0")
    with pytest.raises(ValueError, match="none of 2 images looked for is there"):
        check_images_are_there(real)


def test_caption_tsv_of_the_pack(made_data: Path) -> None:
    tsv = made_data / "cc" / "local.tsv"
    source = open_source(str(tsv), image_root=str(made_data))
    assert "images/awkward/does_not_exist" in {image.image_id for image in source.images}
    assert len(source.images) == len({image.image_id for image in source.images}) == 26
    assert len(read_captions(str(tsv))[0]) == 68


def test_bad_caption_rows_are_counted_with_their_reason(made_data: Path) -> None:
    rows = list(read_caption_tsv(str(made_data / "cc" / "bad_rows.tsv")))
    reasons = {row.line: row.reason for row in rows if isinstance(row, BadRow)}
    url = "URL: download it and give the local path"
    assert reasons == {
        **dict.fromkeys((1, 6, 7, 9, 11, 12, 13), url),
        **{2: "no tab", 3: "empty caption", 4: "empty path", 5: "3 columns, expected 2", 8: "not UTF-8"},
    }


def test_caption_rows_are_read_without_quoting_and_with_any_line_end(tmp_path: Path) -> None:
    tsv = tmp_path / "c.tsv"
    tsv.write_bytes('"a ""b""\ta.jpg\r\n\nété 🐱\tsub/b.png'.encode())
    rows = list(read_caption_tsv(str(tsv)))
    assert rows == [CaptionRow(1, '"a ""b""', "a.jpg", "a"), CaptionRow(3, "été 🐱", "sub/b.png", "sub/b")]


def test_tsv_rows_cannot_leave_the_image_folder(tmp_path: Path) -> None:
    tsv = tmp_path / "c.tsv"
    tsv.write_text('up\t../secret.jpg\nroot\t/etc/x.jpg\nfine "quoted"\ta/b.jpg\n')
    rows = list(read_caption_tsv(str(tsv)))
    assert [getattr(row, "reason", None) for row in rows] == ["path leaves the image folder"] * 2 + [None]
    source = open_source(str(tsv))
    assert [image.image_id for image in source.images] == ["a/b"]
    assert source.notes == ["2 rows left out: 2 path leaves the image folder (lines 1, 2)"]


def coco(tmp_path: Path, *names: str) -> Path:
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": []}))
    return tmp_path / "coco.json"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "missing", "no such folder, file or pattern: .*missing"),
        (lambda p: p, "no images in"),
        (lambda p: coco(p, "../../etc/passwd.jpg"), "leaves the image folder"),
        (lambda p: coco(p), "no images in"),
        (lambda p: coco(p, "a.jpg", "a.png"), "two images have the id 'a'"),
        (lambda p: (touch(p, "a.jpg", "a.png"), p)[1], "two images have the id 'a'.*--id-rule with-extension"),
        (lambda p: written(p / "a.json", "{"), "not a json file"),
        (lambda p: written(p / "a.json", "[1]"), 'expected a COCO file with "images"'),
        (lambda p: written(p / "a.json", '{"images": [{"id": 1}], "annotations": []}'), "lacks"),
        (lambda p: written(p / "a.xls", "x"), "expected a folder, a glob pattern"),
        (lambda p: written(p / "a.jsonl", "{"), r"a\.jsonl', line 1: not a json object"),
        (lambda p: written(p / "a.jsonl", "\n[1]"), "line 2: expected a json object, got list"),
        (lambda p: written(p / "a.jsonl", "{}"), "line 1: expected a VCR row with img_fn"),
        (lambda p: written(p / "a.jsonl", '{"img_fn": "../a.jpg"}'), "leaves the image folder"),
        (lambda p: written(p / "a.jsonl", b"\xff"), "line 1: not a json object"),
        (lambda p: written(p / "a.tsv", "cap\thttp://x/y.jpg"), r"a\.tsv'; 1 row left out: 1 URL: .* \(line 1\)"),
    ],
)
def test_unusable_sources_are_one_clear_error(tmp_path: Path, make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_source(str(make(tmp_path)))  # type: ignore[operator]


def test_a_wrong_image_folder_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("".join(f"caption {i}\timages/{i}.jpg\n" for i in range(300)))
    with pytest.raises(ValueError, match=r"none of 50 images looked for is there.*images/0\.jpg.*--photos"):
        check_images_are_there(open_source(str(tmp_path / "c.tsv")))
    touch(tmp_path, "images/0.jpg")
    check_images_are_there(open_source(str(tmp_path / "c.tsv")))


@pytest.mark.parametrize(
    ("path", "image_id"),
    [
        ("a/b.jpg", "a/b"),
        ("a.tar.gz", "a.tar.gz"),
        ("sub.d/a", "sub.d/a"),
        (".hidden", ".hidden"),
        ("a/.jpg", "a/.jpg"),
        (".a.jpg", ".a"),
        ("a.", "a."),
    ],
)
def test_ids_drop_an_image_extension_of_the_last_part(path: str, image_id: str) -> None:
    assert image_id_of(path) == image_id
    assert image_id_of(path, id_rule="with-extension") == path
    assert path_below(f"./x//y/../{path}") == f"x/{path}"


@pytest.mark.parametrize("name", [".", "./", "a/..", "a/../."])
def test_a_caption_row_whose_path_is_the_image_folder_is_a_bad_row(tmp_path: Path, name: str) -> None:
    (tmp_path / "c.tsv").write_text(f"cap\t{name}\ncap\ta.jpg\n")
    source = open_source(str(tmp_path / "c.tsv"))
    assert [image.image_id for image in source.images] == ["a"]
    assert source.notes == ["1 row left out: 1 path names no file (line 1)"]


def test_byte_order_marks_are_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbfcap\ta.jpg\n")
    assert read_captions(str(tmp_path / "c.tsv")) == ([Caption("cap", "a.jpg")], [])
    (tmp_path / "c.json").write_bytes(b"\xef\xbb\xbf" + coco(tmp_path, "a.jpg").read_bytes())
    assert ids(tmp_path / "c.json") == ["a"]


def coco_text(tmp_path: Path, images: str, annotations: str) -> str:
    (tmp_path / "c.json").write_text(f'{{"images": {images}, "annotations": {annotations}}}')
    return str(tmp_path / "c.json")


LISTS = 'expected a COCO file with "images" and "annotations" lists'


def image(**fields: str) -> str:
    return "[{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}]"


ONE_IMAGE = image(id="1", file_name='"a.jpg"')


@pytest.mark.parametrize(
    ("images", "annotations", "words"),
    [
        (ONE_IMAGE, "null", f": {LISTS}"),
        (ONE_IMAGE, "5", f": {LISTS}"),
        (ONE_IMAGE, "[5]", r", annotations\[0\]: expected an object, got 5"),
        (ONE_IMAGE, '[{"caption": "x", "image_id": [1]}]', r", annotations\[0\]: image_id must be a whole .*\[1\]"),
        (ONE_IMAGE, '[{"caption": "x", "image_id": true}]', r", annotations\[0\]: image_id .*got true"),
        (ONE_IMAGE, '[{"caption": "x"}]', r", annotations\[0\] lacks image_id"),
        (ONE_IMAGE, '[{"caption": null, "image_id": 1}]', r", annotations\[0\]: caption must be text, got null"),
        (ONE_IMAGE, '[{"caption": "x", "image_id": 2}]', r", annotations\[0\]: the caption names image 2"),
        ('["x"]', "[]", r", images\[0\]: expected an object with id and file_name, got \"x\""),
        (image(id="1e999", file_name='"a.jpg"'), "[]", r", images\[0\]: id must be a whole .* got Infinity"),
        (image(id="1.7", file_name='"a.jpg"'), "[]", r", images\[0\]: id must be a whole number, got 1\.7"),
        (image(id="1", file_name="null"), "[]", r", images\[0\]: file_name must be text, got null"),
        (image(id="1", file_name='["x"]'), "[]", r", images\[0\]: file_name must be text, got \[\"x\"\]"),
        (image(id="1", file_name='"."'), "[]", r", images\[0\]: file_name '\.': path names no file"),
        (image(id="1", file_name='"a.\\ud800jpg"'), "[]", r", .* file_name 'a\.\\ud800jpg': .*rename the file"),
        (f'[{ONE_IMAGE[1:-1]}, {{"id": 1, "file_name": "b.jpg"}}]', "[]", r", images\[1\]: two .* id 1: 'a"),
        (image(id="9" * 5000), "[]", ": not a json file"),
    ],
)
def test_wrong_coco_entries_are_named_in_one_error(tmp_path: Path, images: str, annotations: str, words: str) -> None:
    path = coco_text(tmp_path, images, annotations)
    for read in (open_source, read_captions):
        with pytest.raises(ValueError, match=rf"c\.json'{words}") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_a_repeated_coco_image_is_one_image(tmp_path: Path) -> None:
    images = '[{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "./a.jpg"}, {"id": 2, "file_name": "a.jpg"}]'
    path = coco_text(tmp_path, images, '[{"caption": "x", "image_id": 1}, {"caption": "y", "image_id": 2}]')
    assert ids(path) == ["a"]
    assert read_coco(path).captions == [("a", "x"), ("a", "y")]


def test_a_folder_that_may_not_be_read_stops_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its photos would be missing in the store, without a message."""
    touch(tmp_path, "a.jpg", "lost+found/b.jpg")
    whole = os.scandir

    def scandir(folder: str) -> Any:  # root may read all, so that rights cannot be tried
        if "lost+found" in folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return whole(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    for source in (tmp_path, f"{tmp_path}/**/*.jpg"):
        with pytest.raises(ValueError, match=r"lost\+found/': Permission denied; make it readable, or name"):
            open_source(str(source))


def test_links_to_folders_are_not_followed_and_links_out_of_the_folder_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    touch(root, "a.jpg", "sub/b.jpg")
    touch(tmp_path, "elsewhere/c.jpg")
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "file.jpg").symlink_to(tmp_path / "elsewhere" / "c.jpg")
    (root / "own.jpg").symlink_to("sub/b.jpg")
    for name in ("sub/up", "sub/again"):  # two ways up: following them would never end
        (root / name).symlink_to(root)
    (root / "loop.jpg").symlink_to("loop.jpg")  # a link to nothing is a photo that cannot be read, not one left out
    for location in (root, root / "**", root / "**" / "*.jpg", root / "**" / "**" / "*"):
        source = open_source(str(location))
        assert [image.image_id for image in source.images] == ["a", "file", "loop", "own", "sub/b"], location
        out = "1 link to a file outside of the folder followed"
        assert source.notes == ["3 links to folders not followed", out], location
    source = open_source(str(root / "*" / "*.jpg"))
    assert [image.image_id for image in source.images] == ["sub/b"]
    assert source.notes == ["1 link to a folder not followed"]
    assert ids(root / "out") == ["c"]  # named itself, a link is a folder like any other
    touch(tmp_path, "bare/x.txt")
    (tmp_path / "bare" / "y.txt").symlink_to(tmp_path / "elsewhere" / "c.jpg")  # which is not read
    (tmp_path / "bare" / "up").symlink_to(tmp_path)
    words = r"no images in .*; 2 files without an image .*; 1 link to a folder not followed$"
    with pytest.raises(ValueError, match=words):
        open_source(str(tmp_path / "bare"))


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["p/a.jpg"], ["a"]),  # as the folder p gives, with its other photos or without
        (["p/a.jpg", "p/b.png", "p/note.txt"], ["a", "b"]),
        (["p/a.jpg", "p/sub/a.jpg"], ["a", "sub/a"]),
        (["p", "p/a.jpg"], ["a", "b", "sub/a"]),  # one photo named twice
        (["p/sub", "q/*.jpg"], ["p/sub/a", "q/a"]),
    ],
)
def test_several_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], expected: list[str]
) -> None:
    touch(tmp_path, "p/a.jpg", "p/b.png", "p/note.txt", "p/sub/a.jpg", "q/a.jpg")
    monkeypatch.chdir(tmp_path)
    source = open_sources(named)
    assert [image.image_id for image in source.images] == expected
    assert all(Path(image.location).is_file() for image in source.images)
    # What identifies the source is that of the folder: its store goes on with other photos of it, and with all.
    assert source.kind == "folder" and source.location == source.image_root


def test_several_sources_that_do_not_go_together(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "a.png", "b.jpg")
    a, png = str(tmp_path / "a.jpg"), str(tmp_path / "a.png")
    for named, words in (
        ([a, png], "two images have the id 'a'.*--id-rule with-extension"),
        ([a, "gs://bucket/b.jpg"], "of URLs, name one folder, or one pattern in quotes"),
        ([a, str(tmp_path / "c.jpg")], r"no such .*c\.jpg' \(of several arguments, the last one is the store\)"),
    ):
        with pytest.raises(ValueError, match=words):
            open_sources(named)
    both = open_sources([a, png], id_rule="with-extension")
    assert [image.image_id for image in both.images] == ["a.jpg", "a.png"]


@pytest.mark.parametrize(
    ("file", "photo", "root"),
    [
        ("annotations/coco.json", "train2014/x.jpg", "train2014"),
        ("annotations/coco.json", "images/val2017/x.jpg", "images/val2017"),
        ("coco.json", "images/x.jpg", "images"),
        ("coco.json", "x.jpg", "."),
    ],
)
def test_photos_are_found_in_the_layouts_of_data_sets(tmp_path: Path, file: str, photo: str, root: str) -> None:
    touch(tmp_path, photo, "test2015/y.jpg")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    path = coco((tmp_path / file).parent, "x.jpg")
    source = open_source(str(path))
    check_images_are_there(source)
    assert source.image_root == str(tmp_path / root) and [image.image_id for image in source.images] == ["x"]


def test_photos_that_are_nowhere_or_in_two_places_are_asked_for(tmp_path: Path) -> None:
    touch(tmp_path, "train2014/y.jpg", "annotations/note.txt")
    path = coco(tmp_path / "annotations", "x.jpg")
    with pytest.raises(ValueError, match=r"none of 1 images .*; looked also in .*/train2014'; give the folder"):
        check_images_are_there(open_source(str(path)))
    touch(tmp_path, "train2014/x.jpg", "images/x.jpg")
    with pytest.raises(ValueError, match=r"in '.*/images' and in '.*/train2014'; choose one with --photos"):
        check_images_are_there(open_source(str(path)))
    check_images_are_there(open_source(str(path), image_root=str(tmp_path / "images")))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", ["a", "one/b", "one/two/c"]),
        ("**/*.jpg", ["a", "one/two/c"]),
        ("**/two/*", ["one/two/c"]),
        ("one/**", ["b", "two/c"]),
        ("./one//**/c.*", ["two/c"]),
        ("[ao]*", ["a"]),
        ("*/b.png", ["one/b"]),
        (".*/*.jpg", [".dot/d"]),
        ("*/.e*", ["one/.e"]),
    ],
)
def test_patterns_are_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str]) -> None:
    touch(tmp_path, "a.jpg", "one/b.png", "one/two/c.jpg", ".dot/d.jpg", "one/.e.jpg")
    monkeypatch.chdir(tmp_path)
    for location in (pattern, f"{tmp_path}/{pattern}"):
        source = open_source(location)
        assert [image.image_id for image in source.images] == expected
        assert all(Path(image.location).is_file() for image in source.images)


def test_patterns_that_go_up_or_end_in_a_slash_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "one/b.jpg")
    with pytest.raises(ValueError, match=r'"\.\." after a wildcard'):
        open_source(f"{tmp_path}/*/../*.jpg")
    with pytest.raises(ValueError, match="no images in"):
        open_source(f"{tmp_path}/*/")


@pytest.mark.parametrize("column", ["image", "image_id"])
@pytest.mark.parametrize("is_dictionary", [True, False])
def test_millions_of_long_texts_in_a_parquet_are_refused(tmp_path: Path, column: str, is_dictionary: bool) -> None:
    """7 kB; taken apart, 3 million paths of 200 kB each: 800 MB were in memory at once."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["a" * 200_000]))
    table = pa.table({"image": ["a.jpg"] * len(texts)} | {column: texts})
    pq.write_table(table, tmp_path / "l.parquet", store_schema=is_dictionary)  # without: read as plain texts
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(ValueError, match=f"column '{column}' has a text of 200,000 bytes in rows 1 to 256"):
        open_source(str(tmp_path / "l.parquet"))
    assert (tmp_path / "l.parquet").stat().st_size < 30_000
    assert pool.max_memory() < max(before, 2**28)


def test_paths_longer_than_any_systems_are_bad_rows(tmp_path: Path) -> None:
    lines = [{"image": "a" * 5000}, {"image": "a.jpg", "image_id": "b" * 5000}, {"image": "a.jpg"}]
    (tmp_path / "l.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    source = open_source(str(tmp_path / "l.jsonl"))
    assert [image.image_id for image in source.images] == ["a"]
    (note,) = source.notes
    assert "1 path longer than 4096 characters" in note and "1 image_id longer than 4096 characters" in note


def test_a_folder_whose_own_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    touch(folder, "a.jpg")
    for location in (folder, folder / "**"):
        with pytest.raises(ValueError, match=r"\\udcff.* is not valid UTF-8; rename the file or the folder") as error:
            open_source(str(location))
        assert str(error.value).isprintable()


def test_names_that_are_not_utf8_are_planned_with_their_bytes_escaped(tmp_path: Path) -> None:
    names = [b"b\xff/a.jpg", b"a\\b\xff\xc3\xa9.jpg", b"a\xff.png", b"a\\\\xff.png"]
    touch(tmp_path, "fine.jpg", *map(os.fsdecode, names))
    touch(tmp_path, os.fsdecode(b"a.\xff"))  # no image: left out like any other file
    for location in (tmp_path, tmp_path / "**"):
        source = open_source(str(location))
        wanted = ["a\\\\b\\xff\u00e9", "a\\\\xff", "a\\xff", "b\\xff/a", "fine"]
        assert [image.image_id for image in source.images] == wanted
        assert source.notes == ["1 file without an image extension left out"]
        unusable = [image for image in source.images if image.location.startswith("name-not-utf8:")]
        assert [image.image_id for image in unusable] == ["a\\\\b\\xff\u00e9", "a\\xff", "b\\xff/a"]
        for image in unusable:
            assert not location_exists(image.location)
            with pytest.raises(PhotoReadError, match="the file's name is not UTF-8; rename it") as error:
                read_location(image.location)
            assert error.value.reason == "name not UTF-8"


def test_ids_that_are_too_long_are_planned_shortened(tmp_path: Path) -> None:
    assert len(ids(coco(tmp_path, "é" * 255 + ".jpg"))) == 1  # bytes count, not letters: 510
    assert ids(coco(tmp_path, "é" * 256 + ".jpg"))[0].startswith("é" * 246 + "...")  # 512 bytes
    longest = "e" * 511
    names = [longest, *("\u00e9" * 255 + end for end in ("aa", "bb"))]
    images = list(open_source(str(coco(tmp_path, *(f"{name}.jpg" for name in names)))).images)
    assert [len(image.image_id.encode()) for image in images[:1]] == [511] and images[0].image_id == longest
    long = images[1:]
    assert len({image.image_id for image in long}) == 2
    assert {len(image.image_id.encode()) for image in long} == {511}  # whole letters, three dots, 16 digits
    locations = [image.location.removeprefix(f"id-too-long:{tmp_path}/") for image in long]
    assert sorted(locations) == sorted(f"{name}.jpg" for name in names[1:])
    for image in long:
        with pytest.raises(PhotoReadError, match="an id has at most 511 bytes") as error:
            read_location(image.location)
        assert error.value.reason == "id too long"


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p / "\x1b[2J",
        lambda p: (touch(p, "\x1b[2J/a.txt"), p / "\x1b[2J")[1],
        lambda p: (touch(p, "\x1b[2J.jpg", "\x1b[2J.png"), p)[1],
        lambda p: (touch(p, "\x1b[2J.csv"), p / "\x1b[2J.csv")[1],
        lambda p: (touch(p, "\x1b[2J.json"), p / "\x1b[2J.json")[1],
        lambda p: coco(p, "\x1b[2J/../../a.jpg"),
        lambda p: coco(p, "\x1b[2J.jpg", "\x1b[2J.png"),
    ],
)
def test_errors_carry_no_control_characters(tmp_path: Path, make: object) -> None:
    with pytest.raises(ValueError, match=r"\\x1b|two images|a\.jpg") as error:
        open_source(str(make(tmp_path)))  # type: ignore[operator]
    assert str(error.value).isprintable()


def test_a_list_without_captions_names_the_columns_that_are_not_read(tmp_path: Path) -> None:
    """Guards that captions under another name do not vanish without a word."""
    (tmp_path / "list.csv").write_text("image,text_of_it,label\na.jpg,a dog,dog\n")
    (tmp_path / "a.jpg").write_bytes(b"")
    source = open_source(str(tmp_path / "list.csv"), image_root=str(tmp_path))
    assert [(each.captions, each.labels) for each in source.images] == [((), ("dog",))]
    (note,) = source.notes
    assert "no column of captions among text_of_it; --caption-column names one" in note
    read = open_source(str(tmp_path / "list.csv"), image_root=str(tmp_path), caption_column="text_of_it")
    assert [each.captions for each in read.images] == [("a dog",)] and not read.notes
